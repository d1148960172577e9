//! Pods leave a node whose `NoExecute` taints they do not tolerate, or no longer tolerate.

use super::{COMPONENT, Snapshot};
use crate::{
    meta::{self, tell},
    pod,
    shell::{Action, Severity},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use serde_json::json;

pub fn plan(snapshot: &Snapshot, actions: &mut Vec<Action>) {
    let taints: Vec<Taint> = snapshot
        .node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| taint.effect == "NoExecute")
        .cloned()
        .collect();
    if taints.is_empty() {
        return;
    }
    let (mut marks, mut deletes, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for pod in snapshot.pods.iter().filter(|pod| pod::is_active(pod)) {
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
        match eviction_time(&taints, &tolerations, snapshot.now) {
            Some(at) if at <= snapshot.now => {
                let text = "Taint manager: deleting due to NoExecute taint";
                let reason = "DeletionByTaintManager";
                if let Some(conditions) =
                    pod::with_condition(pod, "DisruptionTarget", "True", reason, text, snapshot.now)
                {
                    let body = json!({"status": {"conditions": conditions}});
                    marks.push(meta::patch::<Pod>(&pod.metadata, "status", &body));
                }
                deletes.push(meta::delete::<Pod>(&pod.metadata));
                let message = format!(
                    "Marking for deletion Pod {}/{}",
                    meta::namespace(&pod.metadata),
                    meta::name(&pod.metadata)
                );
                told.push(tell::<Pod>(
                    &pod.metadata,
                    COMPONENT,
                    Severity::Normal,
                    "TaintManagerEviction",
                    message,
                ));
            }
            Some(at) => actions.push(Action::After(meta::until(at, snapshot.now))),
            None => {}
        }
    }
    actions.extend(marks);
    actions.extend(deletes);
    actions.extend(told);
}

/// When a pod with these tolerations must leave; `None`: it may stay for good.
pub fn eviction_time(taints: &[Taint], tolerations: &[Toleration], now: Timestamp) -> Option<Timestamp> {
    let mut earliest: Option<Timestamp> = None;
    for taint in taints {
        let matching: Vec<&Toleration> =
            tolerations.iter().filter(|toleration| tolerates(toleration, taint)).collect();
        if matching.is_empty() {
            return Some(Timestamp::MIN);
        }
        let seconds = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
        if let Some(seconds) = seconds {
            let since = taint.time_added.as_ref().map_or(now, |time| time.0);
            let at = meta::plus(since, seconds.max(0));
            earliest = Some(earliest.map_or(at, |known| known.min(at)));
        }
    }
    earliest
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if set(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    if set(&toleration.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => {
            set(&toleration.key).is_some()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
    }
}
