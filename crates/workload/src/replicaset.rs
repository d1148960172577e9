//! ReplicaSet: so many pods of one template, no more and no fewer.

use crate::{
    meta::{self, claim, controller_of, controller_reference, tell},
    pod,
    shell::{Action, Controller, Enqueue, Key, Object, Severity, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
    core::v1::Pod,
};
use std::sync::Arc;

const COMPONENT: &str = "replicaset-controller";
/// Condition of a set whose pods the server refuses.
pub const FAILURE: &str = "ReplicaFailure";
/// Pods made or removed by one plan; the rest follows in the next.
const BURST: usize = 500;

pub struct Snapshot {
    pub set: Arc<ReplicaSet>,
    /// Pods that this set controls, matching its selector.
    pub pods: Vec<Arc<Pod>>,
    /// Pods of sets with the same controller; spreads what is given up over nodes.
    pub related: Vec<Arc<Pod>>,
    /// Why the last pod could not be made.
    pub refused: Option<String>,
    pub now: Timestamp,
}

/// What to do so that the number of active pods becomes `spec.replicas`.
pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    plan_as::<ReplicaSet>(snapshot, COMPONENT)
}

/// The same in the name of an object of kind `K`, which stands behind the snapshot's set.
pub fn plan_as<K: Object>(snapshot: &Snapshot, component: &'static str) -> Vec<Action> {
    let mut actions = Vec::new();
    let set = &snapshot.set;
    let Some(spec) = &set.spec else { return actions };
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut active: Vec<_> = snapshot.pods.iter().filter(|pod| pod::is_active(pod)).cloned().collect();
    if set.metadata.deletion_timestamp.is_none() {
        if active.len() < wanted {
            let Some(template) = &spec.template else { return actions };
            let set_name = meta::name(&set.metadata);
            let new = pod::from_template(
                template,
                meta::namespace(&set.metadata),
                controller_reference::<K>(&set.metadata),
                pod::name_prefix(set_name),
            );
            for _ in 0..(wanted - active.len()).min(BURST) {
                actions.push(meta::create_pod::<K>(&new, &set.metadata, component));
            }
        } else if active.len() > wanted {
            let surplus = (active.len() - wanted).min(BURST);
            pod::by_expendability(&mut active, &snapshot.related);
            for pod in active.iter().take(surplus) {
                actions.push(meta::delete::<Pod>(&pod.metadata));
            }
            for pod in active.iter().take(surplus) {
                let message = format!("Deleted pod: {}", meta::name(&pod.metadata));
                actions.push(tell::<K>(
                    &set.metadata,
                    component,
                    Severity::Normal,
                    "SuccessfulDelete",
                    message,
                ));
            }
        }
    }
    // Said before it is tried again: a try that fails ends the plan.
    let short = active.len() < wanted && snapshot.refused.is_some();
    if short && set.metadata.deletion_timestamp.is_none() {
        let (status, _) = status(snapshot, true);
        let told = meta::status::<K, _>(&set.metadata, set.status.as_ref(), &status);
        actions.splice(0..0, told);
    }
    let moved = actions.iter().any(|action| matches!(action, Action::Create { .. } | Action::Delete { .. }));
    // While pods are made or removed the counts are about to change; they are written when that is done.
    if !moved {
        let (status, again) = status(snapshot, false);
        actions.extend(meta::status::<K, _>(&set.metadata, set.status.as_ref(), &status));
        actions.extend(again.map(Action::After));
    }
    actions
}

fn status(snapshot: &Snapshot, short: bool) -> (ReplicaSetStatus, Option<std::time::Duration>) {
    let set = &snapshot.set;
    let spec = set.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let template_labels =
        spec.template.as_ref().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.as_ref());
    let (mut replicas, mut labeled, mut ready, mut available, mut terminating) = (0, 0, 0, 0, 0);
    let mut again = None;
    for pod in &snapshot.pods {
        if pod::is_deleting(pod) && !pod::is_finished(pod) {
            terminating += 1;
        }
        if !pod::is_active(pod) {
            continue;
        }
        replicas += 1;
        let labels = pod.metadata.labels.as_ref();
        let all =
            template_labels.is_none_or(|t| t.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v)));
        labeled += i32::from(all);
        ready += i32::from(pod::is_ready(pod));
        match pod::available_at(pod, min_ready) {
            Some(at) if at <= snapshot.now => available += 1,
            Some(at) => again = Some(again.unwrap_or(at).min(at)),
            None => {}
        }
    }
    let old = set.status.clone().unwrap_or_default();
    let status = ReplicaSetStatus {
        replicas,
        fully_labeled_replicas: some_if_positive(labeled),
        ready_replicas: some_if_positive(ready),
        available_replicas: some_if_positive(available),
        observed_generation: set.metadata.generation,
        // Written only once it was needed, so that servers without the field are not asked for it forever.
        terminating_replicas: old.terminating_replicas.map(|_| terminating),
        conditions: snapshot
            .refused
            .as_ref()
            .filter(|_| short)
            .map(|why| vec![failure(&old, why, snapshot.now)]),
    };
    (status, again.map(|at| meta::until(at, snapshot.now)))
}

