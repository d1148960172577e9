//! The Node object and its lease: what the machine has, that it is well, that it is there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node as ApiNode, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::embedded::PodLinks;
use crate::machine;
use crate::pressure::Pressure;

const LEASE_SECONDS: i32 = 40;
const RENEW: Duration = Duration::from_secs(10);
/// A status that does not change is sent this often.
const HEARTBEAT: Duration = Duration::from_secs(300);
const MOST_PODS: u32 = 110;
const PATIENCE: Duration = Duration::from_secs(8);
/// While the runtime does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How long the runtime may take to list its images; with those of before the status is good enough.
const LIST: Duration = Duration::from_secs(3);
const MOST_IMAGES: usize = 50;

pub(crate) struct Registration {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub kubelet_port: u16,
    /// See [`crate::NodeConfig::reached_at`].
    pub reached_at: Option<watch::Receiver<Option<SocketAddr>>>,
    pub pod_cidr: Option<String>,
    pub pressure: tokio::sync::watch::Receiver<Pressure>,
    /// The node is ready when pods can come onto its network.
    pub links: PodLinks,
}

/// Registers the node and keeps its lease and status fresh until `shutdown`.
pub(crate) async fn run(ctx: Arc<Context>, registration: Registration, shutdown: CancellationToken) {
    let mut pressure = registration.pressure.clone();
    let mut reached_at = registration.reached_at.clone();
    let mut addresses = ctx.host_addresses.changes();
    let mut registered = false;
    let mut runtime = Seen::default();
    let mut last: Option<(NodeStatus, tokio::time::Instant)> = None;
    loop {
        // Before the API's time begins: a runtime that hangs must not look like an API that is away.
        runtime.look(&ctx).await;
        let turn = async {
            if !registered {
                register(&ctx, &registration, &runtime).await?;
                registered = true;
            }
            renew_lease(&ctx).await?;
            let now = *pressure.borrow();
            let status = status(&ctx, &registration, &runtime, now);
            let due = last.as_ref().is_none_or(|(old, at)| at.elapsed() >= HEARTBEAT || !same(old, &status));
            if due {
                send_status(&ctx, &status).await?;
                last = Some((status, tokio::time::Instant::now()));
            }
            Ok::<(), kube::Error>(())
        };
        let mut wait = if runtime.trouble.is_none() { RENEW } else { LOOK_AGAIN };
        match tokio::time::timeout(PATIENCE, turn).await {
            Ok(Ok(())) => ctx.set_online(true),
            Ok(Err(kube::Error::Api(error))) => {
                if error.code == 404 {
                    // Somebody deleted the node; it is still here.
                    registered = false;
                    last = None;
                }
                tracing::warn!(node = ctx.node_name, %error, "the API refused the node's heartbeat");
                wait = Duration::from_secs(2);
            }
            Ok(Err(error)) => {
                tracing::debug!(node = ctx.node_name, %error, "heartbeat not sent");
                ctx.set_online(false);
                wait = Duration::from_secs(2);
            }
            Err(_) => {
                ctx.set_online(false);
                wait = Duration::from_secs(1);
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            _ = pressure.changed() => {}
            () = moved(&mut reached_at) => {}
            _ = addresses.changed() => {}
        }
    }
}

/// When the control plane has to go another way to this node.
async fn moved(reached_at: &mut Option<watch::Receiver<Option<SocketAddr>>>) {
    let changed = match reached_at {
        Some(at) => at.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        std::future::pending::<()>().await;
    }
}

/// What the container runtime said last.
#[derive(Default)]
struct Seen {
    /// Why it cannot run pods now.
    trouble: Option<String>,
    images: Vec<ContainerImage>,
}

impl Seen {
    async fn look(&mut self, ctx: &Context) {
        self.trouble = ctx.runtime.answers().await.err().map(|error| error.to_string());
        if self.trouble.is_some() {
            return;
        }
        let shown = |(image, names): (crate::image::Image, Vec<String>)| ContainerImage {
            names: Some(names.into_iter().chain(image.digests).collect()),
            size_bytes: Some(image.size as i64),
        };
        if let Ok(images) = tokio::time::timeout(LIST, ctx.runtime.images()).await {
            self.images = images.into_iter().take(MOST_IMAGES).map(shown).collect();
        }
    }
}

async fn register(ctx: &Context, registration: &Registration, runtime: &Seen) -> Result<(), kube::Error> {
    let api: Api<ApiNode> = Api::all(ctx.client.clone());
    let labels = labels(&ctx.node_name, &registration.labels);
    let pressure = *registration.pressure.borrow();
    let status = status(ctx, registration, runtime, pressure);
    let node = ApiNode {
        metadata: ObjectMeta {
            name: Some(ctx.node_name.clone()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!registration.taints.is_empty()).then(|| registration.taints.clone()),
            pod_cidr: registration.pod_cidr.clone(),
            pod_cidrs: registration.pod_cidr.clone().map(|c| vec![c]),
            ..NodeSpec::default()
        }),
        status: Some(status),
    };
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => {
            tracing::info!(node = ctx.node_name, "registered");
            Ok(())
        }
        Err(kube::Error::Api(error)) if error.code == 409 => {
            let patch = serde_json::json!({"metadata": {"labels": labels}});
            api.patch(&ctx.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Registers the node before it can run anything: a cluster gives a part of the pod network only to nodes it knows.
pub(crate) async fn announce(api: &Api<ApiNode>, config: &crate::NodeConfig) -> Result<(), kube::Error> {
    let now = Time(Timestamp::now());
    let waiting = NodeCondition {
        type_: "Ready".into(),
        status: "False".into(),
        reason: Some("KubeletNotReady".into()),
        message: Some("waiting for spec.podCIDR".into()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
    };
    let node = ApiNode {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            labels: Some(labels(&config.name, &config.labels)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!config.taints.is_empty()).then(|| config.taints.clone()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus { conditions: Some(vec![waiting]), ..NodeStatus::default() }),
    };
    match api.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn labels(name: &str, extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture()),
    ];
    own.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).chain(extra.clone()).collect()
}

async fn renew_lease(ctx: &Context) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(ctx.client.clone(), "kube-node-lease");
    let spec = LeaseSpec {
        holder_identity: Some(ctx.node_name.clone()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    let patch = serde_json::json!({"spec": spec});
    match api.patch(&ctx.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        Err(error) => return Err(error),
    }
    let node = Api::<ApiNode>::all(ctx.client.clone()).get(&ctx.node_name).await?;
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: ctx.node_name.clone(),
        uid: node.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta {
        name: Some(ctx.node_name.clone()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await.map(drop)
}

/// Equal but for the times that change with every look.
fn same(old: &NodeStatus, new: &NodeStatus) -> bool {
    let plain = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
            condition.last_transition_time = None;
        }
        status
    };
    plain(old) == plain(new)
}

async fn send_status(ctx: &Context, status: &NodeStatus) -> Result<(), kube::Error> {
    let api: Api<ApiNode> = Api::all(ctx.client.clone());
    let current = api.get(&ctx.node_name).await?.status.unwrap_or_default();
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        let before = current
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == condition.type_ && c.status == condition.status);
        if let Some(before) = before {
            condition.last_transition_time = before.last_transition_time.clone();
        }
    }
    let mut patch = serde_json::json!({"status": status});
    replace_addresses(&mut patch);
    api.patch_status(&ctx.node_name, &PatchParams::default(), &Patch::Strategic(&patch)).await.map(drop)
}

/// Addresses are merged by their type; of those that are no longer said, none may stay.
fn replace_addresses(patch: &mut serde_json::Value) {
    if let Some(addresses) = patch.pointer_mut("/status/addresses").and_then(|a| a.as_array_mut()) {
        addresses.push(serde_json::json!({"$patch": "replace"}));
    }
}

fn status(ctx: &Context, registration: &Registration, runtime: &Seen, pressure: Pressure) -> NodeStatus {
    let now = Time(Timestamp::now());
    let condition = |kind: &str, status: bool, reason: &str, message: &str| NodeCondition {
        type_: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    let memory = if pressure.memory {
        condition(
            "MemoryPressure",
            true,
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
        )
    } else {
        condition(
            "MemoryPressure",
            false,
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        )
    };
    let disk = if pressure.disk {
        condition("DiskPressure", true, "KubeletHasDiskPressure", "kubelet has disk pressure")
    } else {
        condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    };
    let conditions = vec![
        memory,
        disk,
        condition("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        match (&runtime.trouble, registration.links.ready()) {
            (None, Ok(())) => condition("Ready", true, "KubeletReady", "kubelet is posting ready status"),
            (Some(why), _) => {
                condition("Ready", false, "KubeletNotReady", &format!("container runtime is down: {why}"))
            }
            (None, Err(error)) => condition("Ready", false, "KubeletNotReady", &error.to_string()),
        },
    ];
    let storage = machine::disk_bytes(&ctx.data_dir).map_or(0, |(total, _)| total);
    let amount = |memory: u64, storage: u64| -> BTreeMap<String, Quantity> {
        [
            ("cpu", machine::processors().to_string()),
            ("memory", format!("{}Ki", memory / 1024)),
            ("pods", MOST_PODS.to_string()),
            ("ephemeral-storage", format!("{}Ki", storage / 1024)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Quantity(value)))
        .collect()
    };
    let gateway = registration.reached_at.as_ref().and_then(|at| *at.borrow());
    let addresses: Vec<(&str, String)> = match gateway {
        // Nothing else: API servers prefer a name to an address, and behind NAT neither leads here.
        Some(gateway) => vec![("InternalIP", gateway.ip().to_string())],
        None => {
            let own = ctx.host_addresses.now();
            let own = own.iter().map(|a| ("InternalIP", a.clone()));
            own.chain([("Hostname", ctx.node_name.clone())]).collect()
        }
    };
    let port = gateway.map_or(registration.kubelet_port, |gateway| gateway.port());
    NodeStatus {
        capacity: Some(amount(machine::memory_bytes(), storage)),
        allocatable: Some(amount(machine::memory_bytes().saturating_sub(100 << 20), storage / 10 * 9)),
        conditions: Some(conditions),
        addresses: Some(
            addresses
                .into_iter()
                .map(|(kind, address)| NodeAddress { type_: kind.into(), address })
                .collect(),
        ),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(port) }),
        }),
        images: Some(runtime.images.clone()),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().into(),
            boot_id: machine::boot_id(),
            container_runtime_version: format!("{}://{}", ctx.runtime.name(), ctx.runtime.version()),
            kernel_version: machine::kernel_version(),
            kube_proxy_version: String::new(),
            kubelet_version: "v1.36.3".into(),
            machine_id: machine::machine_id(),
            operating_system: "linux".into(),
            os_image: machine::os_image(),
            system_uuid: machine::machine_id(),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    }
}
