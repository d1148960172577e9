//! The kubelet port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::authorize::{Answers, Caller};
use crate::config::NodeError;
use crate::node::Shared;

/// Handshakes and requests of this many clients at once; more wait in the kernel's queue.
const MOST_CLIENTS: usize = 512;
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves the kubelet API to clients that show who they are; cheap to clone.
#[derive(Clone)]
pub struct TlsServer {
    shared: Arc<Shared>,
    acceptor: tokio_rustls::TlsAcceptor,
    /// Whether the API server is asked what a client may do.
    ask_api: bool,
    answers: Arc<Answers>,
}

impl TlsServer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        certificate: Arc<dyn rustls::server::ResolvesServerCert>,
        client_ca: Option<&str>,
    ) -> Result<Self, NodeError> {
        let config = server_config(certificate, client_ca)?;
        Ok(Self {
            shared,
            acceptor: tokio_rustls::TlsAcceptor::from(Arc::new(config)),
            ask_api: client_ca.is_some(),
            answers: Arc::default(),
        })
    }

    /// Until the client hangs up.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let handshake = tokio::time::timeout(HANDSHAKE, self.acceptor.accept(io)).await;
        let Ok(Ok(stream)) = handshake else { return };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        match (self.ask_api, shown.and_then(Caller::of)) {
            (false, _) => super::serve(self.shared.clone(), stream).await,
            (true, Some(caller)) => {
                super::serve_caller(self.shared.clone(), stream, Some((caller, self.answers.clone()))).await;
            }
            (true, None) => {}
        }
    }
}

/// Starts answering on the port; returns the address it got.
pub(crate) async fn listen(
    server: TlsServer,
    address: SocketAddr,
    shutdown: CancellationToken,
) -> Result<(SocketAddr, impl Future<Output = ()> + Send + 'static), NodeError> {
    let listener =
        tombolo_net::listen(address).await.map_err(|source| NodeError::Listen { address, source })?;
    let bound = listener.local_addr().map_err(|source| NodeError::Listen { address, source })?;
    let limit = Arc::new(tokio::sync::Semaphore::new(MOST_CLIENTS));
    let serve = async move {
        loop {
            let Ok(permit) = limit.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (server, shutdown) = (server.clone(), shutdown.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = server.serve(stream) => {}
                    () = shutdown.cancelled() => {}
                }
                drop(permit);
            });
        }
    };
    Ok((bound, serve))
}

fn server_config(
    certificate: Arc<dyn rustls::server::ResolvesServerCert>,
    client_ca: Option<&str>,
) -> Result<rustls::ServerConfig, NodeError> {
    let failed = |error: &dyn std::fmt::Display| NodeError::Certificate(error.to_string());
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
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
