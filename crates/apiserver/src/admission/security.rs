//! Pod security: a namespace's labels say how much a pod in it may ask of its node.
//!
//! The levels are upstream's: `privileged` allows everything, `baseline` nothing that reaches into the node,
//! `restricted` only what a hardened workload needs. What they mean has changed with the releases of Kubernetes, and a
//! namespace may ask for an earlier one's meaning.

mod checks;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tombolo_k8s::field::FieldError;

use crate::kinds::pods::APP_ARMOR;
use crate::registry::write;
use checks::{Finding, Subject, containers};

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

/// The minor release of Kubernetes 1 whose rules are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Release(u32);

impl Release {
    const LATEST: Self = Self(u32::MAX);

    fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::LATEST);
        }
        let number = text.strip_prefix("v1.")?;
        let plain = number.bytes().all(|b| b.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
        number.parse().ok().filter(|_| plain).map(Self)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LATEST => f.write_str("latest"),
            Self(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// A level as one release of Kubernetes understood it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    level: Level,
    release: Release,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.name(), self.release)
    }
}

impl Policy {
    /// What a pod, or what pods are made from, does that is not allowed: each fault in upstream's words.
    fn findings(self, pod: &Value) -> Vec<Finding> {
        let (spec, annotations) = (&pod["spec"], &pod["metadata"]["annotations"]);
        checks::findings(self.level, &Subject { spec, annotations, release: self.release })
    }

    /// What is wrong with a pod; `None` when it is fine.
    pub fn violation(self, pod: &Value) -> Option<String> {
        let found: Vec<String> = self.findings(pod).iter().map(Finding::to_string).collect();
        (!found.is_empty()).then(|| format!("violates PodSecurity \"{self}\": {}", found.join(", ")))
    }

    /// Whether pods that were fine by the other may be wrong by this one.
    pub fn is_stricter_than(self, other: Self) -> bool {
        self.level != Level::Privileged && (self.release != other.release || self.level > other.level)
    }

    /// What to tell who makes a namespace enforce this while pods are there: faults, with the pods that have them.
    pub fn warnings(self, namespace: &str, pods: &[Value]) -> Vec<String> {
        let mut faulty: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for pod in pods {
            let reasons: Vec<String> = self.findings(pod).into_iter().map(|found| found.reason).collect();
            if !reasons.is_empty() {
                faulty.entry(reasons.join(", ")).or_default().push(write::name_of(pod));
            }
        }
        let mut told: Vec<String> = Vec::from_iter(faulty.iter().map(|(reasons, names)| {
            let first = names.iter().min().copied().unwrap_or_default();
            let others = match names.len() {
                0 | 1 => String::new(),
                2 => " (and 1 other pod)".to_owned(),
                count => format!(" (and {} other pods)", count - 1),
            };
            format!("{first}{others}: {reasons}")
        }));
        told.sort();
        if !told.is_empty() {
            let what = format!(
                "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{self}\""
            );
            told.insert(0, what);
        }
        told
    }
}

