//! Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::parts::int_or_percent;
use super::{meta, pod};
use crate::names;
use crate::selector::LabelSelector;

fn always_restart(e: &mut Errors, template: &At<'_, '_>, kind: &str) {
    let spec = template.get("spec");
    let restart = spec.get("restartPolicy");
    if restart.str() != "Always" {
        e.not_supported(&restart, &["Always"]);
    }
    let deadline = spec.get("activeDeadlineSeconds");
    if deadline.is_set() {
        e.forbidden(&deadline, format!("activeDeadlineSeconds in {kind} is not Supported"));
    }
}

pub(super) fn deployment(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.non_negative(&spec.get("replicas"));
    e.workload_selector(&spec, "deployment");
    pod::template(e, &spec.get("template"));
    always_restart(e, &spec.get("template"), "ReplicaSet");
    let strategy = spec.get("strategy");
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").str() {
        "Recreate" => {
            if rolling.is_set() {
                e.forbidden(&rolling, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" if !rolling.is_set() => {
            e.required(&rolling, "this should be defaulted and never be nil");
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            e.int_or_percent(&unavailable);
            e.int_or_percent(&surge);
            if int_or_percent(unavailable.value) == 0 && int_or_percent(surge.value) == 0 {
                e.invalid(&unavailable, "may not be 0 when `maxSurge` is 0");
            }
            e.at_most_100_percent(&unavailable);
        }
        _ => e.not_supported(&strategy, &["Recreate", "RollingUpdate"]),
    }
    let ready = spec.get("minReadySeconds");
    e.non_negative(&ready);
    e.non_negative(&spec.get("revisionHistoryLimit"));
    let deadline = spec.get("progressDeadlineSeconds");
    e.non_negative(&deadline);
    if deadline.int().is_some_and(|d| d <= ready.int().unwrap_or_default()) {
        e.invalid(&deadline, "must be greater than minReadySeconds");
    }
}

pub(super) fn selector_immutable(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("spec").get("selector"), &old["spec"]["selector"]);
}

pub(super) fn replica_set(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.non_negative(&spec.get("replicas"));
    e.non_negative(&spec.get("minReadySeconds"));
    e.workload_selector(&spec, "deployment");
    pod::template(e, &spec.get("template"));
    always_restart(e, &spec.get("template"), "ReplicaSet");
}

pub(super) fn replication_controller(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.non_negative(&spec.get("minReadySeconds"));
    let selector = spec.get("selector");
    if selector.is_empty() {
        e.required(&selector, "");
    }
    let replicas = spec.get("replicas");
    if replicas.is_set() {
        e.non_negative(&replicas);
    } else {
        e.required(&replicas, "");
    }
    let template = spec.get("template");
    if !template.is_set() {
        e.required(&template, "");
        return;
    }
    let metadata = template.get("metadata");
    let labels = metadata.get("labels");
    if let Some(map) = selector.value.as_object()
        && !LabelSelector::from_map(map).matches(labels.value.as_object())
    {
        e.invalid_value(&labels, labels.value, "`selector` does not match template `labels`");
    }
    pod::template(e, &template);
    always_restart(e, &template, "ReplicationController");
}

pub(super) fn daemon_set(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let selector = spec.get("selector");
    meta::label_selector(e, &selector);
    let template = spec.get("template");
    let metadata = template.get("metadata");
    let labels = metadata.get("labels");
    if LabelSelector::from_object(Some(selector.value)).is_ok_and(|s| !s.matches(labels.value.as_object())) {
        e.invalid_value(&labels, labels.value, "`selector` does not match template `labels`");
    }
    if selector.is_set()
        && selector.get("matchLabels").is_empty()
        && selector.get("matchExpressions").is_empty()
    {
        e.invalid(&selector, "empty selector is invalid for daemonset");
    }
    pod::template(e, &template);
    always_restart(e, &template, "DaemonSet");
    e.non_negative(&spec.get("minReadySeconds"));
    e.non_negative(&spec.get("revisionHistoryLimit"));
    let strategy = spec.get("updateStrategy");
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").str() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => e.required(&rolling, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            for at in [&unavailable, &surge] {
                e.int_or_percent(at);
            }
            for at in [&unavailable, &surge] {
                e.at_most_100_percent(at);
            }
            match (int_or_percent(unavailable.value) != 0, int_or_percent(surge.value) != 0) {
                (true, true) => e.invalid(&surge, "may not be set when maxUnavailable is non-zero"),
                (false, false) => e.required(&unavailable, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => e.not_supported(&strategy, &["RollingUpdate", "OnDelete"]),
    }
}

pub(super) fn stateful_set(e: &mut Errors, object: &At<'_, '_>) {
    stateful_spec(e, object, true);
}

