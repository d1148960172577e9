//! What the node wants, in the runtime's words. Pure.

use std::collections::HashMap;
use std::path::Path;

use super::messages as cri;
use crate::embedded::{MASKED, READ_ONLY};
use crate::runtime::{ContainerSpec, Resources, SandboxSpec};

/// Which node a sandbox or container belongs to: several may share one runtime.
pub(super) const NODE: &str = "tombolo.dev/node";
/// The pod, under the name every tool for such runtimes knows.
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// The image as the pod names it; the runtime itself only keeps what it resolved it to.
pub(super) const IMAGE: &str = "tombolo.dev/image";
/// `true` on a container with a terminal.
pub(super) const TERMINAL: &str = "tombolo.dev/terminal";

const CPU_PERIOD: i64 = 100_000;

fn labels(node: &str, spec: &SandboxSpec) -> cri::Labels {
    HashMap::from([
        (NODE.to_owned(), node.to_owned()),
        (POD_UID.to_owned(), spec.uid.clone()),
        (POD_NAME.to_owned(), spec.name.clone()),
        (POD_NAMESPACE.to_owned(), spec.namespace.clone()),
    ])
}

fn namespaces(spec: &SandboxSpec) -> cri::NamespaceOption {
    let shared = |host: bool| if host { cri::namespace::NODE } else { cri::namespace::POD };
    let pid = match (spec.host_pid, spec.share_processes) {
        (true, _) => cri::namespace::NODE,
        (_, true) => cri::namespace::POD,
        _ => cri::namespace::CONTAINER,
    };
    let (network, ipc) = (shared(spec.host_network), shared(spec.host_ipc));
    cri::NamespaceOption { network, pid, ipc, target_id: String::new() }
}

/// Those of a pod, but for the processes of the container that this one looks into.
fn container_namespaces(spec: &ContainerSpec, sandbox: &SandboxSpec) -> cri::NamespaceOption {
    let own = namespaces(sandbox);
    match &spec.target {
        Some((target, _)) => {
            cri::NamespaceOption { pid: cri::namespace::TARGET, target_id: target.clone(), ..own }
        }
        None => own,
    }
}

fn seccomp(filtered: bool) -> Option<cri::SecurityProfile> {
    let profile_type = if filtered { cri::profile::RUNTIME_DEFAULT } else { cri::profile::UNCONFINED };
    Some(cri::SecurityProfile { profile_type })
}

pub(super) fn sandbox(node: &str, spec: &SandboxSpec, attempt: u32, logs: &Path) -> cri::SandboxConfig {
    cri::SandboxConfig {
        metadata: Some(cri::SandboxMetadata {
            name: spec.name.clone(),
            uid: spec.uid.clone(),
            namespace: spec.namespace.clone(),
            attempt,
        }),
        // The machine's own name stays where the pod shares its network.
        hostname: if spec.host_network { String::new() } else { spec.hostname.clone() },
        log_directory: logs.to_string_lossy().into_owned(),
        labels: labels(node, spec),
        annotations: HashMap::new(),
        linux: Some(cri::LinuxSandbox {
            cgroup_parent: String::new(),
            security_context: Some(cri::SandboxSecurity {
                namespace_options: Some(namespaces(spec)),
                privileged: false,
                seccomp: seccomp(true),
            }),
            sysctls: HashMap::new(),
        }),
    }
}

fn resources(wanted: &Resources) -> cri::LinuxResources {
    cri::LinuxResources {
        cpu_period: if wanted.cpu_quota.is_some() { CPU_PERIOD } else { 0 },
        cpu_quota: wanted.cpu_quota.unwrap_or(0),
        cpu_shares: wanted.cpu_shares.map_or(0, |shares| shares as i64),
        memory_limit_in_bytes: wanted.memory_limit.unwrap_or(0),
        oom_score_adj: wanted.oom_score_adj.map_or(0, i64::from),
    }
}

