//! The certificate of the kubelet port: one of the node's own at first, then one that the cluster signed.
//!
//! ```text
//!   DIR/kubelet.crt kubelet.key     made here, when there is nothing else
//!   DIR/kubelet-serving.pem         signed by the cluster: certificate and key
//! ```

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::config::NodeError;
use crate::disk;
use crate::join::{self, is_due, unix_now};

const SIGNED: &str = "kubelet-serving.pem";
const LOOK: Duration = Duration::from_secs(30);
/// How often the node's names are looked at.
const NAMES: Duration = Duration::from_secs(5);
/// After a refusal, or when nobody decided for a day.
const RETRY: Duration = Duration::from_secs(600);

/// What the port shows now.
pub(crate) struct Shown {
    current: RwLock<Arc<CertifiedKey>>,
    dir: PathBuf,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

fn failed(error: &dyn std::fmt::Display) -> NodeError {
    NodeError::Certificate(error.to_string())
}

fn certified(pem: &[u8]) -> Result<Arc<CertifiedKey>, NodeError> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|e| failed(&e))?;
    let provider = rustls::crypto::ring::default_provider();
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider).map_err(|e| failed(&e))?))
}

/// Beginning and end of a certificate, seconds since 1970, if it is for all these names.
fn validity(key: &CertifiedKey, names: &[String]) -> Option<(i64, i64)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(key.cert.first()?).ok()?;
    let listed = parsed.subject_alternative_name().ok()??;
    let for_name = |name: &String| {
        use x509_parser::extensions::GeneralName::{DNSName, IPAddress};
        listed.value.general_names.iter().any(|known| match (known, name.parse::<IpAddr>()) {
            (IPAddress(bytes), Ok(IpAddr::V4(ip))) => *bytes == ip.octets(),
            (IPAddress(bytes), Ok(IpAddr::V6(ip))) => *bytes == ip.octets(),
            (DNSName(known), Err(_)) => *known == name,
            _ => false,
        })
    };
    let life = parsed.validity();
    names.iter().all(for_name).then(|| (life.not_before.timestamp(), life.not_after.timestamp()))
}

/// Until the names are others than these.
async fn renamed(names: &impl Fn() -> Vec<String>, wanted: &[String]) {
    while names() == wanted {
        tokio::time::sleep(NAMES).await;
    }
}

impl Shown {
    /// The node's own certificate, made when there is none that can be read.
    pub fn own(dir: &Path, names: Vec<String>) -> Result<Self, NodeError> {
        let (cert_file, key_file) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
        let kept = || certified(&[fs::read(&cert_file).ok()?, fs::read(&key_file).ok()?].concat()).ok();
        let current = match kept() {
            Some(kept) => kept,
            None => {
                let made = rcgen::generate_simple_self_signed(names).map_err(|e| failed(&e))?;
                let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
                disk::replace(&key_file, key.as_bytes(), 0o600).map_err(|e| failed(&e))?;
                disk::replace(&cert_file, certificate.as_bytes(), 0o644).map_err(|e| failed(&e))?;
                certified((certificate + &key).as_bytes())?
            }
        };
        Ok(Self { current: RwLock::new(current), dir: dir.to_owned() })
    }

    /// Keeps a certificate that the cluster signed for these names, until `shutdown`.
    pub async fn keep_signed(
        self: Arc<Self>,
        client: kube::Client,
        node: String,
        names: impl Fn() -> Vec<String> + Send + Sync + 'static,
        shutdown: CancellationToken,
    ) {
        let mut signed = false;
        if let Ok(kept) =
            fs::read(self.dir.join(SIGNED)).map_err(|e| failed(&e)).and_then(|pem| certified(&pem))
        {
            signed = validity(&kept, &names()).is_some();
            if signed {
                *self.current.write() = kept;
            }
        }
        loop {
            let wanted = names();
            let current = self.current.read().clone();
            let life = validity(&current, &wanted).filter(|_| signed);
            let wait = match life {
                Some(life) if !is_due(unix_now(), life) => LOOK,
                _ => tokio::select! {
                    renewed = self.renew(&client, &node, &wanted) => match renewed {
                        Ok(()) => {
                            tracing::info!(node, "the kubelet port shows a certificate of the cluster");
                            signed = true;
                            LOOK
                        }
                        Err(error) => {
                            tracing::warn!(node, %error, "no certificate of the cluster for the kubelet port yet");
                            RETRY
                        }
                    },
                    // Nobody signs for an address that the node no longer has.
                    () = renamed(&names, &wanted) => continue,
                    () = shutdown.cancelled() => return,
                },
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = renamed(&names, &wanted) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn renew(&self, client: &kube::Client, node: &str, names: &[String]) -> Result<(), NodeError> {
        let key = rcgen::KeyPair::generate().map_err(|e| failed(&e))?;
        let signed = join::serving_certificate(client, node, names, &key).await.map_err(|e| failed(&e))?;
        let pem = format!("{signed}{}", key.serialize_pem());
        let fresh = certified(pem.as_bytes())?;
        validity(&fresh, names).ok_or_else(|| failed(&"it is not for the names that were asked for"))?;
        disk::replace(&self.dir.join(SIGNED), pem.as_bytes(), 0o600).map_err(|e| failed(&e))?;
        *self.current.write() = fresh;
        Ok(())
    }
}
