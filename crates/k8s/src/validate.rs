//! What upstream refuses about built-in objects beyond their types: names, ranges, unions, references between
//! fields, and what may not change.
//!
//! Every check reads plain JSON that decoding has already checked against the tables and that defaulting has
//! completed. Messages are upstream's, because clients and conformance tests match on them.
//!
//! To add a kind: a row in [`table`], and functions for what its row names.

mod addresses;
mod api_services;
mod at;
mod autoscaling;
mod batch;
mod certificates;
mod container;
mod core;
mod cron;
mod csi;
mod device_slices;
mod devices;
mod events;
mod flow;
mod meta;
mod networking;
mod parts;
mod platform;
mod pod;
mod pod_annotations;
mod pod_status;
mod policies;
mod policy;
mod rbac;
mod resources;
mod reviews;
mod scheduling;
mod service;
mod storage;
mod table;
mod volume;
mod webhooks;
mod workload;

#[cfg(test)]
mod long_lists;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::Value;

use crate::field::FieldError;
use crate::names;
pub(crate) use at::{At, Errors, same};
pub(crate) use meta::{meta_update, object_meta};

/// Checks an object before it is stored for the first time.
pub fn create(group: &str, kind: &str, namespaced: bool, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    meta::standard_finalizers(&mut errors, &root, &Value::Null);
    match table::find(group, kind) {
        Some(rules) => {
            object_meta(&mut errors, &root.get("metadata"), namespaced, rules.name);
            (rules.object)(&mut errors, &root);
        }
        None => object_meta(&mut errors, &root.get("metadata"), namespaced, names::dns_subdomain),
    }
    errors.0
}

/// Checks a question about rights, which is answered and not stored.
pub fn review(kind: &str, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    reviews::review(&mut errors, kind, &At::root(object));
    errors.0
}

/// Checks a new version of an object against the stored one.
pub fn update(group: &str, kind: &str, object: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    built_in_meta_update(&mut errors, &root, old);
    if let Some(rules) = table::find(group, kind) {
        if !rules.update_is_whole {
            (rules.object)(&mut errors, &root);
        }
        (rules.update)(&mut errors, &root, old);
    }
    spare_stored_pods(&mut errors, kind, old);
    addresses::spare_stored(&mut errors, old);
    errors.0
}

/// Drops what earlier versions did not look for in pods and what the stored object has as well: it must stay writable.
fn spare_stored_pods(e: &mut Errors, kind: &str, old: &Value) {
    let place = match kind {
        "Pod" => "",
        "PodTemplate" => "template.",
        "CronJob" => "spec.jobTemplate.spec.template.",
        _ => "spec.template.",
    };
    if e.0.is_empty() {
        return;
    }
    let Some(pod) = old.pointer(format!("/{}", place.replace('.', "/")).trim_end_matches('/')) else {
        return;
    };
    let mut stored = Errors::default();
    pod::later_checks(&mut stored, pod, place);
    let stored: HashSet<FieldError> = stored.0.into_iter().collect();
    e.0.retain(|error| !stored.contains(error));
}

fn built_in_meta_update(e: &mut Errors, root: &At<'_, '_>, old: &Value) {
    meta_update(e, &root.get("metadata"), old.get("metadata").unwrap_or(&Value::Null));
    meta::standard_finalizers(e, root, old);
}

/// Checks a write through `/status`.
pub fn status_update(group: &str, kind: &str, object: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    built_in_meta_update(&mut errors, &root, old);
    if let Some(rules) = table::find(group, kind) {
        (rules.status)(&mut errors, &root, old);
    }
    addresses::spare_stored(&mut errors, old);
    errors.0
}

/// Checks a write through a pod's `/resize`. What else than resources it has is what it had.
pub fn resize_update(object: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    built_in_meta_update(&mut errors, &root, old);
    pod::pod_spec(&mut errors, &root.get("spec"), true);
    spare_stored_pods(&mut errors, "Pod", old);
    addresses::spare_stored(&mut errors, old);
    errors.0
}

/// Checks a write through a pod's `/ephemeralcontainers`.
pub fn ephemeral_containers_update(object: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    built_in_meta_update(&mut errors, &root, old);
    pod::ephemeral_update(&mut errors, &root, old);
    spare_stored_pods(&mut errors, "Pod", old);
    addresses::spare_stored(&mut errors, old);
    errors.0
}

/// The `fieldManager` of a write: short and printable.
pub fn field_manager(manager: &str) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let value = Value::from(manager);
    meta::field_manager(&mut errors, &At::named(&value, "fieldManager"));
    errors.0
}

/// Metadata of an object inside a custom resource.
pub(crate) fn embedded_meta(metadata: &Value, path: &str, out: &mut Vec<FieldError>) {
    let mut errors = Errors::default();
    let mut metadata = metadata.clone();
    if let Some(map) = metadata.as_object_mut() {
        map.entry("name").or_insert_with(|| Value::from("fakename"));
    }
    let at = At::named(&metadata, path);
    let namespaced = !at.get("namespace").is_empty();
    object_meta(&mut errors, &at, namespaced, names::path_segment);
    out.extend(errors.0);
}

/// Metadata of a custom resource: create (`old` absent) or update.
pub fn custom_meta(object: &Value, old: Option<&Value>, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    let metadata = root.get("metadata");
    match old {
        None => object_meta(&mut errors, &metadata, namespaced, names::dns_subdomain),
        Some(old) => {
            let before = old.get("metadata").unwrap_or(&Value::Null);
            meta_update(&mut errors, &metadata, before);
        }
    }
    errors.0
}
