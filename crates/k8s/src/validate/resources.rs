//! Resource lists: names, quantities, requests and limits.

use serde_json::Value;

use super::at::{At, Errors};
use super::parts::quantity;
use crate::names;

const CONTAINER: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Upstream's test: a bare name, or one under `kubernetes.io/`.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::label_key(&format!("requests.{name}")).is_empty()
}

/// Requests may stay below limits.
fn can_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

pub(super) fn requirements(e: &mut Errors, at: &At<'_, '_>) {
    if !at.is_set() {
        return;
    }
    let (limits, requests) = (at.get("limits"), at.get("requests"));
    let mut basic = false;
    let mut huge = false;
    for list in [&limits, &requests] {
        for (name, value) in list.entries() {
            container_resource(e, name, &value);
            basic |= matches!(name, "cpu" | "memory");
            huge |= is_huge_page(name);
        }
    }
    for (name, value) in requests.entries() {
        let limit = limits.key(name);
        let (Some(request), overcommit) = (quantity(&value), can_overcommit(name)) else { continue };
        let shown = Value::from(value.value.as_str().map_or_else(|| request.to_string(), str::to_owned));
        match quantity(&limit) {
            Some(limit) if request != limit && !overcommit => {
                e.invalid_value(&requests, &shown, format!("must be equal to {name} limit of {limit}"));
            }
            Some(limit) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                e.invalid_value(&requests, &shown, detail);
            }
            Some(_) => {}
            None if !overcommit => {
                e.required(&limits, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
    }
    if huge && !basic {
        e.forbidden(at, "HugePages require cpu or memory");
    }
}

fn container_resource(e: &mut Errors, name: &str, value: &At<'_, '_>) {
    let shown = Value::from(name);
    let complaints = names::label_key(name);
    let bad = !complaints.is_empty();
    for complaint in complaints {
        e.invalid_value(value, &shown, complaint);
    }
    if !name.contains('/') {
        let standard = CONTAINER.contains(&name) || is_huge_page(name);
        if !bad && !standard && name != "storage" && name != "pods" {
            e.invalid_value(value, &shown, "must be a standard resource type or fully qualified");
        }
        if !standard {
            e.invalid_value(value, &shown, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        e.invalid_value(value, &shown, "doesn't follow extended resource name standard");
    }
    amount(e, name, value);
}

/// Not negative, and whole where only whole makes sense.
pub(super) fn amount(e: &mut Errors, name: &str, value: &At<'_, '_>) {
    e.quantity_not_negative(value);
    let whole = is_extended(name) || matches!(name, "pods" | "services" | "secrets" | "configmaps");
    if whole && quantity(value).is_some_and(|q| !q.is_whole()) {
        e.invalid(value, "must be an integer");
    }
}

/// A resource that can be limited in a quota.
pub(super) fn quota_resource(e: &mut Errors, name: &str, value: &At<'_, '_>) {
    const STANDARD: [&str; 17] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
    ];
    const MORE: [&str; 2] = ["services.nodeports", "services.loadbalancers"];
    let shown = Value::from(name);
    let complaints = names::label_key(name);
    let bad = !complaints.is_empty();
    for complaint in complaints {
        e.invalid_value(value, &shown, complaint);
    }
    let plain = name.strip_prefix("requests.").unwrap_or(name);
    let standard = STANDARD.contains(&name) || MORE.contains(&name) || is_huge_page(plain);
    if !name.contains('/') && !standard {
        if !bad && name != "storage" {
            e.invalid_value(value, &shown, "must be a standard resource type or fully qualified");
        }
        e.invalid_value(value, &shown, "must be a standard resource for quota");
    }
    amount(e, name, value);
}
