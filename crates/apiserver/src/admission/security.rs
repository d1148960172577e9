//! Pod security: a namespace's labels say how much a pod in it may ask of its node.
//!
//! The levels are upstream's: `privileged` allows everything, `baseline` nothing that reaches into the node,
//! `restricted` only what a hardened workload needs.

use serde_json::Value;
use tombolo_k8s::field::FieldError;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const AUDIT: &str = "pod-security.kubernetes.io/audit";
const WARN: &str = "pod-security.kubernetes.io/warn";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|level| level.name() == text)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// The levels that a namespace enforces and warns of. A word that is no level enforces the strictest and warns of nothing.
pub fn levels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> (Level, Level) {
    let level = |key: &str, otherwise: Level| {
        label(key).map_or(Level::Privileged, |text| Level::parse(text).unwrap_or(otherwise))
    };
    (level(ENFORCE, Level::Restricted), level(WARN, Level::Privileged))
}

/// What is wrong with the labels by which a namespace chooses its levels.
pub fn label_errors(namespace: &Value) -> Vec<FieldError> {
    let labels = &namespace["metadata"]["labels"];
    let mut errors = Vec::new();
    let mut check = |key: &str, fits: fn(&str) -> bool, detail: &str| {
        if let Some(text) = labels[key].as_str()
            && !fits(text)
        {
            errors.push(FieldError::invalid(format!("metadata.labels[{key}]"), &labels[key], detail));
        }
    };
    for key in [ENFORCE, AUDIT, WARN] {
        check(key, |text| Level::parse(text).is_some(), "must be one of privileged, baseline, restricted");
        check(&format!("{key}-version"), is_version, "must be \"latest\" or \"v1.x\"");
    }
    errors
}

fn is_version(text: &str) -> bool {
    let number = text.strip_prefix("v1.").unwrap_or_default();
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    text == "latest" || (digits && (number == "0" || !number.starts_with('0')))
}

/// Whether an update changes something that a level judges. The rest of a pod's spec never changes, or is no matter of
/// security: a pod that was there before its namespace's level goes on as it is.
pub fn judges_anew(pod: &Value, old: &Value) -> bool {
    let runs = |pod: &Value| -> Vec<[Value; 3]> {
        let parts = |c: &Value| ["name", "image", "securityContext"].map(|key| c[key].clone());
        containers(&pod["spec"]).map(|(_, container)| parts(container)).collect()
    };
    let profiles = |pod: &Value| -> Vec<(String, Value)> {
        let annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
        let profiles = annotations.filter(|(key, _)| key.starts_with(APP_ARMOR));
        profiles.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    runs(pod) != runs(old) || profiles(pod) != profiles(old)
}

/// What a pod spec does that a level does not allow, in upstream's words; `None` when it is fine.
pub fn violation(level: Level, spec: &Value, annotations: &Value) -> Option<String> {
    let mut found = Vec::new();
    if level >= Level::Baseline {
        baseline(spec, annotations, level, &mut found);
    }
    if level == Level::Restricted {
        restricted(spec, &mut found);
    }
    (!found.is_empty())
        .then(|| format!("violates PodSecurity \"{}:latest\": {}", level.name(), found.join(", ")))
}

/// All containers with their names.
fn containers(spec: &Value) -> impl Iterator<Item = (&str, &Value)> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(move |list| spec[list].as_array().into_iter().flatten())
        .map(|c| (c["name"].as_str().unwrap_or_default(), c))
}

/// The names of containers for which something holds.
fn named(spec: &Value, bad: impl Fn(&Value) -> bool) -> Vec<&str> {
    containers(spec).filter(|(_, c)| bad(c)).map(|(name, _)| name).collect()
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ")
}

/// `container "a"` or `containers "a", "b"`.
fn who(names: &[&str]) -> String {
    format!("{} {}", if names.len() == 1 { "container" } else { "containers" }, quoted(names))
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

const SAFE_SYSCTLS: [&str; 9] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
];

