//! Status and conditions: what `kubectl rollout status` waits for.

use super::{COMPONENT, Snapshot, available, set_replicas};
use crate::{
    meta::{self, now_time, tell},
    replicaset::FAILURE,
    shell::{Action, Severity},
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};

pub fn sync_status(snapshot: &Snapshot) -> Vec<Action> {
    let deployment = &snapshot.deployment;
    let old = deployment.status.clone().unwrap_or_default();
    let mut actions = Vec::new();
    let mut status = counts(snapshot);
    status.conditions = old.conditions.clone();
    availability(snapshot, &mut status);
    failure(snapshot, &mut status);
    let again = progressing(snapshot, &old, &mut status, &mut actions);
    actions.extend(meta::status::<Deployment, _>(&deployment.metadata, deployment.status.as_ref(), &status));
    actions.extend(again.map(|at| Action::After(meta::until(at, snapshot.now))));
    actions
}

fn counts(snapshot: &Snapshot) -> DeploymentStatus {
    let of = |set: &ReplicaSet, read: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> i32| {
        set.status.as_ref().map_or(0, read)
    };
    let sum = |read: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> i32| -> i32 {
        snapshot.sets.iter().map(|set| of(set, read)).sum()
    };
    let some = |count: i32| (count > 0).then_some(count);
    let replicas = sum(|s| s.replicas);
    let ready = sum(|s| s.ready_replicas.unwrap_or(0));
    let serving = sum(|s| s.available_replicas.unwrap_or(0));
    let wanted: i32 = snapshot.sets.iter().map(|set| set_replicas(set)).sum();
    let updated = snapshot.new_set().map_or(0, |set| of(set, |s| s.replicas));
    DeploymentStatus {
        observed_generation: snapshot.deployment.metadata.generation,
        replicas: some(replicas),
        updated_replicas: some(updated),
        ready_replicas: some(ready),
        available_replicas: some(serving),
        unavailable_replicas: some((wanted - serving).max(0)),
        collision_count: snapshot.deployment.status.as_ref().and_then(|status| status.collision_count),
        terminating_replicas: snapshot
            .deployment
            .status
            .as_ref()
            .and_then(|status| status.terminating_replicas),
        conditions: None,
    }
}

fn availability(snapshot: &Snapshot, status: &mut DeploymentStatus) {
    let serving: i32 = snapshot.sets.iter().map(|set| available(set)).sum();
    if serving >= snapshot.replicas() - snapshot.limits().1 {
        let text = "Deployment has minimum availability.";
        set(status, "Available", "True", "MinimumReplicasAvailable", text, snapshot.now);
    } else {
        let text = "Deployment does not have minimum availability.";
        set(status, "Available", "False", "MinimumReplicasUnavailable", text, snapshot.now);
    }
}

/// What the server refuses a set, it refuses the Deployment.
fn failure(snapshot: &Snapshot, status: &mut DeploymentStatus) {
    let failed = |set: &std::sync::Arc<ReplicaSet>| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.type_ == FAILURE && c.status == "True").cloned()
    };
    match snapshot.new_set().and_then(failed).or_else(|| snapshot.sets.iter().find_map(failed)) {
        Some(why) => {
            let (reason, message) = (why.reason.unwrap_or_default(), why.message.unwrap_or_default());
            let same = find(status, FAILURE).is_some_and(|c| c.message.as_deref() == Some(&message));
            if !same && let Some(old) = find_mut(status, FAILURE) {
                old.message = Some(message.clone());
            }
            set(status, FAILURE, "True", &reason, &message, snapshot.now);
        }
        None => {
            if let Some(conditions) = &mut status.conditions {
                conditions.retain(|condition| condition.type_ != FAILURE);
            }
        }
    }
}

