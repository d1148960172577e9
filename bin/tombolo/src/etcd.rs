//! How etcd is reached over TLS.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tombolo_store::EtcdTls;

use crate::start::StoreChoice;

#[derive(clap::Args, Clone, Debug)]
pub struct EtcdArgs {
    /// The authority that signed etcd's certificates, in PEM; for https URLs
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate that this process shows etcd, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    pub etcd_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
}

impl EtcdArgs {
    /// What the files hold. An `http` URL beside them would be reached without TLS and in silence, so it is refused.
    pub fn tls(&self, store: &StoreChoice) -> Result<Option<EtcdTls>> {
        let urls = match store {
            StoreChoice::Etcd(urls) => urls.as_slice(),
            _ => &[],
        };
        let Some(ca) = &self.etcd_ca else {
            if let Some(url) = urls.iter().find(|url| is_https(url)) {
                bail!("{url} needs --etcd-ca FILE: the authority that signed etcd's certificate");
            }
            return Ok(None);
        };
        ensure!(!urls.is_empty(), "--etcd-ca goes with --store etcd=https://HOST:PORT");
        if let Some(url) = urls.iter().find(|url| !is_https(url)) {
            bail!("--etcd-ca goes with https URLs, and {url} is none");
        }
        let identity = match (&self.etcd_cert, &self.etcd_key) {
            (Some(certificate), Some(key)) => {
                Some((pem(certificate, "CERTIFICATE")?, pem(key, "PRIVATE KEY")?))
            }
            _ => None,
        };
        Ok(Some(EtcdTls { ca: pem(ca, "CERTIFICATE")?, identity }))
    }
}

fn is_https(url: &str) -> bool {
    url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

fn pem(path: &Path, what: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(text.contains(&format!("{what}-----")), "{} holds no {what} in PEM", path.display());
    Ok(text)
}
