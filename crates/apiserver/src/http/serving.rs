//! The certificate that a port shows.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::bootstrap::keys::{InTime, KeyError, Keys, PemPair, SERVING_LIFE};

/// Shows a certificate that is in its time, whatever the clock did since the server started.
pub struct Serving(InTime<Arc<CertifiedKey>>);

impl Serving {
    pub fn new(keys: &Keys, names: Vec<String>, addresses: Vec<IpAddr>) -> Result<Self, KeyError> {
        let keys = keys.clone();
        let make = move || certified(&keys.server_certificate(&names, &addresses)?);
        Ok(Self(InTime::new(SERVING_LIFE, make)?))
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Serving")
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.get())
    }
}

fn certified(pair: &PemPair) -> Result<Arc<CertifiedKey>, KeyError> {
    let damaged = |e: &dyn std::fmt::Display| KeyError::Damaged(e.to_string());
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| damaged(&e))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|e| damaged(&e))?;
    let provider = rustls::crypto::ring::default_provider();
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider).map_err(|e| damaged(&e))?))
}