fn security(spec: &ContainerSpec, sandbox: &SandboxSpec) -> cri::ContainerSecurity {
    let wanted = &spec.security;
    let paths = |list: &[&str]| -> Vec<String> {
        if wanted.privileged || wanted.unmasked_proc {
            return Vec::new();
        }
        list.iter().map(|path| (*path).to_owned()).collect()
    };
    cri::ContainerSecurity {
        capabilities: Some(cri::Capabilities {
            add: wanted.add_capabilities.clone(),
            drop: wanted.drop_capabilities.clone(),
        }),
        privileged: wanted.privileged,
        namespace_options: Some(container_namespaces(spec, sandbox)),
        run_as_user: wanted.user.map(|value| cri::Int64Value { value }),
        readonly_rootfs: wanted.read_only_root,
        supplemental_groups: wanted.supplemental_groups.clone(),
        no_new_privs: wanted.no_new_privileges,
        // A group without a user is refused by the interface.
        run_as_group: wanted.group.filter(|_| wanted.user.is_some()).map(|value| cri::Int64Value { value }),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: seccomp(wanted.filtered && !wanted.privileged),
    }
}

pub(super) fn container(
    node: &str,
    spec: &ContainerSpec,
    sandbox: &SandboxSpec,
    image: &str,
    logs: &Path,
) -> cri::ContainerConfig {
    let mut labels = labels(node, sandbox);
    labels.insert(CONTAINER_NAME.to_owned(), spec.name.clone());
    let propagation = |name: Option<&str>| match name {
        Some("HostToContainer") => cri::propagation::FROM_HOST,
        Some("Bidirectional") => cri::propagation::BOTH_WAYS,
        _ => cri::propagation::PRIVATE,
    };
    let mounts = spec.mounts.iter().filter(|mount| mount.target != "/dev/shm");
    let log = spec.log.strip_prefix(logs).unwrap_or(&spec.log);
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
        image: Some(cri::ImageSpec { image: image.to_owned() }),
        command: spec.command.clone(),
        args: spec.args.clone(),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: spec
            .env
            .iter()
            .map(|(key, value)| cri::KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        mounts: mounts
            .map(|mount| cri::Mount {
                container_path: mount.target.clone(),
                host_path: mount.source.to_string_lossy().into_owned(),
                readonly: mount.read_only,
                propagation: propagation(mount.propagation.as_deref()),
            })
            .collect(),
        devices: spec
            .devices
            .iter()
            .map(|path| cri::Device {
                container_path: path.clone(),
                host_path: path.clone(),
                permissions: "rwm".into(),
            })
            .collect(),
        labels,
        annotations: HashMap::from([
            (IMAGE.to_owned(), spec.image.clone()),
            (TERMINAL.to_owned(), spec.tty.to_string()),
        ]),
        log_path: log.to_string_lossy().into_owned(),
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        tty: spec.tty,
        linux: Some(cri::LinuxContainer {
            resources: Some(resources(&spec.resources)),
            security_context: Some(security(spec, sandbox)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> SandboxSpec {
        SandboxSpec { uid: "u".into(), name: "web".into(), namespace: "shop".into(), ..Default::default() }
    }

    #[test]
    fn a_pod_shares_what_it_says_and_nothing_else() {
        let of = |spec: &SandboxSpec| namespaces(spec);
        assert_eq!(of(&pod()), cri::NamespaceOption { pid: 1, ..Default::default() });
        let host = SandboxSpec { host_network: true, host_pid: true, host_ipc: true, ..pod() };
        assert_eq!(of(&host), cri::NamespaceOption { network: 2, pid: 2, ipc: 2, ..Default::default() });
        assert_eq!(of(&SandboxSpec { share_processes: true, ..pod() }).pid, cri::namespace::POD);
        let looker = ContainerSpec { target: Some(("c1".into(), 7)), ..Default::default() };
        let looking = container_namespaces(&looker, &pod());
        assert_eq!((looking.pid, looking.target_id.as_str()), (cri::namespace::TARGET, "c1"));
    }

    #[test]
    fn logs_are_named_below_the_pod_s_folder_and_shared_memory_is_the_runtime_s() {
        let mount = |target: &str| crate::runtime::Mount {
            source: "/x".into(),
            target: target.into(),
            read_only: true,
            propagation: None,
        };
        let spec = ContainerSpec {
            name: "main".into(),
            log: "/data/pods/u/logs/main/0.log".into(),
            mounts: vec![mount("/dev/shm"), mount("/etc/hosts")],
            ..Default::default()
        };
        let made = container("n", &spec, &pod(), "sha256:1", Path::new("/data/pods/u/logs"));
        assert_eq!(made.log_path, "main/0.log");
        assert_eq!(made.mounts.iter().map(|m| m.container_path.as_str()).collect::<Vec<_>>(), ["/etc/hosts"]);
    }
}
