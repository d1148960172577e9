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
