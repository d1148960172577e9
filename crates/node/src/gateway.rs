//! A node that nobody can dial, in a cluster whose API server knows only how to dial: the node dials a gateway near the API
//! server, which gives it an address there.
//!
//! ```text
//!   kube-apiserver ──TLS──> gateway:PORT ──tunnel, opened by the node──> node
//! ```
//!
//! On the tunnel the gateway opens one control stream with a line `ADDR:PORT`, where the node is reached; every bulk stream
//! is a connection to that port, with the caller's TLS in it. The gateway is found in the ConfigMap
//! `kube-public/tombolo-gateway`; see `docs/decisions/0006-nodes-behind-nat.md`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::watch;
use tombolo_api::names;
use tombolo_tunnel::{Backoff, BoxIo, Class, Dialer, random_fraction};

use crate::TlsServer;

const FIRST_REDIAL: Duration = Duration::from_millis(500);
const LAST_REDIAL: Duration = Duration::from_secs(30);
/// Longest line that says an address.
const LONGEST: u64 = 128;

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("the cluster cannot be asked for a gateway: {0}")]
    Api(#[from] Box<kube::Error>),
    #[error("ConfigMap kube-public/{name} is incomplete: {0}", name = names::GATEWAY_CONFIG_MAP)]
    Incomplete(&'static str),
    #[error("the gateway's or the node's certificate cannot be used: {0}")]
    Certificate(String),
    #[error(transparent)]
    Dial(#[from] tombolo_tunnel::DialError),
}

/// Certificate and key that the node shows, PEM: those that it shows the API server.
#[derive(Clone)]
pub struct ClientPair {
    pub certificate: String,
    pub key: String,
}

/// Keeps a tunnel to the cluster's gateway, as long as it has one, and says in `reached_at` where that leads from. `pair` is
/// asked anew for every tunnel: certificates are renewed. Never ends.
pub async fn keep(
    client: kube::Client,
    pair: impl Fn() -> Option<ClientPair> + Send,
    kubelet: TlsServer,
    reached_at: watch::Sender<Option<SocketAddr>>,
) {
    let mut backoff = Backoff::new(FIRST_REDIAL, LAST_REDIAL);
    loop {
        let Some(shown) = pair() else {
            tokio::time::sleep(LAST_REDIAL).await;
            continue;
        };
        match find(&client, &shown).await {
            Ok(Some(dialer)) => match dialer.dial().await {
                Ok(connection) => {
                    backoff.reset();
                    while let Some((class, stream)) = connection.accept().await {
                        match class {
                            Class::Control => hear(stream, &reached_at, &dialer.host).await,
                            Class::Bulk => {
                                let kubelet = kubelet.clone();
                                tokio::spawn(async move { kubelet.serve(stream).await });
                            }
                        }
                    }
                    let why = connection.closed().await;
                    tracing::info!(gateway = dialer.host, why, "the tunnel to the gateway ended");
                }
                Err(error) => tracing::warn!(gateway = dialer.host, %error, "no tunnel to the gateway yet"),
            },
            // None, or no longer: whoever can reach the node does.
            Ok(None) => drop(reached_at.send_if_modified(|at| at.take().is_some())),
            Err(error) => tracing::debug!(%error, "no gateway found"),
        }
        tokio::time::sleep(backoff.next(random_fraction())).await;
    }
}

async fn hear(stream: BoxIo, reached_at: &watch::Sender<Option<SocketAddr>>, gateway: &str) {
    let mut line = String::new();
    let _ = BufReader::new(stream.take(LONGEST)).read_line(&mut line).await;
    match line.trim().parse::<SocketAddr>() {
        Ok(address) => {
            tracing::info!(gateway, %address, "the API server reaches this node through the gateway");
            reached_at.send_if_modified(|at| at.replace(address) != Some(address));
        }
        Err(_) => tracing::warn!(gateway, line, "the gateway does not say where this node is reached"),
    }
}

/// How to dial the gateway that the cluster names, if it names one.
async fn find(client: &kube::Client, pair: &ClientPair) -> Result<Option<Dialer>, GatewayError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    let map = match api.get_opt(names::GATEWAY_CONFIG_MAP).await {
        Ok(Some(map)) => map.data.unwrap_or_default(),
        Ok(None) => return Ok(None),
        // The right to read it comes with the gateway.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(None),
        Err(error) => return Err(Box::new(error).into()),
    };
    let address = map.get("address").ok_or(GatewayError::Incomplete("no address"))?;
    let (host, port) = address.rsplit_once(':').ok_or(GatewayError::Incomplete("no port in its address"))?;
    let ca = map.get("ca.crt").ok_or(GatewayError::Incomplete("no ca.crt"))?;
    Ok(Some(Dialer {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: port.parse().map_err(|_| GatewayError::Incomplete("no port in its address"))?,
        quic_port: None,
        tls: Arc::new(tls(ca, pair)?),
        path: names::NODE_TUNNEL_PATH.to_owned(),
        session: *uuid::Uuid::new_v4().as_bytes(),
    }))
}

fn tls(ca: &str, pair: &ClientPair) -> Result<rustls::ClientConfig, GatewayError> {
    let failed = |error: &dyn std::fmt::Display| GatewayError::Certificate(error.to_string());
    let read = |text: &str| {
        CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in read(ca)? {
        roots.add(certificate).map_err(|e| failed(&e))?;
    }
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|e| failed(&e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(&e))?
        .with_root_certificates(roots)
        .with_client_auth_cert(read(&pair.certificate)?, key)
        .map_err(|e| failed(&e))
}
