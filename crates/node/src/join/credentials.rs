//! Key, certificate and CA of a node, on disk and in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use super::JoinError;
use super::verify::{KnownTime, Tolerant};
use crate::disk;

/// Cheap to clone; whoever dials next uses what was stored last.
#[derive(Clone)]
pub struct Credentials {
    shared: Arc<Shared>,
}

/// A client certificate and its key, PEM.
pub struct Pair<'a> {
    pub certificate: &'a str,
    pub key: &'a str,
}

impl Pair<'_> {
    /// Whether it says that its holder is this node.
    pub fn is_of_node(&self, name: &str) -> bool {
        let Ok(leaf) = CertificateDer::from_pem_slice(self.certificate.as_bytes()) else { return false };
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(&leaf) else { return false };
        let user = format!("system:node:{name}");
        let subject = parsed.subject();
        subject.iter_common_name().any(|n| n.as_str() == Ok(&user))
            && subject.iter_organization().any(|n| n.as_str() == Ok("system:nodes"))
    }
}

struct Shared {
    dir: PathBuf,
    ca: String,
    known: KnownTime,
    current: RwLock<Current>,
}

struct Current {
    /// The certificate's beginning and end, seconds since 1970.
    validity: (i64, i64),
    tls: Arc<rustls::ClientConfig>,
    /// Cancelled when this is replaced: who is who is settled when a connection is made, so it has to be made anew.
    replaced: CancellationToken,
}

impl Credentials {
    pub(super) fn load(dir: &Path) -> Result<Option<Self>, JoinError> {
        let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
        let (Some(ca), Some(pair)) = (read("ca.crt"), read("client.pem")) else { return Ok(None) };
        let known = KnownTime::open(dir);
        let current = Current::new(&ca, &pair, &known)?;
        let current = RwLock::new(current);
        Ok(Some(Self { shared: Arc::new(Shared { dir: dir.to_owned(), ca, known, current }) }))
    }

    pub(super) fn store(dir: &Path, ca: &str, key: &str, certificate: &str) -> Result<Self, JoinError> {
        replace(&dir.join("ca.crt"), ca.as_bytes(), 0o644)?;
        replace(&dir.join("client.pem"), format!("{certificate}{key}").as_bytes(), 0o600)?;
        Self::load(dir)?.ok_or_else(|| JoinError::Tls("what was just written cannot be read".into()))
    }

    /// What is stored, or what is given where that was made later or by another authority: then somebody replaced it.
    pub(super) fn newest(dir: &Path, ca: &str, pair: &Pair<'_>) -> Result<Self, JoinError> {
        let given = Current::new(ca, &format!("{}{}", pair.certificate, pair.key), &KnownTime::open(dir))?;
        match Self::load(dir).ok().flatten().filter(|stored| stored.ca() == ca) {
            Some(stored) if stored.validity().0 >= given.validity.0 => Ok(stored),
            _ => Self::store(dir, ca, pair.key, pair.certificate),
        }
    }

    /// Replaces key and certificate together, on disk first.
    pub(super) fn renew(&self, key: &str, certificate: &str) -> Result<(), JoinError> {
        let pair = format!("{certificate}{key}");
        let current = Current::new(&self.shared.ca, &pair, &self.shared.known)?;
        replace(&self.shared.dir.join("client.pem"), pair.as_bytes(), 0o600)?;
        // What the site signs begins now by its clock, whatever ours says.
        self.shared.known.learn(current.validity.0);
        let old = std::mem::replace(&mut *self.shared.current.write(), current);
        old.replaced.cancel();
        Ok(())
    }

    /// The CA that signed the cluster's certificates, PEM.
    pub fn ca(&self) -> &str {
        &self.shared.ca
    }

    pub(super) fn pair(&self) -> Option<String> {
        fs::read_to_string(self.shared.dir.join("client.pem")).ok()
    }

    pub(super) fn tls(&self) -> Arc<rustls::ClientConfig> {
        self.shared.current.read().tls.clone()
    }

    /// Ends when the certificate that is current now is replaced.
    pub(super) fn replaced(&self) -> CancellationToken {
        self.shared.current.read().replaced.clone()
    }

    pub(super) fn validity(&self) -> (i64, i64) {
        self.shared.current.read().validity
    }
}

impl Current {
    fn new(ca: &str, pair: &str, known: &KnownTime) -> Result<Self, JoinError> {
        let broken = |e: &dyn std::fmt::Display| JoinError::Tls(e.to_string());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pair.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|e| broken(&e))?;
        let leaf = chain.first().ok_or_else(|| JoinError::Tls("no certificate in client.pem".into()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(leaf).map_err(|e| broken(&e))?;
        let validity = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        known.learn(validity.0);
        let key = PrivateKeyDer::from_pem_slice(pair.as_bytes()).map_err(|e| broken(&e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Tolerant::new(ca, known.clone(), provider.clone()).map_err(|e| broken(&e))?;
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| broken(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key)
            .map_err(|e| broken(&e))?;
        Ok(Self { validity, tls: Arc::new(tls), replaced: CancellationToken::new() })
    }
}

/// [`disk::replace`] with an error that names the file.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), JoinError> {
    let wrong = |source| JoinError::File { what: "cannot write", path: path.to_owned(), source };
    disk::replace(path, content, mode).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use std::time::{Duration, SystemTime};

    use super::*;

    struct Authority(String, Issuer<'static, KeyPair>);

    fn authority() -> Authority {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("signed").pem();
        Authority(pem.clone(), Issuer::from_ca_cert_pem(&pem, key).expect("issuer"))
    }

    impl Authority {
        /// A certificate of node `edge` that begins this many hours from now, and its key.
        fn node(&self, group: &str, hours: u64) -> (String, String) {
            let key = KeyPair::generate().expect("key");
            let mut params = CertificateParams::new(Vec::new()).expect("params");
            params.distinguished_name.push(DnType::CommonName, "system:node:edge");
            params.distinguished_name.push(DnType::OrganizationName, group);
            params.not_before = (SystemTime::now() + Duration::from_secs(hours * 3600)).into();
            let signed = params.signed_by(&key, &self.1).expect("signed");
            (signed.pem(), key.serialize_pem())
        }
    }

    #[test]
    fn of_two_certificates_the_one_that_was_made_last_counts() {
        let (dir, ours, others) = (tempfile::tempdir().expect("folder"), authority(), authority());
        let take = |ca: &Authority, (certificate, key): &(String, String)| {
            Credentials::newest(dir.path(), &ca.0, &Pair { certificate, key })
                .expect("credentials")
                .validity()
                .0
        };
        let (given, renewed, replaced) =
            (ours.node("system:nodes", 0), ours.node("system:nodes", 2), ours.node("system:nodes", 4));
        let first = take(&ours, &given);
        Credentials::load(dir.path())
            .expect("read")
            .expect("stored")
            .renew(&renewed.1, &renewed.0)
            .expect("renewed");
        assert!(take(&ours, &given) > first, "the kubeconfig still has the old one");
        assert!(take(&ours, &replaced) > first + 3 * 3600, "somebody gave a newer one");
        assert!(take(&others, &others.node("system:nodes", 0)) < first + 3600, "another cluster");
    }

    #[test]
    fn only_a_node_s_own_certificate_is_renewed() {
        let ca = authority();
        let is = |(certificate, key): (String, String), name| {
            Pair { certificate: &certificate, key: &key }.is_of_node(name)
        };
        assert!(is(ca.node("system:nodes", 0), "edge"));
        assert!(!is(ca.node("system:nodes", 0), "other") && !is(ca.node("system:masters", 0), "edge"));
    }
}
