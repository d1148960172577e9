//! DaemonSet: one pod on every node that fits.

mod nodes;
mod status;
#[cfg(test)]
mod tests;

use crate::{
    meta::{self, claim, controller_of, controller_reference, tell},
    pod,
    revision::{self, Current, History},
    shell::{Action, Controller, Enqueue, Key, Severity, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec},
    core::v1::{Node, Pod},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(crate) const COMPONENT: &str = "daemonset-controller";

pub struct Snapshot {
    pub set: Arc<DaemonSet>,
    pub pods: Vec<Arc<Pod>>,
    pub nodes: Vec<Arc<Node>>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub now: Timestamp,
}

/// The set's pods on one node, and whether the node shall have one.
pub(crate) struct Slot {
    pub node: String,
    pub wanted: bool,
    /// Pods that are here may stay even if no new one would be made.
    pub tolerated: bool,
    pub pods: Vec<Arc<Pod>>,
}

impl Snapshot {
    pub fn spec(&self) -> &DaemonSetSpec {
        static NONE: std::sync::LazyLock<DaemonSetSpec> = std::sync::LazyLock::new(DaemonSetSpec::default);
        self.set.spec.as_ref().unwrap_or(&NONE)
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &self.pods {
            if let Some(node) = nodes::of(pod) {
                by_node.entry(node).or_default().push(pod.clone());
            }
        }
        let fit = nodes::Fit::new(&self.set);
        let mut slots: Vec<Slot> = self
            .nodes
            .iter()
            .map(|node| {
                let name = meta::name(&node.metadata).to_owned();
                let (wanted, tolerated) = fit.check(node);
                Slot { pods: by_node.remove(&name).unwrap_or_default(), node: name, wanted, tolerated }
            })
            .collect();
        // Pods of nodes that are gone.
        slots.extend(by_node.into_iter().map(|(node, pods)| Slot {
            node,
            wanted: false,
            tolerated: false,
            pods,
        }));
        slots
    }

    /// (maxUnavailable, maxSurge) for so many nodes.
    fn limits(&self, wanted: i32) -> (i32, i32) {
        let rolling = self.spec().update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        let surge = rolling
            .and_then(|r| r.max_surge.as_ref())
            .and_then(|v| meta::scaled(v, wanted, true))
            .unwrap_or(0);
        let missing =
            rolling.and_then(|r| r.max_unavailable.as_ref()).and_then(|v| meta::scaled(v, wanted, true));
        let missing = missing.unwrap_or(1);
        if surge == 0 && missing == 0 { (1, 0) } else { (missing, surge) }
    }
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let set = &snapshot.set;
    let spec = snapshot.spec();
    if set.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let collisions = set.status.as_ref().and_then(|status| status.collision_count);
    let history = History::new(snapshot.revisions.clone());
    let update = match history.locate::<DaemonSet>(&set.metadata, &spec.selector, &spec.template, collisions)
    {
        Current::Newest(update) => update,
        Current::Change(action) => return vec![action],
        Current::Collision => {
            let body = json!({"status": {"collisionCount": collisions.unwrap_or(0) + 1}});
            return vec![meta::patch::<DaemonSet>(&set.metadata, "status", &body)];
        }
    };
    let hash = revision::hash_of(&update).to_owned();
    let slots = snapshot.slots();
    let (mut make, mut remove) = place(snapshot, &slots, &hash);
    if spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref()) != Some("OnDelete") {
        roll(snapshot, &slots, &hash, &mut make, &mut remove);
    }
    let mut actions: Vec<Action> = Vec::new();
    for node in &make {
        let owner = controller_reference::<DaemonSet>(&set.metadata);
        let prefix = pod::name_prefix(meta::name(&set.metadata));
        let mut pod = pod::from_template(&spec.template, meta::namespace(&set.metadata), owner, prefix);
        pod.metadata.labels.get_or_insert_default().insert(revision::HASH.into(), hash.clone());
        nodes::pin(&mut pod, node);
        actions.push(meta::create_pod::<DaemonSet>(&pod, &set.metadata, COMPONENT));
    }
    actions.extend(remove.iter().map(|pod| meta::delete::<Pod>(&pod.metadata)));
    for pod in &remove {
        let (severity, reason, message) = if pod::phase(pod) == "Failed" {
            let text = format!(
                "Found failed daemon pod {} on node {}, will try to kill it",
                Key::of(&pod.metadata),
                pod::node(pod).unwrap_or_default()
            );
            (Severity::Warning, "FailedDaemonPod", text)
        } else {
            (Severity::Normal, "SuccessfulDelete", format!("Deleted pod: {}", meta::name(&pod.metadata)))
        };
        actions.push(tell::<DaemonSet>(&set.metadata, COMPONENT, severity, reason, message));
    }
    if make.is_empty() && remove.is_empty() {
        let mut used: BTreeSet<String> = snapshot
            .pods
            .iter()
            .filter_map(|pod| meta::label(&pod.metadata, revision::HASH))
            .map(|hash| format!("{}-{hash}", meta::name(&set.metadata)))
            .collect();
        used.insert(meta::name(&update.metadata).to_owned());
        actions.extend(history.truncate(spec.revision_history_limit, &used));
    }
    actions.extend(status::sync(snapshot, &slots, &hash));
    actions
}

