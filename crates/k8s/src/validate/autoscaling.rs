//! Horizontal pod autoscalers.

use serde_json::Value;

use super::at::{At, Errors};
use super::parts::quantity;
use crate::names;

const SOURCES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

pub(super) fn autoscaler(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let (least, most) = (spec.get("minReplicas"), spec.get("maxReplicas"));
    e.at_least(&least, 1, "must be greater than or equal to 1");
    match most.int().unwrap_or_default() {
        0 => e.required(&most, "must be set and greater than 0"),
        n if n < 0 => e.invalid(&most, "must be greater than or equal to 1"),
        _ => {}
    }
    if let Some(low) = least.int()
        && most.int().unwrap_or_default() < low
    {
        let shown = Value::from(most.int().unwrap_or_default());
        e.invalid_value(&most, &shown, "must be greater than or equal to `minReplicas`");
    }
    reference(e, &spec.get("scaleTargetRef"));
    spec.get("metrics").items().for_each(|metric| source(e, &metric));
    // Version 1 has one metric, which is shown where version 2 has it.
    let share = spec.get("targetCPUUtilizationPercentage");
    let shown = At::named(share.value, "spec.metrics[0].resource.target.averageUtilization");
    e.at_least(&shown, 1, "must be greater than 0");
    let from_zero = spec.get("metrics").items().any(|m| matches!(m.get("type").str(), "Object" | "External"));
    if least.int() == Some(0) && !from_zero {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        e.forbidden(&spec.get("metrics"), detail);
    }
    let behavior = spec.get("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        scaling_rules(e, &behavior.get(direction));
    }
}

pub(super) fn autoscaler_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    // A group that was never said may stay unsaid.
    let before = old.pointer("/spec/scaleTargetRef/apiVersion");
    let mut found = Errors::default();
    autoscaler(&mut found, object);
    let spec = object.get("spec");
    let target = spec.get("scaleTargetRef");
    let kept = before.and_then(Value::as_str).unwrap_or_default() == target.get("apiVersion").str();
    found.0.retain(|error| !(kept && error.path == "spec.scaleTargetRef.apiVersion"));
    e.0.append(&mut found.0);
}

fn reference(e: &mut Errors, target: &At<'_, '_>) {
    for field in ["kind", "name"] {
        e.name(&target.get(field), names::path_segment);
    }
    let version = target.get("apiVersion");
    match version.str().split('/').collect::<Vec<_>>()[..] {
        [group, _] if !group.is_empty() => {}
        [_] | [_, _] => e.invalid(&version, "apiVersion must specify API group"),
        _ => e.invalid(&version, format!("unexpected GroupVersion string: {}", version.str())),
    }
}

fn source(e: &mut Errors, metric: &At<'_, '_>) {
    let kind = metric.get("type");
    if kind.is_empty() {
        e.required(&kind, "must specify a metric source type");
    }
    if !SOURCES.contains(&kind.str()) {
        e.not_supported(&kind, &SOURCES);
    }
    for name in SOURCES {
        let mut field = name.to_owned();
        field[..1].make_ascii_lowercase();
        let at = metric.get(&field);
        match (at.is_set(), kind.str() == name) {
            (true, true) => details(e, name, &at),
            (true, false) => e.forbidden(&at, "must populate the given metric source only"),
            (false, true) => e.required(&at, "must populate information for the given metric source"),
            (false, false) => {}
        }
    }
}

fn details(e: &mut Errors, kind: &str, source: &At<'_, '_>) {
    let target = source.get("target");
    match kind {
        "Resource" | "ContainerResource" => {
            if source.get("name").is_empty() {
                e.required(&source.get("name"), "must specify a resource name");
            }
            if kind == "ContainerResource" {
                let container = source.get("container");
                if container.is_empty() {
                    e.required(&container, "must specify a container");
                } else {
                    e.complaints(&container, names::dns_label(container.str()));
                }
            }
            metric_target(e, &target);
            let (raw, share) = (target.get("averageValue"), target.get("averageUtilization"));
            match (raw.is_set(), share.is_set()) {
                (false, false) => {
                    e.required(&share, "must set either a target raw value or a target utilization");
                }
                (true, true) => {
                    e.forbidden(&raw, "may not set both a target raw value and a target utilization");
                }
                _ => {}
            }
            return;
        }
        "Object" => reference(e, &source.get("describedObject")),
        _ => {}
    }
    let metric = source.get("metric");
    if metric.get("name").is_empty() {
        e.required(&metric.get("name"), "must specify a metric name");
    } else {
        e.complaints(&metric.get("name"), names::path_segment(metric.get("name").str()));
    }
    metric_target(e, &target);
    let (value, average) = (target.get("value"), target.get("averageValue"));
    match (kind, value.is_set(), average.is_set()) {
        ("Pods", _, false) => e.required(&average, "must specify a positive target averageValue"),
        ("Object", false, false) => e.required(&average, "must set either a target value or averageValue"),
        ("External", false, false) => {
            e.required(&average, "must set either a target value for metric or a per-pod target");
        }
        ("External", true, true) => {
            e.forbidden(&value, "may not set both a target value for metric and a per-pod target");
        }
        _ => {}
    }
}

fn metric_target(e: &mut Errors, target: &At<'_, '_>) {
    let kind = target.get("type");
    if kind.is_empty() {
        e.required(&kind, "must specify a metric target type");
    }
    if !matches!(kind.str(), "Utilization" | "Value" | "AverageValue") {
        e.invalid(&kind, "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        let at = target.get(field);
        if quantity(&at).is_some_and(|q| q.is_zero() || q.is_negative()) {
            e.invalid(&at, "must be positive");
        }
    }
    e.at_least(&target.get("averageUtilization"), 1, "must be greater than 0");
}

fn scaling_rules(e: &mut Errors, rules: &At<'_, '_>) {
    if !rules.is_set() {
        return;
    }
    let window = rules.get("stabilizationWindowSeconds");
    e.at_least(&window, 0, "must be greater than or equal to zero");
    if window.int().is_some_and(|w| w > 3600) {
        e.invalid(&window, "must be less than or equal to 3600");
    }
    e.optional_one_of(&rules.get("selectPolicy"), &["Disabled", "Max", "Min"]);
    let policies = rules.get("policies");
    if policies.is_empty() {
        e.required(&policies, "must specify at least one Policy");
    }
    for policy in policies.items() {
        if !matches!(policy.get("type").str(), "Pods" | "Percent") {
            e.not_supported(&policy.get("type"), &["Percent", "Pods"]);
        }
        e.positive(&policy.get("value"));
        e.positive(&policy.get("periodSeconds"));
        if policy.get("periodSeconds").int().is_some_and(|p| p > 1800) {
            e.invalid(&policy.get("periodSeconds"), "must be less than or equal to 1800");
        }
    }
}

pub(super) fn autoscaler_status(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let status = object.get("status");
    for field in ["currentReplicas", "desiredReplicas"] {
        e.non_negative(&status.get(field));
    }
}
