//! What `kubectl rollout status statefulset` waits for.

use super::{Revisions, Snapshot, is_of};
use crate::{meta, pod, shell::Action};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};

pub fn sync(snapshot: &Snapshot, revisions: &Revisions) -> Vec<Action> {
    let set = &snapshot.set;
    let min_ready = snapshot.spec().min_ready_seconds.unwrap_or(0);
    let old = set.status.clone().unwrap_or_default();
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        current_revision: set
            .metadata
            .name
            .as_ref()
            .map(|_| meta::name(&revisions.current.metadata).to_owned()),
        update_revision: set
            .metadata
            .name
            .as_ref()
            .map(|_| meta::name(&revisions.update.metadata).to_owned()),
        collision_count: old.collision_count,
        conditions: old.conditions,
        ..StatefulSetStatus::default()
    };
    let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
    let mut again = None;
    for pod in snapshot.pods.values() {
        status.replicas += 1;
        if pod::phase(pod) == "Running" && pod::is_ready(pod) {
            ready += 1;
            match pod::available_at(pod, min_ready) {
                Some(at) if at <= snapshot.now => available += 1,
                Some(at) => again = Some(again.unwrap_or(at).min(at)),
                None => {}
            }
        }
        if !pod::is_deleting(pod) {
            current += i32::from(is_of(pod, &revisions.current));
            updated += i32::from(is_of(pod, &revisions.update));
        }
    }
    let wanted = snapshot.spec().replicas.unwrap_or(1);
    if snapshot.rolls() && updated == status.replicas && ready == status.replicas && status.replicas == wanted
    {
        status.current_revision.clone_from(&status.update_revision);
        current = updated;
    }
    let some = |count: i32| (count > 0).then_some(count);
    status.ready_replicas = some(ready);
    status.available_replicas = Some(available);
    status.current_replicas = some(current);
    status.updated_replicas = some(updated);
    let mut actions: Vec<Action> =
        meta::status::<StatefulSet, _>(&set.metadata, set.status.as_ref(), &status).into_iter().collect();
    actions.extend(again.map(|at| Action::After(meta::until(at, snapshot.now))));
    actions
}
