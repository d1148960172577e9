//! A node's state as taints, which is how the scheduler and evictions see it.

use super::{Snapshot, condition, ready_status};
use crate::meta::now_time;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

const PREFIX: &str = "node.kubernetes.io/";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The taints (key without prefix, effect) that the node's state asks for.
pub fn wanted_taints(node: &Node, any_ready: bool) -> Vec<(String, &'static str)> {
    let mut wanted = Vec::new();
    let mut add = |key: &str, effect| wanted.push((format!("{PREFIX}{key}"), effect));
    match ready_status(node) {
        "True" => {}
        "Unknown" if condition(node, "Ready").is_some() => {
            add("unreachable", "NoSchedule");
            if any_ready {
                add("unreachable", "NoExecute");
            }
        }
        _ => {
            add("not-ready", "NoSchedule");
            if any_ready {
                add("not-ready", "NoExecute");
            }
        }
    }
    for (kind, key) in [
        ("MemoryPressure", "memory-pressure"),
        ("DiskPressure", "disk-pressure"),
        ("PIDPressure", "pid-pressure"),
        ("NetworkUnavailable", "network-unavailable"),
    ] {
        if condition(node, kind).is_some_and(|condition| condition.status == "True") {
            add(key, "NoSchedule");
        }
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        add("unschedulable", "NoSchedule");
    }
    wanted
}

/// Whether a taint is one that this controller sets and removes.
fn is_ours(taint: &Taint) -> bool {
    const OURS: [&str; 7] = [
        "not-ready",
        "unreachable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
        "unschedulable",
    ];
    let key = taint.key.strip_prefix(PREFIX).unwrap_or_default();
    let executes = taint.key == NOT_READY || taint.key == UNREACHABLE;
    OURS.contains(&key) && (taint.effect == "NoSchedule" || (taint.effect == "NoExecute" && executes))
}

/// The patch that gives the node the taints it should have; `None` when it has them.
pub fn change(snapshot: &Snapshot) -> Option<Value> {
    let node = &snapshot.node;
    let have = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let wanted = wanted_taints(node, snapshot.any_ready);
    let is_wanted =
        |taint: &Taint| wanted.iter().any(|(key, effect)| *key == taint.key && *effect == taint.effect);
    let mut taints: Vec<Taint> =
        have.iter().filter(|taint| !is_ours(taint) || is_wanted(taint)).cloned().collect();
    for (key, effect) in &wanted {
        if !taints.iter().any(|taint| taint.key == *key && taint.effect == *effect) {
            taints.push(new(key, effect, snapshot.now));
        }
    }
    // The resourceVersion guards taints that others set at the same time.
    (taints != have).then(|| json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}}))
}

fn new(key: &str, effect: &str, now: Timestamp) -> Taint {
    let time_added = (effect == "NoExecute").then(|| now_time(now));
    Taint { key: key.into(), effect: effect.into(), value: None, time_added }
}
