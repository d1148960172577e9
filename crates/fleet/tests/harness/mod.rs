//! Two real Kubernetes API servers (hub and member) with etcd, a controller manager at the member, and a stand-in for its
//! kubelets: pods are bound to one node and set running. The fleet and the agent run in this process.
//!
//! Not every test uses every part of it.
//!
//! Needs the fixtures of `cargo xtask fixtures`; without them a test says so and passes, in CI it fails.

#![allow(dead_code)]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::json;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tombolo_agent::{ActingAs, AgentConfig};
use tombolo_api::SiteSpec;
use tombolo_fleet::{FleetConfig, SitePeer, TunnelHub};

pub const ADMIN: &str = "test-admin-token";

/// Where the fixtures are, or `None` (said aloud; in CI a failure).
pub fn fixtures() -> Option<PathBuf> {
    let home = std::env::var("HOME").unwrap_or_default();
    let found = std::env::var("TOMBOLO_FIXTURES")
        .map(PathBuf::from)
        .unwrap_or_else(|_| Path::new(&home).join(".cache/tombolo/bin"));
    let complete = ["etcd-3.6.16/etcd", "k8s-1.36.3/kube-apiserver", "k8s-1.36.3/kube-controller-manager"];
    let missing: Vec<_> = complete.iter().filter(|f| !found.join(f).exists()).collect();
    if missing.is_empty() {
        return Some(found);
    }
    assert!(std::env::var("CI").is_err(), "fixtures are missing: {missing:?} in {}", found.display());
    eprintln!(
        "SKIPPED: fixtures are missing ({missing:?} in {}); run `cargo xtask fixtures`",
        found.display()
    );
    None
}

/// Processes that end with the test.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(binary: &Path, args: &[String], log: &Path) -> Process {
    let file = std::fs::File::create(log).expect("a log file");
    let copy = file.try_clone().expect("a second handle");
    let child = Command::new(binary).args(args).stdout(Stdio::from(file)).stderr(Stdio::from(copy)).spawn();
    Process(child.unwrap_or_else(|e| panic!("cannot start {}: {e}", binary.display())))
}

pub struct Pki {
    pub ca: String,
    pub ca_key: String,
    pub cert: String,
    pub key: String,
}

pub fn pki() -> Pki {
    let ca_key = rcgen::KeyPair::generate().expect("key");
    let mut params = rcgen::CertificateParams::new(vec![]).expect("params");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "test hub");
    let ca = params.self_signed(&ca_key).expect("ca");
    let issuer = rcgen::Issuer::from_params(&params, &ca_key);
    let key = rcgen::KeyPair::generate().expect("key");
    let names = vec!["localhost".into(), "127.0.0.1".into()];
    let cert =
        rcgen::CertificateParams::new(names).expect("params").signed_by(&key, &issuer).expect("signed");
    Pki { ca: ca.pem(), ca_key: ca_key.serialize_pem(), cert: cert.pem(), key: key.serialize_pem() }
}

/// A real API server over etcd.
pub struct Cluster {
    pub client: Client,
    pub port: u16,
    pub pki: Arc<Pki>,
    pub dir: tempfile::TempDir,
    processes: Vec<Process>,
    fixtures: PathBuf,
}

pub fn client(port: u16, ca: &str) -> Client {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse().expect("a URI"));
    let roots = tombolo_tunnel::tls::certificates(ca.as_bytes(), "ca").expect("certificates");
    config.root_cert = Some(roots.into_iter().map(|c| c.to_vec()).collect());
    config.auth_info.token = Some(ADMIN.to_owned().into());
    Client::try_from(config).expect("a client")
}

