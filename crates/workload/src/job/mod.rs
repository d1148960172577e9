//! Job: pods that run to their end, counted exactly.
//!
//! A finished pod carries a finalizer until it is counted, so a pod that is deleted early is never lost:
//! first its uid is noted in the status, then its finalizer goes, then the note becomes a count.

mod count;
mod finish;
mod indexes;
mod orphans;
mod start;
#[cfg(test)]
mod tests;

pub use indexes::Indexes;
pub use orphans::OrphanedPods;

use crate::{
    meta::{self, claim, controller_of, now_time, tell},
    pod,
    shell::{Action, Controller, Enqueue, Key, Severity, Watch, World},
};
use count::Tally;
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobSpec, JobStatus},
    core::v1::Pod,
};
use serde_json::json;
use std::sync::Arc;

pub(crate) const COMPONENT: &str = "job-controller";
pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(crate) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub struct Snapshot {
    pub job: Arc<Job>,
    pub pods: Vec<Arc<Pod>>,
    pub now: Timestamp,
}

impl Snapshot {
    pub fn spec(&self) -> &JobSpec {
        static NONE: std::sync::LazyLock<JobSpec> = std::sync::LazyLock::new(JobSpec::default);
        self.job.spec.as_ref().unwrap_or(&NONE)
    }

    pub fn status(&self) -> JobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    pub fn is_indexed(&self) -> bool {
        self.spec().completion_mode.as_deref() == Some("Indexed")
    }

    pub fn is_suspended(&self) -> bool {
        self.spec().suspend == Some(true)
    }
}

pub fn is_finished(job: &Job) -> bool {
    finished_condition(job).is_some()
}

pub fn finished_condition(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

/// The index a pod works on.
pub(crate) fn index_of(pod: &Pod) -> Option<i32> {
    meta::annotation(&pod.metadata, INDEX)?.parse().ok()
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let job = &snapshot.job;
    let spec = snapshot.spec();
    if spec.managed_by.as_deref().is_some_and(|by| by != "kubernetes.io/job-controller") {
        return Vec::new();
    }
    if is_finished(job) || job.metadata.deletion_timestamp.is_some() {
        // Nothing is counted any more: let go of pods that somebody deletes.
        return count::release_all(snapshot);
    }
    let tally = Tally::new(snapshot);
    let mut status = snapshot.status();
    let mut actions = Vec::new();
    let mut again = None;

    if snapshot.is_suspended() {
        status.start_time = None;
    } else if status.start_time.is_none() {
        status.start_time = Some(now_time(snapshot.now));
    }
    let ending = finish::judge(snapshot, &tally, &status);
    let mut live: Vec<_> = tally.active.clone();
    match &ending {
        // What still runs is stopped before the job is finished; of a failed job it counts as failed.
        Some(finish::Ending::Failure { .. }) => actions.extend(stop(snapshot, &live, true)),
        Some(finish::Ending::Success { .. }) => actions.extend(stop(snapshot, &live, false)),
        None if snapshot.is_suspended() => actions.extend(stop(snapshot, &live, false)),
        None => {
            let steps = start::plan(snapshot, &tally, &mut again);
            actions.extend(steps);
        }
    }
    if snapshot.is_suspended() {
        finish::note_suspension(&mut status, true, snapshot, &mut actions);
    } else {
        finish::note_suspension(&mut status, false, snapshot, &mut actions);
    }
    count::track(snapshot, &tally, &mut status, &mut actions);
    let stopping = ending.is_some() || snapshot.is_suspended();
    if stopping {
        live.clear();
    }
    let starting = actions.iter().filter(|action| matches!(action, Action::Create { .. })).count();
    status.active = some(live.len() + starting);
    status.ready = Some(i32::try_from(live.iter().filter(|pod| pod::is_ready(pod)).count()).unwrap_or(0));
    status.terminating = Some(tally.terminating + if stopping { tally.active.len() as i32 } else { 0 });
    if let Some(ending) = ending {
        finish::conclude(snapshot, &tally, ending, &mut status, &mut actions);
    }
    actions.extend(meta::status::<Job, _>(&job.metadata, job.status.as_ref(), &status));
    if let Some(at) = finish::deadline(snapshot, &status) {
        actions.push(Action::After(meta::until(at, snapshot.now)));
    }
    actions.extend(again.map(Action::After));
    actions
}

fn some(count: usize) -> Option<i32> {
    i32::try_from(count).ok().filter(|count| *count > 0)
}

/// Deletes pods; those that shall not count are let go first.
fn stop(snapshot: &Snapshot, pods: &[Arc<Pod>], counted: bool) -> Vec<Action> {
    let mut actions = Vec::new();
    if !counted {
        let held = pods.iter().filter(|pod| meta::has_finalizer(&pod.metadata, TRACKING));
        actions.extend(held.map(|pod| without_tracking(pod)));
    }
    actions.extend(pods.iter().map(|pod| meta::delete::<Pod>(&pod.metadata)));
    for pod in pods {
        let message = format!("Deleted pod: {}", meta::name(&pod.metadata));
        actions.push(tell::<Job>(
            &snapshot.job.metadata,
            COMPONENT,
            Severity::Normal,
            "SuccessfulDelete",
            message,
        ));
    }
    actions
}

pub(crate) fn without_tracking(pod: &Pod) -> Action {
    let rest: Vec<_> = pod.metadata.finalizers.iter().flatten().filter(|f| *f != TRACKING).collect();
    let body = json!({"metadata": {"uid": pod.metadata.uid, "finalizers": rest}});
    meta::patch::<Pod>(&pod.metadata, "", &body)
}

pub struct Jobs;

impl Controller for Jobs {
    fn name(&self) -> &'static str {
        "job"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Jobs, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let pods = enqueue.clone();
        world.jobs.on_change(move |_, new| {
            if let Some(job) = new {
                enqueue.add(Key::of(&job.metadata));
            }
        });
        let jobs = world.jobs.clone();
        world.pods.on_change(move |old, new| {
            let Some(pod) = new.or(old) else { return };
            let namespace = meta::namespace(&pod.metadata);
            let mut owned = false;
            for owner in [old, new].into_iter().flatten().filter_map(|pod| controller_of(&pod.metadata)) {
                owned = true;
                if owner.kind == "Job" {
                    pods.add(Key::new(namespace, &owner.name));
                }
            }
            if !owned {
                for job in jobs.in_namespace(namespace) {
                    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                    if selector.is_some_and(|s| meta::selects(s, pod.metadata.labels.as_ref())) {
                        pods.add(Key::of(&job.metadata));
                    }
                }
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(job) = world.jobs.get(key) else { return Vec::new() };
        let Some(selector) = job.spec.as_ref().and_then(|spec| spec.selector.clone()) else {
            return Vec::new();
        };
        let owned = world.pods.owned_by(meta::uid(&job.metadata));
        let orphans = world.pods.without_controller(&key.namespace);
        let claim = claim::<Job, Pod>(&job.metadata, &selector, owned, orphans);
        if !claim.actions.is_empty() {
            return claim.actions;
        }
        plan(&Snapshot { job, pods: claim.mine, now })
    }
}