/// Nodes that lack a pod, and pods that must go because of where or what they are.
fn place(snapshot: &Snapshot, slots: &[Slot], hash: &str) -> (BTreeSet<String>, Vec<Arc<Pod>>) {
    let (mut make, mut remove) = (BTreeSet::new(), Vec::new());
    let (_, surge) = snapshot.limits(wanted(slots));
    for slot in slots {
        let live: Vec<_> = slot.pods.iter().filter(|pod| !pod::is_deleting(pod)).collect();
        if !slot.tolerated {
            remove.extend(live.into_iter().cloned());
            continue;
        }
        let (ended, mut running): (Vec<_>, Vec<_>) = live.into_iter().partition(|pod| pod::is_finished(pod));
        remove.extend(ended.into_iter().cloned());
        if running.is_empty() {
            // While the last one is still there, no second one: they may share ports and folders.
            if slot.wanted && slot.pods.is_empty() {
                make.insert(slot.node.clone());
            }
            continue;
        }
        // One per node; during a surge one old and one new.
        running.sort_by_key(|pod| (meta::created(&pod.metadata), pod.metadata.name.clone()));
        let of_new = |pod: &&Arc<Pod>| meta::label(&pod.metadata, revision::HASH) == Some(hash);
        let (new, old): (Vec<_>, Vec<_>) = running.into_iter().partition(of_new);
        let keep_old = if new.is_empty() { 1 } else { usize::from(surge > 0) };
        remove.extend(new.into_iter().skip(1).cloned());
        remove.extend(old.into_iter().skip(keep_old).cloned());
    }
    (make, remove)
}

fn wanted(slots: &[Slot]) -> i32 {
    i32::try_from(slots.iter().filter(|slot| slot.wanted).count()).unwrap_or(i32::MAX)
}