/// What a namespace enforces and what it warns of. Who says nothing of warnings is warned of what is enforced. A word
/// that is no level enforces the strictest and warns of nothing.
pub fn policies<'a>(label: impl Fn(&str) -> Option<&'a str>) -> (Policy, Policy) {
    let release = |mode: &str| {
        let text = label(&format!("{mode}-version"))?;
        Some(Release::parse(text).unwrap_or(Release::LATEST))
    };
    let said = label(ENFORCE).map(Level::parse);
    let enforced = Policy {
        level: said.map_or(Level::Privileged, |level| level.unwrap_or(Level::Restricted)),
        release: release(ENFORCE).unwrap_or(Release::LATEST),
    };
    let warned_unsaid = said.flatten().filter(|_| label(WARN).is_none());
    let level = match warned_unsaid {
        Some(level) => level,
        None => label(WARN).and_then(Level::parse).unwrap_or(Level::Privileged),
    };
    let otherwise = if warned_unsaid.is_some() { enforced.release } else { Release::LATEST };
    (enforced, Policy { level, release: release(WARN).unwrap_or(otherwise) })
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
        check(
            &format!("{key}-version"),
            |text| Release::parse(text).is_some(),
            "must be \"latest\" or \"v1.x\"",
        );
    }
    errors
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(level: Level, spec: Value) -> String {
        as_of(level, Release::LATEST, json!({"spec": spec}))
    }

    fn as_of(level: Level, release: Release, pod: Value) -> String {
        Policy { level, release }.violation(&pod).unwrap_or_default()
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
    fn an_earlier_release_has_its_own_rules() {
        let probe = json!({"httpGet": {"port": 80, "host": "10.0.0.1"}});
        let pod = json!({"spec": {"containers": [{"name": "c", "livenessProbe": probe}]}});
        assert_eq!(as_of(Level::Baseline, Release(33), pod.clone()), "");
        assert!(
            as_of(Level::Baseline, Release(34), pod).starts_with("violates PodSecurity \"baseline:v1.34\": ")
        );
        let annotations = json!({"container.seccomp.security.alpha.kubernetes.io/c": "unconfined"});
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}});
        assert_eq!(
            as_of(Level::Baseline, Release(18), pod.clone()),
            "violates PodSecurity \"baseline:v1.18\": seccompProfile (forbidden annotation \
             container.seccomp.security.alpha.kubernetes.io/c=\"unconfined\")"
        );
        assert_eq!(as_of(Level::Baseline, Release(19), pod), "");
        assert_eq!(
            ["v1.0", "v1.36", "latest"].map(Release::parse),
            [Some(Release(0)), Some(Release(36)), Some(Release::LATEST)]
        );
        assert_eq!(["v1.", "v1.01", "v1.+1", "1.2", "v2.0", ""].map(Release::parse), [None; 6]);
    }

    #[test]
    fn who_makes_a_namespace_stricter_is_told_which_pods_would_not_fit() {
        let pod = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let host = json!({"hostNetwork": true, "containers": [{"name": "c"}]});
        let pods = [
            pod("c", host.clone()),
            pod("b", host.clone()),
            pod("d", host),
            pod(
                "a",
                json!({"hostPID": true, "containers": [{"name": "c", "securityContext": {"privileged": true}}]}),
            ),
            pod("fine", json!({"containers": [{"name": "c"}]})),
        ];
        let baseline = Policy { level: Level::Baseline, release: Release(30) };
        assert_eq!(
            baseline.warnings("n", &pods),
            [
                "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:v1.30\"",
                "a: host namespaces, privileged",
                "b (and 2 other pods): host namespaces",
            ]
        );
        assert!(baseline.warnings("n", &pods[4..]).is_empty());
    }

    #[test]
    fn who_says_nothing_of_warnings_is_warned_of_what_is_enforced() {
        fn labels(pairs: &[(&str, &str)]) -> (String, String) {
            let (enforced, warned) =
                policies(|key| pairs.iter().find(|(name, _)| key == *name).map(|(_, value)| *value));
            (enforced.to_string(), warned.to_string())
        }
        let both = |enforced: &str, warned: &str| (enforced.to_owned(), warned.to_owned());
        assert_eq!(labels(&[(ENFORCE, "baseline")]), both("baseline:latest", "baseline:latest"));
        assert_eq!(
            labels(&[(ENFORCE, "baseline"), (WARN, "privileged")]),
            both("baseline:latest", "privileged:latest")
        );
        assert_eq!(labels(&[(WARN, "restricted")]), both("privileged:latest", "restricted:latest"));
        let version = "pod-security.kubernetes.io/enforce-version";
        assert_eq!(
            labels(&[(ENFORCE, "baseline"), (version, "v1.20")]),
            both("baseline:v1.20", "baseline:v1.20")
        );
        assert_eq!(
            labels(&[(ENFORCE, "odd"), (version, "odd")]),
            both("restricted:latest", "privileged:latest")
        );
    }
}
