//! Deployment: moves pods from one template to the next through ReplicaSets.
//!
//! One plan is one step (make a ReplicaSet, scale some, write status). The answers to its writes wake the
//! next plan, so a rollout is a chain of small steps from whatever state is found.

mod progress;
mod revision;
mod scale;
#[cfg(test)]
mod tests;

use crate::{
    meta::{self, claim, controller_of},
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentSpec, ReplicaSet},
    core::v1::Pod,
};
use std::{cell::OnceCell, sync::Arc};

pub(crate) const COMPONENT: &str = "deployment-controller";
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(crate) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(crate) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(crate) const MAX: &str = "deployment.kubernetes.io/max-replicas";
pub(crate) const HASH: &str = "pod-template-hash";

pub struct Snapshot {
    pub deployment: Arc<Deployment>,
    /// ReplicaSets that this Deployment controls, matching its selector; oldest first.
    pub sets: Vec<Arc<ReplicaSet>>,
    /// A ReplicaSet that has the name our new one would get, whoever owns it.
    pub same_name: Option<Arc<ReplicaSet>>,
    /// Whether pods of old ReplicaSets still exist that are not finished (the Recreate strategy waits for them).
    pub old_pods_running: bool,
    pub now: Timestamp,
    /// Where the set with the current template is, found once: comparing templates is the costly part of a plan.
    pub new_at: OnceCell<Option<usize>>,
}

impl Snapshot {
    pub fn spec(&self) -> &DeploymentSpec {
        static NONE: std::sync::LazyLock<DeploymentSpec> = std::sync::LazyLock::new(DeploymentSpec::default);
        self.deployment.spec.as_ref().unwrap_or(&NONE)
    }

    pub fn replicas(&self) -> i32 {
        self.spec().replicas.unwrap_or(1)
    }

    /// (maxSurge, maxUnavailable) in pods. Both zero would never move, so one pod may then be missing.
    pub fn limits(&self) -> (i32, i32) {
        let strategy = self.spec().strategy.as_ref();
        if strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate") {
            return (0, 0);
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let total = self.replicas();
        let surge = rolling
            .and_then(|r| r.max_surge.as_ref())
            .map_or(Some((total + 3) / 4), |v| meta::scaled(v, total, true));
        let missing = rolling
            .and_then(|r| r.max_unavailable.as_ref())
            .map_or(Some(total / 4), |v| meta::scaled(v, total, false));
        match (surge.unwrap_or(0).max(0), missing.unwrap_or(0).max(0)) {
            (0, 0) => (0, 1),
            (surge, missing) => (surge, missing.min(total)),
        }
    }

    /// The oldest set with the current template.
    pub fn new_set(&self) -> Option<&Arc<ReplicaSet>> {
        let at = self.new_at.get_or_init(|| {
            let template = &self.spec().template;
            self.sets.iter().position(|set| {
                let theirs = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
                theirs.is_some_and(|theirs| revision::same_template(template, theirs))
            })
        });
        at.map(|at| &self.sets[at])
    }

    pub fn old_sets(&self) -> Vec<&Arc<ReplicaSet>> {
        let new = self.new_set().map(|set| set.metadata.uid.clone());
        self.sets.iter().filter(|set| Some(&set.metadata.uid) != new.as_ref()).collect()
    }
}

pub(crate) fn set_replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(crate) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// The next step of the rollout.
pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let deployment = &snapshot.deployment;
    if deployment.metadata.deletion_timestamp.is_some() {
        return progress::sync_status(snapshot);
    }
    let paused = snapshot.spec().paused == Some(true);
    let new = snapshot.new_set();
    if let Some(action) = revision::sync_annotations(snapshot) {
        // Everything else is planned from the ReplicaSets as they then are.
        return vec![action];
    }
    let mut actions = Vec::new();
    if new.is_none() && !paused {
        if recreate(snapshot) && (scale::stop_old(snapshot, &mut actions) || snapshot.old_pods_running) {
            actions.extend(progress::sync_status(snapshot));
            return actions;
        }
        return revision::create_new_set(snapshot);
    }
    if paused || scale::is_scaling(snapshot) {
        scale::proportionally(snapshot, &mut actions);
    } else if recreate(snapshot) {
        if !scale::stop_old(snapshot, &mut actions) && !snapshot.old_pods_running {
            scale::grow_new(snapshot, &mut actions);
        }
    } else {
        scale::roll(snapshot, &mut actions);
    }
    if actions.is_empty() && !paused {
        actions.extend(revision::clean_history(snapshot));
    }
    actions.extend(revision::note_revision(snapshot));
    actions.extend(progress::sync_status(snapshot));
    actions
}

