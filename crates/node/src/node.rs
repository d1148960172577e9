//! The node as a whole: starts, watches its pods, hands each to a worker.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, watcher};
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use tombolo_net::{Overlay, Plugins, PodNetwork, ServiceProxy};

use crate::addresses::HostAddresses;
use crate::config::{Network, NodeConfig, NodeError, PortCertificate, RuntimeChoice, check_privileges};
use crate::context::{Context, remembered_pod};
use crate::cri::{Cri, CriConfig};
use crate::destroy::CRI_SOCKET;
use crate::disk;
use crate::embedded::{Embedded, EmbeddedConfig, PodLinks};
use crate::events::Events;
use crate::identity::Identity;
use crate::image::Store;
use crate::lock::Lock;
use crate::pod::worker::{self, Handle, Wanted};
use crate::pod::{admission, spec};
use crate::register::{self, Registration};
use crate::runtime::Runtime;
use crate::server::{Shown, TlsServer};
use crate::services::{self, Follow};

/// How long the API has to answer before a node starts the pods it remembers.
const API_FIRST: Duration = Duration::from_millis(400);
/// How long a node waits for its part of the pod network before it gives up and says so.
const SUBNET_WAIT: Duration = Duration::from_secs(120);
const KUBELET_PORT: u16 = 10250;
const PULLS_AT_ONCE: usize = 3;

/// A running node. Dropping it ends its own work as a crash would; containers run on.
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    images: Arc<Store>,
    pub(crate) tls: Option<TlsServer>,
    tasks: tokio::task::JoinSet<()>,
    _lock: Lock,
}

/// What the kubelet API and the watch both see.
pub(crate) struct Shared {
    pub ctx: Arc<Context>,
    pods: Mutex<HashMap<String, Handle>>,
}

