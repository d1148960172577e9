//! Pods and nodes as the scheduler sees them: only what decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Labels, Requirement, Resources, Taint, Toleration};

/// A node without what runs on it. Readiness is not here: the node lifecycle controller expresses it as taints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    /// Bytes by image name, for every name of every image that is on the node.
    pub images: BTreeMap<String, i64>,
}

/// A pod, either to be scheduled or already on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    /// The node it is on, or the only one it may go to.
    pub node: Option<String>,
    /// It has run to its end and uses nothing.
    pub finished: bool,
    /// It is being deleted: it still uses its resources but no longer counts for spreading.
    pub terminating: bool,
    /// What it asks for, one pod included.
    pub requests: Resources,
    pub priority: i32,
    /// Whether it may push out pods of lower priority.
    pub may_preempt: bool,
    /// All must hold.
    pub node_selector: Vec<Requirement>,
    /// One must hold; `None`: no condition.
    pub node_affinity: Option<Vec<NodeTerm>>,
    pub preferred_nodes: Vec<(i64, NodeTerm)>,
    pub tolerations: Vec<Toleration>,
    pub affinity: Arc<Affinity>,
    pub spread: Vec<SpreadConstraint>,
    /// Selects its siblings (pods of the same controller), which are spread out when no constraint is given.
    pub siblings: Option<Vec<Requirement>>,
    pub host_ports: Vec<HostPort>,
    /// For every volume that only some nodes can reach: the terms of which one must hold.
    pub volumes: Vec<Vec<NodeTerm>>,
    pub images: Vec<String>,
    /// Reasons outside of nodes why it cannot be scheduled now (a claim that does not exist, a scheduling
    /// gate), put here by the caller; with any of these no node is looked at.
    pub blocked: Vec<String>,
}

/// All must hold; a term without any condition matches no node, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    pub labels: Vec<Requirement>,
    /// On `metadata.name`, the only field there is.
    pub fields: Vec<Requirement>,
}

/// A pod's wishes about other pods. Shared by all pods of a template, so that pods with equal wishes
/// are looked at once per decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Affinity {
    pub near: Vec<PodTerm>,
    pub apart: Vec<PodTerm>,
    /// Weight, negative for "rather apart".
    pub preferred: Vec<(i64, PodTerm)>,
}

/// Pods that match `selector` in the given namespaces, seen over the domains of `topology_key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodTerm {
    pub namespaces: BTreeSet<String>,
    /// Further namespaces by their labels; an empty list selects all.
    pub namespace_selector: Option<Vec<Requirement>>,
    /// `None` selects no pod, an empty list every pod.
    pub selector: Option<Vec<Requirement>>,
    pub topology_key: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SpreadConstraint {
    pub topology_key: String,
    pub max_skew: i64,
    pub min_domains: i64,
    /// `DoNotSchedule` rather than `ScheduleAnyway`.
    pub required: bool,
    /// `None` selects no pod, an empty list every pod.
    pub selector: Option<Vec<Requirement>>,
    /// Only nodes that the pod's selector and affinity admit count.
    pub honor_affinity: bool,
    /// Only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// `0.0.0.0` for every address.
    pub ip: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    pub port: i32,
}

impl NodeTerm {
    pub fn matches(&self, node: &NodeView) -> bool {
        (!self.labels.is_empty() || !self.fields.is_empty())
            && self.labels.iter().all(|requirement| requirement.matches(&node.labels))
            && self.fields.iter().all(|requirement| {
                requirement.key == "metadata.name" && requirement.matches_value(Some(&node.name))
            })
    }
}

impl PodTerm {
    /// Whether a pod of these labels in this namespace is meant.
    pub fn matches(&self, namespace: &str, namespace_labels: &Labels, labels: &Labels) -> bool {
        let here = self.namespaces.contains(namespace)
            || self.namespace_selector.as_ref().is_some_and(|all| selects(all, namespace_labels));
        here && self.selector.as_ref().is_some_and(|all| selects(all, labels))
    }
}

impl Affinity {
    pub fn is_empty(&self) -> bool {
        self.near.is_empty() && self.apart.is_empty() && self.preferred.is_empty()
    }
}

impl HostPort {
    /// Whether both cannot be had on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

impl PodView {
    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether the node meets the pod's `nodeSelector` and required node affinity.
    pub fn admits(&self, node: &NodeView) -> bool {
        selects(&self.node_selector, &node.labels)
            && self.node_affinity.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
    }
}

/// Whether all requirements hold.
pub(crate) fn selects(requirements: &[Requirement], labels: &Labels) -> bool {
    requirements.iter().all(|requirement| requirement.matches(labels))
}

/// The order in which waiting pods are scheduled: higher priority first, then who waits longest, then by
/// name. `since` is whatever grows with time.
pub fn queue_order(a: (&PodView, u64), b: (&PodView, u64)) -> std::cmp::Ordering {
    let ((a, a_since), (b, b_since)) = (a, b);
    (b.priority.cmp(&a.priority))
        .then(a_since.cmp(&b_since))
        .then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
}
