//! Disruption budgets, priority classes, leases and runtime classes.

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::{conditions, label_selector};
use super::{resources, scheduling};
use crate::names;

pub(super) fn disruption_budget(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let (least, most) = (spec.get("minAvailable"), spec.get("maxUnavailable"));
    if least.is_set() && most.is_set() {
        e.invalid(&spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for at in [&least, &most] {
        if at.is_set() {
            e.int_or_percent(at);
            e.at_most_100_percent(at);
        }
    }
    label_selector(e, &spec.get("selector"));
    e.optional_one_of(&spec.get("unhealthyPodEvictionPolicy"), &["AlwaysAllow", "IfHealthyBudget"]);
}

pub(super) fn disruption_budget_status(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let status = object.get("status");
    conditions(e, &status.get("conditions"));
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        e.non_negative(&status.get(field));
    }
}

pub(super) fn priority_class(e: &mut Errors, object: &At<'_, '_>) {
    const HIGHEST: i64 = 1_000_000_000;
    let metadata = object.get("metadata");
    let (name, value) = (metadata.get("name"), object.get("value"));
    if name.str().starts_with("system-") {
        let known = [("system-cluster-critical", 2 * HIGHEST), ("system-node-critical", 2 * HIGHEST + 1000)];
        let error = match known.iter().find(|(n, _)| *n == name.str()) {
            None => Some(format!("{} is not a known system priority class", name.str())),
            Some((n, v)) if value.int() != Some(*v) => {
                Some(format!("value of {n} PriorityClass must be {v}"))
            }
            Some(_) if object.get("globalDefault").bool() => {
                Some(format!("globalDefault of {} PriorityClass must be false", name.str()))
            }
            Some(_) => None,
        };
        if let Some(error) = error {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {error}"
            );
            e.forbidden(&name, detail);
        }
    } else if value.int().is_some_and(|v| v > HIGHEST) {
        e.forbidden(&value, format!("maximum allowed value of a user defined priority is {HIGHEST}"));
    }
    let preemption = object.get("preemptionPolicy");
    if preemption.is_set() {
        e.one_of(&preemption, &["PreemptLowerPriority", "Never"]);
    }
}

pub(super) fn priority_class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    if !same(object.get("value").value, &old["value"]) {
        e.forbidden(&object.get("value"), "may not be changed in an update.");
    }
    e.immutable(&object.get("preemptionPolicy"), &old["preemptionPolicy"]);
}

pub(super) fn lease(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.at_least(&spec.get("leaseDurationSeconds"), 1, "must be greater than 0");
    e.at_least(&spec.get("leaseTransitions"), 0, "must be greater than or equal to 0");
}

pub(super) fn lease_update(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    lease(e, object);
}

pub(super) fn runtime_class(e: &mut Errors, object: &At<'_, '_>) {
    e.name(&object.get("handler"), names::dns_label);
    let overhead = object.get("overhead");
    for (name, value) in overhead.get("podFixed").entries() {
        resources::amount(e, name, &value);
    }
    let scheduling = object.get("scheduling");
    super::meta::labels(e, &scheduling.get("nodeSelector"));
    scheduling::tolerations(e, &scheduling.get("tolerations"));
}

pub(super) fn runtime_class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("handler"), &old["handler"]);
}
