//! Counting pods exactly once.

use super::{Indexes, Snapshot, TRACKING, index_of, some, without_tracking};
use crate::{meta, pod, shell::Action};
use k8s_openapi::api::{
    batch::v1::{JobStatus, UncountedTerminatedPods},
    core::v1::Pod,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How the job's pods stand: what is recorded and what is new.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub active: Vec<Arc<Pod>>,
    pub terminating: i32,
    pub succeeded: i32,
    pub failed: i32,
    /// Pods that ended and are not recorded yet.
    pub new_succeeded: Vec<Arc<Pod>>,
    pub new_failed: Vec<Arc<Pod>>,
    /// Indexes that are done, recorded or not.
    pub done: Indexes,
    /// Indexes that may not be tried again.
    pub given_up: Indexes,
    /// Failures per index that still exist as pods.
    pub failures: BTreeMap<i32, i32>,
}

/// What the pod failure policy says about a failed pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    Count,
    Ignore,
    FailIndex,
    FailJob(String),
}

impl Tally {
    pub fn new(snapshot: &Snapshot) -> Self {
        let status = snapshot.status();
        let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let noted_uids: BTreeSet<&String> =
            noted.succeeded.iter().flatten().chain(noted.failed.iter().flatten()).collect();
        let mut tally = Tally {
            succeeded: status.succeeded.unwrap_or(0) + len(noted.succeeded.as_ref()),
            failed: status.failed.unwrap_or(0) + len(noted.failed.as_ref()),
            done: Indexes::read(status.completed_indexes.as_deref()),
            given_up: Indexes::read(status.failed_indexes.as_deref()),
            ..Tally::default()
        };
        let completions = snapshot.spec().completions;
        for pod in &snapshot.pods {
            let tracked = meta::has_finalizer(&pod.metadata, TRACKING);
            let uncounted = tracked && !noted_uids.contains(&pod.metadata.uid.clone().unwrap_or_default());
            let index = index_of(pod);
            let in_range = index.is_some_and(|index| completions.is_some_and(|n| (0..n).contains(&index)));
            match pod::phase(pod) {
                "Succeeded" => {
                    if snapshot.is_indexed() {
                        let fresh = index.is_some_and(|index| in_range && tally.done.0.insert(index));
                        if fresh {
                            tally.new_succeeded.push(pod.clone());
                        }
                    } else if uncounted {
                        tally.new_succeeded.push(pod.clone());
                    }
                }
                "Failed" => {
                    if let Some(index) = index
                        && rule(snapshot, pod) != Rule::Ignore
                    {
                        *tally.failures.entry(index).or_default() += 1;
                    }
                    if uncounted {
                        tally.new_failed.push(pod.clone());
                    }
                }
                _ if pod::is_deleting(pod) => {
                    // A pod deleted while it ran counts as failed, unless its true end is worth waiting for.
                    tally.terminating += 1;
                    let waits = snapshot.spec().pod_replacement_policy.as_deref() == Some("Failed");
                    if uncounted && (!waits || super::finish::is_decided(&status) || pod::node(pod).is_none())
                    {
                        tally.new_failed.push(pod.clone());
                    }
                }
                _ => tally.active.push(pod.clone()),
            }
        }
        for pod in &tally.new_failed {
            if let Some(index) = index_of(pod)
                && snapshot.spec().backoff_limit_per_index.is_some()
            {
                let limit = snapshot.spec().backoff_limit_per_index.unwrap_or(0);
                let earlier: i32 = meta::annotation(&pod.metadata, super::start::INDEX_FAILURES)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
                let counted = rule(snapshot, pod) != Rule::Ignore;
                if (counted && earlier >= limit) || rule(snapshot, pod) == Rule::FailIndex {
                    tally.given_up.0.insert(index);
                }
            }
        }
        tally.succeeded += tally.new_succeeded.len() as i32;
        if snapshot.is_indexed() {
            tally.succeeded = tally.done.len() as i32;
        }
        tally.failed +=
            tally.new_failed.iter().filter(|pod| rule(snapshot, pod) != Rule::Ignore).count() as i32;
        tally
    }
}

fn len(uids: Option<&Vec<String>>) -> i32 {
    uids.map_or(0, |uids| i32::try_from(uids.len()).unwrap_or(i32::MAX))
}

