//! From Kubernetes objects to what the scheduler looks at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::requests;
use super::types::{Affinity, HostPort, NodeTerm, NodeView, PodTerm, PodView, SpreadConstraint};
use crate::{Effect, Labels, Operator, Requirement, Taint, Toleration, TolerationOperator};

impl From<&core::Node> for NodeView {
    fn from(node: &core::Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let mut images = BTreeMap::new();
        for image in status.and_then(|s| s.images.as_ref()).into_iter().flatten() {
            for name in image.names.iter().flatten() {
                images.insert(name.clone(), image.size_bytes.unwrap_or(0));
            }
        }
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.and_then(|s| s.taints.as_ref()).into_iter().flatten().filter_map(taint).collect(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            allocatable: status
                .and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()))
                .map(requests::amounts)
                .unwrap_or_default(),
            images,
        }
    }
}

impl From<&core::Pod> for PodView {
    fn from(pod: &core::Pod) -> Self {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
        let mut view = PodView {
            name: pod.metadata.name.clone().unwrap_or_default(),
            finished: matches!(phase, "Succeeded" | "Failed"),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            may_preempt: true,
            siblings: siblings(pod, &labels),
            ..PodView::default()
        };
        if let Some(spec) = &pod.spec {
            fill_from_spec(&mut view, spec, &namespace, &labels);
        }
        PodView { namespace, labels, ..view }
    }
}

fn fill_from_spec(view: &mut PodView, spec: &core::PodSpec, namespace: &str, labels: &Labels) {
    view.node = spec.node_name.clone().filter(|name| !name.is_empty());
    view.requests = requests::of_pod(spec);
    view.priority = spec.priority.unwrap_or(0);
    view.may_preempt = spec.preemption_policy.as_deref() != Some("Never");
    view.node_selector =
        spec.node_selector.iter().flatten().map(|(key, value)| Requirement::equals(key, value)).collect();
    view.tolerations = spec.tolerations.iter().flatten().map(toleration).collect();
    view.spread =
        spec.topology_spread_constraints.iter().flatten().map(|c| spread_constraint(c, labels)).collect();
    if let Some(affinity) = &spec.affinity {
        if let Some(nodes) = &affinity.node_affinity {
            view.node_affinity =
                nodes.required_during_scheduling_ignored_during_execution.as_ref().map(node_terms);
            view.preferred_nodes = (nodes.preferred_during_scheduling_ignored_during_execution.iter())
                .flatten()
                .map(|p| (i64::from(p.weight), node_term(&p.preference)))
                .collect();
        }
        view.affinity = Arc::new(pod_affinity(affinity, namespace, labels));
    }
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    view.images = containers().filter_map(|c| c.image.as_deref()).map(image_name).collect();
    view.host_ports = (containers())
        .flat_map(|c| c.ports.iter().flatten().map(move |port| (port, spec.host_network == Some(true))))
        .filter_map(|(port, host_network)| host_port(port, host_network))
        .collect();
    if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        view.blocked.push("Scheduling is blocked due to non-empty scheduling gates".to_owned());
    }
}

impl PodView {
    /// Adds the node affinity of a volume the pod uses; a volume that every node reaches adds nothing.
    pub fn add_volume(&mut self, volume: &core::PersistentVolume) {
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        if let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) {
            self.volumes.push(node_terms(required));
        }
    }
}

/// Pods of one controller, told by their labels less those that differ from pod to pod.
fn siblings(pod: &core::Pod, labels: &Labels) -> Option<Vec<Requirement>> {
    const OWN: [&str; 4] = [
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "controller-revision-hash",
        "statefulset.kubernetes.io/pod-name",
    ];
    let owned = pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
    let shared: Vec<_> = (labels.iter())
        .filter(|(key, _)| !OWN.contains(&key.as_str()))
        .map(|(key, value)| Requirement::equals(key, value))
        .collect();
    (owned && !shared.is_empty()).then_some(shared)
}

/// A selector as requirements; an absent selector (`None`) selects nothing.
pub fn label_selector(selector: &LabelSelector) -> Vec<Requirement> {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| Requirement::equals(key, value));
    let expressions = selector.match_expressions.iter().flatten().map(|e| Requirement {
        key: e.key.clone(),
        operator: operator(&e.operator),
        values: e.values.clone().unwrap_or_default(),
    });
    equal.chain(expressions).collect()
}

fn operator(text: &str) -> Operator {
    match text {
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        // `In`; anything unknown has no values that could match, so it selects nothing rather than all.
        _ => Operator::In,
    }
}

