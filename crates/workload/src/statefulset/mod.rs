//! StatefulSet: numbered pods with a name, an address and volumes of their own.

mod identity;
mod status;
#[cfg(test)]
mod tests;

use crate::{
    meta::{self, claim, controller_of},
    pod,
    revision::{self, Current, History},
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec},
    core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(crate) const COMPONENT: &str = "statefulset-controller";

pub struct Snapshot {
    pub set: Arc<StatefulSet>,
    /// The set's pods, by ordinal.
    pub pods: BTreeMap<i32, Arc<Pod>>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    /// Claims of the namespace by name (only those that could be the set's).
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub now: Timestamp,
}

/// Which template a pod of a given number gets.
pub(crate) struct Revisions {
    pub current: Arc<ControllerRevision>,
    pub update: Arc<ControllerRevision>,
}

impl Snapshot {
    pub fn spec(&self) -> &StatefulSetSpec {
        static NONE: std::sync::LazyLock<StatefulSetSpec> =
            std::sync::LazyLock::new(StatefulSetSpec::default);
        self.set.spec.as_ref().unwrap_or(&NONE)
    }

    /// The numbers that shall exist.
    pub fn ordinals(&self) -> std::ops::Range<i32> {
        let start = self.spec().ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
        start..start + self.spec().replicas.unwrap_or(1)
    }

    pub fn is_ordered(&self) -> bool {
        self.spec().pod_management_policy.as_deref() != Some("Parallel")
    }

    pub fn rolls(&self) -> bool {
        let strategy = self.spec().update_strategy.as_ref().and_then(|s| s.type_.as_deref());
        strategy != Some("OnDelete")
    }

    /// Numbers below this keep the current revision.
    pub fn partition(&self) -> i32 {
        let rolling = self.spec().update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        self.ordinals().start + rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    fn is_healthy(&self, pod: &Pod) -> bool {
        let min_ready = self.spec().min_ready_seconds.unwrap_or(0);
        pod::phase(pod) == "Running" && !pod::is_deleting(pod) && pod::is_available(pod, min_ready, self.now)
    }
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let set = &snapshot.set;
    let spec = snapshot.spec();
    let history = History::new(snapshot.revisions.clone());
    let old = set.status.clone().unwrap_or_default();
    if set.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let located =
        history.locate::<StatefulSet>(&set.metadata, &spec.selector, &spec.template, old.collision_count);
    let update = match located {
        Current::Newest(update) => update,
        Current::Change(action) => return vec![action],
        Current::Collision => {
            let body = json!({"status": {"collisionCount": old.collision_count.unwrap_or(0) + 1}});
            return vec![meta::patch::<StatefulSet>(&set.metadata, "status", &body)];
        }
    };
    let named = old.current_revision.as_deref().and_then(|name| history.named(name)).cloned();
    let revisions = Revisions { current: named.unwrap_or_else(|| update.clone()), update };
    let mut actions = Vec::new();
    let done = scale(snapshot, &revisions, &mut actions);
    if done && actions.is_empty() {
        update_one(snapshot, &revisions, &mut actions);
    }
    if actions.is_empty() {
        let mut used: BTreeSet<String> = snapshot
            .pods
            .values()
            .filter_map(|pod| meta::label(&pod.metadata, revision::HASH).map(str::to_owned))
            .collect();
        used.extend([&revisions.current, &revisions.update].map(|r| meta::name(&r.metadata).to_owned()));
        actions.extend(history.truncate(spec.revision_history_limit, &used));
    }
    actions.extend(identity::keep_claims(snapshot));
    actions.extend(status::sync(snapshot, &revisions));
    actions
}

/// Makes missing pods and removes surplus ones. In order (unless parallel): a pod is touched only when all before it
/// are well. Returns whether every wanted pod exists and no surplus one is left.
fn scale(snapshot: &Snapshot, revisions: &Revisions, actions: &mut Vec<Action>) -> bool {
    let ordered = snapshot.is_ordered();
    let mut complete = true;
    for ordinal in snapshot.ordinals() {
        match snapshot.pods.get(&ordinal) {
            None => {
                identity::create(snapshot, ordinal, template_for(snapshot, revisions, ordinal), actions);
                complete = false;
            }
            Some(pod) if pod::is_finished(pod) && !pod::is_deleting(pod) => {
                actions.push(meta::delete::<Pod>(&pod.metadata));
                complete = false;
            }
            Some(pod) if snapshot.is_healthy(pod) => continue,
            Some(pod) if pod::is_deleting(pod) => complete = false,
            Some(_) => {}
        }
        if ordered {
            return false;
        }
    }
    let surplus = surplus(snapshot);
    // From the top. One that is not well halts it, as upstream: somebody should look. But one such pod alone goes, or it
    // could keep a set from shrinking for good; and so do those that ended.
    let is_unwell = |pod: &Pod| !snapshot.is_healthy(pod) && !pod::is_finished(pod);
    let lowest = surplus.iter().find(|pod| is_unwell(pod));
    for pod in surplus.iter().rev() {
        let halted = is_unwell(pod) && lowest.is_some_and(|lowest| !Arc::ptr_eq(lowest, pod));
        if ordered && (halted || pod::is_deleting(pod)) {
            return false;
        }
        if pod::is_deleting(pod) {
            continue;
        }
        identity::remove(snapshot, pod, actions);
        if ordered {
            return false;
        }
    }
    complete && surplus.is_empty()
}

fn surplus(snapshot: &Snapshot) -> Vec<Arc<Pod>> {
    let wanted = snapshot.ordinals();
    snapshot
        .pods
        .iter()
        .filter(|(ordinal, _)| !wanted.contains(ordinal))
        .map(|(_, pod)| pod.clone())
        .collect()
}

/// Replaces the highest pod that is not of the new revision, once all above it are well.
fn update_one(snapshot: &Snapshot, revisions: &Revisions, actions: &mut Vec<Action>) {
    if !snapshot.rolls() {
        return;
    }
    let partition = snapshot.partition();
    for ordinal in snapshot.ordinals().rev().take_while(|ordinal| *ordinal >= partition) {
        let Some(pod) = snapshot.pods.get(&ordinal) else { return };
        if !is_of(pod, &revisions.update) {
            if !pod::is_deleting(pod) {
                identity::remove(snapshot, pod, actions);
            }
            return;
        }
        if !snapshot.is_healthy(pod) {
            return;
        }
    }
}

pub(crate) fn is_of(pod: &Pod, revision: &ControllerRevision) -> bool {
    meta::label(&pod.metadata, revision::HASH) == Some(meta::name(&revision.metadata))
}

/// Below the partition the current revision stays; above it (or without rolling) new pods are of the new one.
fn template_for(snapshot: &Snapshot, revisions: &Revisions, ordinal: i32) -> (PodTemplateSpec, String) {
    let keep = snapshot.rolls() && ordinal < snapshot.partition();
    let revision = if keep { &revisions.current } else { &revisions.update };
    let template = if keep { revision::template(revision) } else { None };
    let template = template.unwrap_or_else(|| snapshot.spec().template.clone());
    (template, meta::name(&revision.metadata).to_owned())
}

/// `web-3` of `web` is 3.
pub fn ordinal(set: &str, pod: &str) -> Option<i32> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    let parsed: i32 = number.parse().ok()?;
    (parsed.to_string() == number).then_some(parsed)
}