/// The condition that tells why pods are missing; it keeps its time while it lasts.
fn failure(old: &ReplicaSetStatus, why: &str, now: Timestamp) -> ReplicaSetCondition {
    let before = old.conditions.iter().flatten().find(|c| c.type_ == FAILURE && c.status == "True");
    ReplicaSetCondition {
        type_: FAILURE.into(),
        status: "True".into(),
        reason: Some("FailedCreate".into()),
        message: Some(why.into()),
        last_transition_time: before
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(meta::now_time(now))),
    }
}

fn some_if_positive(count: i32) -> Option<i32> {
    (count > 0).then_some(count)
}

pub struct ReplicaSets;

impl ReplicaSets {
    fn snapshot(key: &Key, world: &World, now: Timestamp) -> Option<(Snapshot, Vec<Action>)> {
        let set = world.replica_sets.get(key)?;
        let selector = &set.spec.as_ref()?.selector;
        let claim = claim::<ReplicaSet, Pod>(
            &set.metadata,
            selector,
            world.pods.owned_by(meta::uid(&set.metadata)),
            world.pods.without_controller(&key.namespace),
        );
        let mut related = Vec::new();
        if let Some(owner) = controller_of(&set.metadata)
            && claim.mine.len()
                > set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1).max(0) as usize
        {
            for sibling in world.replica_sets.owned_by(&owner.uid) {
                related.extend(world.pods.owned_by(meta::uid(&sibling.metadata)));
            }
        }
        if related.is_empty() {
            related.clone_from(&claim.mine);
        }
        let refused = world.refusals.of(meta::uid(&set.metadata));
        Some((Snapshot { set, pods: claim.mine, related, refused, now }, claim.actions))
    }
}

impl Controller for ReplicaSets {
    fn name(&self) -> &'static str {
        "replicaset"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::ReplicaSets, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (pods, there) = (enqueue.clone(), Arc::downgrade(world));
        world.replica_sets.on_change(move |old, new| match (old, new) {
            (_, Some(set)) => enqueue.add(Key::of(&set.metadata)),
            (Some(gone), None) => {
                if let Some(world) = there.upgrade() {
                    world.refusals.forget(meta::uid(&gone.metadata));
                }
            }
            (None, None) => {}
        });
        let sets = world.replica_sets.clone();
        world.pods.on_change(move |old, new| {
            let mut owned = false;
            for pod in [old, new].into_iter().flatten() {
                if let Some(owner) = controller_of(&pod.metadata) {
                    owned = true;
                    if owner.kind == "ReplicaSet" {
                        pods.add(Key::new(meta::namespace(&pod.metadata), &owner.name));
                    }
                }
            }
            if !owned && let Some(pod) = new {
                for set in sets.in_namespace(meta::namespace(&pod.metadata)) {
                    let selector = set.spec.as_ref().map(|spec| &spec.selector);
                    if selector.is_some_and(|s| meta::selects(s, pod.metadata.labels.as_ref())) {
                        pods.add(Key::of(&set.metadata));
                    }
                }
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some((snapshot, claims)) = Self::snapshot(key, world, now) else { return Vec::new() };
        // Adoptions first: what they bring counts before anything is made.
        if claims.is_empty() { plan(&snapshot) } else { claims }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use proptest::prelude::*;
    use serde_json::json;

    fn build(replicas: usize, found: &[(usize, bool, bool)]) -> Model {
        let mut model = Model::default();
        model.add::<ReplicaSet>(json!({
            "metadata": {"name": "web", "namespace": "n", "uid": "r"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "a:1"}]},
            }},
        }));
        for (phase, ready, leaving) in found {
            let phase = ["Pending", "Running", "Failed", "Succeeded"][*phase];
            model.add::<Pod>(json!({
                "metadata": {
                    "generateName": "web-", "namespace": "n", "labels": {"app": "web"},
                    "deletionTimestamp": leaving.then_some("2026-01-01T00:00:00Z"),
                },
                "spec": {"nodeName": "a", "containers": []},
                "status": {
                    "phase": phase,
                    "conditions": [{"type": "Ready", "status": if *ready { "True" } else { "False" }}],
                },
            }));
        }
        model
    }

    fn step(model: &mut Model) -> Vec<Action> {
        let pods = model.list::<Pod>();
        let set = model.get::<ReplicaSet>("web").unwrap();
        let now = Timestamp::from_second(100_000).unwrap();
        let actions = plan(&Snapshot { set, related: pods.clone(), pods, refused: None, now });
        actions.iter().for_each(|action| model.apply(action));
        actions
    }

    fn active(model: &Model) -> usize {
        model.list::<Pod>().iter().filter(|pod| pod::is_active(pod)).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn from_any_state_there_are_soon_as_many_as_wanted_and_never_more(
            first in 0..10usize,
            second in 0..10usize,
            found in prop::collection::vec((0..4usize, any::<bool>(), any::<bool>()), 0..20),
        ) {
            let mut model = build(first, &found);
            for wanted in [first, second] {
                model.merge::<ReplicaSet>("web", json!({"spec": {"replicas": wanted}}));
                let before = active(&model);
                let moved = step(&mut model).iter().filter(|a| matches!(a, Action::Create { .. } | Action::Delete { .. })).count();
                prop_assert_eq!(active(&model), wanted);
                prop_assert_eq!(moved, before.abs_diff(wanted), "pods were replaced that nobody asked to replace");
                step(&mut model);
                prop_assert_eq!(step(&mut model), vec![], "it goes on");
                let status = model.get::<ReplicaSet>("web").unwrap().status.clone().unwrap();
                prop_assert_eq!(status.replicas, wanted as i32);
            }
        }
    }
}
