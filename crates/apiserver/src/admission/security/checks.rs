//! What the levels forbid, check by check, in upstream's order and words.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{APP_ARMOR, Level};

/// A pod, or what pods are made from.
pub struct Subject<'a> {
    pub spec: &'a Value,
    pub annotations: &'a Value,
}

/// Says what is wrong, if something is.
type Check = fn(&Subject) -> Option<String>;

const BASELINE: [Check; 12] = [
    app_armor,
    default_capabilities,
    host_namespaces,
    host_path_volumes,
    host_ports,
    handler_hosts,
    privileged,
    proc_mount_of_node,
    selinux,
    confined_seccomp,
    sysctls,
    host_process,
];

/// What the baseline checks that is left to a stricter check of the restricted level.
const RELIEVED: [Check; 4] = [default_capabilities, host_path_volumes, proc_mount_of_node, confined_seccomp];

const RESTRICTED: [Check; 7] = [
    privilege_escalation,
    dropped_capabilities,
    proc_mount,
    volume_types,
    non_root,
    root_user,
    chosen_seccomp,
];

/// Everything that a level does not allow.
pub fn findings(level: Level, subject: &Subject) -> Vec<String> {
    let relieved = |check: &Check| RELIEVED.iter().any(|other| std::ptr::fn_addr_eq(*other, *check));
    let checks: Vec<Check> = match level {
        Level::Privileged => Vec::new(),
        Level::Baseline => BASELINE.to_vec(),
        Level::Restricted => {
            BASELINE.into_iter().filter(|check| !relieved(check)).chain(RESTRICTED).collect()
        }
    };
    checks.iter().filter_map(|check| check(subject)).collect()
}

/// All containers.
pub fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(move |list| spec[list].as_array().into_iter().flatten())
}

impl<'a> Subject<'a> {
    /// The names of the containers for which something holds.
    fn named(&self, bad: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
        let bad = containers(self.spec).filter(|container| bad(container));
        bad.map(|container| container["name"].as_str().unwrap_or_default()).collect()
    }

    /// The pod and its containers, as far as something holds for them.
    fn setters(&self, bad: impl Fn(&'a Value) -> bool) -> Vec<String> {
        let pod = bad(self.spec).then(|| "pod".to_owned());
        pod.into_iter().chain(who(&self.named(bad))).collect()
    }

    /// The pod's users are not those of its node.
    fn has_own_users(&self) -> bool {
        self.spec["hostUsers"] == false
    }

    fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    fn volumes(&self) -> impl Iterator<Item = &Value> {
        self.spec["volumes"].as_array().into_iter().flatten()
    }
}

/// A field of the security context of a pod or container.
fn context<'a>(value: &'a Value, field: &str) -> &'a Value {
    &value["securityContext"][field]
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn plural(noun: &str, count: usize) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// `container "a"` or `containers "a", "b"`; nothing for no names.
fn who(names: &[&str]) -> Option<String> {
    let text = || format!("{} {}", plural("container", names.len()), quoted(names.iter().copied()));
    (!names.is_empty()).then(text)
}

fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

const UNCONFINED: &str = "Unconfined";

fn app_armor(subject: &Subject) -> Option<String> {
    let unconfined = |value: &Value| context(value, "appArmorProfile")["type"] == UNCONFINED;
    let mut setters = subject.setters(unconfined);
    let mut profiles = Vec::new();
    if !setters.is_empty() {
        profiles.push(format!("\"{UNCONFINED}\""));
    }
    let annotations = subject.annotations.as_object().into_iter().flatten();
    let forbidden = annotations.filter_map(|(key, value)| {
        let profile = value.as_str().filter(|_| key.starts_with(APP_ARMOR))?;
        let allowed = matches!(profile, "" | "runtime/default") || profile.starts_with("localhost/");
        (!allowed).then(|| format!("\"{key}={profile:?}\""))
    });
    let of_containers = profiles.len();
    profiles.extend(forbidden);
    if profiles.len() > of_containers {
        setters.push(plural("annotation", profiles.len() - of_containers));
    }
    (!setters.is_empty()).then(|| {
        let what = plural("forbidden AppArmor profile", profiles.len());
        let (who, profiles) = (setters.join(" and "), profiles.join(", "));
        format!("{what} ({who} must not set AppArmor profile type to {profiles})")
    })
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Who adds capabilities beyond the allowed ones, and which.
fn added_beyond(subject: &Subject, allowed: &[&str]) -> Option<String> {
    let added = |container| {
        let list = context(container, "capabilities")["add"].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).filter(|name| !allowed.contains(name))
    };
    let who = who(&subject.named(|container| added(container).next().is_some()))?;
    let names: BTreeSet<&str> = containers(subject.spec).flat_map(added).collect();
    Some(format!("{who} must not include {} in securityContext.capabilities.add", quoted(names)))
}

