//! How many pods each ReplicaSet may have right now.

use super::{COMPONENT, DESIRED, MAX, Snapshot, available, set_replicas};
use crate::{
    meta::{self, annotation, tell},
    shell::{Action, Severity},
};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use serde_json::json;
use std::sync::Arc;

/// The size the new set may have next, when it has `current` now: never more pods in total than surge allows.
pub fn new_set_replicas(snapshot: &Snapshot, current: i32) -> i32 {
    let wanted = snapshot.replicas();
    if super::recreate(snapshot) {
        return wanted;
    }
    let most = wanted + snapshot.limits().0;
    let total: i32 = snapshot.sets.iter().map(|set| set_replicas(set)).sum();
    if total >= most {
        return current;
    }
    current + (most - total).min(wanted - current)
}

/// A user changed `replicas`: some set still carries the old number.
pub fn is_scaling(snapshot: &Snapshot) -> bool {
    snapshot.sets.iter().filter(|set| set_replicas(set) > 0).any(|set| {
        let desired = annotation(&set.metadata, DESIRED).and_then(|text| text.parse::<i32>().ok());
        desired.is_some_and(|desired| desired != snapshot.replicas())
    })
}

/// Sets a ReplicaSet's size (and the notes beside it) if that changes anything.
fn resize(snapshot: &Snapshot, set: &ReplicaSet, size: i32, actions: &mut Vec<Action>) -> bool {
    let (desired, max) =
        (snapshot.replicas().to_string(), (snapshot.replicas() + snapshot.limits().0).to_string());
    let was = set_replicas(set);
    let same_notes =
        annotation(&set.metadata, DESIRED) == Some(&desired) && annotation(&set.metadata, MAX) == Some(&max);
    if was == size && same_notes {
        return false;
    }
    let mut body = json!({"metadata": {"annotations": {DESIRED: desired, MAX: max}}});
    if was != size {
        body["spec"] = json!({"replicas": size});
    }
    actions.push(meta::patch::<ReplicaSet>(&set.metadata, "", &body));
    if was != size {
        let way = if size > was { "up" } else { "down" };
        let message = format!("Scaled {way} replica set {} from {was} to {size}", meta::name(&set.metadata));
        let about = &snapshot.deployment.metadata;
        actions.push(tell::<Deployment>(about, COMPONENT, Severity::Normal, "ScalingReplicaSet", message));
    }
    true
}

pub fn grow_new(snapshot: &Snapshot, actions: &mut Vec<Action>) -> bool {
    let Some(new) = snapshot.new_set() else { return false };
    let current = set_replicas(new);
    let size =
        if current > snapshot.replicas() { snapshot.replicas() } else { new_set_replicas(snapshot, current) };
    resize(snapshot, new, size, actions)
}

/// Scales every old set to zero; says whether there was one to scale.
pub fn stop_old(snapshot: &Snapshot, actions: &mut Vec<Action>) -> bool {
    let mut any = false;
    for set in snapshot.old_sets() {
        if set_replicas(set) > 0 {
            any |= resize(snapshot, set, 0, actions);
        }
    }
    any
}

/// One step of a rolling update: grow the new set, or else shrink old ones.
pub fn roll(snapshot: &Snapshot, actions: &mut Vec<Action>) {
    if grow_new(snapshot, actions) {
        return;
    }
    let mut sizes: Vec<(&Arc<ReplicaSet>, i32)> = snapshot
        .old_sets()
        .into_iter()
        .filter(|set| set_replicas(set) > 0)
        .map(|set| (set, set_replicas(set)))
        .collect();
    if sizes.is_empty() {
        return;
    }
    let least = snapshot.replicas() - snapshot.limits().1;
    let total: i32 = snapshot.sets.iter().map(|set| set_replicas(set)).sum();
    let new_missing = snapshot.new_set().map_or(0, |new| (set_replicas(new) - available(new)).max(0));
    // Pods that may go even if every pod the new set still lacks never comes.
    let mut removable = total - least - new_missing;
    if removable <= 0 {
        return;
    }
    // First what does no work anyway: old pods that are not available.
    for (set, size) in &mut sizes {
        let broken = (*size - available(set)).max(0).min(removable);
        *size -= broken;
        removable -= broken;
    }
    // Then working ones, as long as enough are available.
    let serving: i32 = snapshot.sets.iter().map(|set| available(set)).sum();
    let mut spare = serving - least;
    for (set, size) in &mut sizes {
        let down = (*size).min(spare).min(available(set)).max(0);
        *size -= down;
        spare -= down;
    }
    for (set, size) in sizes {
        if size != set_replicas(set) {
            resize(snapshot, set, size, actions);
        }
    }
}

/// The number of replicas changed: share the difference over all active sets by their size, so that a rollout in
/// progress keeps its proportions.
pub fn proportionally(snapshot: &Snapshot, actions: &mut Vec<Action>) {
    let active: Vec<_> = snapshot.sets.iter().filter(|set| set_replicas(set) > 0).collect();
    let new = snapshot.new_set();
    let only = match active.as_slice() {
        [] => new.or(snapshot.sets.last()),
        [one] => Some(*one),
        _ => None,
    };
    if let Some(set) = only {
        // A paused Deployment whose single active set is an old one is scaled there.
        if set_replicas(set) != snapshot.replicas() || is_scaling(snapshot) {
            resize(snapshot, set, snapshot.replicas(), actions);
        }
        return;
    }
    let saturated = new.is_some_and(|new| {
        set_replicas(new) == snapshot.replicas()
            && available(new) == snapshot.replicas()
            && annotation(&new.metadata, DESIRED) == Some(&snapshot.replicas().to_string())
    });
    if saturated {
        stop_old(snapshot, actions);
        return;
    }
    let total: i32 = active.iter().map(|set| set_replicas(set)).sum();
    let allowed = if snapshot.replicas() > 0 { snapshot.replicas() + snapshot.limits().0 } else { 0 };
    let to_add = allowed - total;
    let mut order = active.clone();
    // Largest first; of equals, the newest first when growing and the oldest first when shrinking.
    order.sort_by_key(|set| {
        (std::cmp::Reverse(set_replicas(set)), meta::created(&set.metadata), set.metadata.name.clone())
    });
    if to_add > 0 {
        order.sort_by_key(|set| {
            (
                std::cmp::Reverse(set_replicas(set)),
                std::cmp::Reverse(meta::created(&set.metadata)),
                set.metadata.name.clone(),
            )
        });
    }
    let mut left = to_add;
    let mut sizes = Vec::with_capacity(order.len());
    for set in &order {
        let share = if to_add == 0 { 0 } else { share(snapshot, set, left, allowed) };
        sizes.push(set_replicas(set) + share);
        left -= share;
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + left).max(0);
    }
    for (set, size) in order.into_iter().zip(sizes) {
        resize(snapshot, set, size, actions);
    }
}

/// The part of `left` that goes to one set, in proportion to its part of the previous maximum.
fn share(snapshot: &Snapshot, set: &ReplicaSet, left: i32, allowed: i32) -> i32 {
    let size = set_replicas(set);
    if size == 0 || left == 0 {
        return 0;
    }
    let previous = annotation(&set.metadata, MAX)
        .and_then(|text| text.parse::<i32>().ok())
        .filter(|max| *max > 0)
        .or(snapshot.deployment.status.as_ref().and_then(|status| status.replicas))
        .unwrap_or(size)
        .max(1);
    let target = (f64::from(size) * f64::from(allowed) / f64::from(previous)).round() as i32;
    let change = target - size;
    if left > 0 { change.clamp(0, left) } else { change.clamp(left, 0) }
}
