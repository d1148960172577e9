//! From what a pod asks for to the configuration an OCI runtime reads. Pure.

use serde_json::{Value, json};

use crate::runtime::{ContainerSpec, Mount, Resources};

/// What a container may do when nobody says otherwise: the set every runtime grants.
const DEFAULT_CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

pub(crate) const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

pub(crate) const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A user inside the container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Where the container goes: everything that is known only at the moment of creation.
pub(crate) struct Place<'a> {
    pub id: &'a str,
    pub cgroup: &'a str,
    pub rootfs: &'a str,
    /// The shim in whose namespaces it lives.
    pub sandbox_pid: u32,
    /// Process 1 of the process namespace that it shares: the pod's, or that of a container it looks into.
    pub pause_pid: Option<u32>,
    pub host_pid: bool,
    pub host_network: bool,
    pub cgroup_v2: bool,
    /// Every capability this machine can grant.
    pub grantable: &'a [String],
}

/// The capabilities of a container: defaults, plus, minus; `ALL` stands for everything.
pub(crate) fn capabilities(spec: &ContainerSpec, grantable: &[String]) -> Vec<String> {
    let full = |name: &String| {
        let upper = name.to_uppercase();
        if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") }
    };
    let security = &spec.security;
    if security.privileged {
        return grantable.to_vec();
    }
    let add: Vec<String> = security.add_capabilities.iter().map(full).collect();
    let drop: Vec<String> = security.drop_capabilities.iter().map(full).collect();
    let all = |list: &[String]| list.iter().any(|c| c == "CAP_ALL");
    grantable
        .iter()
        .filter(|capability| {
            let default = DEFAULT_CAPABILITIES.contains(&capability.as_str());
            let added = all(&add) || add.contains(capability);
            let dropped = drop.contains(capability) || (all(&drop) && !add.contains(capability));
            (default || added) && (!dropped || (all(&drop) && added))
        })
        .cloned()
        .collect()
}

/// `command` replaces the image's entry point and its arguments; `args` alone replaces the arguments.
pub(crate) fn arguments(spec: &ContainerSpec, entrypoint: &[String], cmd: &[String]) -> Vec<String> {
    let (head, tail): (&[String], &[String]) = match (spec.command.is_empty(), spec.args.is_empty()) {
        (true, true) => (entrypoint, cmd),
        (true, false) => (entrypoint, &spec.args),
        (false, _) => (&spec.command, &spec.args),
    };
    head.iter().chain(tail).cloned().collect()
}

pub(crate) fn process(
    spec: &ContainerSpec,
    args: &[String],
    env: &[String],
    user: &User,
    caps: &[String],
) -> Value {
    let security = &spec.security;
    // The filter is installed by `Launch`, which needs these two until then and drops them itself.
    let mut held = caps.to_vec();
    if security.filtered {
        for needed in ["CAP_SYS_ADMIN", "CAP_SETPCAP"] {
            if !held.iter().any(|c| c == needed) {
                held.push(needed.into());
            }
        }
    }
    let mut process = json!({
        "terminal": false,
        "user": {"uid": user.uid, "gid": user.gid, "additionalGids": user.groups},
        "args": args,
        "env": env,
        "cwd": "/",
        "capabilities": {"bounding": held, "effective": held, "permitted": held, "inheritable": [], "ambient": []},
        "noNewPrivileges": security.no_new_privileges,
    });
    if let Some(score) = spec.resources.oom_score_adj {
        process["oomScoreAdj"] = score.into();
    }
    process
}

pub(crate) fn config(spec: &ContainerSpec, process: Value, place: &Place<'_>) -> Value {
    let privileged = spec.security.privileged;
    let unmasked = privileged || spec.security.unmasked_proc;
    let mut linux = json!({
        "namespaces": namespaces(place),
        "cgroupsPath": place.cgroup,
        "resources": resources(&spec.resources, privileged),
    });
    if !unmasked {
        linux["maskedPaths"] = json!(MASKED);
        linux["readonlyPaths"] = json!(READ_ONLY);
    }
    if privileged {
        linux["devices"] = json!([]);
    }
    json!({
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": place.rootfs, "readonly": spec.security.read_only_root},
        "mounts": mounts(spec, place),
        "linux": linux,
    })
}

fn namespaces(place: &Place<'_>) -> Value {
    let shared = |kind: &str, file: &str| json!({"type": kind, "path": format!("/proc/{}/ns/{file}", place.sandbox_pid)});
    let mut list =
        vec![json!({"type": "mount"}), shared("ipc", "ipc"), shared("uts", "uts"), shared("network", "net")];
    match (place.host_pid, place.pause_pid) {
        (true, _) => {}
        (false, Some(pause)) => list.push(json!({"type": "pid", "path": format!("/proc/{pause}/ns/pid")})),
        (false, None) => list.push(json!({"type": "pid"})),
    }
    if place.cgroup_v2 {
        list.push(json!({"type": "cgroup"}));
    }
    list.into()
}

