//! KIND/NAME as people type it.

use anyhow::{Result, bail};
use kube::core::GroupVersionKind;

/// A kind that commands know by its short names.
pub struct Kind {
    short: &'static [&'static str],
    pub api_version: &'static str,
    pub name: &'static str,
}

const KINDS: &[Kind] = &[
    Kind { short: &["deploy", "deployment", "deployments"], api_version: "apps/v1", name: "Deployment" },
    Kind { short: &["sts", "statefulset", "statefulsets"], api_version: "apps/v1", name: "StatefulSet" },
    Kind { short: &["ds", "daemonset", "daemonsets"], api_version: "apps/v1", name: "DaemonSet" },
    Kind { short: &["rs", "replicaset", "replicasets"], api_version: "apps/v1", name: "ReplicaSet" },
    Kind { short: &["job", "jobs"], api_version: "batch/v1", name: "Job" },
    Kind { short: &["cj", "cronjob", "cronjobs"], api_version: "batch/v1", name: "CronJob" },
    Kind { short: &["po", "pod", "pods"], api_version: "v1", name: "Pod" },
    Kind { short: &["svc", "service", "services"], api_version: "v1", name: "Service" },
    Kind { short: &["cm", "configmap", "configmaps"], api_version: "v1", name: "ConfigMap" },
    Kind { short: &["secret", "secrets"], api_version: "v1", name: "Secret" },
];

/// The kind and the name in `deploy/web`.
pub fn parse(object: &str) -> Result<(&'static Kind, &str)> {
    let Some((kind, name)) = object.split_once('/').filter(|(_, name)| !name.is_empty()) else {
        bail!("{object:?} names no object; write KIND/NAME, such as deploy/web");
    };
    match KINDS.iter().find(|known| known.short.contains(&kind.to_lowercase().as_str())) {
        Some(known) => Ok((known, name)),
        None => {
            let known: Vec<_> = KINDS.iter().map(|kind| kind.short[0]).collect();
            bail!("no kind {kind:?} is known here; one of {}", known.join(", "))
        }
    }
}

impl From<&Kind> for GroupVersionKind {
    fn from(kind: &Kind) -> Self {
        let (group, version) = kind.api_version.split_once('/').unwrap_or(("", kind.api_version));
        GroupVersionKind::gvk(group, version, kind.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_names_mean_the_same_kind() {
        for text in ["deploy/web", "Deployment/web", "deployments/web"] {
            let (kind, name) = parse(text).expect("a known kind");
            assert_eq!((kind.name, name), ("Deployment", "web"));
        }
        assert!(parse("web").is_err() && parse("deploy/").is_err() && parse("thing/web").is_err());
    }
}
