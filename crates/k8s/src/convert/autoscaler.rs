//! HorizontalPodAutoscaler: version 1 has CPU utilisation only; other metrics, behaviour and conditions stand in
//! annotations.

use serde_json::{Map, Value, json};

type Object = Map<String, Value>;
/// A field in version 1 and the way to it in version 2.
type Fields = &'static [(&'static str, &'static str)];

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOUR: &str = "autoscaling.alpha.kubernetes.io/behavior";

const SPECS: &[(&str, Fields)] = &[
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("averageValue", "/target/averageValue"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("container", "/container"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
];

const STATUSES: &[(&str, Fields)] = &[
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("averageValue", "/current/averageValue"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("container", "/container"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
];

pub fn to_v1(object: &mut Object) {
    let take = |object: &mut Object, part: &str, field: &str| {
        object
            .get_mut(part)
            .and_then(Value::as_object_mut)
            .and_then(|p| p.remove(field))
            .filter(|v| !v.is_null())
    };
    let metrics = take(object, "spec", "metrics");
    let (cpu, others): (Vec<Value>, Vec<Value>) = list(metrics).into_iter().partition(is_cpu);
    if let (Some(cpu), Some(spec)) = (cpu.first(), part(object, "spec")) {
        let target = cpu.pointer("/resource/target/averageUtilization").cloned().unwrap_or_default();
        spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
    }
    let current = list(take(object, "status", "currentMetrics"));
    let now = current.iter().find_map(|m| {
        m.pointer("/resource/current/averageUtilization").filter(|_| m["resource"]["name"] == "cpu").cloned()
    });
    if let (Some(now), Some(status)) = (now, part(object, "status")) {
        status.insert("currentCPUUtilizationPercentage".to_owned(), now);
    }
    let saved = [
        (METRICS, some(others.iter().map(|m| to_old(m, SPECS)).collect())),
        (CURRENT_METRICS, some(current.iter().map(|m| to_old(m, STATUSES)).collect())),
        (CONDITIONS, take(object, "status", "conditions")),
        (BEHAVIOUR, take(object, "spec", "behavior").map(|b| recase(b, true))),
    ];
    for (name, value) in saved {
        if let (Some(value), Some(meta)) = (value, part(object, "metadata"))
            && let Some(annotations) = part(meta, "annotations")
        {
            annotations.insert(name.to_owned(), value.to_string().into());
        }
    }
}

pub fn to_v2(object: &mut Object) {
    let mut saved = |name: &str| -> Option<Value> {
        let meta = object.get_mut("metadata")?.as_object_mut()?;
        let annotations = meta.get_mut("annotations")?.as_object_mut()?;
        let value = annotations.remove(name)?;
        if annotations.is_empty() {
            meta.remove("annotations");
        }
        // An annotation that cannot be read says nothing, as upstream has it.
        serde_json::from_str(value.as_str()?).ok()
    };
    let mut metrics: Vec<Value> = list(saved(METRICS)).iter().map(|m| to_new(m, SPECS, "target")).collect();
    let mut current: Vec<Value> =
        list(saved(CURRENT_METRICS)).iter().map(|m| to_new(m, STATUSES, "current")).collect();
    let (conditions, behaviour) = (saved(CONDITIONS), saved(BEHAVIOUR));
    if let Some(spec) = part(object, "spec") {
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage").filter(|t| !t.is_null()) {
            let target = json!({"type": "Utilization", "averageUtilization": target});
            metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
        }
        put(spec, "metrics", some(metrics));
        put(spec, "behavior", behaviour.map(|b| recase(b, false)));
    }
    if let Some(status) = part(object, "status") {
        let now = status.remove("currentCPUUtilizationPercentage").filter(|t| !t.is_null());
        if let Some(now) = now.filter(|_| current.is_empty()) {
            let resource = json!({"name": "cpu", "current": {"averageUtilization": now}});
            current.push(json!({"type": "Resource", "resource": resource}));
        }
        put(status, "currentMetrics", some(current));
        put(status, "conditions", conditions);
    }
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && metric.pointer("/resource/target/averageUtilization").is_some_and(|u| !u.is_null())
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn some(items: Vec<Value>) -> Option<Value> {
    (!items.is_empty()).then_some(Value::Array(items))
}

fn put(object: &mut Object, field: &str, value: Option<Value>) {
    if let Some(value) = value {
        object.insert(field.to_owned(), value);
    }
}

fn part<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Object> {
    object.entry(field).or_insert_with(|| json!({})).as_object_mut()
}

fn to_old(metric: &Value, kinds: &[(&str, Fields)]) -> Value {
    let mut out = json!({"type": metric["type"]});
    for (kind, fields) in kinds {
        let Some(source) = metric.get(*kind).filter(|s| s.is_object()) else { continue };
        let mut old = Map::new();
        for (name, path) in *fields {
            put(&mut old, name, source.pointer(path).filter(|v| !v.is_null()).cloned());
        }
        // Version 1 holds this one by value.
        if *kind == "object" && fields.iter().any(|(name, _)| *name == "targetValue") {
            old.entry("targetValue").or_insert_with(|| "0".into());
        }
        out[*kind] = old.into();
    }
    out
}

fn to_new(metric: &Value, kinds: &[(&str, Fields)], measure: &str) -> Value {
    let mut out = json!({"type": metric["type"]});
    for (kind, fields) in kinds {
        let Some(source) = metric.get(*kind).filter(|s| s.is_object()) else { continue };
        let mut new = json!({});
        for (name, path) in *fields {
            let zero_beside_average = *name == "targetValue" && source.get("averageValue").is_some();
            let Some(value) =
                source.get(*name).filter(|v| !(v.is_null() || zero_beside_average && *v == "0"))
            else {
                continue;
            };
            let mut at = &mut new;
            for step in path.trim_start_matches('/').split('/') {
                at = &mut at[step];
            }
            *at = value.clone();
        }
        if measure == "target" {
            let has = |name: &str| new["target"].get(name).is_some();
            let type_ = if has("averageUtilization") {
                "Utilization"
            } else if has("averageValue") && !(*kind == "external" && has("value")) {
                "AverageValue"
            } else {
                "Value"
            };
            new["target"]["type"] = type_.into();
        }
        out[*kind] = new;
    }
    out
}

/// The behaviour annotation holds Go's own field names, which start with a capital.
fn recase(value: Value, upper: bool) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| {
                let mut chars = name.chars();
                let first =
                    chars.next().map(|c| if upper { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() });
                (first.into_iter().chain(chars).collect::<String>(), recase(value, upper))
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(|v| recase(v, upper)).collect(),
        other => other,
    }
}
