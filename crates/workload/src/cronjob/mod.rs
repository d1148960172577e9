//! CronJob: makes a Job whenever its time comes.

mod schedule;
#[cfg(test)]
mod tests;

pub use schedule::{Schedule, ScheduleError};

use crate::{
    job,
    meta::{self, controller_of, controller_reference, now_time, tell},
    shell::{Action, Controller, Enqueue, Key, Severity, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, CronJobSpec, Job},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use std::sync::Arc;

const COMPONENT: &str = "cronjob-controller";
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

pub struct Snapshot {
    pub cron: Arc<CronJob>,
    /// Jobs that this CronJob controls.
    pub jobs: Vec<Arc<Job>>,
    pub now: Timestamp,
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let cron = &snapshot.cron;
    let spec = &cron.spec;
    let mut actions = clean_history(snapshot, spec);
    let mut status = cron.status.clone().unwrap_or_default();
    note_active(snapshot, &mut status, &mut actions);
    let mut next = None;
    if cron.metadata.deletion_timestamp.is_none() && spec.suspend != Some(true) {
        match Schedule::parse(&spec.schedule, spec.time_zone.as_deref()) {
            Ok(schedule) => next = start_due(snapshot, spec, &schedule, &mut status, &mut actions),
            Err(error) => {
                let message = format!("unparseable schedule {:?}: {error}", spec.schedule);
                actions.push(warn(snapshot, "UnparseableSchedule", message));
            }
        }
    }
    actions.extend(meta::status::<CronJob, _>(&cron.metadata, cron.status.as_ref(), &status));
    actions.extend(next.map(|at| Action::After(meta::until(at, snapshot.now))));
    actions
}

fn warn(snapshot: &Snapshot, reason: &'static str, message: String) -> Action {
    tell::<CronJob>(&snapshot.cron.metadata, COMPONENT, Severity::Warning, reason, message)
}

type Status = k8s_openapi::api::batch::v1::CronJobStatus;

/// The list of running jobs, and news of those that ended.
fn note_active(snapshot: &Snapshot, status: &mut Status, actions: &mut Vec<Action>) {
    let about = &snapshot.cron.metadata;
    let mut active: Vec<ObjectReference> = Vec::new();
    for job in &snapshot.jobs {
        let listed = status.active.iter().flatten().any(|reference| reference.uid == job.metadata.uid);
        match job::finished_condition(job) {
            None if job.metadata.deletion_timestamp.is_none() => {
                active.push(meta::reference::<Job>(&job.metadata))
            }
            None => {}
            Some(condition) => {
                if condition.type_ == "Complete" {
                    let ended = job.status.as_ref().and_then(|status| status.completion_time.clone());
                    status.last_successful_time = status.last_successful_time.clone().max(ended);
                }
                if listed {
                    let message = format!(
                        "Saw completed job: {}, condition: {}",
                        meta::name(&job.metadata),
                        condition.type_
                    );
                    actions.push(tell::<CronJob>(
                        about,
                        COMPONENT,
                        Severity::Normal,
                        "SawCompletedJob",
                        message,
                    ));
                }
            }
        }
    }
    // The resource version of a reference changes with every step of the job; it is left as first written.
    for reference in &mut active {
        if let Some(known) = status.active.iter().flatten().find(|known| known.uid == reference.uid) {
            reference.resource_version.clone_from(&known.resource_version);
        }
    }
    status.active = Some(active).filter(|active| !active.is_empty());
}

/// Starts the job that is due; returns when the next one is.
fn start_due(
    snapshot: &Snapshot,
    spec: &CronJobSpec,
    schedule: &Schedule,
    status: &mut Status,
    actions: &mut Vec<Action>,
) -> Option<Timestamp> {
    let now = snapshot.now;
    let mut since =
        status.last_schedule_time.as_ref().map_or(meta::created(&snapshot.cron.metadata), |time| time.0);
    if let Some(deadline) = spec.starting_deadline_seconds {
        since = since.max(meta::plus(now, -deadline));
    }
    let next = schedule.next(now);
    let (due, missed) = schedule.latest(since, now);
    let Some(due) = due else { return next };
    if missed > 100 {
        let message = format!(
            "too many missed start times: {missed}. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        );
        actions.push(warn(snapshot, "TooManyMissedTimes", message));
    }
    if spec.starting_deadline_seconds.is_some_and(|deadline| meta::plus(due, deadline) < now) {
        actions.push(warn(snapshot, "MissSchedule", format!("Missed scheduled time to start a job: {due}")));
        return next;
    }
    let name = job_name(snapshot, due);
    let exists = snapshot.jobs.iter().any(|job| job.metadata.name.as_deref() == Some(&name));
    let running: Vec<_> = snapshot
        .jobs
        .iter()
        .filter(|job| !job::is_finished(job) && job.metadata.deletion_timestamp.is_none())
        .collect();
    let about = &snapshot.cron.metadata;
    if !exists && !running.is_empty() {
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") => {
                let text =
                    "Not starting job because prior execution is running and concurrency policy is Forbid";
                actions.push(tell::<CronJob>(about, COMPONENT, Severity::Normal, "JobAlreadyActive", text));
                return next;
            }
            Some("Replace") => {
                for job in running {
                    actions.push(background_delete(job));
                    let message = format!("Deleted job {}", meta::name(&job.metadata));
                    actions.push(tell::<CronJob>(
                        about,
                        COMPONENT,
                        Severity::Normal,
                        "SuccessfulDelete",
                        message,
                    ));
                }
            }
            _ => {}
        }
    }
    if !exists {
        actions.push(meta::create(&new_job(snapshot, spec, &name, due)));
        let message = format!("Created job {name}");
        actions.push(tell::<CronJob>(about, COMPONENT, Severity::Normal, "SuccessfulCreate", message));
    }
    status.last_schedule_time = Some(now_time(due));
    next
}

