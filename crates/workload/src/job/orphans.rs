//! Pods that a Job counted on and that it no longer has: nobody counts them any more, so nothing must hold them.

use super::{TRACKING, without_tracking};
use crate::{
    meta::{self, controller_of},
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use std::sync::Arc;

/// Lets go of a pod whose Job is gone, or which was released; `jobs` are those of its namespace.
pub fn plan(pod: &Pod, jobs: &[Arc<Job>]) -> Vec<Action> {
    let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "Job");
    let counted = owner.is_some_and(|owner| jobs.iter().any(|job| meta::uid(&job.metadata) == owner.uid));
    if counted || !meta::has_finalizer(&pod.metadata, TRACKING) {
        return Vec::new();
    }
    vec![without_tracking(pod)]
}

pub struct OrphanedPods;

impl Controller for OrphanedPods {
    fn name(&self) -> &'static str {
        "job-orphans"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Jobs, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (of_jobs, pods) = (enqueue.clone(), world.pods.clone());
        world.jobs.on_change(move |old, new| {
            let Some(gone) = old.filter(|old| new.is_none_or(|new| new.metadata.uid != old.metadata.uid))
            else {
                return;
            };
            for pod in pods.owned_by(meta::uid(&gone.metadata)) {
                of_jobs.add(Key::of(&pod.metadata));
            }
        });
        world.pods.on_change(move |old, new| {
            let Some(pod) = new.filter(|pod| meta::has_finalizer(&pod.metadata, TRACKING)) else { return };
            // Most changes of a counted pod are its status; only a new owner, or its end, can make it an orphan.
            let owners = |pod: &Pod| pod.metadata.owner_references.clone();
            let ends = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
            if old.is_none_or(|old| owners(old) != owners(pod) || ends(old) != ends(pod)) {
                enqueue.add(Key::of(&pod.metadata));
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, _: Timestamp) -> Vec<Action> {
        let Some(pod) = world.pods.get(key) else { return Vec::new() };
        plan(&pod, &world.jobs.in_namespace(&key.namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(owner: Option<&str>) -> Pod {
        let owners: Vec<_> = owner
            .iter()
            .map(|uid| json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": true}))
            .collect();
        let metadata =
            json!({"name": "p", "namespace": "ns", "finalizers": [TRACKING], "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn only_a_pod_that_a_job_still_counts_is_held() {
        let job: Job =
            serde_json::from_value(json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u"}}))
                .unwrap();
        let jobs = [Arc::new(job)];
        assert!(plan(&pod(Some("u")), &jobs).is_empty(), "its Job is there");
        assert_eq!(plan(&pod(Some("gone")), &jobs).len(), 1, "its Job was deleted, another has its name");
        assert_eq!(plan(&pod(None), &jobs).len(), 1, "it was released");
    }
}
