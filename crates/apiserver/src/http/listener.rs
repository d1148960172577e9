//! Accepting connections: TLS with optional client certificates, HTTP/1.1 and HTTP/2 on one port.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::aside::Aside;
use crate::auth::outdated::Verifier;
use crate::auth::{Identity, x509};
use crate::bootstrap::keys::KeyError;
use crate::http::gathering::Gathering;
use crate::http::http1;
use crate::http::serving::Serving;
use crate::http::status::Failure;
use crate::http::wire::Wire;
use crate::server::Server;
use crate::upgrade::BoxIo;

/// A client that connects but does not finish its TLS handshake is let go after this long.
const HANDSHAKE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    #[error("cannot set up TLS: {0}")]
    Certificate(String),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot publish the server's address: {0}")]
    Publish(#[source] Failure),
}

/// A bound port. Dropping it does not stop serving: the server's shutdown does.
pub struct Listening {
    pub address: SocketAddr,
}

fn knows_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

pub fn tls_config(ca: &str, serving: Arc<Serving>) -> Result<rustls::ServerConfig, ListenError> {
    let broken = |e: &dyn std::fmt::Display| ListenError::Certificate(e.to_string());
    let mut provider = rustls::crypto::ring::default_provider();
    // As Go's servers do where the processor knows AES: the shorter key first, whatever order the client has. It is as safe for
    // longer than any of these connections lasts, and quicker. Elsewhere the client's order stands.
    let knows_aes = knows_aes();
    if knows_aes {
        provider
            .cipher_suites
            .sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    }
    let provider = Arc::new(provider);
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.map_err(|e| broken(&e))?)?;
    }
    let verifier = Arc::new(Verifier::new(roots, provider.clone()).map_err(|e| broken(&e))?);
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(serving);
    config.ignore_client_order = knows_aes;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Accepts until `stop`; every connection is one tracked task.
pub async fn accept(
    server: Server,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let acceptor = tokio_rustls::TlsAcceptor::from(tls);
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, or a client that left: neither ends the server.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
        };
        let (server, acceptor) = (server.clone(), acceptor.clone());
        tracker.spawn(async move { secure(server, acceptor, stream).await });
    }
}

async fn secure(server: Server, acceptor: tokio_rustls::TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(Wire(stream))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let identity = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first())
        .and_then(|c| x509::identity(c))
        .map(Arc::new);
    // In a box, so that the code of HTTP is there once.
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => serve(server, Box::new(Gathering::new(stream)), identity).await,
        _ => http1::serve(server, Box::new(stream), identity).await,
    }
}

/// Serves HTTP/1.1 or HTTP/2 on one byte stream until it ends or the server stops.
pub async fn serve(server: Server, io: BoxIo, identity: Option<Arc<Identity>>) {
    let stop = server.stopping();
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (server, identity) = (server.clone(), identity.clone());
        // In a box, which is gone once there is an answer: a connection holds the room for this as long as it lives, and
        // a watch, or a client that thinks, lives long.
        Box::pin(async move {
            let response = server.answer(request.map(Into::into), identity).await;
            Ok::<_, std::convert::Infallible>(response)
        })
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(60))
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .max_header_list_size(64 * 1024)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(30));
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(io), service));
    let (mut stopping, mut stopped) = (Aside::default(), pin!(stop.cancelled()));
    let result = std::future::poll_fn(|cx| {
        if stopping.poll(cx, |cx| stopped.as_mut().poll(cx)).is_ready() {
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}
