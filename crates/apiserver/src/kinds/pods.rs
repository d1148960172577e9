//! Pods: their first status, quality of service, and deletion in two steps.

use serde_json::{Value, json};

use crate::registry::update::Part;
use crate::registry::write;

pub fn prepare_create(object: &mut Value) {
    object["status"] = json!({"phase": "Pending", "qosClass": quality_of_service(object)});
}

pub fn prepare_update(part: Part<'_>, object: &mut Value, old: &Value) {
    if part == Part::Status {
        // The owner of a pod's life is its deletion, not its status.
        if let Some(class) = old.pointer("/status/qosClass")
            && object["status"].is_object()
        {
            object["status"]["qosClass"] = class.clone();
        }
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

/// `Guaranteed` when every container's limits and requests of cpu and memory are set and equal, `BestEffort` when
/// none is set, else `Burstable`.
pub fn quality_of_service(object: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .iter()
        .filter_map(|list| object["spec"][*list].as_array())
        .flatten();
    let (mut any, mut guaranteed, mut count) = (false, true, 0);
    for container in containers {
        count += 1;
        let quantity = |kind: &str, name: &str| {
            let value = &container["resources"][kind][name];
            match value {
                Value::String(text) if text != "0" => Some(text.clone()),
                Value::Number(number) if number.as_f64() != Some(0.0) => Some(number.to_string()),
                _ => None,
            }
        };
        for name in ["cpu", "memory"] {
            let (limit, request) = (quantity("limits", name), quantity("requests", name));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request.as_ref().is_none_or(|r| Some(r) == limit.as_ref());
        }
    }
    match (any, guaranteed && count > 0) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_follows_requests_and_limits() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"resources": resources}]}});
        assert_eq!(quality_of_service(&pod(json!({}))), "BestEffort");
        assert_eq!(quality_of_service(&pod(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(quality_of_service(&pod(full)), "Guaranteed");
    }

    #[test]
    fn an_unscheduled_pod_goes_at_once() {
        assert_eq!(grace_period(&json!({"spec": {}}), Some(30)), 0);
        assert_eq!(grace_period(&json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 5}}), None), 5);
        assert_eq!(grace_period(&json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}), None), 0);
    }
}