fn node_terms(selector: &core::NodeSelector) -> Vec<NodeTerm> {
    selector.node_selector_terms.iter().map(node_term).collect()
}

fn node_term(term: &core::NodeSelectorTerm) -> NodeTerm {
    let convert = |list: &Option<Vec<core::NodeSelectorRequirement>>| {
        let requirement = |r: &core::NodeSelectorRequirement| Requirement {
            key: r.key.clone(),
            operator: operator(&r.operator),
            values: r.values.clone().unwrap_or_default(),
        };
        list.iter().flatten().map(requirement).collect()
    };
    NodeTerm { labels: convert(&term.match_expressions), fields: convert(&term.match_fields) }
}

fn pod_affinity(affinity: &core::Affinity, namespace: &str, labels: &Labels) -> Affinity {
    let mut converted = Affinity::default();
    let term = |t: &core::PodAffinityTerm| pod_term(t, namespace, labels);
    if let Some(near) = &affinity.pod_affinity {
        let required = near.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = near.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        converted.near.extend(required.map(term));
        converted.preferred.extend(preferred.map(|p| (i64::from(p.weight), term(&p.pod_affinity_term))));
    }
    if let Some(apart) = &affinity.pod_anti_affinity {
        let required = apart.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = apart.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        converted.apart.extend(required.map(term));
        converted.preferred.extend(preferred.map(|p| (-i64::from(p.weight), term(&p.pod_affinity_term))));
    }
    converted
}

fn pod_term(term: &core::PodAffinityTerm, namespace: &str, labels: &Labels) -> PodTerm {
    let mut selector = term.label_selector.as_ref().map(label_selector);
    if let Some(selector) = &mut selector {
        add_label_keys(selector, term.match_label_keys.as_deref(), Operator::In, labels);
        add_label_keys(selector, term.mismatch_label_keys.as_deref(), Operator::NotIn, labels);
    }
    let namespace_selector = term.namespace_selector.as_ref().map(label_selector);
    let mut namespaces: BTreeSet<_> = term.namespaces.iter().flatten().cloned().collect();
    if namespaces.is_empty() && namespace_selector.is_none() {
        namespaces.insert(namespace.to_owned());
    }
    PodTerm { namespaces, namespace_selector, selector, topology_key: term.topology_key.clone() }
}

fn spread_constraint(constraint: &core::TopologySpreadConstraint, labels: &Labels) -> SpreadConstraint {
    let mut selector = constraint.label_selector.as_ref().map(label_selector);
    if let Some(selector) = &mut selector {
        add_label_keys(selector, constraint.match_label_keys.as_deref(), Operator::In, labels);
    }
    SpreadConstraint {
        topology_key: constraint.topology_key.clone(),
        max_skew: i64::from(constraint.max_skew),
        min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
        required: constraint.when_unsatisfiable != "ScheduleAnyway",
        selector,
        honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
    }
}

/// Narrows a selector by the pod's own values of the given labels.
fn add_label_keys(
    selector: &mut Vec<Requirement>,
    keys: Option<&[String]>,
    operator: Operator,
    own: &Labels,
) {
    for key in keys.unwrap_or_default() {
        if let Some(value) = own.get(key) {
            selector.push(Requirement::new(key, operator, &[value]));
        }
    }
}

fn effect(text: &str) -> Option<Effect> {
    match text {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

fn taint(taint: &core::Taint) -> Option<Taint> {
    let value = taint.value.clone().unwrap_or_default();
    Some(Taint { key: taint.key.clone(), value, effect: effect(&taint.effect)? })
}

fn toleration(toleration: &core::Toleration) -> Toleration {
    Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        operator: match toleration.operator.as_deref() {
            Some("Exists") => TolerationOperator::Exists,
            Some("Gt") => TolerationOperator::Gt,
            Some("Lt") => TolerationOperator::Lt,
            _ => TolerationOperator::Equal,
        },
        value: toleration.value.clone().unwrap_or_default(),
        effect: toleration.effect.as_deref().and_then(effect),
    }
}

fn host_port(port: &core::ContainerPort, host_network: bool) -> Option<HostPort> {
    let number = port.host_port.or(host_network.then_some(port.container_port)).filter(|n| *n > 0)?;
    let ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    Some(HostPort { ip: ip.to_owned(), protocol: protocol.to_owned(), port: number })
}

/// Nodes report images with a tag; a name without one means `latest`.
fn image_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}
