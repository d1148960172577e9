//! Resource quotas as arithmetic: what an object uses, and which quotas it counts for.
//!
//! Used where objects are let in, and by the controller that recounts.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;

/// Amounts by the names that quotas use.
pub type Usage = BTreeMap<String, Quantity>;

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Quantities as JSON has them; what is none is left out.
pub fn amounts(map: &Value) -> Usage {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(k, v)| Some((k.clone(), Quantity::from_value(v).ok()?))).collect()
}

/// The containers that run together.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["spec"]["containers"].as_array().into_iter().flatten()
}

/// What creating an object takes, under all the names a quota may use for it.
pub fn usage(group: &str, plural: &str, object: &Value) -> Usage {
    let one = Quantity::new(1);
    let mut usage = Usage::new();
    let counted = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    usage.insert(format!("count/{counted}"), one);
    if !group.is_empty() {
        return usage;
    }
    match plural {
        "pods" if !matches!(text(object, "/status/phase"), "Succeeded" | "Failed") => {
            usage.insert("pods".into(), one);
            pod_usage(object, &mut usage);
        }
        "services" => {
            usage.insert("services".into(), one);
            let kind = text(object, "/spec/type");
            if matches!(kind, "NodePort" | "LoadBalancer") {
                let ports = object.pointer("/spec/ports").and_then(Value::as_array).map_or(0, Vec::len);
                usage.insert("services.nodeports".into(), Quantity::new(ports as i64));
            }
            if kind == "LoadBalancer" {
                usage.insert("services.loadbalancers".into(), one);
            }
        }
        "persistentvolumeclaims" => {
            usage.insert(plural.into(), one);
            let class = text(object, "/spec/storageClassName");
            if !class.is_empty() {
                usage.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
            }
            let asked = object.pointer("/spec/resources/requests/storage").map(Quantity::from_value);
            if let Some(Ok(size)) = asked {
                usage.insert("requests.storage".into(), size);
                if !class.is_empty() {
                    usage.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), size);
                }
            }
        }
        "secrets" | "configmaps" | "replicationcontrollers" | "resourcequotas" => {
            usage.insert(plural.into(), one);
        }
        _ => {}
    }
    usage
}

fn pod_usage(pod: &Value, usage: &mut Usage) {
    for kind in ["requests", "limits"] {
        let mut sums = Usage::new();
        for container in containers(pod) {
            for (name, amount) in amounts(&container["resources"][kind]) {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(amount);
            }
        }
        // Init containers run one after another, before the others.
        for container in pod["spec"]["initContainers"].as_array().into_iter().flatten() {
            for (name, amount) in amounts(&container["resources"][kind]) {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = if amount > *sum { amount } else { *sum };
            }
        }
        if kind == "requests" {
            for (name, amount) in amounts(&pod["spec"]["overhead"]) {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(amount);
            }
        }
        for (name, sum) in sums {
            if kind == "requests" && matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                usage.insert(name.clone(), sum);
            }
            usage.insert(format!("{kind}.{name}"), sum);
        }
    }
}

/// Whether a quota's scopes include the object.
pub fn covers(quota: &Value, group: &str, plural: &str, object: &Value) -> bool {
    let scopes = quota.pointer("/spec/scopes").and_then(Value::as_array);
    let mut scopes = scopes.into_iter().flatten().filter_map(Value::as_str);
    let selected = quota.pointer("/spec/scopeSelector/matchExpressions").and_then(Value::as_array);
    let scoped = scopes.clone().next().is_some() || selected.is_some_and(|s| !s.is_empty());
    if !scoped {
        return true;
    }
    if (group, plural) != ("", "pods") {
        return false;
    }
    let holds = |scope: &str| match scope {
        "Terminating" => object.pointer("/spec/activeDeadlineSeconds").is_some_and(Value::is_number),
        "NotTerminating" => !object.pointer("/spec/activeDeadlineSeconds").is_some_and(Value::is_number),
        "BestEffort" => quality_of_service(object) == "BestEffort",
        "NotBestEffort" => quality_of_service(object) != "BestEffort",
        "PriorityClass" => !text(object, "/spec/priorityClassName").is_empty(),
        _ => false,
    };
    scopes.all(holds)
        && selected.into_iter().flatten().all(|expression| {
            let scope = expression["scopeName"].as_str().unwrap_or_default();
            let class = text(object, "/spec/priorityClassName");
            let listed = expression["values"].as_array().is_some_and(|v| v.iter().any(|x| *x == class));
            match (scope, expression["operator"].as_str().unwrap_or_default()) {
                ("PriorityClass", "In") => listed,
                ("PriorityClass", "NotIn") => !listed,
                ("PriorityClass", "DoesNotExist") => class.is_empty(),
                (scope, _) => holds(scope),
            }
        })
}

/// `Guaranteed` when every container's limits and requests of cpu and memory are set and equal, `BestEffort` when
/// none is set, else `Burstable`.
pub fn quality_of_service(object: &Value) -> &'static str {
    let containers =
        ["containers", "initContainers"].iter().filter_map(|list| object["spec"][*list].as_array()).flatten();
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
    use serde_json::json;

    #[test]
    fn a_pod_uses_the_sum_of_its_containers_and_the_most_of_its_first_ones() {
        let mut usage = Usage::new();
        let pod = json!({"spec": {
            "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "500m"}}}],
            "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
        }});
        pod_usage(&pod, &mut usage);
        assert_eq!(usage["requests.cpu"].millis(), 2000);
        assert_eq!(usage["cpu"].millis(), 2000);
    }

    #[test]
    fn quality_follows_requests_and_limits() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"resources": resources}]}});
        assert_eq!(quality_of_service(&pod(json!({}))), "BestEffort");
        assert_eq!(quality_of_service(&pod(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(quality_of_service(&pod(full)), "Guaranteed");
    }
}
