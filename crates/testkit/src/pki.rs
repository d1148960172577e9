//! A certificate authority for a test's control plane.

use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, SanType,
};

/// Files of an authority, and the certificates that it signs.
pub struct Pki {
    dir: PathBuf,
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Where a certificate and its key are.
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pki {
    pub fn new(dir: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test-ca");
        let ca = params.self_signed(&key)?.pem();
        fs::write(dir.join("ca.crt"), &ca)?;
        fs::write(dir.join("ca.key"), key.serialize_pem())?;
        let issuer = Issuer::from_ca_cert_pem(&ca, key)?;
        Ok(Self { dir: dir.to_owned(), ca, issuer })
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    pub fn server(&self, name: &str, addresses: &[IpAddr]) -> Result<Pair> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, params)
    }

    pub fn client(&self, name: &str, user: &str, group: &str) -> Result<Pair> {
        self.sign(name, client(user, group)?)
    }

    /// A kubeconfig with which `user` of `group` reaches `url`.
    pub fn kubeconfig(&self, name: &str, url: &str, user: &str, group: &str) -> Result<PathBuf> {
        self.write_kubeconfig(name, url, client(user, group)?)
    }

    /// The kubeconfig of a node whose certificate is valid for this time only.
    pub fn node_kubeconfig(&self, node: &str, url: &str, life: Range<SystemTime>) -> Result<PathBuf> {
        let mut params = client(&format!("system:node:{node}"), "system:nodes")?;
        (params.not_before, params.not_after) = (life.start.into(), life.end.into());
        self.write_kubeconfig(node, url, params)
    }

    fn write_kubeconfig(&self, name: &str, url: &str, params: CertificateParams) -> Result<PathBuf> {
        let pair = self.sign(name, params)?;
        let file = self.dir.join(format!("{name}.kubeconfig"));
        let (ca, certificate, key) = (self.ca(), pair.certificate, pair.key);
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: test\n  cluster:\n    server: {url}\n    certificate-authority: {}\n\
             users:\n- name: {name}\n  user:\n    client-certificate: {}\n    client-key: {}\n\
             contexts:\n- name: test\n  context:\n    cluster: test\n    user: {name}\ncurrent-context: test\n",
            ca.display(),
            certificate.display(),
            key.display()
        );
        fs::write(&file, text)?;
        Ok(file)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Result<Pair> {
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.issuer)?;
        let pair = Pair {
            certificate: self.dir.join(format!("{name}.crt")),
            key: self.dir.join(format!("{name}.key")),
        };
        // The chain, as servers show it.
        fs::write(&pair.certificate, format!("{}{}", signed.pem(), self.ca))?;
        fs::write(&pair.key, key.serialize_pem())?;
        Ok(pair)
    }
}

fn client(user: &str, group: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, user);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}