fn added(container: &Value) -> impl Iterator<Item = &str> {
    let list = container.pointer("/securityContext/capabilities/add").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn baseline(spec: &Value, annotations: &Value, level: Level, found: &mut Vec<String>) {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|key| spec[**key] == true)
        .map(|key| format!("{key}=true"))
        .collect();
    if !set.is_empty() {
        found.push(format!("host namespaces ({})", set.join(", ")));
    }
    let volumes: Vec<&str> = spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| v.get("hostPath").is_some())
        .filter_map(|v| v["name"].as_str())
        .collect();
    // The restricted level's own check of volumes says more.
    if !volumes.is_empty() && level == Level::Baseline {
        let what = if volumes.len() == 1 { "volume" } else { "volumes" };
        found.push(format!("hostPath volumes ({what} {})", quoted(&volumes)));
    }
    let privileged = named(spec, |c| c.pointer("/securityContext/privileged") == Some(&Value::Bool(true)));
    if !privileged.is_empty() {
        found.push(format!("privileged ({} must not set securityContext.privileged=true)", who(&privileged)));
    }
    if level == Level::Baseline {
        let strange = |c: &Value| added(c).any(|name| !DEFAULT_CAPABILITIES.contains(&name));
        let greedy = named(spec, strange);
        if !greedy.is_empty() {
            let mut names: Vec<&str> = containers(spec)
                .flat_map(|(_, c)| added(c))
                .filter(|n| !DEFAULT_CAPABILITIES.contains(n))
                .collect();
            names.sort_unstable();
            names.dedup();
            found.push(format!(
                "non-default capabilities ({} must not include {} in securityContext.capabilities.add)",
                who(&greedy),
                quoted(&names)
            ));
        }
    }
    let ports = |c: &Value| -> Vec<String> {
        let ports = c["ports"].as_array().into_iter().flatten();
        ports.filter_map(|p| p["hostPort"].as_u64()).filter(|p| *p > 0).map(|p| p.to_string()).collect()
    };
    let with_ports = named(spec, |c| !ports(c).is_empty());
    if !with_ports.is_empty() {
        let all: Vec<String> = containers(spec).flat_map(|(_, c)| ports(c)).collect();
        let uses = if with_ports.len() == 1 { "uses" } else { "use" };
        let what = if all.len() == 1 { "hostPort" } else { "hostPorts" };
        found.push(format!("hostPort ({} {uses} {what} {})", who(&with_ports), all.join(", ")));
    }
    let unmasked = named(spec, |c| {
        c.pointer("/securityContext/procMount").and_then(Value::as_str).is_some_and(|m| m != "Default")
    });
    if !unmasked.is_empty() {
        found.push(format!(
            "procMount ({} must not set securityContext.procMount to \"Unmasked\")",
            who(&unmasked)
        ));
    }
    let unconfined = |value: &Value, kind: &str| {
        value.pointer(&format!("/securityContext/{kind}/type")).and_then(Value::as_str) == Some("Unconfined")
    };
    for (kind, what) in
        [("seccompProfile", "seccompProfile"), ("appArmorProfile", "forbidden AppArmor profile")]
    {
        let of_containers = named(spec, |c| unconfined(c, kind));
        let mut subjects = Vec::new();
        if unconfined(spec, kind) {
            subjects.push("pod".to_owned());
        }
        if !of_containers.is_empty() {
            subjects.push(who(&of_containers));
        }
        if !subjects.is_empty() {
            found.push(format!(
                "{what} ({} must not set securityContext.{kind}.type to \"Unconfined\")",
                subjects.join(" and ")
            ));
        }
    }
    let old_style: Vec<String> = annotations
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(k, v)| k.starts_with(APP_ARMOR) && *v == "unconfined")
        .map(|(k, _)| format!("{k}=\"unconfined\""))
        .collect();
    if !old_style.is_empty() {
        found.push(format!("forbidden AppArmor profile ({})", old_style.join(", ")));
    }
    let sysctls: Vec<&str> = spec
        .pointer("/securityContext/sysctls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|s| s["name"].as_str())
        .filter(|name| !SAFE_SYSCTLS.contains(name))
        .collect();
    if !sysctls.is_empty() {
        found.push(format!("forbidden sysctls ({})", sysctls.join(", ")));
    }
    let relabels = |value: &Value| {
        let options = value.pointer("/securityContext/seLinuxOptions");
        let text = |key: &str| options.and_then(|o| o[key].as_str()).unwrap_or_default();
        let types = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
        !types.contains(&text("type")) || !text("user").is_empty() || !text("role").is_empty()
    };
    let relabelled = named(spec, relabels);
    if relabels(spec) || !relabelled.is_empty() {
        let subject = if relabels(spec) { "pod".to_owned() } else { who(&relabelled) };
        found.push(format!("seLinuxOptions ({subject} sets forbidden securityContext.seLinuxOptions)"));
    }
}

