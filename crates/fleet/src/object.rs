//! Objects at the hub as JSON, and small readers for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tombolo_api::ObjectRef;

/// An object of the hub.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

pub type Object = Arc<Value>;

/// How a kind behaves when it is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Has `spec.replicas` that can be shared out.
    Replicated,
    /// Runs as one, somewhere.
    Unit,
    /// Runs on every node of every site chosen.
    PerNode,
    /// Is needed wherever it is sent: configuration, definitions, addresses.
    Shared,
}

/// Kinds that run something, with where their pod template is.
const WORKLOADS: [(&str, &str, Nature, &str); 6] = [
    ("apps/v1", "Deployment", Nature::Replicated, "/spec/template"),
    ("apps/v1", "StatefulSet", Nature::Replicated, "/spec/template"),
    ("apps/v1", "DaemonSet", Nature::PerNode, "/spec/template"),
    ("batch/v1", "Job", Nature::Unit, "/spec/template"),
    ("batch/v1", "CronJob", Nature::Unit, "/spec/jobTemplate/spec/template"),
    ("v1", "Pod", Nature::Unit, ""),
];

/// Kinds that a pod template can name.
pub const DEPENDENCIES: [(&str, &str); 5] = [
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Service"),
];

pub fn workloads() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORKLOADS.iter().map(|(version, kind, ..)| (*version, *kind))
}

pub fn nature(api_version: &str, kind: &str) -> Nature {
    let known =
        WORKLOADS.iter().find(|(v, k, ..)| *v == api_version && *k == kind).map(|(.., nature, _)| *nature);
    // Custom resources usually stand for something that runs; the kinds Kubernetes itself brings do not.
    let custom = api_version
        .split_once('/')
        .is_some_and(|(group, _)| group.contains('.') && !group.ends_with(".k8s.io"));
    known.unwrap_or(if custom { Nature::Unit } else { Nature::Shared })
}

pub fn is_workload(key: &Key) -> bool {
    WORKLOADS.iter().any(|(v, k, ..)| *v == key.api_version && *k == key.kind)
}

/// JSON pointer of the pod template (the object itself, for a Pod).
pub fn template_pointer(kind: &str) -> Option<&'static str> {
    WORKLOADS.iter().find(|(_, k, ..)| *k == kind).map(|(.., pointer)| *pointer)
}

impl Key {
    pub fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let own = str::to_owned;
        Self { api_version: own(api_version), kind: own(kind), namespace: own(namespace), name: own(name) }
    }

    pub fn of(object: &Value) -> Option<Self> {
        let kind = text(object, "/kind");
        let name = text(object, "/metadata/name");
        (!kind.is_empty() && !name.is_empty())
            .then(|| Self::new(text(object, "/apiVersion"), kind, text(object, "/metadata/namespace"), name))
    }

    pub fn of_root(root: &ObjectRef) -> Self {
        Self::new(&root.api_version, &root.kind, &root.namespace, &root.name)
    }

    /// Objects that are the hub's own business: what it works with itself, whoever selects it.
    pub fn is_internal(&self) -> bool {
        let own = |group: &str| group == tombolo_api::names::GROUP;
        if own(self.group())
            || (self.kind == "CustomResourceDefinition"
                && self.name.split_once('.').is_some_and(|(_, group)| own(group)))
        {
            return true;
        }
        matches!(self.namespace.as_str(), "kube-system" | "kube-public" | "kube-node-lease")
            || self.namespace == tombolo_api::names::SYSTEM_NAMESPACE
            || (self.namespace.starts_with("site-") && self.kind != "Pod")
    }
}

impl Key {
    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Where Placements for it are: objects without a namespace are placed from the system namespace.
    pub fn home(&self) -> &str {
        if self.namespace.is_empty() { tombolo_api::names::SYSTEM_NAMESPACE } else { &self.namespace }
    }

    /// Kinds whose status the hub's own API server keeps: what sites say of theirs must not overwrite it.
    pub fn has_status_of_its_own(&self) -> bool {
        matches!(
            (self.group(), self.kind.as_str()),
            (
                "apiextensions.k8s.io"
                    | "apiregistration.k8s.io"
                    | "certificates.k8s.io"
                    | "flowcontrol.apiserver.k8s.io",
                _
            ) | ("", "Namespace" | "Node" | "ResourceQuota")
        )
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind.to_lowercase(), self.name)?;
        if self.namespace.is_empty() { Ok(()) } else { write!(f, " in {}", self.namespace) }
    }
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub fn strings(object: &Value, pointer: &str) -> BTreeMap<String, String> {
    let map = object.pointer(pointer).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
}

pub fn annotation<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get("annotations")?.get(name)?.as_str()).unwrap_or_default()
}

/// The name of the Work for one root object: readable, and different when an object of the same name is made anew.
pub fn work_name(root: &Key, uid: &str) -> String {
    let digest =
        Sha256::digest(format!("{}|{}|{}|{}|{uid}", root.api_version, root.kind, root.namespace, root.name));
    let mut readable = format!("{}-{}", root.kind.to_lowercase(), root.name)
        .replace(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit(), "-");
    readable.truncate(50);
    format!("{}-{}", readable.trim_end_matches('-'), &hex::encode(digest)[..10])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_name_is_a_label_value_and_changes_with_the_uid() {
        let key = Key::new("apps/v1", "Deployment", "shop", &"Very.long_name".repeat(9));
        let name = work_name(&key, "1");
        assert!(
            name.len() <= 63
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "{name}"
        );
        assert_ne!(name, work_name(&key, "2"));
    }

    #[test]
    fn kinds_behave_as_they_are_meant() {
        assert_eq!(nature("apps/v1", "Deployment"), Nature::Replicated);
        assert_eq!(nature("v1", "ConfigMap"), Nature::Shared);
        assert_eq!(nature("networking.k8s.io/v1", "Ingress"), Nature::Shared);
        assert_eq!(nature("apiextensions.k8s.io/v1", "CustomResourceDefinition"), Nature::Shared);
        assert_eq!(nature("db.example.com/v1", "Postgres"), Nature::Unit);
    }
}
