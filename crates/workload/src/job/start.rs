//! Which pods to start or stop next.

use super::{COMPONENT, INDEX, Snapshot, TRACKING, count::Tally, index_of};
use crate::{
    meta::{self, controller_reference, tell},
    pod,
    shell::{Action, Severity},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// Pods started by one plan; the rest follows in the next.
const BURST: usize = 500;
/// The pause after a failure; doubles with every further one.
const FIRST_PAUSE: i64 = 10;
const LAST_PAUSE: i64 = 600;

pub fn plan(snapshot: &Snapshot, tally: &Tally, again: &mut Option<Duration>) -> Vec<Action> {
    let spec = snapshot.spec();
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let wanted = match spec.completions {
        None if tally.succeeded > 0 => i32::try_from(tally.active.len()).unwrap_or(0).min(parallelism),
        None => parallelism,
        Some(completions) => {
            parallelism.min((completions - tally.succeeded - tally.given_up.len() as i32).max(0))
        }
    };
    let wanted = usize::try_from(wanted).unwrap_or(0);
    let mut actions = surplus(snapshot, tally, wanted);
    if !actions.is_empty() {
        return actions;
    }
    // Where a failure policy looks at how pods end, a pod that is still ending is not replaced yet.
    let by_failure = spec.pod_replacement_policy.as_deref() == Some("Failed");
    let occupied = tally.active.len() + if by_failure { tally.terminating.max(0) as usize } else { 0 };
    let missing = wanted.saturating_sub(occupied).min(BURST);
    if missing == 0 {
        return actions;
    }
    if let Some(at) = not_before(snapshot).filter(|at| *at > snapshot.now) {
        *again = Some(meta::until(at, snapshot.now));
        return actions;
    }
    if snapshot.is_indexed() {
        for index in free_indexes(snapshot, tally).into_iter().take(missing) {
            actions.push(start(snapshot, Some(index), tally.failures.get(&index).copied().unwrap_or(0)));
        }
    } else {
        actions.extend((0..missing).map(|_| start(snapshot, None, 0)));
    }
    actions
}

/// Pods that must go: too many of them, or a second one for an index.
fn surplus(snapshot: &Snapshot, tally: &Tally, wanted: usize) -> Vec<Action> {
    let mut active = tally.active.clone();
    let mut go: Vec<Arc<Pod>> = Vec::new();
    if snapshot.is_indexed() {
        let completions = snapshot.spec().completions.unwrap_or(0);
        let mut taken = BTreeSet::new();
        active.retain(|pod| {
            let stays = index_of(pod).is_some_and(|index| {
                (0..completions).contains(&index) && !tally.done.contains(index) && taken.insert(index)
            });
            if !stays {
                go.push(pod.clone());
            }
            stays
        });
    }
    if active.len() > wanted {
        let related = active.clone();
        pod::by_expendability(&mut active, &related);
        let surplus = active.len() - wanted;
        go.extend(active.into_iter().take(surplus));
    }
    super::stop(snapshot, &go, false)
}

fn free_indexes(snapshot: &Snapshot, tally: &Tally) -> Vec<i32> {
    let busy: BTreeSet<i32> = snapshot
        .pods
        .iter()
        .filter(|pod| !pod::is_finished(pod))
        .filter(|pod| {
            !pod::is_deleting(pod) || snapshot.spec().pod_replacement_policy.as_deref() == Some("Failed")
        })
        .filter_map(|pod| index_of(pod))
        .collect();
    let all = 0..snapshot.spec().completions.unwrap_or(0);
    all.filter(|i| !busy.contains(i) && !tally.done.contains(*i) && !tally.given_up.contains(*i)).collect()
}

/// After failures no pod starts before this.
fn not_before(snapshot: &Snapshot) -> Option<Timestamp> {
    let ended = |pod: &&Arc<Pod>| pod::is_finished(pod);
    let last_success = snapshot
        .pods
        .iter()
        .filter(|pod| pod::phase(pod) == "Succeeded")
        .map(|pod| ended_at(pod, snapshot.now))
        .max();
    let failures: Vec<Timestamp> = snapshot
        .pods
        .iter()
        .filter(ended)
        .filter(|pod| pod::phase(pod) == "Failed")
        .map(|pod| ended_at(pod, snapshot.now))
        .filter(|at| last_success.is_none_or(|success| *at > success))
        .collect();
    let newest = failures.iter().max()?;
    let doublings = u32::try_from(failures.len() - 1).unwrap_or(0).min(10);
    let pause = (FIRST_PAUSE << doublings).min(LAST_PAUSE);
    Some(meta::plus(*newest, pause))
}

fn ended_at(pod: &Pod, now: Timestamp) -> Timestamp {
    let status = pod.status.as_ref();
    let containers = status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let finished = containers
        .filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref())
        .map(|t| t.0)
        .max();
    let unready =
        pod::condition(pod, "Ready").and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0);
    finished.or(unready).unwrap_or(now).min(now)
}

fn start(snapshot: &Snapshot, index: Option<i32>, failures: i32) -> Action {
    let job = &snapshot.job;
    let name = meta::name(&job.metadata);
    let owner = controller_reference::<Job>(&job.metadata);
    let prefix = index.map_or_else(|| pod::name_prefix(name), |index| format!("{name}-{index}-"));
    let mut pod =
        pod::from_template(&snapshot.spec().template, meta::namespace(&job.metadata), owner, prefix);
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.into());
    if let Some(index) = index {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX.into(), index.to_string());
        if snapshot.spec().backoff_limit_per_index.is_some() {
            annotations.insert(INDEX_FAILURES.into(), failures.to_string());
        }
        pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), index.to_string());
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{name}-{index}"));
        let env = EnvVar {
            name: INDEX_ENV.into(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: format!("metadata.labels['{INDEX}']"),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        };
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            let all = container.env.get_or_insert_default();
            if !all.iter().any(|known| known.name == INDEX_ENV) {
                all.push(env.clone());
            }
        }
    }
    meta::create_pod::<Job>(&pod, &job.metadata, COMPONENT)
}

/// Told when a job is stopped for a while and when it goes on.
pub fn told(snapshot: &Snapshot, reason: &'static str, message: &str) -> Action {
    tell::<Job>(&snapshot.job.metadata, COMPONENT, Severity::Normal, reason, message)
}
