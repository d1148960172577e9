//! The kubelet port: TLS with a certificate of our own.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::authorize::{Answers, Caller};
use crate::config::{Listen, NodeError};
use crate::node::Shared;

/// Handshakes and requests of this many clients at once; more wait in the kernel's queue.
const MOST_CLIENTS: usize = 512;

/// Starts answering on the port; returns the address it got.
pub(crate) async fn listen(
    shared: Arc<Shared>,
    listen: &Listen,
    data_dir: &Path,
    names: Vec<String>,
    shutdown: CancellationToken,
) -> Result<(SocketAddr, impl Future<Output = ()> + Send + 'static), NodeError> {
    let address = listen.address;
    let config = server_config(data_dir, names, listen.client_ca.as_deref())?;
    let listener =
        TcpListener::bind(address).await.map_err(|source| NodeError::Listen { address, source })?;
    let bound = listener.local_addr().map_err(|source| NodeError::Listen { address, source })?;
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let limit = Arc::new(tokio::sync::Semaphore::new(MOST_CLIENTS));
    let ask_api = listen.client_ca.is_some();
    let answers = Arc::new(Answers::default());
    let serve = async move {
        loop {
            let Ok(permit) = limit.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            };
            let (acceptor, shared, shutdown) = (acceptor.clone(), shared.clone(), shutdown.clone());
            let answers = answers.clone();
            tokio::spawn(async move {
                let work = async {
                    let handshake =
                        tokio::time::timeout(std::time::Duration::from_secs(10), acceptor.accept(stream))
                            .await;
                    let Ok(Ok(stream)) = handshake else { return };
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    match (ask_api, shown.and_then(Caller::of)) {
                        (false, _) => super::serve(shared, stream).await,
                        (true, Some(caller)) => {
                            super::serve_caller(shared, stream, Some((caller, answers))).await;
                        }
                        (true, None) => {}
                    }
                };
                tokio::select! {
                    () = work => {}
                    () = shutdown.cancelled() => {}
                }
                drop(permit);
            });
        }
    };
    Ok((bound, serve))
}

fn server_config(
    data_dir: &Path,
    names: Vec<String>,
    client_ca: Option<&str>,
) -> Result<rustls::ServerConfig, NodeError> {
    let failed = |error: &dyn std::fmt::Display| NodeError::Certificate(error.to_string());
    let (chain, key) = certificate(data_dir, names)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(&e))?;
    let builder = match client_ca {
        Some(pem) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate.map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
            }
            let verifier =
                rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|e| failed(&e))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| failed(&e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificate kept in the data folder; made when there is none.
fn certificate(
    data_dir: &Path,
    names: Vec<String>,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), NodeError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |error: &dyn std::fmt::Display| NodeError::Certificate(error.to_string());
    let (cert_file, key_file) = (data_dir.join("kubelet.crt"), data_dir.join("kubelet.key"));
    if !cert_file.exists() || !key_file.exists() {
        let made = rcgen::generate_simple_self_signed(names).map_err(|e| failed(&e))?;
        fs::write(&key_file, made.signing_key.serialize_pem()).map_err(|e| failed(&e))?;
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).map_err(|e| failed(&e))?;
        fs::write(&cert_file, made.cert.pem()).map_err(|e| failed(&e))?;
    }
    let pem = fs::read(&cert_file).map_err(|e| failed(&e))?;
    let chain =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
    let key = PrivateKeyDer::from_pem_file(&key_file).map_err(|e| failed(&e))?;
    Ok((chain, key))
}