fn stateful_spec(e: &mut Errors, object: &At<'_, '_>, create: bool) {
    let spec = object.get("spec");
    let management = spec.get("podManagementPolicy");
    match management.str() {
        "" => e.required(&management, ""),
        "OrderedReady" | "Parallel" => {}
        _ => e.invalid(&management, "must be 'OrderedReady' or 'Parallel'"),
    }
    let strategy = spec.get("updateStrategy");
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").str() {
        "" => e.required(&strategy, ""),
        "OnDelete" => {
            if rolling.is_set() {
                e.invalid(&rolling, "only allowed for updateStrategy 'RollingUpdate'");
            }
        }
        "RollingUpdate" => {
            e.non_negative(&rolling.get("partition"));
            let unavailable = rolling.get("maxUnavailable");
            if unavailable.is_set() {
                e.int_or_percent(&unavailable);
                if int_or_percent(unavailable.value) == 0 {
                    e.invalid(&unavailable, "cannot be 0");
                }
                e.at_most_100_percent(&unavailable);
            }
        }
        _ => e.invalid(&strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    let retention = spec.get("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        if retention.is_set() && !matches!(retention.get(field).str(), "Retain" | "Delete") {
            e.not_supported(&retention.get(field), &["Retain", "Delete"]);
        }
    }
    let claims = spec.get("volumeClaimTemplates");
    if create {
        claims.items().for_each(|claim| super::storage::claim_spec(e, &claim.get("spec")));
    }
    e.non_negative(&spec.get("replicas"));
    e.non_negative(&spec.get("minReadySeconds"));
    e.non_negative(&spec.get("ordinals").get("start"));
    let service = spec.get("serviceName");
    if create && !service.is_empty() {
        e.complaints(&service, names::dns_label(service.str()));
    }
    e.workload_selector(&spec, "statefulset");
    // Claim templates become volumes of the pods; the pods' names are given by the set.
    let mut template = spec.get("template").value.clone();
    if let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) {
        pod.remove("subdomain");
        pod.remove("hostname");
        // Of two templates of one name the pods get one volume.
        let mut seen = HashSet::new();
        let mut volumes: Vec<Value> = claims
            .items()
            .filter(|claim| seen.insert(claim.get("metadata").get("name").str()))
            .map(|claim| {
                let name = claim.get("metadata").get("name").value;
                serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}})
            })
            .collect();
        let own = pod.remove("volumes");
        let own = own.iter().filter_map(Value::as_array).flatten();
        volumes.extend(own.filter(|v| !seen.contains(v["name"].as_str().unwrap_or_default())).cloned());
        pod.insert("volumes".into(), Value::Array(volumes));
    }
    let at = spec.get("template").with(&template);
    pod::template(e, &at);
    always_restart(e, &spec.get("template"), "StatefulSet");
}

pub(super) fn stateful_set_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    stateful_spec(e, object, false);
    let spec = object.get("spec");
    let frozen = |spec: &Value| {
        let mut spec = spec.clone();
        if let Some(map) = spec.as_object_mut() {
            for field in [
                "replicas",
                "template",
                "updateStrategy",
                "minReadySeconds",
                "ordinals",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
            ] {
                map.remove(field);
            }
        }
        spec
    };
    if !same(&frozen(spec.value), &frozen(&old["spec"])) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                      'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                      'minReadySeconds' are forbidden";
        e.forbidden(&spec, detail);
    }
}

pub(super) fn controller_revision(e: &mut Errors, object: &At<'_, '_>) {
    e.non_negative(&object.get("revision"));
    let data = object.get("data");
    if !data.is_set() {
        e.required(&data, "data is mandatory");
    } else if !data.value.is_object() {
        e.required(&data, "data must be a valid JSON object");
    }
}

pub(super) fn data_immutable(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    // It is anybody's data: what is empty in it differs from what is absent.
    let data = object.get("data");
    if *data.value != old["data"] {
        e.invalid_value(&data, data.value, "field is immutable");
    }
}

/// Counters are not negative, and parts are not more than the whole.
pub(super) fn replicas_status(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let status = object.get("status");
    let count = |name: &str| status.value.get(name).and_then(Value::as_i64).unwrap_or_default();
    for field in [
        "replicas",
        "fullyLabeledReplicas",
        "updatedReplicas",
        "readyReplicas",
        "currentReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "observedGeneration",
        "collisionCount",
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
    ] {
        e.non_negative(&status.get(field));
    }
    for field in
        ["fullyLabeledReplicas", "updatedReplicas", "readyReplicas", "currentReplicas", "availableReplicas"]
    {
        if count(field) > count("replicas") {
            e.invalid(&status.get(field), "cannot be greater than status.replicas");
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        let whole =
            if object.get("kind").str() == "StatefulSet" { "status.readyReplicas" } else { "readyReplicas" };
        e.invalid(&status.get("availableReplicas"), format!("cannot be greater than {whole}"));
    }
    let collisions = old.pointer("/status/collisionCount").and_then(Value::as_i64).unwrap_or_default();
    if count("collisionCount") < collisions {
        let now = Value::from(count("collisionCount"));
        e.invalid_value(&status.get("collisionCount"), &now, "cannot be decremented");
    }
}