impl Shared {
    /// Every pod of this node as the API last said.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().values().map(|handle| handle.wanted.borrow().pod().clone()).collect()
    }

    /// The name may have been another pod's before: only one that is still there counts, the youngest of several.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pods = self.pods.lock();
        let here = pods.values().filter_map(|handle| match &*handle.wanted.borrow() {
            Wanted::Here(pod) => Some(pod.clone()),
            Wanted::Gone(_) => None,
        });
        here.filter(|pod| spec::namespace(pod) == namespace && spec::name(pod) == name)
            .max_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
    }

    fn apply(&self, pod: Pod) {
        let uid = spec::uid(&pod).to_owned();
        let pod = Arc::new(pod);
        let mut pods = self.pods.lock();
        if let Some(handle) = pods.get(&uid) {
            if !handle.task.is_finished() {
                handle.wanted.send_replace(Wanted::Here(pod));
                return;
            }
            // Its worker has done its part, yet the API still has it: only a deletion can be finished again.
            if pod.metadata.deletion_timestamp.is_none() {
                return;
            }
        }
        let here: Vec<Arc<Pod>> = pods.values().filter_map(Handle::occupant).collect();
        let refusal = admission::refusal(&pod, here.iter().map(AsRef::as_ref));
        if let Some((reason, message)) = &refusal {
            self.ctx.events.warning(&pod, None, reason, message.clone());
        }
        let refusal = refusal.map(|(reason, message)| (reason.to_owned(), message));
        let handle = worker::spawn(self.ctx.clone(), Wanted::Here(pod), refusal);
        pods.insert(uid, handle);
    }

    fn gone(&self, pod: Arc<Pod>) {
        let uid = spec::uid(&pod).to_owned();
        let mut pods = self.pods.lock();
        pods.retain(|other, handle| {
            *other == uid || !handle.task.is_finished() || !matches!(*handle.wanted.borrow(), Wanted::Gone(_))
        });
        match pods.get(&uid) {
            Some(handle) => drop(handle.wanted.send_replace(Wanted::Gone(pod))),
            None => drop(pods.insert(uid, worker::spawn(self.ctx.clone(), Wanted::Gone(pod), None))),
        }
    }

    fn wake(&self, uid: &str) {
        if let Some(handle) = self.pods.lock().get(uid) {
            handle.wake.notify_waiters();
            handle.wake.notify_one();
        }
    }

    /// Gives a pod up for a reason of the node's.
    pub fn fail(&self, uid: &str, reason: &str, message: String) {
        if let Some(handle) = self.pods.lock().get(uid) {
            *handle.verdict.lock() = Some((reason.to_owned(), message));
            handle.wake.notify_one();
        }
    }

    /// Ends the workers where they stand, as a crash would: what they do may be repeated.
    fn abandon(&self) {
        self.pods.lock().drain().for_each(|(_, handle)| handle.task.abort());
    }

    /// Removes folders without a pod in them: what a node that was killed while it removed them left behind.
    fn sweep(&self, listed: &HashMap<String, ()>) {
        let folders = std::fs::read_dir(self.ctx.data_dir.join("pods")).into_iter().flatten().flatten();
        let known = self.pods.lock();
        let orphans = folders
            .filter(|entry| remembered_pod(&entry.path()).is_none())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|uid| !known.contains_key(uid) && !listed.contains_key(uid));
        for uid in orphans {
            let runtime = self.ctx.runtime.clone();
            tokio::spawn(async move {
                let removed = async {
                    runtime.stop_sandbox(&uid).await?;
                    runtime.remove_pod(&uid).await
                };
                if let Err(error) = removed.await {
                    tracing::warn!(pod = uid, %error, "the rest of a removed pod is still there");
                }
            });
        }
    }

    /// Pods kept on disk that no worker has.
    fn remembered(&self) -> Vec<Pod> {
        let folders = std::fs::read_dir(self.ctx.data_dir.join("pods")).into_iter().flatten().flatten();
        let known = self.pods.lock();
        folders
            .filter(|entry| !known.contains_key(&*entry.file_name().to_string_lossy()))
            .filter_map(|entry| remembered_pod(&entry.path()))
            .collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl Node {
    /// Starts a node: adopts what still runs, registers, and from then on does what the API says.
    pub async fn start(mut config: NodeConfig) -> Result<Node, NodeError> {
        check_privileges()?;
        // Mounts and the programs that make containers have other working folders.
        if let Ok(absolute) = std::path::absolute(&config.data_dir) {
            config.data_dir = absolute;
        }
        let identity = Identity::open(&config.data_dir, &config.name)?;
        let lock = Lock::take(&config.data_dir).await?;
        let images = Arc::new(Store::open(config.data_dir.join("images"))?);
        let (links, own) = connect(&config, &identity).await?;
        let runtime: Arc<dyn Runtime> = match &config.runtime {
            RuntimeChoice::Embedded => {
                let own = || PathBuf::from(format!("/proc/{}/exe", std::process::id()));
                Embedded::start(EmbeddedConfig {
                    root: config.data_dir.clone(),
                    id: identity.id.clone(),
                    program: config.program.clone().unwrap_or_else(own),
                    images: images.clone(),
                    links: links.clone(),
                    registries: config.registries.clone(),
                })
                .await?
            }
            RuntimeChoice::Cri(socket) => {
                let kept = config.data_dir.join(CRI_SOCKET);
                disk::replace_if_changed(&kept, socket.as_os_str().as_encoded_bytes(), 0o644)
                    .map_err(|source| NodeError::Io { what: "cri-socket", path: kept, source })?;
                Cri::start(CriConfig {
                    socket: socket.clone(),
                    root: config.data_dir.clone(),
                    id: identity.id.clone(),
                    network: own.as_ref().map(|network| (identity.bridge(), network.subnet())),
                })
                .await?
            }
        };
        let mut cluster_dns: Vec<String> = config.cluster_dns.iter().map(ToString::to_string).collect();
        if let (true, Some(network)) = (cluster_dns.is_empty(), &own) {
            cluster_dns.push(network.subnet().gateway().to_string());
        }
        let ctx = Arc::new(Context {
            events: Events::start(config.client.clone(), config.name.clone()),
            client: config.client.clone(),
            runtime,
            data_dir: config.data_dir.clone(),
            node_name: config.name.clone(),
            host_addresses: HostAddresses::new(&config.addresses),
            cluster_dns,
            cluster_domain: config.cluster_domain.clone(),
            services: RwLock::default(),
            host_ports: tokio::sync::watch::Sender::default(),
            renewals: tokio::sync::watch::Sender::default(),
            fenced: tokio::sync::Notify::new(),
            online: AtomicBool::new(false),
            pulls: tokio::sync::Semaphore::new(PULLS_AT_ONCE),
        });
        let shared = Arc::new(Shared { ctx: ctx.clone(), pods: Mutex::default() });
        let tasks = tokio::task::JoinSet::new();
        let mut node = Node { shared: shared.clone(), images, tls: None, tasks, _lock: lock };
        let shutdown = config.shutdown.clone();
        let mut kubelet_port = KUBELET_PORT;
        if let Some(listen) = &config.listen {
            let known = ctx.clone();
            let names = move || {
                let own = known.host_addresses.now();
                own.iter().chain([&known.node_name]).cloned().collect::<Vec<_>>()
            };
            let certificate: Arc<dyn rustls::server::ResolvesServerCert> = match &listen.certificate {
                PortCertificate::Given(certificate) => certificate.clone(),
                choice => {
                    let shown = Arc::new(Shown::own(&config.data_dir, names())?);
                    if matches!(choice, PortCertificate::Requested) {
                        let reached_at = config.reached_at.clone();
                        // Those that the node's status has: nobody signs for others.
                        let names = move || match reached_at.as_ref().and_then(|at| *at.borrow()) {
                            Some(gateway) => vec![gateway.ip().to_string()],
                            None => names(),
                        };
                        let (client, name) = (ctx.client.clone(), config.name.clone());
                        node.tasks.spawn(shown.clone().keep_signed(client, name, names, shutdown.clone()));
                    }
                    shown
                }
            };
            let server = TlsServer::new(shared.clone(), certificate, listen.client_ca.as_deref())?;
            node.tls = Some(server.clone());
            let (bound, serve) = crate::server::listen(server, listen.address, shutdown.clone()).await?;
            kubelet_port = bound.port();
            node.tasks.spawn(serve);
        }
        let registration = Registration {
            labels: config.labels.clone(),
            taints: config.taints.clone(),
            kubelet_port,
            reached_at: config.reached_at.clone(),
            pod_cidr: config.pod_cidr.map(|c| c.to_string()),
            pressure: crate::pressure::watch(
                config.upkeep.clone(),
                config.data_dir.clone(),
                shutdown.clone(),
            ),
            links,
        };
        node.tasks.spawn(crate::housekeeping::run(
            shared.clone(),
            config.upkeep.clone(),
            registration.pressure.clone(),
            shutdown.clone(),
        ));
        let (zone, zones) = tokio::sync::watch::channel(Arc::default());
        let proxy = own.as_ref().filter(|_| config.service_proxy).map(|network| {
            let subnet = network.subnet();
            ServiceProxy::new(&identity.id, &config.name, subnet, config.cluster_cidr.unwrap_or(subnet))
        });
        if let (Some(services), Some(network)) = (config.service_cidr, &own) {
            network.route_services(services)?;
        }
        if let (true, Some(network)) = (config.overlay, &own) {
            let local = crate::peers::local(&ctx.host_addresses.now())
                .ok_or_else(|| NodeError::Overlay("the node has no IPv4 address".into()))?;
            let overlay = Overlay::open(&identity.overlay(), local, network.subnet())
                .map_err(|e| NodeError::Overlay(e.to_string()))?;
            node.tasks.spawn(crate::peers::follow(ctx.clone(), overlay, shutdown.clone()));
        }
        let follow = Follow { ctx: ctx.clone(), proxy, zone, shutdown: shutdown.clone() };
        node.tasks.spawn(follow.run());
        if let (true, Some(network)) = (config.cluster_dns.is_empty(), &own) {
            let address = network.subnet().gateway().into();
            node.tasks.spawn(services::serve_names(address, zones, shutdown.clone()));
        }
        node.tasks.spawn(register::run(ctx.clone(), registration, shutdown.clone()));
        let (looking, stop) = (ctx.clone(), shutdown.clone());
        node.tasks.spawn(async move { looking.host_addresses.follow(stop).await });
        node.tasks.spawn(follow_addresses(shared.clone(), shutdown.clone()));
        node.tasks.spawn(crate::leases::follow(ctx.clone(), shutdown.clone()));
        node.tasks.spawn(follow_pods(shared.clone(), shutdown.clone()));
        node.tasks.spawn(follow_runtime(shared.clone(), shutdown.clone()));
        Ok(node)
    }

    /// The node's images: import, list, remove.
    pub fn images(&self) -> &Arc<Store> {
        &self.images
    }

    /// Returns when the node's own tasks have ended after `shutdown`. Containers keep running.
    pub async fn stopped(mut self) {
        while self.tasks.join_next().await.is_some() {}
        self.shared.abandon();
    }
}

/// The way pods come onto the network, and the network itself if it is the node's own.
async fn connect(
    config: &NodeConfig,
    identity: &Identity,
) -> Result<(PodLinks, Option<PodNetwork>), NodeError> {
    if let Network::Plugins { configurations, programs } = &config.network {
        let plugins = Plugins::new(configurations, programs, &attachments(&config.data_dir));
        return Ok((PodLinks::Cluster(plugins), None));
    }
    let subnet = match config.pod_cidr {
        Some(subnet) => subnet,
        None => assigned_subnet(config).await?,
    };
    let network = PodNetwork::open(&identity.bridge(), subnet)?;
    Ok((PodLinks::own(network.clone()), Some(network)))
}

/// What the network plugins gave to each pod.
pub(crate) fn attachments(data_dir: &Path) -> PathBuf {
    data_dir.join("network")
}

/// Waits for the cluster to give this node a part of the pod network.
async fn assigned_subnet(config: &NodeConfig) -> Result<tombolo_net::Subnet, NodeError> {
    let kept = config.data_dir.join("pod-cidr");
    if let Some(subnet) = std::fs::read_to_string(&kept).ok().and_then(|text| text.trim().parse().ok()) {
        return Ok(subnet);
    }
    let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(config.client.clone());
    let deadline = tokio::time::Instant::now() + SUBNET_WAIT;
    let mut pause = Duration::from_millis(10);
    while tokio::time::Instant::now() < deadline {
        match api.get_opt(&config.name).await {
            Ok(Some(node)) => {
                let cidr = node.spec.and_then(|spec| spec.pod_cidr);
                if let Some(subnet) = cidr.and_then(|text| text.parse::<tombolo_net::Subnet>().ok()) {
                    if let Err(error) = disk::replace(&kept, subnet.to_string().as_bytes(), 0o644) {
                        tracing::warn!(file = %kept.display(), %error, "a start without the API will lack the pod network");
                    }
                    return Ok(subnet);
                }
            }
            // Only a node that is there is given anything.
            Ok(None) => {
                if let Err(error) = register::announce(&api, config).await {
                    tracing::warn!(node = config.name, %error, "cannot register yet");
                }
            }
            Err(error) => tracing::warn!(node = config.name, %error, "cannot ask for a pod network yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    Err(NodeError::NoPodCidr(config.name.clone()))
}

/// Follows the pods bound to this node. What the API does not list (any more) is stopped; while it cannot be asked,
/// what is remembered is run.
async fn follow_pods(shared: Arc<Shared>, shutdown: CancellationToken) {
    let api: Api<Pod> = Api::all(shared.ctx.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", shared.ctx.node_name));
    let stream = watcher(api, config);
    tokio::pin!(stream);
    let mut listed: HashMap<String, ()> = HashMap::new();
    let mut heard = false;
    let start = tokio::time::sleep(API_FIRST);
    tokio::pin!(start);
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            () = &mut start, if !heard => {
                heard = true;
                for pod in shared.remembered() {
                    tracing::info!(pod = spec::name(&pod), namespace = spec::namespace(&pod), "started from what the node remembers");
                    shared.apply(pod);
                }
                continue;
            }
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                tracing::debug!(node = shared.ctx.node_name, %error, "the watch on pods broke");
                shared.ctx.set_online(false);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Some(Ok(event)) => {
                // The first event of a list comes before the API has answered.
                if !matches!(event, watcher::Event::Init) {
                    shared.ctx.set_online(true);
                }
                match event {
                    watcher::Event::Init => listed.clear(),
                    watcher::Event::InitApply(pod) => {
                        listed.insert(spec::uid(&pod).to_owned(), ());
                        shared.apply(pod);
                    }
                    watcher::Event::InitDone => {
                        heard = true;
                        let known: Vec<Arc<Pod>> = shared
                            .pods()
                            .into_iter()
                            .chain(shared.remembered().into_iter().map(Arc::new))
                            .collect();
                        for pod in known.into_iter().filter(|pod| !listed.contains_key(spec::uid(pod))) {
                            shared.gone(pod);
                        }
                        shared.sweep(&listed);
                    }
                    watcher::Event::Apply(pod) => shared.apply(pod),
                    watcher::Event::Delete(pod) => shared.gone(Arc::new(pod)),
                }
            }
        }
    }
}

/// Pods say where their node is.
async fn follow_addresses(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut changes = shared.ctx.host_addresses.changes();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = changes.changed() => {
                let pods: Vec<String> = shared.pods.lock().keys().cloned().collect();
                pods.iter().for_each(|uid| shared.wake(uid));
            }
        }
    }
}

async fn follow_runtime(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut changes = shared.ctx.runtime.changes();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            uid = changes.recv() => match uid {
                Some(uid) => shared.wake(&uid),
                None => return,
            },
        }
    }
}
