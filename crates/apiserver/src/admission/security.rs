//! Pod security: a namespace's labels say how much a pod in it may ask of its node.
//!
//! The levels are upstream's: `privileged` allows everything, `baseline` nothing that reaches into the node,
//! `restricted` only what a hardened workload needs.

mod checks;

use serde_json::Value;
use tombolo_k8s::field::FieldError;

use crate::kinds::pods::APP_ARMOR;
use checks::{Subject, containers};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const AUDIT: &str = "pod-security.kubernetes.io/audit";
const WARN: &str = "pod-security.kubernetes.io/warn";

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

/// The levels that a namespace enforces and warns of. Who says nothing of warnings is warned of what is enforced. A word
/// that is no level enforces the strictest and warns of nothing.
pub fn levels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> (Level, Level) {
    let level = |key: &str, unsaid: Level, otherwise: Level| {
        label(key).map_or(unsaid, |text| Level::parse(text).unwrap_or(otherwise))
    };
    let enforced = level(ENFORCE, Level::Privileged, Level::Restricted);
    (enforced, level(WARN, enforced, Level::Privileged))
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
        containers(&pod["spec"]).map(parts).collect()
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
    let found = checks::findings(level, &Subject { spec, annotations });
    (!found.is_empty())
        .then(|| format!("violates PodSecurity \"{}:latest\": {}", level.name(), found.join(", ")))
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
            "violates PodSecurity \"baseline:latest\": non-default capabilities (container \"c\" must not include \
             \"NET_ADMIN\" in securityContext.capabilities.add), host namespaces (hostNetwork=true), hostPath volumes (volume \
             \"v\"), privileged (container \"c\" must not set securityContext.privileged=true)"
        );
    }

    #[test]
    fn a_probe_of_another_host_breaks_the_baseline() {
        let probe = json!({"httpGet": {"port": 80, "host": "10.0.0.1"}});
        let spec = json!({"containers": [{"name": "c", "livenessProbe": probe}]});
        assert_eq!(
            text(Level::Baseline, spec),
            "violates PodSecurity \"baseline:latest\": probe or lifecycle host (container \"c\" uses probe or lifecycle \
             host \"10.0.0.1\")"
        );
    }

    #[test]
    fn who_says_nothing_of_warnings_is_warned_of_what_is_enforced() {
        let labels = |enforce, warn| {
            levels(move |key| match key {
                ENFORCE => enforce,
                WARN => warn,
                _ => None,
            })
        };
        assert_eq!(labels(Some("baseline"), None), (Level::Baseline, Level::Baseline));
        assert_eq!(labels(Some("baseline"), Some("privileged")), (Level::Baseline, Level::Privileged));
        assert_eq!(labels(None, Some("restricted")), (Level::Privileged, Level::Restricted));
    }
}
