//! Node lifecycle: notices nodes that fell silent, expresses their state as taints, and moves pods away in time.
//!
//! Silence is measured by our own clock, from when news of a node arrived here: a node with a wrong clock is
//! not declared dead for it.

mod evict;
mod pods;
mod taints;
#[cfg(test)]
mod tests;

pub use evict::eviction_time;
pub use pods::{NodePods, PodNetwork};
pub use taints::wanted_taints;

use crate::{
    meta::{self, now_time, tell},
    pod,
    shell::{Action, Controller, Enqueue, Key, Severity, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, NodeCondition, Pod},
};
use parking_lot::Mutex;
use serde_json::json;
use std::{collections::HashMap, sync::Arc};

pub(crate) const COMPONENT: &str = "node-controller";
/// A node that was not heard of for so long is unknown.
const GRACE_SECONDS: i64 = 40;
/// The conditions that a silent node no longer vouches for.
const VOUCHED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub struct Snapshot {
    pub node: Arc<Node>,
    /// When something of the node last arrived here.
    pub heard: Timestamp,
    pub pods: Vec<Arc<Pod>>,
    /// Whether any node of the cluster is ready. If none is, the trouble is more likely on our side:
    /// nothing is evicted.
    pub any_ready: bool,
    pub now: Timestamp,
}

pub(crate) fn ready_status(node: &Node) -> &str {
    condition(node, "Ready").map_or("Unknown", |condition| condition.status.as_str())
}

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let node = &snapshot.node;
    let mut actions = Vec::new();
    let silent_at = meta::plus(snapshot.heard, GRACE_SECONDS);
    let known = ready_status(node) != "Unknown" || condition(node, "Ready").is_none();
    if known && silent_at <= snapshot.now {
        actions.push(unknown(snapshot));
        let message = format!("Node {} status is now: NodeNotReady", meta::name(&node.metadata));
        actions.push(tell::<Node>(&node.metadata, COMPONENT, Severity::Normal, "NodeNotReady", message));
        // Taints follow from the conditions, which come back to us through the cache.
        return actions;
    }
    if let Some(body) = taints::change(snapshot) {
        actions.push(meta::patch::<Node>(&node.metadata, "", &body));
        return actions;
    }
    if ready_status(node) != "True" && condition(node, "Ready").is_some() {
        actions.extend(snapshot.pods.iter().filter_map(|pod| not_ready(pod, snapshot.now)));
    }
    evict::plan(snapshot, &mut actions);
    if known {
        actions.push(Action::After(meta::until(silent_at, snapshot.now)));
    }
    actions
}

/// All that the node vouched for becomes unknown.
fn unknown(snapshot: &Snapshot) -> Action {
    let node = &snapshot.node;
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    for kind in VOUCHED {
        let known = conditions.iter().position(|condition| condition.type_ == kind);
        let never = known.is_none();
        let at = known.unwrap_or_else(|| {
            conditions.push(NodeCondition { type_: kind.into(), ..NodeCondition::default() });
            conditions.len() - 1
        });
        let condition = &mut conditions[at];
        if condition.status != "Unknown" {
            condition.last_transition_time = Some(now_time(snapshot.now));
        }
        condition.status = "Unknown".into();
        let (reason, message) = if never {
            ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
        } else {
            ("NodeStatusUnknown", "Kubelet stopped posting node status.")
        };
        condition.reason = Some(reason.into());
        condition.message = Some(message.into());
    }
    meta::patch::<Node>(&node.metadata, "status", &json!({"status": {"conditions": conditions}}))
}

/// A pod on a node that does not answer is not ready, whatever it last said.
fn not_ready(pod: &Pod, now: Timestamp) -> Option<Action> {
    if !pod::is_ready(pod) || pod::is_deleting(pod) {
        return None;
    }
    let mut conditions = pod.status.as_ref()?.conditions.clone()?;
    let ready = conditions.iter_mut().find(|condition| condition.type_ == "Ready")?;
    ready.status = "False".into();
    ready.last_transition_time = Some(now_time(now));
    Some(meta::patch::<Pod>(&pod.metadata, "status", &json!({"status": {"conditions": conditions}})))
}

#[derive(Default)]
pub struct NodeLifecycle {
    heard: Arc<Mutex<HashMap<String, Timestamp>>>,
}

/// The times a node itself states; news is when they change.
fn stated(node: &Node) -> Option<&Timestamp> {
    condition(node, "Ready")?.last_heartbeat_time.as_ref().map(|time| &time.0)
}

impl Controller for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-lifecycle"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Nodes, Watch::NodeLeases, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (pods, heard) = (enqueue.clone(), self.heard.clone());
        world.nodes.on_change(move |old, new| {
            let Some(node) = new else {
                if let Some(old) = old {
                    heard.lock().remove(meta::name(&old.metadata));
                }
                return;
            };
            let news = old.is_none_or(|old| stated(old) != stated(node));
            if news {
                heard.lock().insert(meta::name(&node.metadata).to_owned(), Timestamp::now());
            }
            // Heartbeats alone change nothing that is planned here.
            let same = |old: &Arc<Node>| {
                let essence = |node: &Node| {
                    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
                    conditions.map(|c| (c.type_.clone(), c.status.clone())).collect::<Vec<_>>()
                };
                essence(old) == essence(node) && old.spec == node.spec
            };
            if !old.is_some_and(same) {
                enqueue.add(Key::of(&node.metadata));
            }
        });
        let heard = self.heard.clone();
        world.leases.on_change(move |old, new| {
            let Some(lease) = new else { return };
            let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            if old.is_none_or(|old| renewed(old) != renewed(lease)) {
                heard.lock().insert(meta::name(&lease.metadata).to_owned(), Timestamp::now());
            }
        });
        let nodes = world.nodes.clone();
        world.pods.on_change(move |old, new| {
            let Some(pod) = new.filter(|pod| old.is_none_or(|old| pod::node(old) != pod::node(pod))) else {
                return;
            };
            let Some(node) = pod::node(pod) else { return };
            let key = Key::new("", node);
            let tainted = |node: &Node| {
                node.spec.as_ref().is_some_and(|s| s.taints.iter().flatten().any(|t| t.effect == "NoExecute"))
            };
            if nodes.get(&key).is_some_and(|node| tainted(&node)) {
                pods.add(key);
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(node) = world.nodes.get(key) else { return Vec::new() };
        let heard = {
            let mut all = self.heard.lock();
            let heard = all.entry(key.name.clone()).or_insert(now);
            // A clock that was ahead and was set right must not keep a dead node alive.
            *heard = (*heard).min(now);
            *heard
        };
        let troubled = ready_status(&node) != "True"
            || node
                .spec
                .as_ref()
                .is_some_and(|spec| spec.taints.iter().flatten().any(|t| t.effect == "NoExecute"));
        let pods = if troubled {
            world.pods.list().into_iter().filter(|pod| pod::node(pod) == Some(&key.name)).collect()
        } else {
            Vec::new()
        };
        let any_ready = world.nodes.list().iter().any(|node| ready_status(node) == "True");
        plan(&Snapshot { node, heard, pods, any_ready, now })
    }
}
