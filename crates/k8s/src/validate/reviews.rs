//! Questions about rights: what must be in one to be answered.

use serde_json::Value;

use super::at::{At, Errors};
use super::meta::selector_requirement;

/// Complaints about a review that is asked. Reviews are not stored, and so have no name.
pub(super) fn review(e: &mut Errors, kind: &str, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let (resource, path) = (spec.get("resourceAttributes"), spec.get("nonResourceAttributes"));
    match (resource.is_set(), path.is_set()) {
        (true, true) => e.invalid(&path, "cannot be specified in combination with resourceAttributes"),
        (false, false) => {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            e.invalid_value(&resource, &Value::Null, detail);
        }
        _ => {}
    }
    if kind != "SelfSubjectAccessReview" && spec.get("user").is_empty() && spec.get("groups").is_empty() {
        e.invalid(&spec.get("user"), "at least one of user or group must be specified");
    }
    selector(e, &resource.get("fieldSelector"), |e, requirement| {
        if requirement.get("key").is_empty() {
            e.required(&requirement.get("key"), "must be specified");
        }
        values(e, requirement);
    });
    selector(e, &resource.get("labelSelector"), |e, requirement| {
        values(e, requirement);
        selector_requirement(e, requirement);
    });
    let (metadata, local) = (object.get("metadata"), kind == "LocalSubjectAccessReview");
    let allowed: &[&str] = if local { &["namespace", "managedFields"] } else { &["managedFields"] };
    if metadata.entries().any(|(key, value)| !allowed.contains(&key) && !value.is_empty()) {
        let detail = if local { "must be empty except for namespace" } else { "must be empty" };
        e.invalid(&metadata, detail);
    }
    if local {
        let namespace = resource.get("namespace");
        if resource.is_set() && namespace.str() != metadata.get("namespace").str() {
            e.invalid(&namespace, "must match metadata.namespace");
        }
        if path.is_set() {
            e.invalid(&path, "disallowed on this kind of request");
        }
    }
}

/// A selector as text or as requirements.
fn selector(e: &mut Errors, selector: &At<'_, '_>, each: impl Fn(&mut Errors, &At<'_, '_>)) {
    if !selector.is_set() {
        return;
    }
    let (raw, requirements) = (selector.get("rawSelector"), selector.get("requirements"));
    match (raw.is_empty(), requirements.is_empty()) {
        (false, false) => e.invalid(&raw, "may not specified at the same time as requirements"),
        (true, true) => {
            let path = selector.path();
            let detail = format!("when {path} is specified, requirements or rawSelector is required");
            e.required(&requirements, detail);
        }
        _ => {}
    }
    requirements.items().for_each(|requirement| each(e, &requirement));
}

/// Operators that are not known may be those of a newer release.
fn values(e: &mut Errors, requirement: &At<'_, '_>) {
    let values = requirement.get("values");
    match requirement.get("operator").str() {
        "In" | "NotIn" if values.is_empty() => {
            e.required(&values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            e.forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        _ => {}
    }
}
