//! What the levels forbid, check by check, in upstream's order and words.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::{APP_ARMOR, Level, Release};

/// A pod, or what pods are made from.
pub struct Subject<'a> {
    pub spec: &'a Value,
    pub annotations: &'a Value,
    /// Whose rules it is judged by.
    pub release: Release,
}

/// What a check does not allow.
pub struct Finding {
    pub reason: String,
    detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.detail)
    }
}

fn finding(reason: impl Into<String>, detail: impl Into<String>) -> Option<Finding> {
    Some(Finding { reason: reason.into(), detail: detail.into() })
}

/// Says what is wrong, if something is.
type Check = fn(&Subject) -> Option<Finding>;

/// Each check with the minor release that brought it.
const BASELINE: [(u32, Check); 12] = [
    (0, app_armor),
    (0, default_capabilities),
    (0, host_namespaces),
    (0, host_path_volumes),
    (0, host_ports),
    (34, handler_hosts),
    (0, privileged),
    (0, proc_mount_of_node),
    (0, selinux),
    (0, confined_seccomp),
    (0, sysctls),
    (0, host_process),
];

/// Each check with the minor release that brought it, and the check of the baseline that it stands in for.
const RESTRICTED: [(u32, Check, Option<Check>); 7] = [
    (8, privilege_escalation, None),
    (22, dropped_capabilities, Some(default_capabilities)),
    (35, proc_mount, Some(proc_mount_of_node)),
    (0, volume_types, Some(host_path_volumes)),
    (0, non_root, None),
    (23, root_user, None),
    (19, chosen_seccomp, Some(confined_seccomp)),
];

/// Everything that a level does not allow.
pub fn findings(level: Level, subject: &Subject) -> Vec<Finding> {
    let is_there = |since: u32| subject.release >= Release(since);
    let mut checks = Vec::new();
    if level >= Level::Baseline {
        checks.extend(BASELINE.iter().filter(|(since, _)| is_there(*since)).map(|(_, check)| *check));
    }
    if level == Level::Restricted {
        for (_, check, relieved) in RESTRICTED.iter().filter(|(since, ..)| is_there(*since)) {
            checks.retain(|other| !relieved.is_some_and(|relieved| std::ptr::fn_addr_eq(relieved, *other)));
            checks.push(*check);
        }
    }
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

    /// The pod's users are not those of its node, which makes some things harmless since 1.35.
    fn has_own_users(&self) -> bool {
        self.release >= Release(35) && self.spec["hostUsers"] == false
    }

    /// The pod says that it is for Windows, where some things mean nothing. Believed since 1.25.
    fn is_windows(&self) -> bool {
        self.release >= Release(25) && self.spec["os"]["name"] == "windows"
    }

    /// Whether a value is in a list of those that a release brought.
    fn allows(&self, list: &[(u32, &str)], value: &str) -> bool {
        list.iter().any(|(since, allowed)| *allowed == value && self.release >= Release(*since))
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

fn app_armor(subject: &Subject) -> Option<Finding> {
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
    if setters.is_empty() {
        return None;
    }
    let what = plural("forbidden AppArmor profile", profiles.len());
    let (who, profiles) = (setters.join(" and "), profiles.join(", "));
    finding(what, format!("{who} must not set AppArmor profile type to {profiles}"))
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

fn default_capabilities(subject: &Subject) -> Option<Finding> {
    finding("non-default capabilities", added_beyond(subject, &DEFAULT_CAPABILITIES)?)
}

fn host_namespaces(subject: &Subject) -> Option<Finding> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|key| subject.spec[*key] == true);
    let shared: Vec<String> = shared.map(|key| format!("{key}=true")).collect();
    if shared.is_empty() { None } else { finding("host namespaces", shared.join(", ")) }
}

fn host_path_volumes(subject: &Subject) -> Option<Finding> {
    let volumes = subject.volumes().filter(|volume| volume["hostPath"].is_object());
    let names: Vec<&str> = volumes.filter_map(|volume| volume["name"].as_str()).collect();
    let what = plural("volume", names.len());
    if names.is_empty() { None } else { finding("hostPath volumes", format!("{what} {}", quoted(names))) }
}

fn host_ports(subject: &Subject) -> Option<Finding> {
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
    finding("hostPort", format!("{who} {uses} {what} {}", Vec::from_iter(ports).join(", ")))
}

/// The hosts that a container has its node connect to.
fn asked_hosts(container: &Value) -> impl Iterator<Item = &str> {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
    let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
    let handlers = probes.into_iter().chain(hooks);
    let hosts = handlers.flat_map(|handler| ["httpGet", "tcpSocket"].map(|action| &handler[action]["host"]));
    hosts.filter_map(Value::as_str).filter(|host| !host.is_empty())
}

fn handler_hosts(subject: &Subject) -> Option<Finding> {
    let names = subject.named(|container| asked_hosts(container).next().is_some());
    let (who, uses) = (who(&names)?, uses(names.len()));
    let hosts: BTreeSet<&str> = containers(subject.spec).flat_map(asked_hosts).collect();
    let what = plural("host", hosts.len());
    let detail = format!("{who} {uses} probe or lifecycle {what} {}", quoted(hosts));
    finding("probe or lifecycle host", detail)
}

fn privileged(subject: &Subject) -> Option<Finding> {
    let who = who(&subject.named(|container| context(container, "privileged") == true))?;
    finding("privileged", format!("{who} must not set securityContext.privileged=true"))
}

fn proc_mount_of_node(subject: &Subject) -> Option<Finding> {
    if subject.has_own_users() { None } else { proc_mount(subject) }
}

fn proc_mount(subject: &Subject) -> Option<Finding> {
    let mount = |container| context(container, "procMount").as_str().filter(|mount| *mount != "Default");
    let who = who(&subject.named(|container| mount(container).is_some()))?;
    let mounts: BTreeSet<&str> = containers(subject.spec).filter_map(mount).collect();
    finding("procMount", format!("{who} must not set securityContext.procMount to {}", quoted(mounts)))
}

/// With the minor releases that allowed them.
const SELINUX_TYPES: [(u32, &str); 5] = [
    (0, ""),
    (0, "container_t"),
    (0, "container_init_t"),
    (0, "container_kvm_t"),
    (31, "container_engine_t"),
];

fn selinux(subject: &Subject) -> Option<Finding> {
    let option = |value, key: &str| context(value, "seLinuxOptions")[key].as_str().unwrap_or_default();
    let strange = |value| Some(option(value, "type")).filter(|kind| !subject.allows(&SELINUX_TYPES, kind));
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
    finding("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {faults}"))
}