/// Named by the minute it is for: however often a start is tried, there is one job.
fn job_name(snapshot: &Snapshot, due: Timestamp) -> String {
    format!("{}-{}", meta::name(&snapshot.cron.metadata), due.as_second() / 60)
}

fn new_job(snapshot: &Snapshot, spec: &CronJobSpec, name: &str, due: Timestamp) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED_AT.into(), due.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: snapshot.cron.metadata.namespace.clone(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference::<CronJob>(&snapshot.cron.metadata)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

fn background_delete(job: &Job) -> Action {
    match meta::delete::<Job>(&job.metadata) {
        Action::Delete { resource, namespace, name, uid, grace_seconds, .. } => {
            Action::Delete { resource, namespace, name, uid, grace_seconds, propagation: Some("Background") }
        }
        other => other,
    }
}

/// Keeps only the newest finished jobs of each kind.
fn clean_history(snapshot: &Snapshot, spec: &CronJobSpec) -> Vec<Action> {
    let mut actions = Vec::new();
    for (kind, limit) in [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ] {
        let mut ended: Vec<_> = snapshot
            .jobs
            .iter()
            .filter(|job| job.metadata.deletion_timestamp.is_none())
            .filter(|job| job::finished_condition(job).is_some_and(|condition| condition.type_ == kind))
            .collect();
        ended.sort_by_key(|job| {
            let start = job.status.as_ref().and_then(|status| status.start_time.clone());
            (start.map_or(Timestamp::MIN, |time| time.0), job.metadata.name.clone())
        });
        let surplus = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        actions.extend(ended.into_iter().take(surplus).map(|job| background_delete(job)));
    }
    actions
}

pub struct CronJobs;

impl Controller for CronJobs {
    fn name(&self) -> &'static str {
        "cronjob"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::CronJobs, Watch::Jobs]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let jobs = enqueue.clone();
        world.cron_jobs.on_change(move |_, new| {
            if let Some(cron) = new {
                enqueue.add(Key::of(&cron.metadata));
            }
        });
        world.jobs.on_change(move |old, new| {
            let Some(job) = new.or(old) else { return };
            if let Some(owner) = controller_of(&job.metadata).filter(|owner| owner.kind == "CronJob") {
                jobs.add(Key::new(meta::namespace(&job.metadata), &owner.name));
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(cron) = world.cron_jobs.get(key) else { return Vec::new() };
        let jobs = world.jobs.owned_by(meta::uid(&cron.metadata));
        plan(&Snapshot { cron, jobs, now })
    }
}
