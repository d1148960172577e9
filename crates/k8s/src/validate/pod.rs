//! Pods and pod templates.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::at::{At, Errors, same};
use super::container::{self, Context};
use super::{meta, platform, pod_annotations, scheduling, volume};
use crate::names;

pub(super) const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub(super) fn create(e: &mut Errors, pod: &At<'_, '_>) {
    let (metadata, spec) = (pod.get("metadata"), pod.get("spec"));
    let annotations = metadata.get("annotations");
    pod_annotations::of_pod(e, &annotations, &spec);
    pod_annotations::match_fields(e, &annotations, &spec);
    pod_spec(e, &spec, true);
    for list in ["containers", "initContainers"] {
        spec.get(list).items().for_each(|container| image_whitespace(e, &container));
    }
    token_needs_account(e, &spec);
    if !spec.get("ephemeralContainers").is_empty() {
        e.forbidden(&spec.get("ephemeralContainers"), "cannot be set on create");
    }
    if !spec.get("nodeName").is_empty() && !spec.get("schedulingGates").is_empty() {
        e.forbidden(&spec.get("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}

fn image_whitespace(e: &mut Errors, container: &At<'_, '_>) {
    let image = container.get("image");
    if image.str().trim() != image.str() {
        e.invalid(&image, "must not have leading or trailing whitespace");
    }
}

fn token_needs_account(e: &mut Errors, spec: &At<'_, '_>) {
    if !spec.get("serviceAccountName").is_empty() {
        return;
    }
    for volume in spec.get("volumes").items() {
        for source in volume.get("projected").get("sources").items() {
            let token = source.get("serviceAccountToken");
            if token.is_set() {
                e.forbidden(&token, "must not be specified when serviceAccountName is not set");
            }
        }
    }
}

/// A template inside a workload.
pub(super) fn template(e: &mut Errors, template: &At<'_, '_>) {
    // Upstream reports the template's metadata without naming `metadata`.
    let metadata = template.get("metadata");
    meta::labels(e, &template.get("labels").with(metadata.get("labels").value));
    let annotations = template.get("annotations").with(metadata.get("annotations").value);
    meta::annotations(e, &annotations);
    let spec = template.get("spec");
    pod_annotations::of_pod(e, &annotations, &spec);
    pod_annotations::match_fields(e, &annotations, &spec);
    pod_spec(e, &spec, false);
    if !spec.get("ephemeralContainers").is_empty() {
        e.forbidden(&spec.get("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

pub(super) fn pod_spec(e: &mut Errors, spec: &At<'_, '_>, is_pod: bool) {
    let grace = spec.get("terminationGracePeriodSeconds");
    if !grace.is_set() {
        e.required(&grace, "");
    }
    let volumes = volume::volumes(e, &spec.get("volumes"));
    let restart = spec.get("restartPolicy");
    let context = Context {
        volumes: &volumes,
        grace: grace.int(),
        restart_policy: restart.str(),
        host_users: spec.get("hostUsers").value != &Value::Bool(false),
    };
    containers(e, spec, &context);
    if spec.get("hostNetwork").bool() {
        host_network(e, spec, is_pod);
    }
    e.one_of(&restart, &["Always", "OnFailure", "Never"]);
    e.one_of(&spec.get("dnsPolicy"), &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    meta::labels(e, &spec.get("nodeSelector"));
    security(e, spec);
    scheduling::affinity(e, &spec.get("affinity"));
    dns(e, spec);
    for gate in spec.get("readinessGates").items() {
        let kind = gate.get("conditionType");
        e.complaints(&kind, names::label_key(kind.str()));
    }
    let mut seen = HashSet::new();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.get("name");
        e.complaints(&gate.with(name.value), names::label_key(name.str()));
        if !seen.insert(name.str()) {
            e.duplicate(&gate.with(name.value));
        }
    }
    scheduling::spread(e, &spec.get("topologySpreadConstraints"));
    for (name, syntax) in [
        ("serviceAccountName", names::dns_subdomain as fn(&str) -> Vec<String>),
        ("nodeName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
    ] {
        let at = spec.get(name);
        if !at.is_empty() {
            e.complaints(&at, syntax(at.str()));
        }
    }
    let deadline = spec.get("activeDeadlineSeconds");
    if deadline.int().is_some_and(|s| !(1..=i32::MAX as i64).contains(&s)) {
        e.invalid(&deadline, names::between(1, i32::MAX as i64));
    }
    scheduling::tolerations(e, &spec.get("tolerations"));
    for alias in spec.get("hostAliases").items() {
        e.ip(&alias.get("ip"));
        for host in alias.get("hostnames").items() {
            e.complaints(&host, names::dns_subdomain(host.str()));
        }
    }
    e.optional_one_of(&spec.get("preemptionPolicy"), &["PreemptLowerPriority", "Never"]);
    platform::of_pod(e, spec);
}

fn containers(e: &mut Errors, spec: &At<'_, '_>, context: &Context<'_, '_>) {
    let main = spec.get("containers");
    if main.is_empty() {
        e.required(&main, "");
    }
    let mut names = HashSet::new();
    for container in main.items() {
        container::common(e, &container, context);
        if !names.insert(container.get("name").str()) {
            e.duplicate(&container.get("name"));
        }
        container::running(e, &container, context);
        e.optional_one_of(&container.get("restartPolicy"), &["Always", "Never", "OnFailure"]);
    }
    if !main.is_empty() {
        container::host_ports(e, &main);
    }
    for container in spec.get("initContainers").items() {
        container::common(e, &container, context);
        let name = container.get("name");
        if names.contains(name.str()) {
            e.duplicate(&name);
        } else if !name.is_empty() {
            names.insert(name.str());
        }
        e.optional_one_of(&container.get("restartPolicy"), &["Always", "Never", "OnFailure"]);
        if container.get("restartPolicy").str() == "Always" {
            container::running(e, &container, context);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.get(field).is_set() {
                let detail = "may not be set for init containers without restartPolicy=Always";
                e.forbidden(&container.get(field), detail);
            }
        }
    }
    ephemeral(e, &spec.get("ephemeralContainers"), context, names);
}

fn ephemeral<'v>(e: &mut Errors, list: &At<'v, '_>, context: &Context<'_, '_>, others: HashSet<&'v str>) {
    let mut own = HashSet::new();
    for container in list.items() {
        container::common(e, &container, context);
        image_whitespace(e, &container);
        let name = container.get("name");
        if others.contains(name.str()) || !own.insert(name.str()) {
            e.duplicate(&name);
        }
        let target = container.get("targetContainerName");
        if !target.is_empty() && !others.contains(target.str()) {
            e.not_found(&target);
        }
        for field in [
            "ports",
            "resources",
            "lifecycle",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "resizePolicy",
        ] {
            if !container.get(field).is_empty() {
                e.forbidden(&container.get(field), "cannot be set for an Ephemeral Container");
            }
        }
        for mount in container.get("volumeMounts").items() {
            for field in ["subPath", "subPathExpr"] {
                if !mount.get(field).is_empty() {
                    e.forbidden(&mount.get(field), "cannot be set for an Ephemeral Container");
                }
            }
        }
    }
}

fn host_network(e: &mut Errors, spec: &At<'_, '_>, is_pod: bool) {
    for container in spec.get("containers").items() {
        for port in container.get("ports").items() {
            let (host, number) = (port.get("hostPort"), port.get("containerPort"));
            let (host_port, container_port) =
                (host.int().unwrap_or_default(), number.int().unwrap_or_default());
            if (is_pod || host_port != 0) && host_port != container_port {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                e.invalid_value(&host, &Value::from(host_port), detail);
            }
        }
    }
}

fn security(e: &mut Errors, spec: &At<'_, '_>) {
    let context = spec.get("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        e.user_id(&context.get(field));
    }
    context.get("supplementalGroups").items().for_each(|group| e.user_id(&group));
    if spec.get("shareProcessNamespace").bool() && spec.get("hostPID").bool() {
        let at = context.get("shareProcessNamespace").with(&Value::Bool(true));
        e.invalid(&at, "ShareProcessNamespace and HostPID cannot both be enabled");
    }
    sysctls(e, spec, &context.get("sysctls"));
    e.optional_one_of(&context.get("fsGroupChangePolicy"), &["Always", "OnRootMismatch"]);
    container::seccomp(e, &context.get("seccompProfile"));
    container::app_armor(e, &context.get("appArmorProfile"));
    host_process(e, spec);
    e.optional_one_of(&context.get("supplementalGroupsPolicy"), &["Merge", "Strict"]);
    e.optional_one_of(&context.get("seLinuxChangePolicy"), &["MountOption", "Recursive"]);
}

/// Those of the checks that earlier versions did not make: stored pods, and templates at this place, may fail them.
pub(super) fn later_checks(e: &mut Errors, pod: &Value, place: &str) {
    let path = format!("{place}spec");
    let spec = &At::named(&pod["spec"], &path);
    let path =
        if place.is_empty() { "metadata.annotations".to_owned() } else { format!("{place}annotations") };
    let annotations = At::named(&pod["metadata"]["annotations"], &path);
    pod_annotations::of_pod(e, &annotations, spec);
    pod_annotations::match_fields(e, &annotations, spec);
    volume::volumes(e, &spec.get("volumes"));
    container::app_armor(e, &spec.get("securityContext").get("appArmorProfile"));
    for list in CONTAINERS {
        for container in spec.get(list).items() {
            container::app_armor(e, &container.get("securityContext").get("appArmorProfile"));
        }
    }
    host_process(e, spec);
    platform::of_pod(e, spec);
}

/// On Windows, either all containers of a pod run as processes of the host, in its network, or none.
fn host_process(e: &mut Errors, spec: &At<'_, '_>) {
    fn flag(part: &Value) -> Option<bool> {
        part["securityContext"]["windowsOptions"]["hostProcess"].as_bool()
    }
    let of_pod = flag(spec.value);
    let mut all = Vec::new();
    for list in CONTAINERS {
        for container in spec.get(list).items() {
            let own = flag(container.value);
            all.push(own.or(of_pod).unwrap_or_default());
            if let (Some(pods), true) = (of_pod, own.is_some() && own != of_pod) {
                let (context, field) = (container.get("securityContext"), "windowsOptions");
                let detail =
                    format!("pod hostProcess value must be identical if both are specified, was {pods}");
                e.invalid(&context.get(field).get("hostProcess"), detail);
            }
        }
    }
    if !all.contains(&true) {
        return;
    }
    if all.contains(&false) {
        let detail =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        e.invalid_value(spec, &Value::from(""), detail);
    }
    if !spec.get("hostNetwork").bool() {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        e.invalid_value(&spec.get("hostNetwork"), &Value::Bool(false), detail);
    }
}

/// A sysctl's name: segments of lower-case words with `.` or `/` between them.
fn is_sysctl(name: &str) -> bool {
    let segment = |s: &str| {
        let bytes = s.as_bytes();
        let word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        !bytes.is_empty()
            && word(bytes[0])
            && word(bytes[bytes.len() - 1])
            && bytes.iter().all(|&c| word(c) || matches!(c, b'-' | b'_'))
    };
    name.len() <= 253 && name.split(['.', '/']).all(segment)
}

fn sysctls(e: &mut Errors, spec: &At<'_, '_>, sysctls: &At<'_, '_>) {
    const PATTERN: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let mut seen = HashSet::new();
    for sysctl in sysctls.items() {
        let name = sysctl.get("name");
        if name.is_empty() {
            e.required(&name, "");
        } else if !is_sysctl(name.str()) {
            e.invalid(&name, format!("must have at most 253 characters and match regex {PATTERN}"));
        } else if seen.contains(name.str()) {
            e.duplicate(&name);
        }
        seen.insert(name.str());
        let normal = name.str().replace('/', ".");
        if spec.get("hostNetwork").bool() && normal.starts_with("net.") {
            e.invalid(&name, "may not be specified when 'hostNetwork' is true");
        }
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
        if spec.get("hostIPC").bool() && ipc.iter().any(|p| normal.starts_with(p)) {
            e.invalid(&name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn dns(e: &mut Errors, spec: &At<'_, '_>) {
    let (policy, config) = (spec.get("dnsPolicy"), spec.get("dnsConfig"));
    let (servers, searches) = (config.get("nameservers"), config.get("searches"));
    if policy.str() == "None" {
        if !config.is_set() {
            e.required(&config, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if servers.is_empty() {
            e.required(&servers, "must provide at least one DNS nameserver when `dnsPolicy` is None");
            return;
        }
    }
    if servers.len() > 3 {
        e.invalid(&servers, "must not have more than 3 nameservers");
    }
    for server in servers.items() {
        e.ip(&server);
    }
    if searches.len() > 32 {
        e.invalid(&searches, "must not have more than 32 search paths");
    }
    let total: usize = searches.items().map(|s| s.str().len() + 1).sum();
    if total > 2049 {
        e.invalid(&searches, "must not have more than 2048 characters (including spaces) in the search list");
    }
    for option in config.get("options").items() {
        if option.get("name").is_empty() {
            e.required(&option, "must not be empty");
        }
    }
}

/// Only images, deadlines, tolerations and gates of a pod change.
pub(super) fn update(e: &mut Errors, pod: &At<'_, '_>, old: &Value) {
    let spec = pod.get("spec");
    pod_spec(e, &spec, true);
    for list in ["containers", "initContainers"] {
        spec.get(list).items().for_each(|container| image_whitespace(e, &container));
    }
    let before = At::root(old);
    let old_spec = before.get("spec");
    let metadata = pod.get("metadata");
    let old_annotations = old.pointer("/metadata/annotations").unwrap_or(&Value::Null);
    pod_annotations::update(e, &metadata.get("annotations"), old_annotations, &spec);
    for list in ["containers", "initContainers"] {
        if spec.get(list).len() != old_spec.get(list).len() {
            e.forbidden(&spec.get(list), "pod updates may not add or remove containers");
            return;
        }
    }
    let (deadline, old_deadline) = (spec.get("activeDeadlineSeconds"), old_spec.get("activeDeadlineSeconds"));
    match (deadline.int(), old_deadline.int()) {
        (Some(new), Some(old)) if new > old => {
            e.invalid(&deadline, "must be less than or equal to previous value");
            return;
        }
        (None, Some(_)) => {
            e.invalid_value(&deadline, &Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
    only_added_tolerations(e, &spec.get("tolerations"), &old_spec.get("tolerations"));
    let old_gates = old_spec.get("schedulingGates");
    let old_gates: HashSet<&str> = old_gates.items().map(|gate| gate.get("name").str()).collect();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.get("name");
        if !old_gates.contains(name.str()) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", name.str());
            e.forbidden(&name, detail);
        }
    }
    let gated = !old_spec.get("schedulingGates").is_empty();
    if !same(&frozen(spec.value, gated), &frozen(old_spec.value, gated)) {
        let fields = [
            "`spec.containers[*].image`",
            "`spec.initContainers[*].image`",
            "`spec.activeDeadlineSeconds`",
            "`spec.tolerations` (only additions to existing tolerations)",
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ];
        let detail = format!("pod updates may not change fields other than {}\n", fields.join(","));
        e.forbidden(&spec, detail);
    }
}

fn only_added_tolerations(e: &mut Errors, new: &At<'_, '_>, old: &At<'_, '_>) {
    fn key<'v>(toleration: At<'v, '_>) -> [&'v str; 4] {
        ["key", "operator", "value", "effect"].map(|field| toleration.get(field).str())
    }
    let kept: HashSet<_> = new.items().map(key).collect();
    if !old.items().all(|before| kept.contains(&key(before))) {
        e.forbidden(new, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// The part of a pod's spec that cannot change.
fn frozen(spec: &Value, gated: bool) -> Value {
    let mut spec = spec.clone();
    let Some(map) = spec.as_object_mut() else { return spec };
    for list in ["containers", "initContainers"] {
        for container in map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container.as_object_mut().map(|c| c.remove("image"));
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        map.remove(field);
    }
    if gated {
        map.remove("nodeSelector");
        map.get_mut("affinity").and_then(Value::as_object_mut).map(|a| a.remove("nodeAffinity"));
    }
    spec
}

/// `/ephemeralcontainers`: existing ones stay as they are.
pub fn ephemeral_update(e: &mut Errors, pod: &At<'_, '_>, old: &Value) {
    pod_spec(e, &pod.get("spec"), true);
    let spec = pod.get("spec");
    let list = spec.get("ephemeralContainers");
    let before = At::root(old);
    let mut now: HashMap<&str, &Value> = HashMap::new();
    for container in list.items() {
        now.entry(container.get("name").str()).or_insert(container.value);
    }
    for known in before.get("spec").get("ephemeralContainers").items() {
        let name = known.get("name").str();
        match now.get(name) {
            None => {
                e.forbidden(&list, format!("existing ephemeral containers {name:?} may not be removed\n"))
            }
            Some(now) if !same(now, known.value) => {
                e.forbidden(&list, format!("existing ephemeral containers {name:?} may not be changed\n"));
            }
            Some(_) => {}
        }
    }
}
