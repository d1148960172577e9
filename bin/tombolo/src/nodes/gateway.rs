//! The way back to nodes of a real Kubernetes that nobody can dial.
//!
//! ```text
//!   kube-apiserver ──TLS──> gateway, port of node N ──tunnel that N dialed──> node N ──TLS ends here
//! ```
//!
//! The gateway copies bytes. TLS goes from the API server to the node, so the gateway can neither read nor ask anything, and
//! the node checks its callers as it does on its own port. Nodes show the gateway the certificate that they show the API
//! server; what they need to know to find and trust it is in the ConfigMap `kube-public/tombolo-gateway`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams};
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tombolo_api::names;
use tombolo_apiserver::NodeStreams;
use tombolo_tunnel::{Class, Connection, identity_of};

use super::NodeTunnels;

const MANAGER: &str = "tombolo-gateway";
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(10);
/// Connections of nodes and to nodes at once; more wait in the kernel's queue.
const MOST: usize = 4096;

pub struct GatewayOptions {
    /// Where nodes dial.
    pub listen: SocketAddr,
    /// What nodes are told to dial: `HOST:PORT`.
    pub url: String,
}

/// Cheap to clone; all clones are the same gateway.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    address: IpAddr,
    ports: RangeInclusive<u16>,
    /// The port of each node that was ever here.
    given: Mutex<HashMap<String, u16>>,
    tunnels: std::sync::OnceLock<NodeTunnels>,
    limit: Arc<Semaphore>,
}

impl Gateway {
    /// `address`: where the API server reaches the `ports` that stand for nodes.
    pub fn new(address: IpAddr, ports: RangeInclusive<u16>) -> Self {
        let shared = Shared {
            address,
            ports,
            given: Mutex::default(),
            tunnels: std::sync::OnceLock::new(),
            limit: Arc::new(Semaphore::new(MOST)),
        };
        let gateway = Self { shared: Arc::new(shared) };
        let welcoming = Arc::downgrade(&gateway.shared);
        let tunnels = NodeTunnels::with_welcome(Box::new(move |node, connection| {
            if let Some(shared) = welcoming.upgrade() {
                tokio::spawn(Self { shared }.welcome(node, connection));
            }
        }));
        let _ = gateway.shared.tunnels.set(tunnels);
        gateway
    }

    /// Serves until the process ends. `kubernetes` may write the ConfigMap by which nodes find the gateway.
    pub async fn run(self, kubernetes: kube::Client, data_dir: &Path, options: GatewayOptions) -> Result<()> {
        let host = options.url.rsplit_once(':').map_or(options.url.as_str(), |(host, _)| host);
        let (certificate, key) = own_certificate(data_dir, host)?;
        let clients = client_authority(&kubernetes).await?;
        let tls = server_config(&certificate, &key, &clients)?;
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        publish(&kubernetes, &options.url, &certificate).await?;
        println!("tombolo gateway https://{} (nodes find it by themselves)", options.url);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        loop {
            let permit = self.shared.limit.clone().acquire_owned().await?;
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            };
            let (gateway, acceptor) = (self.clone(), acceptor.clone());
            tokio::spawn(async move {
                gateway.admit(acceptor, stream).await;
                drop(permit);
            });
        }
    }

    /// Lets a node in that shows its certificate, and takes over the connection.
    async fn admit(&self, acceptor: tokio_rustls::TlsAcceptor, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let Some(node) = shown.and_then(|certificate| node_of(certificate)) else { return };
        let gateway = self.clone();
        let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let (gateway, node) = (gateway.clone(), node.clone());
            async move {
                let mut response = http::Response::new(String::new());
                let Some(protocol) = request.headers().get(http::header::UPGRADE).cloned() else {
                    *response.status_mut() = http::StatusCode::BAD_REQUEST;
                    return Ok::<_, std::convert::Infallible>(response);
                };
                if request.uri().path() != names::NODE_TUNNEL_PATH {
                    *response.status_mut() = http::StatusCode::NOT_FOUND;
                    return Ok(response);
                }
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    if let (Ok(io), Some(tunnels)) = (upgrade.await, gateway.shared.tunnels.get()) {
                        tunnels.accept(node, Box::new(TokioIo::new(io))).await;
                    }
                });
                *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
                let headers = response.headers_mut();
                headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
                headers.insert(http::header::UPGRADE, protocol);
                Ok(response)
            }
        });
        let server = hyper::server::conn::http1::Builder::new();
        let _ = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
    }

    /// Gives a node its port, and tells it which one.
    async fn welcome(self, node: String, connection: Connection) {
        let told = async {
            let port = self.port(&node).await?;
            let mut stream = connection.open(Class::Control).await?;
            let line = format!("{}\n", SocketAddr::new(self.shared.address, port));
            stream.write_all(line.as_bytes()).await?;
            stream.flush().await?;
            connection.closed().await;
            Ok::<(), anyhow::Error>(())
        };
        if let Err(error) = told.await {
            tracing::warn!(node, %error, "the node could not be given a port");
            connection.close("no port");
        }
    }

    /// The port that stands for a node; opened when the node comes for the first time.
    async fn port(&self, node: &str) -> Result<u16> {
        if let Some(port) = self.shared.given.lock().get(node) {
            return Ok(*port);
        }
        for port in candidates(node, &self.shared.ports) {
            if self.shared.given.lock().values().any(|taken| *taken == port) {
                continue;
            }
            let Ok(listener) = TcpListener::bind((self.shared.address, port)).await else { continue };
            self.shared.given.lock().insert(node.to_owned(), port);
            tokio::spawn(self.clone().stand_for(node.to_owned(), listener));
            tracing::info!(node, port, "the node is reached here");
            return Ok(port);
        }
        Err(anyhow!(
            "all of the {} ports are taken; start the gateway with more --ports",
            self.shared.ports.len()
        ))
    }

    async fn stand_for(self, node: String, listener: TcpListener) {
        loop {
            let Ok(permit) = self.shared.limit.clone().acquire_owned().await else { return };
            let Ok((mut near, _)) = listener.accept().await else {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            };
            let (gateway, node) = (self.clone(), node.clone());
            tokio::spawn(async move {
                let _ = near.set_nodelay(true);
                let Some(tunnels) = gateway.shared.tunnels.get() else { return };
                match tunnels.open(&node).await {
                    Some(mut far) => drop(tokio::io::copy_bidirectional(&mut near, &mut far).await),
                    None => tracing::debug!(node, "asked for while it has no tunnel"),
                }
                drop(permit);
            });
        }
    }
}

