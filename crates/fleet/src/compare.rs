//! Whether a status must be written. An API server adds fields of its own to what it stores (empty ones above all); they
//! are no difference.

use serde_json::Value;
use tombolo_agent::difference::merge_patch;

/// Fields of a status that others write.
const OTHERS: [&str; 4] = ["qosClass", "resourceClaimStatuses", "terminatingReplicas", "collisionCount"];

/// The merge patch from `before` to `wanted`, unless `before` says the same already.
pub fn status_patch(before: &Value, wanted: &Value) -> Option<Value> {
    if covers(before, wanted) && !left_over(before, wanted) {
        return None;
    }
    let mut patch = merge_patch(before, wanted)?;
    if let Some(map) = patch.as_object_mut() {
        map.retain(|key, value| !(value.is_null() && OTHERS.contains(&key.as_str())));
        // Counts hang together: an API server takes no more that are ready than there are, and what it has by now may be
        // newer than `before`.
        if map.values().any(Value::is_number) {
            let counts = wanted.as_object().into_iter().flatten().filter(|(_, value)| value.is_number());
            map.extend(counts.map(|(key, value)| (key.clone(), value.clone())));
        }
    }
    Some(patch)
}

/// Everything that `wanted` says is in `has`.
fn covers(has: &Value, wanted: &Value) -> bool {
    match (has, wanted) {
        (Value::Object(has), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| has.get(key).map_or(value.is_null(), |h| covers(h, value)))
        }
        (Value::Array(has), Value::Array(wanted)) => {
            has.len() == wanted.len() && has.iter().zip(wanted).all(|(h, w)| covers(h, w))
        }
        (has, wanted) => has == wanted,
    }
}

/// Something is in `has` that `wanted` no longer says. Items of lists may have more than what is wanted of them: servers add
/// defaults there.
fn left_over(has: &Value, wanted: &Value) -> bool {
    let (Value::Object(has), Value::Object(wanted)) = (has, wanted) else { return false };
    has.iter().any(|(key, value)| match wanted.get(key) {
        Some(wanted) => left_over(value, wanted),
        None => !says_nothing(value) && !OTHERS.contains(&key.as_str()),
    })
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(says_nothing),
        other => other.is_null() || other == &Value::from(0) || other == &Value::from(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_server_adds_is_no_difference() {
        let wanted = json!({"replicas": 2, "conditions": [{"type": "Placed", "status": "True"}]});
        let stored = json!({"replicas": 2, "terminatingReplicas": 1, "readyReplicas": 0,
            "conditions": [{"type": "Placed", "status": "True", "lastUpdateTime": null, "lastProbeTime": null}]});
        assert_eq!(status_patch(&stored, &wanted), None);
    }

    #[test]
    fn counts_are_told_together() {
        let stored = json!({"replicas": 5, "readyReplicas": 2, "phase": "Up"});
        let wanted = json!({"replicas": 5, "readyReplicas": 5, "phase": "Up"});
        let patch = status_patch(&stored, &wanted);
        assert_eq!(patch, Some(json!({"replicas": 5, "readyReplicas": 5})));
    }

    #[test]
    fn what_is_no_longer_so_is_taken_away() {
        let stored = json!({"replicas": 2, "readyReplicas": 2, "reason": "Evicted"});
        let patch = status_patch(&stored, &json!({"replicas": 2})).expect("a difference");
        assert_eq!(patch, json!({"readyReplicas": null, "reason": null}));
        assert!(status_patch(&json!({"a": [1]}), &json!({"a": [1, 2]})).is_some());
    }
    #[test]
    fn a_service_without_addresses_is_as_the_server_keeps_it_and_old_addresses_go() {
        let kept = json!({"loadBalancer": {}});
        let addressed = json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1", "ipMode": "VIP"}]}});
        for wanted in [json!({}), json!({"loadBalancer": {}})] {
            assert_eq!(status_patch(&kept, &wanted), None);
            let patch = status_patch(&addressed, &wanted).expect("addresses to take away");
            let mut after = addressed.clone();
            tombolo_agent::difference::apply(&mut after, &patch);
            assert_eq!(after.pointer("/loadBalancer/ingress"), None);
        }
        let wanted = json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}});
        assert_eq!(status_patch(&addressed, &wanted), None, "the server adds the mode");
    }
}