/// Maintains the Progressing condition; returns when the deadline would pass.
fn progressing(
    snapshot: &Snapshot,
    old: &DeploymentStatus,
    status: &mut DeploymentStatus,
    actions: &mut Vec<Action>,
) -> Option<Timestamp> {
    let spec = snapshot.spec();
    let deadline = spec.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX);
    let Some(deadline) = deadline else {
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ != "Progressing");
        }
        return None;
    };
    let now = snapshot.now;
    let current = find(old, "Progressing").cloned();
    let current_reason = current.as_ref().and_then(|c| c.reason.clone()).unwrap_or_default();
    if spec.paused == Some(true) {
        if !current_reason.starts_with("DeploymentPaused") && current_reason != "ProgressDeadlineExceeded" {
            set(status, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused", now);
        }
        return None;
    }
    if current_reason == "DeploymentPaused" {
        set(status, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed", now);
        return Some(meta::plus(now, i64::from(deadline)));
    }
    let label = match snapshot.new_set() {
        Some(set) => format!("ReplicaSet \"{}\"", meta::name(&set.metadata)),
        None => format!("Deployment \"{}\"", meta::name(&snapshot.deployment.metadata)),
    };
    let done = |count: Option<i32>| count.unwrap_or(0) == snapshot.replicas();
    let complete = done(status.updated_replicas)
        && done(status.replicas)
        && done(status.available_replicas)
        && status.observed_generation >= snapshot.deployment.metadata.generation;
    let new_is_complete = current_reason == "NewReplicaSetAvailable"
        && old.replicas == old.updated_replicas
        && old.observed_generation == snapshot.deployment.metadata.generation;
    if complete {
        let text = format!("{label} has successfully progressed.");
        set(status, "Progressing", "True", "NewReplicaSetAvailable", &text, now);
        return None;
    }
    if new_is_complete && done(status.updated_replicas) && done(status.replicas) {
        // A finished rollout that lost a pod is not a new rollout.
        return None;
    }
    let count = |value: Option<i32>| value.unwrap_or(0);
    let moved = count(status.updated_replicas) > count(old.updated_replicas)
        || count(status.replicas) - count(status.updated_replicas)
            < count(old.replicas) - count(old.updated_replicas)
        || count(status.ready_replicas) > count(old.ready_replicas)
        || count(status.available_replicas) > count(old.available_replicas);
    let restarted = current.is_none() || current_reason == "NewReplicaSetAvailable";
    if moved || restarted {
        let (reason, text) = match (&current, snapshot.new_set()) {
            (None, Some(set)) => {
                ("NewReplicaSetCreated", format!("Created new replica set \"{}\"", meta::name(&set.metadata)))
            }
            _ => ("ReplicaSetUpdated", format!("{label} is progressing.")),
        };
        // Progress restarts the clock even when the words stay the same.
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ != "Progressing" || condition.status != "True");
        }
        set(status, "Progressing", "True", reason, &text, now);
        if let (Some(new), Some(old)) = (find_mut(status, "Progressing"), &current)
            && old.status == "True"
        {
            new.last_transition_time.clone_from(&old.last_transition_time);
        }
        return Some(meta::plus(now, i64::from(deadline)));
    }
    let since = current.as_ref().and_then(|c| c.last_update_time.as_ref()).map_or(now, |time| time.0);
    let due = meta::plus(since, i64::from(deadline));
    if current_reason == "ProgressDeadlineExceeded" {
        return None;
    }
    if due <= now {
        let text = format!("{label} has timed out progressing.");
        set(status, "Progressing", "False", "ProgressDeadlineExceeded", &text, now);
        actions.push(tell::<Deployment>(
            &snapshot.deployment.metadata,
            COMPONENT,
            Severity::Warning,
            "ProgressDeadlineExceeded",
            text,
        ));
        return None;
    }
    Some(due)
}

fn find<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn find_mut<'a>(status: &'a mut DeploymentStatus, kind: &str) -> Option<&'a mut DeploymentCondition> {
    status.conditions.iter_mut().flatten().find(|condition| condition.type_ == kind)
}

fn set(status: &mut DeploymentStatus, kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let time = Some(now_time(now));
    let conditions = status.conditions.get_or_insert_default();
    let new = DeploymentCondition {
        type_: kind.into(),
        status: value.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_update_time: time.clone(),
        last_transition_time: time,
    };
    match conditions.iter_mut().find(|condition| condition.type_ == kind) {
        Some(old) if old.status == value && old.reason == new.reason => {}
        Some(old) => {
            let transition = if old.status == value {
                old.last_transition_time.clone()
            } else {
                new.last_transition_time.clone()
            };
            *old = DeploymentCondition { last_transition_time: transition, ..new };
        }
        None => conditions.push(new),
    }
}