/// The ports to try for a node: always in the same order, so that a node gets the same one when the gateway restarts.
fn candidates(node: &str, ports: &RangeInclusive<u16>) -> impl Iterator<Item = u16> + use<> {
    // FNV-1a: stable across versions, unlike the standard library's hasher.
    let hash = node
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let (first, count) = (*ports.start(), ports.len().max(1) as u64);
    (0..count).map(move |step| first + ((hash + step) % count) as u16)
}

/// Which node a certificate is of.
fn node_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let identity = identity_of(certificate)?;
    let member = identity.groups.iter().any(|group| group == "system:nodes");
    identity.user.strip_prefix("system:node:").filter(|_| member).map(str::to_owned)
}

/// The authority of the cluster's client certificates, from where Kubernetes keeps it for servers that extend it.
async fn client_authority(kubernetes: &kube::Client) -> Result<String> {
    let api: Api<ConfigMap> = Api::namespaced(kubernetes.clone(), "kube-system");
    let map = api
        .get("extension-apiserver-authentication")
        .await
        .context("cannot read ConfigMap kube-system/extension-apiserver-authentication")?;
    map.data
        .and_then(|mut data| data.remove("client-ca-file"))
        .context("the cluster names no client CA, so its nodes have no certificates to show")
}

fn server_config(certificate: &str, key: &str, clients: &str) -> Result<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(clients.as_bytes()) {
        roots.add(authority?)?;
    }
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()?;
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Kept, so that nodes that know the gateway know it after a restart. Without an end: nodes read it anew from the cluster.
fn own_certificate(dir: &Path, host: &str) -> Result<(String, String)> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (certificate, key, named) =
        (dir.join("gateway.crt"), dir.join("gateway.key"), dir.join("gateway.host"));
    if std::fs::read_to_string(&named).is_ok_and(|kept| kept == host)
        && let (Ok(certificate), Ok(key)) =
            (std::fs::read_to_string(&certificate), std::fs::read_to_string(&key))
    {
        return Ok((certificate, key));
    }
    let mut params = rcgen::CertificateParams::new(vec![host.to_owned()])?;
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let pair = rcgen::KeyPair::generate()?;
    let made = params.self_signed(&pair)?;
    crate::start::write_private(&key, &pair.serialize_pem())?;
    crate::start::write_private(&certificate, &made.pem())?;
    crate::start::write_private(&named, host)?;
    Ok((made.pem(), pair.serialize_pem()))
}

/// Where every node of the cluster can read it.
async fn publish(kubernetes: &kube::Client, url: &str, certificate: &str) -> Result<()> {
    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    const GROUP: &str = "rbac.authorization.k8s.io";
    let name = names::GATEWAY_CONFIG_MAP;
    let force = PatchParams::apply(MANAGER).force();
    let metadata = json!({"name": name, "namespace": "kube-public"});
    let role = json!({"apiVersion": RBAC, "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}]});
    let binding = json!({"apiVersion": RBAC, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": "system:nodes"}]});
    let wrong = "cannot let nodes read where the gateway is";
    let roles: Api<Role> = Api::namespaced(kubernetes.clone(), "kube-public");
    roles.patch(name, &force, &Patch::Apply(&role)).await.context(wrong)?;
    let bindings: Api<RoleBinding> = Api::namespaced(kubernetes.clone(), "kube-public");
    bindings.patch(name, &force, &Patch::Apply(&binding)).await.context(wrong)?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": {"address": url, "ca.crt": certificate}});
    let api: Api<ConfigMap> = Api::namespaced(kubernetes.clone(), "kube-public");
    api.patch(name, &force, &Patch::Apply(&map)).await.context("cannot write where the gateway is")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_tried_at_the_same_ports_every_time_and_at_each_of_them() {
        let all: Vec<u16> = candidates("edge", &(100..=109)).collect();
        assert_eq!(all, candidates("edge", &(100..=109)).collect::<Vec<_>>());
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (100..=109).collect::<Vec<_>>());
        assert_ne!(
            all[0],
            candidates("other", &(100..=109)).next().expect("one"),
            "they differ for these two"
        );
    }
}