const ALLOWED_VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn restricted(spec: &Value, found: &mut Vec<String>) {
    let escalating =
        named(spec, |c| c.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false)));
    if !escalating.is_empty() {
        found.push(format!(
            "allowPrivilegeEscalation != false ({} must set securityContext.allowPrivilegeEscalation=false)",
            who(&escalating)
        ));
    }
    let drops = |c: &Value| {
        let list = c.pointer("/securityContext/capabilities/drop").and_then(Value::as_array);
        list.is_some_and(|l| l.iter().any(|d| d == "ALL"))
    };
    let keeping = named(spec, |c| !drops(c));
    let adding = named(spec, |c| added(c).any(|name| name != "NET_BIND_SERVICE"));
    let mut parts = Vec::new();
    if !keeping.is_empty() {
        parts.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", who(&keeping)));
    }
    if !adding.is_empty() {
        let mut names: Vec<&str> =
            containers(spec).flat_map(|(_, c)| added(c)).filter(|n| *n != "NET_BIND_SERVICE").collect();
        names.sort_unstable();
        names.dedup();
        parts.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            who(&adding),
            quoted(&names)
        ));
    }
    if !parts.is_empty() {
        found.push(format!("unrestricted capabilities ({})", parts.join("; ")));
    }
    let strange: Vec<(&str, &str)> = spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| {
            let kind = v.as_object()?.keys().find(|k| *k != "name")?;
            (!ALLOWED_VOLUMES.contains(&kind.as_str()))
                .then(|| (v["name"].as_str().unwrap_or_default(), kind.as_str()))
        })
        .collect();
    if !strange.is_empty() {
        let texts: Vec<String> = strange
            .iter()
            .map(|(name, kind)| format!("volume {name:?} uses restricted volume type {kind:?}"))
            .collect();
        found.push(format!("restricted volume types ({})", texts.join(", ")));
    }
    let flag = |value: &Value| value.pointer("/securityContext/runAsNonRoot").and_then(Value::as_bool);
    let rooted = named(spec, |c| flag(c).or(flag(spec)) != Some(true));
    if !rooted.is_empty() {
        let subject = format!("pod or {}", who(&rooted));
        found.push(format!("runAsNonRoot != true ({subject} must set securityContext.runAsNonRoot=true)"));
    }
    let is_root =
        |value: &Value| value.pointer("/securityContext/runAsUser").and_then(Value::as_i64) == Some(0);
    let as_root = named(spec, is_root);
    if is_root(spec) || !as_root.is_empty() {
        let subject = if is_root(spec) { "pod".to_owned() } else { who(&as_root) };
        found.push(format!("runAsUser=0 ({subject} must not set runAsUser=0)"));
    }
    let profile = |value: &Value| -> Option<bool> {
        let kind = value.pointer("/securityContext/seccompProfile/type")?.as_str()?;
        Some(matches!(kind, "RuntimeDefault" | "Localhost"))
    };
    let open = named(spec, |c| profile(c).or(profile(spec)) != Some(true));
    if !open.is_empty() {
        found.push(format!(
            "seccompProfile (pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            who(&open)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(level: Level, spec: Value) -> String {
        violation(level, &spec, &Value::Null).unwrap_or_default()
    }

    #[test]
    fn a_plain_pod_fits_the_baseline_but_not_the_restricted_level() {
        let spec = json!({"containers": [{"name": "c"}]});
        assert_eq!(text(Level::Baseline, spec.clone()), "");
        let said = text(Level::Restricted, spec);
        assert!(said.starts_with(
            "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\""
        ));
        assert!(said.contains("runAsNonRoot != true (pod or container \"c\" must set"));
    }

    #[test]
    fn a_hardened_pod_fits_the_restricted_level() {
        let spec = json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        });
        assert_eq!(text(Level::Restricted, spec), "");
    }

    #[test]
    fn reaching_into_the_node_breaks_the_baseline() {
        let spec = json!({
            "hostNetwork": true, "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
            "containers": [{"name": "c", "securityContext": {"privileged": true, "capabilities": {"add": ["NET_ADMIN"]}}}],
        });
        assert_eq!(
            text(Level::Baseline, spec),
            "violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true), hostPath volumes (volume \"v\"), \
             privileged (container \"c\" must not set securityContext.privileged=true), non-default capabilities \
             (container \"c\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)"
        );
    }
}