pub struct StatefulSets;

impl Controller for StatefulSets {
    fn name(&self) -> &'static str {
        "statefulset"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::StatefulSets, Watch::Pods, Watch::ControllerRevisions, Watch::VolumeClaims]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (pods, revisions) = (enqueue.clone(), enqueue.clone());
        world.stateful_sets.on_change(move |_, new| {
            if let Some(set) = new {
                enqueue.add(Key::of(&set.metadata));
            }
        });
        let sets = world.stateful_sets.clone();
        world.pods.on_change(move |old, new| {
            let owner = |pod: &Arc<Pod>| controller_of(&pod.metadata).cloned();
            let owners: Vec<_> = [old, new].into_iter().flatten().filter_map(owner).collect();
            let Some(pod) = new.or(old) else { return };
            for owner in owners.iter().filter(|owner| owner.kind == "StatefulSet") {
                pods.add(Key::new(meta::namespace(&pod.metadata), &owner.name));
            }
            if owners.is_empty() {
                for set in sets.in_namespace(meta::namespace(&pod.metadata)) {
                    if ordinal(meta::name(&set.metadata), meta::name(&pod.metadata)).is_some() {
                        pods.add(Key::of(&set.metadata));
                    }
                }
            }
        });
        world.controller_revisions.on_change(move |old, new| {
            let Some(object) = new.or(old) else { return };
            if let Some(owner) = controller_of(&object.metadata).filter(|owner| owner.kind == "StatefulSet") {
                revisions.add(Key::new(meta::namespace(&object.metadata), &owner.name));
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(set) = world.stateful_sets.get(key) else { return Vec::new() };
        let Some(spec) = &set.spec else { return Vec::new() };
        let uid = meta::uid(&set.metadata);
        let orphans = world
            .pods
            .without_controller(&key.namespace)
            .into_iter()
            .filter(|pod| ordinal(&key.name, meta::name(&pod.metadata)).is_some())
            .collect();
        let claim =
            claim::<StatefulSet, Pod>(&set.metadata, &spec.selector, world.pods.owned_by(uid), orphans);
        if !claim.actions.is_empty() {
            return claim.actions;
        }
        let pods: BTreeMap<i32, Arc<Pod>> = claim
            .mine
            .into_iter()
            .filter_map(|pod| Some((ordinal(&key.name, meta::name(&pod.metadata))?, pod)))
            .collect();
        let mut claims = BTreeMap::new();
        if spec.volume_claim_templates.as_ref().is_some_and(|templates| !templates.is_empty()) {
            for claim in world.volume_claims.in_namespace(&key.namespace) {
                claims.insert(meta::name(&claim.metadata).to_owned(), claim);
            }
        }
        let revisions = world.controller_revisions.owned_by(uid);
        plan(&Snapshot { set, pods, revisions, claims, now })
    }
}
