//! Two cleaners: pods that nobody will finish, and finished jobs whose time is over.

use crate::{
    job, meta, pod,
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use std::sync::Arc;

/// Finished pods beyond this many are removed, oldest first.
const MOST_FINISHED: usize = 12_500;

/// What becomes of a pod whose node is gone, or that was deleted before it ever had one.
pub fn plan_pod(pod: &Pod, node_exists: bool) -> Vec<Action> {
    let orphaned = pod::node(pod).is_some() && !node_exists;
    let never_ran = pod::node(pod).is_none() && pod::is_deleting(pod);
    if !orphaned && !never_ran {
        return Vec::new();
    }
    let mut actions = Vec::new();
    if !pod::is_finished(pod) && orphaned {
        let body = serde_json::json!({"status": {"phase": "Failed"}});
        actions.push(meta::patch::<Pod>(&pod.metadata, "status", &body));
    }
    actions.push(at_once(pod));
    actions
}

fn at_once(pod: &Pod) -> Action {
    match meta::delete::<Pod>(&pod.metadata) {
        Action::Delete { resource, namespace, name, uid, propagation, .. } => {
            Action::Delete { resource, namespace, name, uid, propagation, grace_seconds: Some(0) }
        }
        other => other,
    }
}

/// A finished job with a time to live goes, with its pods, when that is over.
pub fn plan_job(job: &Job, now: Timestamp) -> Vec<Action> {
    let Some(seconds) = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished) else {
        return Vec::new();
    };
    let Some(condition) = job::finished_condition(job).filter(|_| job.metadata.deletion_timestamp.is_none())
    else {
        return Vec::new();
    };
    let ended = condition.last_transition_time.as_ref().map_or(now, |time| time.0);
    let due = meta::plus(ended, i64::from(seconds));
    if due > now {
        return vec![Action::After(meta::until(due, now))];
    }
    match meta::delete::<Job>(&job.metadata) {
        Action::Delete { resource, namespace, name, uid, grace_seconds, .. } => {
            vec![Action::Delete {
                resource,
                namespace,
                name,
                uid,
                grace_seconds,
                propagation: Some("Foreground"),
            }]
        }
        _ => Vec::new(),
    }
}

pub struct PodGarbage;

impl Controller for PodGarbage {
    fn name(&self) -> &'static str {
        "pod-garbage-collector"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Pods, Watch::Nodes]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (nodes, pods) = (enqueue.clone(), world.pods.clone());
        let known = world.nodes.clone();
        world.pods.on_change(move |_, new| {
            let Some(pod) = new else { return };
            let lost = match pod::node(pod) {
                Some(node) => known.get(&Key::new("", node)).is_none(),
                None => pod::is_deleting(pod),
            };
            if lost {
                enqueue.add_after(Key::of(&pod.metadata), PATIENCE);
            }
        });
        world.nodes.on_change(move |old, new| {
            let (Some(node), None) = (old, new) else { return };
            let name = meta::name(&node.metadata);
            for pod in pods.list().into_iter().filter(|pod| pod::node(pod) == Some(name)) {
                nodes.add_after(Key::of(&pod.metadata), PATIENCE);
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, _now: Timestamp) -> Vec<Action> {
        let Some(pod) = world.pods.get(key) else { return Vec::new() };
        let node_exists = pod::node(&pod).is_some_and(|node| world.nodes.get(&Key::new("", node)).is_some());
        let actions = plan_pod(&pod, node_exists);
        if !actions.is_empty() {
            return actions;
        }
        let mut finished: Vec<_> =
            world.pods.list().into_iter().filter(|pod| pod::is_finished(pod)).collect();
        let surplus = finished.len().saturating_sub(MOST_FINISHED);
        if surplus == 0 {
            return Vec::new();
        }
        finished.sort_by_key(|pod| meta::created(&pod.metadata));
        finished.iter().take(surplus).map(|pod| at_once(pod)).collect()
    }
}

/// A node that is registered anew keeps its pods: they wait this long for it.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

pub struct FinishedJobs;

impl Controller for FinishedJobs {
    fn name(&self) -> &'static str {
        "ttl-after-finished"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Jobs]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        world.jobs.on_change(move |_, new| {
            if let Some(job) = new
                && job.spec.as_ref().is_some_and(|spec| spec.ttl_seconds_after_finished.is_some())
                && job::is_finished(job)
            {
                enqueue.add(Key::of(&job.metadata));
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        world.jobs.get(key).map(|job| plan_job(&job, now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_on_a_lost_node_fails_and_goes_at_once() {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "a"}, "spec": {"nodeName": "gone", "containers": []}, "status": {"phase": "Running"}}),
        )
        .unwrap();
        let plan = plan_pod(&pod, false);
        assert!(matches!(
            plan.as_slice(),
            [Action::Patch { .. }, Action::Delete { grace_seconds: Some(0), .. }]
        ));
        assert!(plan_pod(&pod, true).is_empty());
    }

    #[test]
    fn a_finished_job_waits_for_its_time_and_then_goes() {
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"ttlSecondsAfterFinished": 10, "template": {}},
            "status": {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(matches!(plan_job(&job, at(4)).as_slice(), [Action::After(left)] if left.as_secs() == 6));
        assert!(matches!(plan_job(&job, at(10)).as_slice(), [Action::Delete { .. }]));
    }
}
