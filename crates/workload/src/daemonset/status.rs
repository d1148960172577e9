//! What `kubectl rollout status daemonset` waits for.

use super::{Slot, Snapshot};
use crate::{meta, pod, revision, shell::Action};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetStatus},
    core::v1::Pod,
};
use std::sync::Arc;

pub(crate) fn sync(snapshot: &Snapshot, slots: &[Slot], hash: &str) -> Vec<Action> {
    let set = &snapshot.set;
    let min_ready = snapshot.spec().min_ready_seconds.unwrap_or(0);
    let old = set.status.clone().unwrap_or_default();
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions,
        ..DaemonSetStatus::default()
    };
    let (mut updated, mut available) = (0, 0);
    let mut again = None;
    for slot in slots {
        // Pods that are on the node, or on their way to it; of several the oldest stands for the node.
        let mut pods: Vec<&Arc<Pod>> = slot.pods.iter().filter(|pod| !pod::is_deleting(pod)).collect();
        pods.sort_by_key(|pod| (!pod::is_ready(pod), meta::created(&pod.metadata)));
        if !slot.wanted {
            status.number_misscheduled += i32::from(pods.iter().any(|pod| pod::node(pod).is_some()));
            continue;
        }
        status.desired_number_scheduled += 1;
        let Some(pod) = pods.first() else { continue };
        status.current_number_scheduled += 1;
        updated += i32::from(pods.iter().any(|pod| meta::label(&pod.metadata, revision::HASH) == Some(hash)));
        status.number_ready += i32::from(pod::is_ready(pod));
        match pod::available_at(pod, min_ready) {
            Some(at) if at <= snapshot.now => available += 1,
            Some(at) => again = Some(again.unwrap_or(at).min(at)),
            None => {}
        }
    }
    let some = |count: i32| (count > 0).then_some(count);
    status.updated_number_scheduled = some(updated);
    status.number_available = some(available);
    status.number_unavailable = some(status.desired_number_scheduled - available);
    let mut actions: Vec<Action> =
        meta::status::<DaemonSet, _>(&set.metadata, set.status.as_ref(), &status).into_iter().collect();
    actions.extend(again.map(|at| Action::After(meta::until(at, snapshot.now))));
    actions
}