fn seccomp(value: &Value) -> Option<&str> {
    context(value, "seccompProfile")["type"].as_str()
}

fn confined_seccomp(subject: &Subject) -> Option<Finding> {
    if subject.release < Release(19) {
        return annotated_seccomp(subject);
    }
    let setters = subject.setters(|value| seccomp(value) == Some(UNCONFINED));
    if setters.is_empty() {
        return None;
    }
    let who = setters.join(" and ");
    finding(
        "seccompProfile",
        format!("{who} must not set securityContext.seccompProfile.type to {UNCONFINED:?}"),
    )
}

/// What was looked at before there were fields.
fn annotated_seccomp(subject: &Subject) -> Option<Finding> {
    let of_pod = "seccomp.security.alpha.kubernetes.io/pod".to_owned();
    let of_containers = containers(subject.spec).filter_map(|container| container["name"].as_str());
    let of_containers =
        of_containers.map(|name| format!("container.seccomp.security.alpha.kubernetes.io/{name}"));
    let forbidden: BTreeSet<String> = std::iter::once(of_pod)
        .chain(of_containers)
        .filter_map(|key| {
            let profile = subject.annotations[&key].as_str()?;
            let allowed =
                matches!(profile, "runtime/default" | "docker/default") || profile.starts_with("localhost/");
            (!allowed).then(|| format!("{key}={profile:?}"))
        })
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let what = plural("annotation", forbidden.len());
    finding("seccompProfile", format!("forbidden {what} {}", Vec::from_iter(forbidden).join(", ")))
}

/// With the minor releases that allowed them.
const SAFE_SYSCTLS: [(u32, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (0, "net.ipv4.ping_group_range"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (32, "net.ipv4.tcp_rmem"),
    (0, "net.ipv4.tcp_syncookies"),
    (32, "net.ipv4.tcp_wmem"),
];

fn sysctls(subject: &Subject) -> Option<Finding> {
    let sysctls = context(subject.spec, "sysctls").as_array().into_iter().flatten();
    let names = sysctls.filter_map(|sysctl| sysctl["name"].as_str());
    let unsafe_ones: Vec<&str> = names.filter(|name| !subject.allows(&SAFE_SYSCTLS, name)).collect();
    if unsafe_ones.is_empty() { None } else { finding("forbidden sysctls", unsafe_ones.join(", ")) }
}

fn host_process(subject: &Subject) -> Option<Finding> {
    let setters = subject.setters(|value| context(value, "windowsOptions")["hostProcess"] == true);
    if setters.is_empty() {
        return None;
    }
    let who = setters.join(" and ");
    finding("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(subject: &Subject) -> Option<Finding> {
    if subject.is_windows() {
        return None;
    }
    let who = who(&subject.named(|container| context(container, "allowPrivilegeEscalation") != false))?;
    let detail = format!("{who} must set securityContext.allowPrivilegeEscalation=false");
    finding("allowPrivilegeEscalation != false", detail)
}

fn dropped_capabilities(subject: &Subject) -> Option<Finding> {
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
    if faults.is_empty() { None } else { finding("unrestricted capabilities", faults.join("; ")) }
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

fn volume_types(subject: &Subject) -> Option<Finding> {
    let restricted = subject.volumes().filter_map(|volume| {
        let kind = volume.as_object()?.keys().find(|key| *key != "name")?;
        (!ALLOWED_VOLUMES.contains(&kind.as_str())).then_some((volume["name"].as_str()?, kind.as_str()))
    });
    let (names, kinds): (Vec<&str>, BTreeSet<&str>) = restricted.unzip();
    if names.is_empty() {
        return None;
    }
    let volumes = format!("{} {}", plural("volume", names.len()), quoted(names.iter().copied()));
    let (uses, what) = (uses(names.len()), plural("type", kinds.len()));
    finding("restricted volume types", format!("{volumes} {uses} restricted volume {what} {}", quoted(kinds)))
}

fn non_root(subject: &Subject) -> Option<Finding> {
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
    finding("runAsNonRoot != true", fault)
}

fn root_user(subject: &Subject) -> Option<Finding> {
    if subject.has_own_users() {
        return None;
    }
    let setters = subject.setters(|value| context(value, "runAsUser") == 0);
    let fault = || format!("{} must not set runAsUser=0", setters.join(" and "));
    if setters.is_empty() { None } else { finding("runAsUser=0", fault()) }
}

fn chosen_seccomp(subject: &Subject) -> Option<Finding> {
    if subject.is_windows() {
        return None;
    }
    confined_seccomp(subject).or_else(|| {
        let unsaid = subject.named(|container| seccomp(container).or(seccomp(subject.spec)).is_none());
        let who = who(&unsaid)?;
        finding(
            "seccompProfile",
            format!(
                "pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
            ),
        )
    })
}
