//! Which nodes a DaemonSet's pod may be on, and how it is tied to one of them.

use crate::pod;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{
        Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        Toleration,
    },
};
use tombolo_placement::{
    Effect,
    pods::{NodeView, PodView},
    untolerated,
};

/// What the pods of a set ask of a node; conditions of the node that a daemon lives through are tolerated.
pub struct Fit {
    view: PodView,
    pinned: Option<String>,
}

impl Fit {
    pub fn new(set: &DaemonSet) -> Self {
        let mut pod = Pod::default();
        let template = set.spec.as_ref().map(|spec| &spec.template);
        pod.spec = template.and_then(|template| template.spec.clone());
        pod.metadata.namespace.clone_from(&set.metadata.namespace);
        let pinned = pod::node(&pod).map(str::to_owned);
        tolerate(&mut pod);
        Self { view: PodView::from(&pod), pinned }
    }

    /// (a pod shall be made here, a pod that is here may stay)
    pub fn check(&self, node: &Node) -> (bool, bool) {
        let view = NodeView::from(node);
        let elsewhere = self.pinned.as_ref().is_some_and(|name| *name != view.name);
        if elsewhere || !self.view.admits(&view) {
            return (false, false);
        }
        let repelled =
            |effects: &[Effect]| untolerated(&view.taints, &self.view.tolerations, effects).is_some();
        let stays = !repelled(&[Effect::NoExecute]);
        (stays && !repelled(&[Effect::NoSchedule]), stays)
    }
}

/// Whether a node changed in a way that matters here.
pub fn differ(old: &Node, new: &Node) -> bool {
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
    old.metadata.labels != new.metadata.labels
        || taints(old) != taints(new)
        || old.metadata.deletion_timestamp.is_some() != new.metadata.deletion_timestamp.is_some()
}

/// The node a daemon pod is on, or is meant for.
pub fn of(pod: &Pod) -> Option<String> {
    if let Some(node) = pod::node(pod) {
        return Some(node.to_owned());
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let field = terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten())
        .find(|f| f.key == "metadata.name")?;
    field.values.as_ref()?.first().cloned()
}

/// Ties the pod to the node by affinity: the scheduler then checks everything else.
pub fn pin(pod: &mut Pod, node: &str) {
    tolerate(pod);
    let spec = pod.spec.get_or_insert_default();
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let nodes: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    nodes.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_fields: Some(vec![by_name]),
            match_expressions: None,
        }],
    });
}

fn tolerate(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    let mut conditions = vec![
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    if spec.host_network == Some(true) {
        conditions.push(("network-unavailable", "NoSchedule"));
    }
    let all = spec.tolerations.get_or_insert_default();
    for (key, effect) in conditions {
        let new = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        if !all.contains(&new) {
            all.push(new);
        }
    }
}