fn recreate(snapshot: &Snapshot) -> bool {
    snapshot.spec().strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate")
}

pub struct Deployments;

impl Controller for Deployments {
    fn name(&self) -> &'static str {
        "deployment"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Deployments, Watch::ReplicaSets, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let sets = enqueue.clone();
        let recreate = enqueue.clone();
        world.deployments.on_change(move |_, new| {
            if let Some(deployment) = new {
                enqueue.add(Key::of(&deployment.metadata));
            }
        });
        let deployments = world.deployments.clone();
        world.replica_sets.on_change(move |old, new| {
            let mut owned = false;
            for set in [old, new].into_iter().flatten() {
                if let Some(owner) = controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment") {
                    owned = true;
                    sets.add(Key::new(meta::namespace(&set.metadata), &owner.name));
                }
            }
            if !owned && let Some(set) = new {
                for deployment in deployments.in_namespace(meta::namespace(&set.metadata)) {
                    let selector = deployment.spec.as_ref().map(|spec| &spec.selector);
                    if selector.is_some_and(|s| meta::selects(s, set.metadata.labels.as_ref())) {
                        sets.add(Key::of(&deployment.metadata));
                    }
                }
            }
        });
        // A Recreate rollout goes on when the last old pod is gone; other strategies follow ReplicaSet status.
        let (sets, deployments) = (world.replica_sets.clone(), world.deployments.clone());
        world.pods.on_change(move |old, new| {
            let Some(pod) = old.filter(|_| new.is_none_or(|pod| crate::pod::is_finished(pod))) else {
                return;
            };
            let Some(owner) = controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet") else {
                return;
            };
            let namespace = meta::namespace(&pod.metadata);
            let Some(set) = sets.get(&Key::new(namespace, &owner.name)) else { return };
            let Some(owner) = controller_of(&set.metadata) else { return };
            let key = Key::new(namespace, &owner.name);
            let strategy = |d: &Deployment| d.spec.as_ref()?.strategy.as_ref()?.type_.clone();
            if deployments.get(&key).and_then(|d| strategy(&d)).as_deref() == Some("Recreate") {
                recreate.add(key);
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(deployment) = world.deployments.get(key) else { return Vec::new() };
        let Some(spec) = &deployment.spec else { return Vec::new() };
        let mut claim = claim::<Deployment, ReplicaSet>(
            &deployment.metadata,
            &spec.selector,
            world.replica_sets.owned_by(meta::uid(&deployment.metadata)),
            world.replica_sets.without_controller(&key.namespace),
        );
        if !claim.actions.is_empty() {
            return claim.actions;
        }
        claim.mine.sort_by_key(|set| (meta::created(&set.metadata), set.metadata.name.clone()));
        let same_name =
            world.replica_sets.get(&Key::new(&key.namespace, revision::new_set_name(&deployment)));
        let mut snapshot = Snapshot {
            deployment,
            sets: claim.mine,
            same_name,
            old_pods_running: false,
            now,
            new_at: OnceCell::new(),
        };
        if recreate(&snapshot) {
            let running = |pods: Vec<Arc<Pod>>| pods.iter().any(|pod| !crate::pod::is_finished(pod));
            snapshot.old_pods_running =
                snapshot.old_sets().iter().any(|set| running(world.pods.owned_by(meta::uid(&set.metadata))));
        }
        plan(&snapshot)
    }
}