pub(crate) fn resources(limits: &Resources, privileged: bool) -> Value {
    let mut resources = json!({"devices": if privileged { device_rules_all() } else { device_rules() }});
    let mut cpu = json!({});
    if let Some(shares) = limits.cpu_shares {
        cpu["shares"] = shares.into();
    }
    if let Some(quota) = limits.cpu_quota {
        cpu["quota"] = quota.into();
        cpu["period"] = 100_000.into();
    }
    resources["cpu"] = cpu;
    if let Some(limit) = limits.memory_limit {
        resources["memory"] = json!({"limit": limit});
    }
    if let Some(limit) = limits.pids_limit {
        resources["pids"] = json!({"limit": limit});
    }
    resources
}

fn device_rules_all() -> Value {
    json!([{"allow": true, "access": "rwm"}])
}

/// The usual devices: null, zero, full, random, urandom, tty, console, ptmx, pseudo-terminals.
fn device_rules() -> Value {
    let mut rules = vec![
        json!({"allow": false, "access": "rwm"}),
        json!({"allow": true, "type": "c", "access": "m"}),
        json!({"allow": true, "type": "b", "access": "m"}),
    ];
    for (major, minor) in [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)] {
        rules.push(json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"}));
    }
    rules.push(json!({"allow": true, "type": "c", "major": 136, "access": "rwm"}));
    rules.into()
}

fn mounts(spec: &ContainerSpec, place: &Place<'_>) -> Value {
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": source, "options": options});
    let privileged = spec.security.privileged;
    let access = if privileged { "rw" } else { "ro" };
    let mut list = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ];
    if place.host_network {
        // A new sysfs belongs to the network namespace's owner; the host's own is bound instead.
        list.push(mount("/sys", "bind", "/sys", &["rbind", "nosuid", "noexec", "nodev", access]));
    } else {
        list.push(mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]));
        if place.cgroup_v2 {
            list.push(mount(
                "/sys/fs/cgroup",
                "cgroup",
                "cgroup",
                &["nosuid", "noexec", "nodev", "relatime", access],
            ));
        }
    }
    list.extend(spec.mounts.iter().map(bind));
    // Parents before children, as a user expects of nested volume mounts.
    let depth =
        |m: &Value| m["destination"].as_str().map_or(0, |d| d.trim_end_matches('/').matches('/').count());
    list.sort_by_key(depth);
    list.into()
}

fn bind(mount: &Mount) -> Value {
    let propagation = match mount.propagation.as_deref() {
        Some("HostToContainer") => "rslave",
        Some("Bidirectional") => "rshared",
        _ => "rprivate",
    };
    let access = if mount.read_only { "ro" } else { "rw" };
    json!({
        "destination": mount.target,
        "type": "bind",
        "source": mount.source,
        "options": ["rbind", propagation, access],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grantable() -> Vec<String> {
        DEFAULT_CAPABILITIES
            .iter()
            .map(|c| (*c).to_owned())
            .chain(["CAP_NET_ADMIN".into(), "CAP_SYS_TIME".into()])
            .collect()
    }

    #[test]
    fn capabilities_are_the_defaults_plus_added_minus_dropped() {
        let mut spec = ContainerSpec::default();
        assert_eq!(capabilities(&spec, &grantable()), DEFAULT_CAPABILITIES);
        spec.security.add_capabilities = vec!["NET_ADMIN".into()];
        spec.security.drop_capabilities = vec!["ALL".into()];
        assert_eq!(capabilities(&spec, &grantable()), ["CAP_NET_ADMIN"]);
        spec.security.add_capabilities = vec![];
        spec.security.drop_capabilities = vec!["CAP_CHOWN".into()];
        assert!(!capabilities(&spec, &grantable()).contains(&"CAP_CHOWN".to_owned()));
        spec.security.privileged = true;
        assert_eq!(capabilities(&spec, &grantable()).len(), grantable().len());
    }

    #[test]
    fn command_and_args_follow_the_kubernetes_table() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (entry, cmd) = (words("/ep"), words("a b"));
        let mut spec = ContainerSpec::default();
        assert_eq!(arguments(&spec, &entry, &cmd), words("/ep a b"));
        spec.args = words("x");
        assert_eq!(arguments(&spec, &entry, &cmd), words("/ep x"));
        spec.command = words("/c");
        assert_eq!(arguments(&spec, &entry, &cmd), words("/c x"));
        spec.args.clear();
        assert_eq!(arguments(&spec, &entry, &cmd), words("/c"));
    }
}
