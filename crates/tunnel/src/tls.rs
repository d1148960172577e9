//! TLS settings of both ends. The provider is named, never the process default.

use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {what}: {source}")]
    Pem {
        what: &'static str,
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    #[error("{0} holds no certificate")]
    Empty(&'static str),
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    #[error("cannot verify client certificates: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

pub fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if all.is_empty() { Err(TlsError::Empty(what)) } else { Ok(all) }
}

pub fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| TlsError::Pem { what: "the private key", source })
}

pub fn roots(ca_pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(ca_pem, "the CA")? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// For a site that has its certificate (PEM), or has none yet.
pub fn client(ca_pem: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(ca_pem)?);
    Ok(match identity {
        Some((cert, private)) => {
            builder.with_client_auth_cert(certificates(cert, "the site's certificate")?, key(private)?)?
        }
        None => builder.with_no_client_auth(),
    })
}

/// For a hub: clients must show a certificate of `client_ca_pem`.
pub fn server(cert_pem: &[u8], key_pem: &[u8], client_ca_pem: &[u8]) -> Result<ServerConfig, TlsError> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(client_ca_pem)?), provider()).build()?;
    Ok(ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(cert_pem, "the hub's certificate")?, key(key_pem)?)?)
}
