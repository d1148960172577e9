//! What controllers ask about pods, and how they make them from templates.

use crate::meta::{self, now_time};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use std::{cmp::Reverse, collections::HashMap, sync::Arc};

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Neither finished nor on its way out: counts towards a set's replicas.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// When a ready pod has been ready for `min_ready_seconds`; `None` when it is not ready.
pub fn available_at(pod: &Pod, min_ready_seconds: i32) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    if min_ready_seconds == 0 {
        return Some(Timestamp::UNIX_EPOCH);
    }
    let since = ready.last_transition_time.as_ref()?.0;
    Some(meta::plus(since, i64::from(min_ready_seconds)))
}

pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_at(pod, min_ready_seconds).is_some_and(|at| at <= now)
}

pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).max().unwrap_or(0)
}

/// The order in which pods are given up when there are too many; the first goes first.
///
/// Unassigned before assigned, pending before unknown before running, not ready before ready, cheaper deletion cost,
/// more neighbours on the same node, ready for a shorter time, more restarts, younger.
pub fn by_expendability(pods: &mut [Arc<Pod>], related: &[Arc<Pod>]) {
    let mut per_node: HashMap<String, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        if let Some(node) = node(pod) {
            *per_node.entry(node.to_owned()).or_default() += 1;
        }
    }
    pods.sort_by_cached_key(|pod| {
        let phase_rank = match phase(pod) {
            "Pending" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let cost: i32 = meta::annotation(&pod.metadata, "controller.kubernetes.io/pod-deletion-cost")
            .and_then(|cost| cost.parse().ok())
            .unwrap_or(0);
        let neighbours = node(pod).and_then(|node| per_node.get(node)).copied().unwrap_or(0);
        let ready_since = condition(pod, "Ready")
            .filter(|condition| condition.status == "True")
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0);
        (
            (node(pod).is_some(), phase_rank, is_ready(pod), cost),
            (Reverse(neighbours), Reverse(ready_since), Reverse(restarts(pod))),
            (Reverse(meta::created(&pod.metadata)), meta::name(&pod.metadata).to_owned()),
        )
    });
}

/// A pod from a template, controlled by `owner`, named by the server from `<owner>-`.
pub fn from_template(
    template: &PodTemplateSpec,
    namespace: &str,
    owner: OwnerReference,
    generate_name: String,
) -> Pod {
    let from = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            generate_name: Some(generate_name),
            labels: from.labels,
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The prefix of generated pod names; long owner names are cut by the server.
pub fn name_prefix(owner: &str) -> String {
    format!("{owner}-")
}

/// The pod's conditions with one of them set; `None` when nothing changes.
pub fn with_condition(
    pod: &Pod,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<Vec<PodCondition>> {
    let mut conditions = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let new = PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()).filter(|text| !text.is_empty()),
        message: Some(message.to_owned()).filter(|text| !text.is_empty()),
        last_transition_time: Some(now_time(now)),
        ..PodCondition::default()
    };
    match conditions.iter_mut().find(|condition| condition.type_ == kind) {
        Some(old) if old.status == new.status && old.reason == new.reason && old.message == new.message => {
            return None;
        }
        Some(old) => {
            let transition = if old.status == new.status { old.last_transition_time.take() } else { None };
            *old =
                PodCondition { last_transition_time: transition.or(new.last_transition_time.clone()), ..new };
        }
        None => conditions.push(new),
    }
    Some(conditions)
}
