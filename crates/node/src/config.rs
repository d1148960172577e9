//! What a node is told when it starts.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tombolo_net::Subnet;

/// Which program makes the containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// Our own binary and a shim per pod.
    #[default]
    Embedded,
    /// A runtime behind a CRI socket, such as containerd.
    Cri(PathBuf),
}

/// Who connects pods to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// The node itself: a bridge, addresses, services, names.
    #[default]
    Own,
    /// The network plugins (CNI) of the cluster the node joined, configured in one folder, with programs in others.
    Plugins { configurations: PathBuf, programs: Vec<PathBuf> },
}

/// The kubelet port.
#[derive(Clone, Debug)]
pub struct Listen {
    pub address: SocketAddr,
    /// Only clients with a certificate signed by one of these authorities (PEM) get in, and the API server is asked what
    /// they may do. `None` lets in anybody who
    /// reaches the port, with the power to run commands in every pod: for tests on loopback only.
    pub client_ca: Option<String>,
    pub certificate: PortCertificate,
}

/// Which certificate the kubelet port shows.
#[derive(Clone, Debug, Default)]
pub enum PortCertificate {
    /// One of the node's own making, which no authority vouches for.
    #[default]
    Own,
    /// One that the cluster signs (signer `kubernetes.io/kubelet-serving`); the node's own until somebody approves it.
    Requested,
    Given(std::sync::Arc<dyn rustls::server::ResolvesServerCert>),
}

/// When logs are rotated, images are removed and pods are evicted. The defaults are the kubelet's.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// How often the machine is looked at.
    pub round: Duration,
    /// A log is rotated at this size; this many files of it are kept, the current one included.
    pub largest_log: u64,
    pub log_files: usize,
    /// Unused images are removed from the first figure on, down to the second (percent of the disk in use).
    pub collect_above: u64,
    pub collect_to: u64,
    /// With less the machine is under pressure, and pods have to go.
    pub least_memory: u64,
    pub least_disk_percent: u64,
    /// Where the kernel says how much memory there is.
    pub meminfo: PathBuf,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            round: Duration::from_secs(10),
            largest_log: 10 << 20,
            log_files: 5,
            collect_above: 85,
            collect_to: 80,
            least_memory: 100 << 20,
            least_disk_percent: 10,
            meminfo: "/proc/meminfo".into(),
        }
    }
}

#[derive(Clone)]
pub struct NodeConfig {
    /// The API server this node belongs to.
    pub client: kube::Client,
    pub name: String,
    /// Everything the node keeps: images, pods, volumes, its own identity. One node per folder.
    pub data_dir: PathBuf,
    pub runtime: RuntimeChoice,
    pub network: Network,
    /// Where pod addresses come from. Without it the node waits for `spec.podCIDR` of its Node object.
    pub pod_cidr: Option<Subnet>,
    /// Where the pods of all nodes of the site have their addresses. `None`: this node's own part.
    pub cluster_cidr: Option<Subnet>,
    /// The service network: made reachable for programs on the node even without a default route.
    pub service_cidr: Option<Subnet>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// The first one is the node's InternalIP. Empty: found out.
    pub addresses: Vec<IpAddr>,
    /// Name servers pods use. Empty: the node answers itself, on its bridge.
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// Where the kubelet API listens with TLS. `None`: only [`crate::Node::serve_stream`].
    pub listen: Option<Listen>,
    /// Where the control plane reaches the kubelet API, if not at the node's own address: behind NAT, at a gateway
    /// ([`crate::gateway`]).
    pub reached_at: Option<tokio::sync::watch::Receiver<Option<SocketAddr>>>,
    /// The program that is started again to make containers; it must call [`crate::reexec::maybe_run`] first.
    /// `None`: this very program.
    pub program: Option<PathBuf>,
    /// Route services on this node (ClusterIP, NodePort). Off where another proxy does, as in a cluster with network
    /// plugins of its own.
    pub service_proxy: bool,
    /// Tie the pod networks of all nodes of the site together (VXLAN). Off where another network plugin does.
    pub overlay: bool,
    pub registries: crate::image::Registries,
    pub upkeep: Upkeep,
    /// Ends the node's own tasks; containers keep running.
    pub shutdown: CancellationToken,
}

impl NodeConfig {
    /// A node with everything at its default.
    pub fn new(client: kube::Client, name: impl Into<String>, data_dir: impl Into<PathBuf>) -> NodeConfig {
        NodeConfig {
            client,
            name: name.into(),
            data_dir: data_dir.into(),
            runtime: RuntimeChoice::Embedded,
            network: Network::Own,
            pod_cidr: None,
            cluster_cidr: None,
            service_cidr: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            addresses: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            listen: None,
            reached_at: None,
            program: None,
            service_proxy: true,
            overlay: false,
            registries: Default::default(),
            upkeep: Upkeep::default(),
            shutdown: CancellationToken::new(),
        }
    }
}

#[derive(Debug, Error)]
pub enum NodeError {
    #[error(
        "a node needs root: it makes namespaces, mounts, cgroups and network links; missing {0}. Run it with sudo"
    )]
    Privileges(String),
    #[error("{what} ({path}): {source}")]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("data folder {path} belongs to node {found}; give --data-dir another folder or use that name")]
    OtherNode { path: PathBuf, found: String },
    #[error("a node runs on data folder {path} ({what}); stop it first: {stop}")]
    Running { path: PathBuf, what: String, stop: String },
    #[error(
        "the node has no pod network: set --pod-cidr, or have the cluster assign spec.podCIDR to node {0}"
    )]
    NoPodCidr(String),
    #[error(transparent)]
    Runtime(#[from] crate::runtime::RuntimeError),
    #[error(transparent)]
    Network(#[from] tombolo_net::PodNetworkError),
    #[error(transparent)]
    Images(#[from] crate::image::StoreError),
    #[error("kubelet API on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("network between nodes: {0}")]
    Overlay(String),
    #[error("something of the node is left on this machine: {0}")]
    Left(String),
    #[error("kubelet certificate: {0}")]
    Certificate(String),
}

/// The capabilities a node cannot do without.
pub fn check_privileges() -> Result<(), NodeError> {
    use caps::{CapSet, Capability};
    let needed = [
        Capability::CAP_SYS_ADMIN,
        Capability::CAP_NET_ADMIN,
        Capability::CAP_CHOWN,
        Capability::CAP_SETUID,
        Capability::CAP_KILL,
        Capability::CAP_MKNOD,
    ];
    let have = caps::read(None, CapSet::Effective).unwrap_or_default();
    let missing: Vec<String> = needed.iter().filter(|c| !have.contains(c)).map(ToString::to_string).collect();
    if missing.is_empty() { Ok(()) } else { Err(NodeError::Privileges(missing.join(", "))) }
}