impl Cluster {
    /// `port` and the four after it are used.
    pub async fn start(fixtures: &Path, name: &str, port: u16) -> Self {
        let dir =
            tempfile::Builder::new().prefix(&format!("tombolo-{name}-")).tempdir().expect("a directory");
        let pki = Arc::new(pki());
        let at = |file: &str| dir.path().join(file).display().to_string();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).expect("written");
        write("ca.crt", &pki.ca);
        write("ca.key", &pki.ca_key);
        write("api.crt", &pki.cert);
        write("api.key", &pki.key);
        write("tokens.csv", &format!("{ADMIN},admin,admin,system:masters\n"));
        let (etcd, peer) = (port + 1, port + 2);
        let etcd_args = [
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
            format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
            "--unsafe-no-fsync=true".into(),
        ];
        let etcd = start(&fixtures.join("etcd-3.6.16/etcd"), &etcd_args, &dir.path().join("etcd.log"));
        let api_args = [
            format!("--etcd-servers=http://127.0.0.1:{}", port + 1),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--tls-cert-file={}", at("api.crt")),
            format!("--tls-private-key-file={}", at("api.key")),
            format!("--client-ca-file={}", at("ca.crt")),
            format!("--token-auth-file={}", at("tokens.csv")),
            "--enable-bootstrap-token-auth=true".into(),
            "--authorization-mode=RBAC".into(),
            "--service-account-issuer=https://tombolo.test".into(),
            format!("--service-account-key-file={}", at("api.crt")),
            format!("--service-account-signing-key-file={}", at("api.key")),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".into(),
            format!("--cert-dir={}", at("certs")),
        ];
        let api = start(&fixtures.join("k8s-1.36.3/kube-apiserver"), &api_args, &dir.path().join("api.log"));
        let client = client(port, &pki.ca);
        let nodes: Api<Node> = Api::all(client.clone());
        let began = Instant::now();
        while let Err(error) = nodes.list(&Default::default()).await {
            if began.elapsed() > Duration::from_secs(60) {
                let log = std::fs::read_to_string(dir.path().join("api.log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(15).collect();
                panic!(
                    "API server {name} does not come up: {error}; its log ends (last line first) {tail:#?}"
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Self { client, port, pki, dir, processes: vec![api, etcd], fixtures: fixtures.to_owned() }
    }

    /// The upstream controllers that make Deployments into pods.
    pub fn start_controllers(&mut self) {
        self.start_these_controllers("deployment-controller,replicaset-controller,statefulset-controller,garbage-collector-controller,namespace-controller,endpointslice-controller,job-controller,daemonset-controller");
    }

    pub fn start_these_controllers(&mut self, controllers: &str) {
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{}", self.port), "certificate-authority": self.dir.path().join("ca.crt")}}],
            "users": [{"name": "c", "user": {"token": ADMIN}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        let path = self.dir.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).expect("written");
        let args = [
            format!("--kubeconfig={}", path.display()),
            format!("--secure-port={}", self.port + 3),
            "--bind-address=127.0.0.1".into(),
            "--leader-elect=false".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=2000".into(),
            format!("--controllers={controllers}"),
        ];
        let binary = self.fixtures.join("k8s-1.36.3/kube-controller-manager");
        self.processes.push(start(&binary, &args, &self.dir.path().join("kcm.log")));
    }

    /// One node, and pods that run on it as soon as they are made.
    pub async fn start_pretend_kubelet(&self, node: &str, stop: CancellationToken) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": node}})).expect("a node");
        nodes.create(&PostParams::default(), &object).await.expect("a node");
        let status = json!({"status": {"capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"}, "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}]}});
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(status)).await.expect("a ready node");
        let (client, node) = (self.client.clone(), node.to_owned());
        tokio::spawn(async move {
            tokio::select! {
                () = run_pods(client, node) => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn run_pods(client: Client, node: String) {
    let all: Api<Pod> = Api::all(client.clone());
    let mut pods = Box::pin(watcher(all, watcher::Config::default()).default_backoff().applied_objects());
    let mut started: HashSet<String> = HashSet::new();
    while let Some(event) = pods.next().await {
        let Ok(pod) = event else { continue };
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            let _ = api.delete(&name, &kube::api::DeleteParams::default().grace_period(0)).await;
            continue;
        }
        if !started.insert(pod.uid().unwrap_or_default()) {
            continue;
        }
        if pod.spec.as_ref().is_some_and(|s| s.node_name.is_none()) {
            let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
            let _: Result<serde_json::Value, _> =
                api.create_subresource("binding", &name, &PostParams::default(), &binding).await;
        }
        let containers: Vec<_> = pod.spec.iter().flat_map(|s| &s.containers).map(|c| {
            json!({"name": c.name, "image": c.image, "imageID": "", "ready": true, "started": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
        }).collect();
        let status = json!({"status": {"phase": "Running", "podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}], "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": containers}});
        let _ = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
    }
}

/// Waits for a condition; fails with what was waited for.
pub async fn eventually<T, F, Fut>(what: &str, seconds: u64, mut probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < end, "did not happen within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// A UDP relay between agent and hub that can be cut.
pub struct Link {
    pub port: u16,
    cut: Arc<AtomicBool>,
    pub bytes: Arc<std::sync::atomic::AtomicU64>,
}

impl Link {
    pub async fn start(port: u16, to: SocketAddr) -> Self {
        let cut = Arc::new(AtomicBool::new(false));
        let bytes = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let front = Arc::new(UdpSocket::bind(("127.0.0.1", port)).await.expect("a port"));
        let (is_cut, counted) = (cut.clone(), bytes.clone());
        tokio::spawn(async move {
            let mut back: std::collections::HashMap<SocketAddr, Arc<UdpSocket>> = Default::default();
            let mut buffer = vec![0u8; 65536];
            while let Ok((length, from)) = front.recv_from(&mut buffer).await {
                if is_cut.load(Ordering::Relaxed) {
                    continue;
                }
                counted.fetch_add(length as u64 + 28, Ordering::Relaxed);
                if let std::collections::hash_map::Entry::Vacant(entry) = back.entry(from) {
                    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
                    socket.connect(to).await.expect("connected");
                    entry.insert(socket.clone());
                    let (front, is_cut, counted) = (front.clone(), is_cut.clone(), counted.clone());
                    tokio::spawn(async move {
                        let mut buffer = vec![0u8; 65536];
                        while let Ok(length) = socket.recv(&mut buffer).await {
                            if !is_cut.load(Ordering::Relaxed) {
                                counted.fetch_add(length as u64 + 28, Ordering::Relaxed);
                                let _ = front.send_to(&buffer[..length], from).await;
                            }
                        }
                    });
                }
                let _ = back[&from].send(&buffer[..length]).await;
            }
        });
        Self { port, cut, bytes }
    }

    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

/// The fleet over a hub cluster, with a QUIC endpoint behind a link that can be cut.
pub struct Hub {
    pub cluster: Cluster,
    pub tunnels: TunnelHub,
    pub link: Link,
    stop: Option<CancellationToken>,
    endpoint: quinn::Endpoint,
    pub lease: Duration,
}

impl Hub {
    /// Uses UDP ports `udp` and `udp + 1`.
    pub async fn start(cluster: Cluster, udp: u16, lease: Duration) -> Self {
        let port = cluster.port;
        let ca = cluster.pki.ca.clone();
        let serve: tombolo_fleet::Serve = Arc::new(move |io, peer| {
            let ca = ca.clone();
            tokio::spawn(tombolo_tunnel::serve_http(io, move |request| {
                as_site(request, peer.clone(), port, ca.clone())
            }));
        });
        let tunnels = TunnelHub::new(serve, Duration::from_secs(1).min(lease / 3));
        let pki = &cluster.pki;
        let tls = tombolo_tunnel::tls::server(pki.cert.as_bytes(), pki.key.as_bytes(), pki.ca.as_bytes())
            .expect("TLS");
        let address: SocketAddr = ([127, 0, 0, 1], udp).into();
        let endpoint = tombolo_tunnel::quic::listen(address, tls, b"secret").expect("a UDP port");
        let link = Link::start(udp + 1, address).await;
        let (listener, accept) = (endpoint.clone(), tunnels.clone());
        tokio::spawn(async move { accept.listen(listener).await });
        let mut hub = Self { cluster, tunnels, link, stop: None, endpoint, lease };
        hub.start_fleet();
        hub
    }

    pub fn start_fleet(&mut self) {
        let stop = CancellationToken::new();
        let pki = &self.cluster.pki;
        let url = format!("https://127.0.0.1:{}", self.cluster.port);
        let mut config = FleetConfig::new(
            self.cluster.client.clone(),
            pki.ca.clone(),
            pki.ca_key.clone(),
            url,
            self.tunnels.clone(),
        );
        config.quic_port = Some(self.link.port);
        config.lease = self.lease;
        config.shutdown = stop.clone();
        tokio::spawn(async move {
            if let Err(error) = tombolo_fleet::run(config).await {
                panic!("the fleet ended: {error}");
            }
        });
        self.stop = Some(stop);
    }

    pub fn stop_fleet(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.cancel();
        }
    }

    pub async fn token(&self, uses: u32) -> String {
        let new = tombolo_fleet::tokens::NewToken {
            ttl: Some(Duration::from_secs(600)),
            uses: Some(uses),
            needs_approval: false,
        };
        let random = *uuid::Uuid::new_v4().as_bytes();
        let now = jiff::Timestamp::now().as_second();
        tombolo_fleet::tokens::create(&self.cluster.client, &new, now, random).await.expect("a token")
    }

    pub fn agent(
        &self,
        name: &str,
        member: &Cluster,
        token: Option<String>,
        acting_as: Option<ActingAs>,
    ) -> AgentConfig {
        AgentConfig {
            site: member.client.clone(),
            site_dial: None,
            acting_as,
            hub_url: format!("https://127.0.0.1:{}", self.cluster.port),
            ca_hash: tombolo_fleet::ca_hash(&self.cluster.pki.ca),
            token,
            name: name.into(),
            spec: SiteSpec::default(),
            labels: Default::default(),
            state: format!("hub-{name}"),
            keep: None,
            hub_identity: None,
            shutdown: CancellationToken::new(),
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop_fleet();
        self.endpoint.close(0u32.into(), b"test over");
    }
}

/// What `tombolo hub` does in process: serves the hub's API to a site under the site's own name.
async fn as_site(
    mut request: http::Request<hyper::body::Incoming>,
    peer: SitePeer,
    port: u16,
    ca: String,
) -> tombolo_tunnel::Reply {
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {ADMIN}").parse().expect("a header"));
    headers.insert("impersonate-user", peer.user.parse().expect("a header"));
    for group in peer.groups.iter().map(String::as_str).chain(["system:authenticated"]) {
        headers.append("impersonate-group", group.parse().expect("a header"));
    }
    let mut tls = tombolo_tunnel::tls::client(ca.as_bytes(), None).expect("TLS");
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let answer = async {
        let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        tcp.set_nodelay(true)?;
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        let io = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, tcp).await?;
        tombolo_tunnel::forward(request, io, "localhost").await.map_err(std::io::Error::other)
    };
    answer
        .await
        .unwrap_or_else(|e| tombolo_tunnel::full(http::StatusCode::BAD_GATEWAY, "text/plain", e.to_string()))
}

pub fn logging() {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| {
        "warn,kube_client=off,kube_runtime=off,tombolo_fleet=info,tombolo_agent=info".into()
    });
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}