/// The first rule of the pod failure policy that matches decides.
pub fn rule(snapshot: &Snapshot, pod: &Pod) -> Rule {
    let Some(policy) = &snapshot.spec().pod_failure_policy else { return Rule::Count };
    for (number, rule) in policy.rules.iter().enumerate() {
        let reason = if let Some(codes) = &rule.on_exit_codes {
            let statuses = pod.status.iter().flat_map(|s| {
                s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten())
            });
            let ended = statuses.filter_map(|status| {
                let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
                let named = codes.container_name.as_ref().is_none_or(|name| *name == status.name);
                let listed = codes.values.contains(&code);
                let matches = if codes.operator == "NotIn" { !listed } else { listed };
                (named && code != 0 && matches).then(|| format!("Container {} for pod {}/{} failed with exit code {code} matching {} rule at index {number}", status.name, meta::namespace(&pod.metadata), meta::name(&pod.metadata), rule.action))
            });
            ended.into_iter().next()
        } else {
            let wanted = rule.on_pod_conditions.iter().flatten();
            wanted
                .filter(|wanted| {
                    let status = wanted.status.as_deref().unwrap_or("True");
                    pod::condition(pod, &wanted.type_).is_some_and(|condition| condition.status == status)
                })
                .map(|wanted| {
                    format!(
                        "Pod {}/{} has condition {} matching {} rule at index {number}",
                        meta::namespace(&pod.metadata),
                        meta::name(&pod.metadata),
                        wanted.type_,
                        rule.action
                    )
                })
                .next()
        };
        if let Some(reason) = reason {
            return match rule.action.as_str() {
                "Ignore" => Rule::Ignore,
                "FailIndex" => Rule::FailIndex,
                "FailJob" => Rule::FailJob(reason),
                _ => Rule::Count,
            };
        }
    }
    Rule::Count
}

/// Moves pods along: ended -> noted in the status -> finalizer removed -> counted.
pub fn track(snapshot: &Snapshot, tally: &Tally, status: &mut JobStatus, actions: &mut Vec<Action>) {
    let by_uid: BTreeMap<&str, &Arc<Pod>> =
        snapshot.pods.iter().map(|pod| (meta::uid(&pod.metadata), pod)).collect();
    let mut notes = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let held = |uid: &String| {
        by_uid.get(uid.as_str()).is_some_and(|pod| meta::has_finalizer(&pod.metadata, TRACKING))
    };
    // Noted and released: now they count.
    for (noted, counter) in
        [(&mut notes.succeeded, &mut status.succeeded), (&mut notes.failed, &mut status.failed)]
    {
        let uids = noted.take().unwrap_or_default();
        let (waiting, free): (Vec<_>, Vec<_>) = uids.into_iter().partition(&held);
        if !free.is_empty() {
            *counter = some(counter.unwrap_or(0).max(0) as usize + free.len());
        }
        // Noted in a status that is stored: safe to release.
        for uid in &waiting {
            if let Some(pod) = by_uid.get(uid.as_str()) {
                actions.push(without_tracking(pod));
            }
        }
        *noted = Some(waiting).filter(|uids| !uids.is_empty());
    }
    let add = |list: &mut Option<Vec<String>>, pods: &[Arc<Pod>]| {
        for pod in pods {
            list.get_or_insert_default().push(meta::uid(&pod.metadata).to_owned());
        }
    };
    if snapshot.is_indexed() {
        status.completed_indexes = Some(tally.done.to_string()).filter(|text| !text.is_empty());
        // An index that the stored status knows is counted: its pods can be let go.
        let stored = Indexes::read(snapshot.status().completed_indexes.as_deref());
        for pod in snapshot.pods.iter().filter(|pod| pod::phase(pod) == "Succeeded") {
            let known = index_of(pod).is_none_or(|index| stored.contains(index));
            if known && meta::has_finalizer(&pod.metadata, TRACKING) {
                actions.push(without_tracking(pod));
            }
        }
        status.succeeded = some(tally.done.len());
        if snapshot.spec().backoff_limit_per_index.is_some() {
            status.failed_indexes = Some(tally.given_up.to_string());
        }
    } else {
        add(&mut notes.succeeded, &tally.new_succeeded);
    }
    let (ignored, counted): (Vec<_>, Vec<_>) =
        tally.new_failed.iter().cloned().partition(|pod| rule(snapshot, pod) == Rule::Ignore);
    add(&mut notes.failed, &counted);
    for pod in ignored {
        actions.push(without_tracking(&pod));
    }
    status.uncounted_terminated_pods =
        Some(UncountedTerminatedPods { succeeded: notes.succeeded, failed: notes.failed });
}

/// After the end nothing is counted, so nothing is held.
pub fn release_all(snapshot: &Snapshot) -> Vec<Action> {
    let held = snapshot.pods.iter().filter(|pod| meta::has_finalizer(&pod.metadata, TRACKING));
    held.map(|pod| without_tracking(pod)).collect()
}