/// One step of a rolling update, within maxUnavailable and maxSurge.
fn roll(
    snapshot: &Snapshot,
    slots: &[Slot],
    hash: &str,
    make: &mut BTreeSet<String>,
    remove: &mut Vec<Arc<Pod>>,
) {
    let (max_missing, max_surge) = snapshot.limits(wanted(slots));
    let min_ready = snapshot.spec().min_ready_seconds.unwrap_or(0);
    let is_new = |pod: &Pod| meta::label(&pod.metadata, revision::HASH) == Some(hash);
    let serves = |pod: &Pod| !pod::is_deleting(pod) && pod::is_available(pod, min_ready, snapshot.now);
    let (mut missing, mut surging) = (0, 0);
    let mut candidates = Vec::new();
    for slot in slots.iter().filter(|slot| slot.wanted) {
        let live: Vec<_> =
            slot.pods.iter().filter(|pod| !pod::is_deleting(pod) && !pod::is_finished(pod)).collect();
        let old = live.iter().find(|pod| !is_new(pod));
        let new = live.iter().find(|pod| is_new(pod));
        let any_serving = live.iter().any(|pod| serves(pod));
        missing += i32::from(!any_serving);
        surging += i32::from(old.is_some() && new.is_some());
        match (old, new) {
            // Surge: the old one goes when the new one serves.
            (Some(old), Some(new)) if serves(new) => remove.push((*old).clone()),
            (Some(old), None) => candidates.push((slot, (*old).clone(), any_serving)),
            _ => {}
        }
    }
    for (slot, old, serving) in candidates {
        if max_surge > 0 {
            if !serving {
                remove.push(old);
            } else if surging < max_surge {
                surging += 1;
                make.insert(slot.node.clone());
            }
        } else if !serving {
            // It serves nobody: replacing it makes nothing worse.
            remove.push(old);
        } else if missing < max_missing {
            missing += 1;
            remove.push(old);
        }
    }
    let mut seen = BTreeSet::new();
    remove.retain(|pod| seen.insert(meta::uid(&pod.metadata).to_owned()));
}

pub struct DaemonSets;

impl Controller for DaemonSets {
    fn name(&self) -> &'static str {
        "daemonset"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::DaemonSets, Watch::Pods, Watch::Nodes, Watch::ControllerRevisions]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (pods, revisions, nodes) = (enqueue.clone(), enqueue.clone(), enqueue.clone());
        world.daemon_sets.on_change(move |_, new| {
            if let Some(set) = new {
                enqueue.add(Key::of(&set.metadata));
            }
        });
        let sets = world.daemon_sets.clone();
        world.pods.on_change(move |old, new| {
            let owner = |pod: &Arc<Pod>| controller_of(&pod.metadata).cloned();
            let owners: Vec<_> = [old, new].into_iter().flatten().filter_map(owner).collect();
            let Some(pod) = new.or(old) else { return };
            let namespace = meta::namespace(&pod.metadata);
            for owner in owners.iter().filter(|owner| owner.kind == "DaemonSet") {
                pods.add(Key::new(namespace, &owner.name));
            }
            if owners.is_empty() {
                for set in sets.in_namespace(namespace) {
                    let selector = set.spec.as_ref().map(|spec| &spec.selector);
                    if selector.is_some_and(|s| meta::selects(s, pod.metadata.labels.as_ref())) {
                        pods.add(Key::of(&set.metadata));
                    }
                }
            }
        });
        world.controller_revisions.on_change(move |old, new| {
            let Some(object) = new.or(old) else { return };
            if let Some(owner) = controller_of(&object.metadata).filter(|owner| owner.kind == "DaemonSet") {
                revisions.add(Key::new(meta::namespace(&object.metadata), &owner.name));
            }
        });
        let sets = world.daemon_sets.clone();
        world.nodes.on_change(move |old, new| {
            if let (Some(old), Some(new)) = (old, new)
                && !nodes::differ(old, new)
            {
                return;
            }
            for key in sets.keys() {
                nodes.add(key);
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(set) = world.daemon_sets.get(key) else { return Vec::new() };
        let Some(spec) = &set.spec else { return Vec::new() };
        let uid = meta::uid(&set.metadata);
        let orphans = world.pods.without_controller(&key.namespace);
        let claim = claim::<DaemonSet, Pod>(&set.metadata, &spec.selector, world.pods.owned_by(uid), orphans);
        if !claim.actions.is_empty() {
            return claim.actions;
        }
        let revisions = world.controller_revisions.owned_by(uid);
        plan(&Snapshot { set, pods: claim.mine, nodes: world.nodes.list(), revisions, now })
    }
}