fn default_capabilities(subject: &Subject) -> Option<String> {
    let added = added_beyond(subject, &DEFAULT_CAPABILITIES)?;
    Some(format!("non-default capabilities ({added})"))
}

fn host_namespaces(subject: &Subject) -> Option<String> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|key| subject.spec[*key] == true);
    let shared: Vec<String> = shared.map(|key| format!("{key}=true")).collect();
    (!shared.is_empty()).then(|| format!("host namespaces ({})", shared.join(", ")))
}

fn host_path_volumes(subject: &Subject) -> Option<String> {
    let volumes = subject.volumes().filter(|volume| volume["hostPath"].is_object());
    let names: Vec<&str> = volumes.filter_map(|volume| volume["name"].as_str()).collect();
    let what = plural("volume", names.len());
    (!names.is_empty()).then(|| format!("hostPath volumes ({what} {})", quoted(names)))
}

fn host_ports(subject: &Subject) -> Option<String> {
    let ports = |container: &Value| -> Vec<String> {
        let ports = container["ports"].as_array().into_iter().flatten();
        let ports = ports.filter_map(|port| port["hostPort"].as_u64()).filter(|port| *port > 0);
        ports.map(|port| port.to_string()).collect()
    };
    let names = subject.named(|container| !ports(container).is_empty());
    let (who, uses) = (who(&names)?, uses(names.len()));
    // In the order of their texts.
    let ports: BTreeSet<String> = containers(subject.spec).flat_map(ports).collect();
    let what = plural("hostPort", ports.len());
    Some(format!("hostPort ({who} {uses} {what} {})", Vec::from_iter(ports).join(", ")))
}

/// The hosts that a container has its node connect to.
fn asked_hosts(container: &Value) -> impl Iterator<Item = &str> {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
    let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
    let handlers = probes.into_iter().chain(hooks);
    let hosts = handlers.flat_map(|handler| ["httpGet", "tcpSocket"].map(|action| &handler[action]["host"]));
    hosts.filter_map(Value::as_str).filter(|host| !host.is_empty())
}

fn handler_hosts(subject: &Subject) -> Option<String> {
    let names = subject.named(|container| asked_hosts(container).next().is_some());
    let (who, uses) = (who(&names)?, uses(names.len()));
    let hosts: BTreeSet<&str> = containers(subject.spec).flat_map(asked_hosts).collect();
    let what = plural("host", hosts.len());
    Some(format!("probe or lifecycle host ({who} {uses} probe or lifecycle {what} {})", quoted(hosts)))
}

fn privileged(subject: &Subject) -> Option<String> {
    let who = who(&subject.named(|container| context(container, "privileged") == true))?;
    Some(format!("privileged ({who} must not set securityContext.privileged=true)"))
}

fn proc_mount_of_node(subject: &Subject) -> Option<String> {
    if subject.has_own_users() { None } else { proc_mount(subject) }
}

fn proc_mount(subject: &Subject) -> Option<String> {
    let mount = |container| context(container, "procMount").as_str().filter(|mount| *mount != "Default");
    let who = who(&subject.named(|container| mount(container).is_some()))?;
    let mounts: BTreeSet<&str> = containers(subject.spec).filter_map(mount).collect();
    Some(format!("procMount ({who} must not set securityContext.procMount to {})", quoted(mounts)))
}

const SELINUX_TYPES: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

fn selinux(subject: &Subject) -> Option<String> {
    let option = |value, key: &str| context(value, "seLinuxOptions")[key].as_str().unwrap_or_default();
    let strange = |value| Some(option(value, "type")).filter(|kind| !SELINUX_TYPES.contains(kind));
    let sets = |value, key: &str| !option(value, key).is_empty();
    let setters = subject.setters(|v| strange(v).is_some() || sets(v, "user") || sets(v, "role"));
    if setters.is_empty() {
        return None;
    }
    let everyone = || std::iter::once(subject.spec).chain(containers(subject.spec));
    let types: BTreeSet<&str> = everyone().filter_map(strange).collect();
    let mut faults = Vec::new();
    if !types.is_empty() {
        faults.push(format!("{} {}", plural("type", types.len()), quoted(types)));
    }
    for key in ["user", "role"] {
        if everyone().any(|value| sets(value, key)) {
            faults.push(format!("{key} may not be set"));
        }
    }
    let (who, faults) = (setters.join(" and "), faults.join("; "));
    Some(format!("seLinuxOptions ({who} set forbidden securityContext.seLinuxOptions: {faults})"))
}

