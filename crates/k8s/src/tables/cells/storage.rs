//! Volumes, claims and classes.

use jiff::Timestamp;
use serde_json::Value;

use super::pair;
use crate::tables::text::{items, join, or, text};

pub fn access_modes(object: &Value, path: &str) -> String {
    let modes = items(object, path);
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    join(short.into_iter().filter(|(long, _)| modes.iter().any(|m| m == long)).map(|(_, short)| short), ",")
}

fn bound(object: &Value) -> bool {
    !text(object, "/spec/volumeName").is_empty()
}

pub fn claim_capacity(object: &Value, _: Timestamp) -> Value {
    if bound(object) { or(text(object, "/status/capacity/storage"), "0").into() } else { "".into() }
}

pub fn claim_modes(object: &Value, _: Timestamp) -> Value {
    if bound(object) { access_modes(object, "/status/accessModes").into() } else { "".into() }
}

/// The class was an annotation once, and that still wins.
pub fn storage_class(object: &Value, _: Timestamp) -> Value {
    let annotation = object.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class");
    annotation.and_then(Value::as_str).unwrap_or_else(|| text(object, "/spec/storageClassName")).into()
}

pub fn volume_claim(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/claimRef").is_none() {
        return "".into();
    }
    pair(object, "/spec/claimRef/namespace", "/spec/claimRef/name")
}

/// A class marked as the default says so beside its name.
pub fn default_name(object: &Value, annotation: &str) -> Value {
    let name = text(object, "/metadata/name");
    let default =
        object.pointer("/metadata/annotations").and_then(|a| a.get(annotation)).is_some_and(|v| v == "true");
    if default { format!("{name} (default)").into() } else { name.into() }
}

pub fn storage_class_name(object: &Value, _: Timestamp) -> Value {
    let beta = default_name(object, "storageclass.beta.kubernetes.io/is-default-class");
    let name = default_name(object, "storageclass.kubernetes.io/is-default-class");
    if beta.as_str().is_some_and(|n| n.ends_with(')')) { beta } else { name }
}

pub fn token_requests(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/tokenRequests").is_none() {
        return "<unset>".into();
    }
    join(items(object, "/spec/tokenRequests").iter().map(|t| text(t, "/audience")), ",").into()
}
