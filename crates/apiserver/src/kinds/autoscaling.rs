//! HorizontalPodAutoscalers: stored as `v2`, also served as `v1`, which knows CPU utilization only.

use serde_json::{Value, json};

use crate::registry::resource::Conversion;

pub static CONVERSION: Conversion =
    Conversion { stored_version: "autoscaling/v2", to_stored, from_stored };

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

fn cpu_metric(target: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": target}}})
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && metric.pointer("/resource/target/averageUtilization").is_some()
}

fn to_stored(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v2".into();
    let mut metrics = take(object, METRICS).and_then(|v| v.as_array().cloned()).unwrap_or_default();
    let behavior = take(object, BEHAVIOR);
    let conditions = take(object, CONDITIONS);
    let current = take(object, CURRENT);
    if let Some(spec) = object["spec"].as_object_mut() {
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
            metrics.insert(0, cpu_metric(target));
        }
        if !metrics.is_empty() {
            spec.insert("metrics".into(), metrics.into());
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".into(), behavior);
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let mut list = current.and_then(|v| v.as_array().cloned()).unwrap_or_default();
        if let Some(percent) = status.remove("currentCPUUtilizationPercentage") {
            let metric = json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}});
            list.insert(0, metric);
        }
        if !list.is_empty() {
            status.insert("currentMetrics".into(), list.into());
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".into(), conditions);
        }
    }
}

fn from_stored(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v1".into();
    let mut notes = Vec::new();
    if let Some(spec) = object["spec"].as_object_mut() {
        if let Some(Value::Array(metrics)) = spec.remove("metrics") {
            let (cpu, other): (Vec<_>, Vec<_>) = metrics.into_iter().partition(is_cpu);
            if let Some(target) = cpu.first().and_then(|m| m.pointer("/resource/target/averageUtilization")) {
                spec.insert("targetCPUUtilizationPercentage".into(), target.clone());
            }
            if !other.is_empty() {
                notes.push((METRICS, Value::from(other)));
            }
        }
        if let Some(behavior) = spec.remove("behavior") {
            notes.push((BEHAVIOR, behavior));
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        if let Some(Value::Array(list)) = status.remove("currentMetrics") {
            let percent = list.iter().find_map(|m| m.pointer("/resource/current/averageUtilization"));
            if let Some(percent) = percent.cloned() {
                status.insert("currentCPUUtilizationPercentage".into(), percent);
            }
            notes.push((CURRENT, Value::from(list)));
        }
        if let Some(conditions) = status.remove("conditions") {
            notes.push((CONDITIONS, conditions));
        }
    }
    if notes.is_empty() {
        return;
    }
    let annotations = &mut object["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    for (key, value) in notes {
        annotations[key] = value.to_string().into();
    }
}

/// Takes JSON out of an annotation.
fn take(object: &mut Value, annotation: &str) -> Option<Value> {
    let annotations = object.pointer_mut("/metadata/annotations")?.as_object_mut()?;
    let text = annotations.remove(annotation)?;
    if annotations.is_empty() {
        object["metadata"].as_object_mut()?.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_targets_survive_the_way_there_and_back() {
        let v1 = json!({
            "apiVersion": "autoscaling/v1", "metadata": {"name": "a"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 80},
        });
        let mut object = v1.clone();
        to_stored(&mut object);
        assert_eq!(object["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
        from_stored(&mut object);
        assert_eq!(object, v1);
    }
}