fn seccomp(value: &Value) -> Option<&str> {
    context(value, "seccompProfile")["type"].as_str()
}

fn confined_seccomp(subject: &Subject) -> Option<String> {
    let setters = subject.setters(|value| seccomp(value) == Some(UNCONFINED));
    (!setters.is_empty()).then(|| {
        let who = setters.join(" and ");
        format!("seccompProfile ({who} must not set securityContext.seccompProfile.type to {UNCONFINED:?})")
    })
}

const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

fn sysctls(subject: &Subject) -> Option<String> {
    let sysctls = context(subject.spec, "sysctls").as_array().into_iter().flatten();
    let names = sysctls.filter_map(|sysctl| sysctl["name"].as_str());
    let unsafe_ones: Vec<&str> = names.filter(|name| !SAFE_SYSCTLS.contains(name)).collect();
    (!unsafe_ones.is_empty()).then(|| format!("forbidden sysctls ({})", unsafe_ones.join(", ")))
}

fn host_process(subject: &Subject) -> Option<String> {
    let setters = subject.setters(|value| context(value, "windowsOptions")["hostProcess"] == true);
    (!setters.is_empty()).then(|| {
        let who = setters.join(" and ");
        format!("hostProcess ({who} must not set securityContext.windowsOptions.hostProcess=true)")
    })
}

fn privilege_escalation(subject: &Subject) -> Option<String> {
    if subject.is_windows() {
        return None;
    }
    let who = who(&subject.named(|container| context(container, "allowPrivilegeEscalation") != false))?;
    Some(format!(
        "allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)"
    ))
}

fn dropped_capabilities(subject: &Subject) -> Option<String> {
    if subject.is_windows() {
        return None;
    }
    let drops_all = |container| {
        let list = context(container, "capabilities")["drop"].as_array();
        list.is_some_and(|list| list.iter().any(|name| name == "ALL"))
    };
    let kept = who(&subject.named(|container| !drops_all(container)))
        .map(|who| format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]"));
    let faults: Vec<String> = kept.into_iter().chain(added_beyond(subject, &["NET_BIND_SERVICE"])).collect();
    (!faults.is_empty()).then(|| format!("unrestricted capabilities ({})", faults.join("; ")))
}

const ALLOWED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn volume_types(subject: &Subject) -> Option<String> {
    let restricted = subject.volumes().filter_map(|volume| {
        let kind = volume.as_object()?.keys().find(|key| *key != "name")?;
        (!ALLOWED_VOLUMES.contains(&kind.as_str())).then_some((volume["name"].as_str()?, kind.as_str()))
    });
    let (names, kinds): (Vec<&str>, BTreeSet<&str>) = restricted.unzip();
    (!names.is_empty()).then(|| {
        let volumes = format!("{} {}", plural("volume", names.len()), quoted(names.iter().copied()));
        let (uses, what) = (uses(names.len()), plural("type", kinds.len()));
        format!("restricted volume types ({volumes} {uses} restricted volume {what} {})", quoted(kinds))
    })
}

fn non_root(subject: &Subject) -> Option<String> {
    if subject.has_own_users() {
        return None;
    }
    let flag = |value| context(value, "runAsNonRoot").as_bool();
    let setters = subject.setters(|value| flag(value) == Some(false));
    let fault = if setters.is_empty() {
        let unsaid = subject.named(|container| flag(container).or(flag(subject.spec)).is_none());
        format!("pod or {} must set securityContext.runAsNonRoot=true", who(&unsaid)?)
    } else {
        format!("{} must not set securityContext.runAsNonRoot=false", setters.join(" and "))
    };
    Some(format!("runAsNonRoot != true ({fault})"))
}

fn root_user(subject: &Subject) -> Option<String> {
    if subject.has_own_users() {
        return None;
    }
    let setters = subject.setters(|value| context(value, "runAsUser") == 0);
    (!setters.is_empty()).then(|| format!("runAsUser=0 ({} must not set runAsUser=0)", setters.join(" and ")))
}

fn chosen_seccomp(subject: &Subject) -> Option<String> {
    if subject.is_windows() {
        return None;
    }
    confined_seccomp(subject).or_else(|| {
        let unsaid = subject.named(|container| seccomp(container).or(seccomp(subject.spec)).is_none());
        let who = who(&unsaid)?;
        Some(format!(
            "seccompProfile (pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        ))
    })
}
