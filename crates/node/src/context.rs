//! What every pod worker and every request handler of one node shares.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{Pod, PodStatus, Service};
use parking_lot::RwLock;
use tokio::sync::watch;
use tombolo_net::HostPort;

use crate::addresses::HostAddresses;
use crate::disk;
use crate::events::Events;
use crate::pod::env::NodeFacts;
use crate::runtime::Runtime;

pub(crate) struct Context {
    pub client: kube::Client,
    pub runtime: Arc<dyn Runtime>,
    pub data_dir: PathBuf,
    pub node_name: String,
    pub host_addresses: HostAddresses,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    pub events: Events,
    /// The services of the site, for environment variables; replaced as a whole when one changes.
    pub services: RwLock<Arc<Vec<Service>>>,
    /// Ports of this machine that lead to its pods, by pod.
    pub host_ports: watch::Sender<BTreeMap<String, Vec<HostPort>>>,
    /// How fresh the ties to the hubs are, for pods that may run at most once.
    pub renewals: watch::Sender<crate::leases::Renewals>,
    /// Told when the first such pod is here: nobody asks for leases before.
    pub fenced: tokio::sync::Notify,
    /// The API answered last time.
    pub online: AtomicBool,
    /// One image is pulled or unpacked at a time per pod, a few at once per node.
    pub pulls: tokio::sync::Semaphore,
}

impl Context {
    pub fn is_online(&self) -> bool {
        self.online.load(Ordering::Relaxed)
    }

    pub fn set_online(&self, online: bool) {
        if self.online.swap(online, Ordering::Relaxed) != online {
            tracing::info!(
                node = self.node_name,
                online,
                "the API is {}",
                if online { "reachable" } else { "out of reach" }
            );
        }
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.data_dir.join("pods").join(uid)
    }

    pub fn log_path(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(uid).join("logs").join(container).join(format!("{attempt}.log"))
    }

    pub fn facts<'a>(&'a self, pod_addresses: &'a [String]) -> NodeFacts<'a> {
        NodeFacts {
            node_name: &self.node_name,
            host_addresses: self.host_addresses.now(),
            pod_addresses,
            allocatable_cpu: crate::machine::processors() as i128 * 1000,
            allocatable_memory: i128::from(crate::machine::memory_bytes()),
        }
    }

    /// Opens the ports a pod wants on the machine (`hostPort`), or closes them when it has no address any more.
    pub fn set_host_ports(&self, uid: &str, pod: &Pod, addresses: &[IpAddr]) {
        let host_network = pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
        let address = addresses.iter().find_map(|a| match a {
            IpAddr::V4(address) if !host_network => Some(*address),
            _ => None,
        });
        let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
        let containers =
            pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
        let ports = containers.flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
            Some(HostPort {
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                address: port
                    .host_ip
                    .as_ref()
                    .and_then(|ip| ip.parse().ok())
                    .filter(|ip: &std::net::Ipv4Addr| !ip.is_unspecified()),
                port: number(port.host_port?)?,
                pod: address?,
                pod_port: number(port.container_port)?,
            })
        });
        let ports: Vec<HostPort> = ports.collect();
        self.host_ports.send_if_modified(|all| {
            if ports.is_empty() {
                return all.remove(uid).is_some();
            }
            all.insert(uid.to_owned(), ports.clone()).as_ref() != Some(&ports)
        });
    }

    pub fn services(&self) -> Arc<Vec<Service>> {
        self.services.read().clone()
    }
}

/// Keeps a pod on disk, so that it starts again without the API.
pub(crate) fn remember_pod(dir: &Path, pod: &Pod) {
    use std::os::unix::fs::PermissionsExt;
    let written = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711)))
        .and_then(|()| disk::replace(&dir.join("pod.json"), &serde_json::to_vec(pod)?, 0o644));
    if let Err(error) = written {
        tracing::warn!(dir = %dir.display(), %error, "the pod could not be kept on disk");
    }
}

/// None also for one that cannot be read: the API knows it, and until it is asked nothing is started or removed.
pub(crate) fn remembered_pod(dir: &Path) -> Option<Pod> {
    let bytes = std::fs::read(dir.join("pod.json")).ok()?;
    serde_json::from_slice(&bytes)
        .inspect_err(|error| {
            tracing::warn!(dir = %dir.display(), %error, "a pod cannot be read; the API will tell what it is");
        })
        .ok()
}

/// What of a pod a start without the API depends on. The rest changes often (its conditions, with every probe), and a disk
/// should not pay for it.
pub(crate) fn essence(pod: &Pod) -> Pod {
    let old = pod.status.clone().unwrap_or_default();
    let mut pod = pod.clone();
    pod.metadata.managed_fields = None;
    pod.metadata.resource_version = None;
    pod.status = Some(PodStatus {
        phase: old.phase.filter(|phase| matches!(phase.as_str(), "Succeeded" | "Failed")),
        start_time: old.start_time,
        ..PodStatus::default()
    });
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: serde_json::Value, image: &str) -> Pod {
        let pod = json!({"metadata": {"name": "a", "resourceVersion": status.to_string()},
            "spec": {"containers": [{"name": "main", "image": image}]}, "status": status});
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn a_pod_that_turns_ready_is_not_written_again_and_one_that_ends_is() {
        let start = "2026-01-01T00:00:00Z";
        let waiting = pod(json!({"phase": "Pending", "startTime": start}), "x:1");
        let ready = json!({"phase": "Running", "startTime": start, "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(essence(&waiting), essence(&pod(ready.clone(), "x:1")));
        assert_ne!(essence(&waiting), essence(&pod(ready, "x:2")));
        assert_ne!(essence(&waiting), essence(&pod(json!({"phase": "Failed", "startTime": start}), "x:1")));
        assert_ne!(essence(&waiting), essence(&pod(json!({"phase": "Pending"}), "x:1")));
    }

    #[test]
    fn what_was_remembered_is_read_back_and_half_a_file_is_no_pod() {
        let dir = tempfile::tempdir().expect("folder");
        let pod = pod(json!({"phase": "Running"}), "x:1");
        remember_pod(dir.path(), &pod);
        assert_eq!(remembered_pod(dir.path()), Some(pod));
        std::fs::write(dir.path().join("pod.json"), "").expect("a power cut");
        assert_eq!(remembered_pod(dir.path()), None);
    }
}
