//! When a job is over, and what its conditions say.

use super::{
    Indexes, Snapshot,
    count::{Rule, Tally, rule},
    start::told,
};
use crate::{
    meta::{self, now_time, tell},
    pod,
    shell::{Action, Severity},
};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};

/// How the job ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    Success { reason: &'static str, message: String },
    Failure { reason: &'static str, message: String },
}

pub fn judge(snapshot: &Snapshot, tally: &Tally, status: &JobStatus) -> Option<Ending> {
    let spec = snapshot.spec();
    let fail = |reason, message: &str| Some(Ending::Failure { reason, message: message.to_owned() });
    // What was decided once stays decided.
    for condition in status.conditions.iter().flatten().filter(|condition| condition.status == "True") {
        let message = condition.message.clone().unwrap_or_default();
        let reason = condition.reason.as_deref().unwrap_or_default();
        match condition.type_.as_str() {
            "FailureTarget" => return Some(Ending::Failure { reason: known(reason), message }),
            "SuccessCriteriaMet" => return Some(Ending::Success { reason: known(reason), message }),
            _ => {}
        }
    }
    for pod in &tally.new_failed {
        if let Rule::FailJob(message) = rule(snapshot, pod) {
            return Some(Ending::Failure { reason: "PodFailurePolicy", message });
        }
    }
    let per_index = spec.backoff_limit_per_index.is_some();
    let limit = spec.backoff_limit.unwrap_or(if per_index { i32::MAX } else { 6 });
    let restarts: i32 =
        if spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure") {
            tally.active.iter().map(|pod| pod::restarts(pod)).sum()
        } else {
            0
        };
    let restarted_out = restarts > 0 && (if limit == 0 { restarts > 0 } else { restarts >= limit });
    if tally.failed > limit || restarted_out {
        return fail("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if deadline(snapshot, status).is_some_and(|at| at <= snapshot.now) {
        return fail("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    if per_index {
        if spec
            .max_failed_indexes
            .is_some_and(|most| tally.given_up.len() > usize::try_from(most).unwrap_or(0))
        {
            return fail(
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            );
        }
        let all = usize::try_from(spec.completions.unwrap_or(0)).unwrap_or(0);
        if !tally.given_up.is_empty() && tally.done.len() + tally.given_up.len() >= all {
            return fail("FailedIndexes", "Job has failed indexes");
        }
    }
    if let Some(message) = success_policy(snapshot, tally) {
        return Some(Ending::Success { reason: "SuccessPolicy", message });
    }
    let complete = match spec.completions {
        None => tally.succeeded > 0 && tally.active.is_empty() && tally.terminating == 0,
        Some(completions) => tally.succeeded >= completions && tally.active.is_empty(),
    };
    if complete && !snapshot.is_suspended() {
        let message = "Reached expected number of succeeded pods".to_owned();
        return Some(Ending::Success { reason: "CompletionsReached", message });
    }
    None
}

/// The verdict is written; only its execution is left.
pub fn is_decided(status: &JobStatus) -> bool {
    let verdict = |kind: &str| matches!(kind, "FailureTarget" | "SuccessCriteriaMet");
    status.conditions.iter().flatten().any(|c| verdict(&c.type_) && c.status == "True")
}

fn known(reason: &str) -> &'static str {
    const ALL: [&str; 7] = [
        "PodFailurePolicy",
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "MaxFailedIndexesExceeded",
        "FailedIndexes",
        "SuccessPolicy",
        "CompletionsReached",
    ];
    ALL.into_iter().find(|known| *known == reason).unwrap_or("CompletionsReached")
}

fn success_policy(snapshot: &Snapshot, tally: &Tally) -> Option<String> {
    let policy = snapshot.spec().success_policy.as_ref().filter(|_| snapshot.is_indexed())?;
    for (number, rule) in policy.rules.iter().enumerate() {
        let named = rule.succeeded_indexes.as_deref().map(|text| Indexes::read(Some(text)));
        let done = match &named {
            Some(named) => named.0.intersection(&tally.done.0).count(),
            None => tally.done.len(),
        };
        let needed = match (rule.succeeded_count, &named) {
            (Some(count), _) => usize::try_from(count).unwrap_or(0),
            (None, Some(named)) => named.len(),
            (None, None) => continue,
        };
        if done >= needed {
            return Some(format!("Matched rules at index {number}"));
        }
    }
    None
}

/// When the job has been active for as long as it may be.
pub fn deadline(snapshot: &Snapshot, status: &JobStatus) -> Option<Timestamp> {
    let seconds = snapshot.spec().active_deadline_seconds?;
    let start = status.start_time.as_ref().filter(|_| !snapshot.is_suspended())?;
    Some(meta::plus(start.0, seconds))
}

/// First the verdict, then, when every pod has stopped and is counted, the end itself.
pub fn conclude(
    snapshot: &Snapshot,
    tally: &Tally,
    ending: Ending,
    status: &mut JobStatus,
    actions: &mut Vec<Action>,
) {
    let now = snapshot.now;
    let (interim, last, reason, message) = match &ending {
        Ending::Success { reason, message } => ("SuccessCriteriaMet", "Complete", *reason, message.clone()),
        Ending::Failure { reason, message } => ("FailureTarget", "Failed", *reason, message.clone()),
    };
    set(status, interim, "True", reason, &message, now);
    let uncounted = status.uncounted_terminated_pods.as_ref();
    let counted = uncounted.is_none_or(|u| u.succeeded.is_none() && u.failed.is_none());
    let quiet = tally.active.is_empty() && tally.terminating == 0 && tally.new_failed.is_empty();
    if !counted || !quiet {
        return;
    }
    set(status, last, "True", reason, &message, now);
    status.active = None;
    status.ready = Some(0);
    let about = &snapshot.job.metadata;
    match ending {
        Ending::Success { .. } => {
            status.completion_time = Some(now_time(now));
            actions.push(tell::<Job>(
                about,
                super::COMPONENT,
                Severity::Normal,
                "Completed",
                "Job completed",
            ));
        }
        Ending::Failure { reason, message } => {
            actions.push(tell::<Job>(about, super::COMPONENT, Severity::Warning, reason, message));
        }
    }
}

pub fn note_suspension(
    status: &mut JobStatus,
    suspended: bool,
    snapshot: &Snapshot,
    actions: &mut Vec<Action>,
) {
    let was = status.conditions.iter().flatten().any(|c| c.type_ == "Suspended" && c.status == "True");
    if suspended && !was {
        set(status, "Suspended", "True", "JobSuspended", "Job suspended", snapshot.now);
        actions.push(told(snapshot, "Suspended", "Job suspended"));
    } else if !suspended && was {
        set(status, "Suspended", "False", "JobResumed", "Job resumed", snapshot.now);
        actions.push(told(snapshot, "Resumed", "Job resumed"));
    }
}

fn set(status: &mut JobStatus, kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    if conditions.iter().any(|c| c.type_ == kind && c.status == value) {
        return;
    }
    conditions.retain(|condition| condition.type_ != kind);
    conditions.push(JobCondition {
        type_: kind.into(),
        status: value.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(now_time(now)),
        last_transition_time: Some(now_time(now)),
    });
}
