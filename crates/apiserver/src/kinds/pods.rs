//! Pods: their first status, quality of service, and deletion in two steps.

use std::collections::HashMap;

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
    take_app_armor_annotations(object);
}

/// The annotations by which AppArmor profiles were chosen before there was a field for them.
pub const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Containers whose profile only an annotation names get it as their own.
fn take_app_armor_annotations(pod: &mut Value) {
    if pod["spec"]["os"]["name"] == "windows" {
        return;
    }
    let of_pod = pod["spec"]["securityContext"]["appArmorProfile"].clone();
    let annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    let profiles: HashMap<String, Value> = annotations
        .filter_map(|(key, value)| {
            let profile = match value.as_str()? {
                "unconfined" => json!({"type": "Unconfined"}),
                "runtime/default" => json!({"type": "RuntimeDefault"}),
                other => {
                    let name = other.strip_prefix("localhost/").filter(|name| !name.is_empty())?;
                    json!({"type": "Localhost", "localhostProfile": name})
                }
            };
            if profile == of_pod {
                return None;
            }
            Some((key.strip_prefix(APP_ARMOR)?.to_owned(), profile))
        })
        .collect();
    for list in ["initContainers", "containers"] {
        for container in write::list_mut(pod, "spec", list) {
            let profile = container["name"].as_str().and_then(|name| profiles.get(name));
            if let Some(profile) = profile
                && container.pointer("/securityContext/appArmorProfile").is_none_or(Value::is_null)
            {
                container["securityContext"]["appArmorProfile"] = profile.clone();
            }
        }
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
        let new = proposed["spec"][list].as_array().into_iter().flatten();
        let new: HashMap<&str, &Value> = new.filter_map(|c| Some((c["name"].as_str()?, c))).collect();
        for container in write::list_mut(object, "spec", list) {
            let wanted = container["name"].as_str().and_then(|name| new.get(name));
            let Some(wanted) = wanted else { continue };
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
