//! Pods: their first status, quality of service, and deletion in two steps.

use serde_json::{Value, json};
use tombolo_k8s::quota::quality_of_service;

use crate::registry::update::Part;
use crate::registry::write;

pub fn prepare_create(object: &mut Value) {
    object["status"] = json!({"phase": "Pending", "qosClass": quality_of_service(object)});
    if object.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
        object["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": null,
            "lastTransitionTime": null, "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
}

pub fn prepare_update(part: Part<'_>, object: &mut Value, old: &Value) {
    match part {
        Part::Other("ephemeralcontainers") => {
            let containers = object.pointer("/spec/ephemeralContainers").cloned();
            let managed = object["metadata"]["managedFields"].clone();
            *object = old.clone();
            if !managed.is_null() {
                object["metadata"]["managedFields"] = managed;
            }
            if let Some(containers) = containers {
                object["spec"]["ephemeralContainers"] = containers;
            }
        }
        Part::Other("resize") => resize(object, old),
        _ => {}
    }
    if part == Part::Status {
        // The owner of a pod's life is its deletion, not its status.
        if let Some(class) = old.pointer("/status/qosClass")
            && object["status"].is_object()
        {
            object["status"]["qosClass"] = class.clone();
        }
    }
}

/// Only what containers ask for changes, and how they take it.
fn resize(object: &mut Value, old: &Value) {
    let proposed = std::mem::replace(object, old.clone());
    for list in ["containers", "initContainers"] {
        let new = proposed["spec"][list].as_array().cloned().unwrap_or_default();
        for container in write::list_mut(object, "spec", list) {
            let Some(wanted) = new.iter().find(|c| c["name"] == container["name"]) else { continue };
            for key in ["resources", "resizePolicy"] {
                if let Some(value) = wanted.get(key) {
                    container[key] = value.clone();
                }
            }
        }
    }
    let managed = &proposed["metadata"]["managedFields"];
    if !managed.is_null() {
        object["metadata"]["managedFields"] = managed.clone();
    }
}

/// A pod that no node runs goes at once; others wait for their node to confirm with a grace of 0.
pub fn grace_period(object: &Value, asked: Option<i64>) -> i64 {
    if write::text(object, "/spec/nodeName").is_empty()
        || matches!(write::text(object, "/status/phase"), "Succeeded" | "Failed")
    {
        return 0;
    }
    let grace = asked
        .or_else(|| object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64))
        .unwrap_or(30);
    // Upstream treats a negative period as one second.
    if grace < 0 { 1 } else { grace }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unscheduled_pod_goes_at_once() {
        assert_eq!(grace_period(&json!({"spec": {}}), Some(30)), 0);
        assert_eq!(
            grace_period(&json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 5}}), None),
            5
        );
        assert_eq!(grace_period(&json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}), None), 0);
    }
}
