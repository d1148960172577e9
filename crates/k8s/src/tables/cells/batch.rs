//! Jobs and autoscalers.

use jiff::Timestamp;
use serde_json::Value;

use super::{condition, deleting, seconds};
use crate::tables::age;
use crate::tables::text::{human_duration, int, items, show, text, with_more};

pub fn suspended(object: &Value, _: Timestamp) -> Value {
    match object.pointer("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True".into(),
        Some(false) => "False".into(),
        None => "<unset>".into(),
    }
}

pub fn last_schedule(object: &Value, now: Timestamp) -> Value {
    match object.pointer("/status/lastScheduleTime").filter(|t| t.is_string()) {
        Some(time) => age(Some(time), now).into(),
        None => "<none>".into(),
    }
}

pub fn job_status(object: &Value, _: Timestamp) -> Value {
    let is = |type_: &str| {
        condition(object, "/status/conditions", type_).is_some_and(|c| text(c, "/status") == "True")
    };
    let status = if is("Complete") {
        "Complete"
    } else if is("Failed") {
        "Failed"
    } else if deleting(object) {
        "Terminating"
    } else if is("Suspended") {
        "Suspended"
    } else if is("FailureTarget") {
        "FailureTarget"
    } else if is("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    status.into()
}

pub fn job_completions(object: &Value, _: Timestamp) -> Value {
    let done = int(object, "/status/succeeded");
    if let Some(wanted) = object.pointer("/spec/completions").and_then(Value::as_i64) {
        return format!("{done}/{wanted}").into();
    }
    match int(object, "/spec/parallelism") {
        many if many > 1 => format!("{done}/1 of {many}").into(),
        _ => format!("{done}/1").into(),
    }
}

pub fn job_duration(object: &Value, now: Timestamp) -> Value {
    let Some(start) = seconds(object.pointer("/status/startTime")) else { return "".into() };
    let end = seconds(object.pointer("/status/completionTime")).unwrap_or(now.as_second());
    human_duration(end - start).into()
}

pub fn autoscaler_targets(object: &Value, _: Timestamp) -> Value {
    // Version 1 has the one metric.
    if let Some(target) = object.pointer("/spec/targetCPUUtilizationPercentage").and_then(Value::as_i64) {
        let current = object.pointer("/status/currentCPUUtilizationPercentage").and_then(Value::as_i64);
        let current = current.map_or("<unknown>".to_owned(), |c| format!("{c}%"));
        return format!("cpu: {current}/{target}%").into();
    }
    let metrics = items(object, "/spec/metrics");
    let current = items(object, "/status/currentMetrics");
    if metrics.is_empty() {
        return "<none>".into();
    }
    let all: Vec<String> = metrics.iter().enumerate().map(|(i, m)| metric(m, current.get(i))).collect();
    with_more(&all, 2, ", ").into()
}

fn metric(spec: &Value, status: Option<&Value>) -> String {
    let field = match text(spec, "/type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = spec.pointer(&format!("/{field}/target")).unwrap_or(&Value::Null);
    let current = status.and_then(|s| s.pointer(&format!("/{field}/current"))).unwrap_or(&Value::Null);
    let value = |of: &Value, name: &str| of.get(name).filter(|v| !v.is_null()).map(show);
    let percent = |of: &Value| of["averageUtilization"].as_i64().map(|v| format!("{v}%"));
    let unknown = || "<unknown>".to_owned();
    let average = value(target, "averageValue");
    match (field, average) {
        ("resource" | "containerResource", average) => {
            let name = text(&spec[field], "/name");
            match average {
                Some(t) => format!("{name}: {}/{t}", value(current, "averageValue").unwrap_or_else(unknown)),
                None => {
                    let target = percent(target).unwrap_or_else(|| "<auto>".to_owned());
                    format!("{name}: {}/{target}", percent(current).unwrap_or_else(unknown))
                }
            }
        }
        ("pods", average) => {
            let current = value(current, "averageValue").unwrap_or_else(unknown);
            format!("{current}/{}", average.unwrap_or_default())
        }
        (_, Some(t)) => format!("{}/{t} (avg)", value(current, "averageValue").unwrap_or_else(unknown)),
        (_, None) => {
            let current = value(current, "value").unwrap_or_else(unknown);
            format!("{current}/{}", value(target, "value").unwrap_or_default())
        }
    }
}
