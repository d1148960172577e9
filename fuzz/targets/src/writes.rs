//! Patches of all types and server-side apply.

use serde_json::Value;
use tombolo_k8s::apply::{self as server_side, Schema, Write};
use tombolo_k8s::{decode, patch};

use crate::input::{kind, two_documents};

pub fn json_patch(input: &[u8]) {
    let Some((object, change)) = two_documents(input) else { return };
    let _ = patch::json(&object, &change);
}

/// Laying the same patch twice is the same as once.
pub fn merge_patch(input: &[u8]) {
    let Some((object, change)) = two_documents(input) else { return };
    if let Ok(once) = patch::merge(&object, &change) {
        assert_eq!(patch::merge(&once, &change).as_ref(), Ok(&once), "a merge patch is not idempotent");
    }
}

/// Laid over an object as the server has decoded it.
pub fn strategic_patch(input: &[u8]) {
    let Some((type_, rest)) = kind(input) else { return };
    let Some((object, change)) = two_documents(rest) else { return };
    let Ok(decoded) = decode::value(object, type_) else { return };
    if let Ok(patched) = patch::strategic(&decoded.value, &change, type_) {
        let _ = decode::value(patched, type_);
    }
}

/// Creating, then applying over what is there, then again. As in the server, the live object is canonical and the
/// configuration is what the client wrote.
pub fn apply(input: &[u8]) {
    let Some((type_, rest)) = kind(input) else { return };
    let Some((live, config)) = two_documents(rest) else { return };
    if !config.is_object() {
        return;
    }
    let api_version = config.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let reset = server_side::reset_fields(type_.short_name(), false, "");
    let now = "2026-01-02T03:04:05Z";
    let write = Write { manager: "fuzz", subresource: "", api_version: &api_version, now, reset };
    let lay = |live: Option<&Value>| server_side::apply(live, &config, Schema::Type(type_), &write, true);
    let canonical = |object: Value| decode::value(object, type_).ok().map(|decoded| decoded.value);
    let _ = lay(None);
    let Some(mut live) = canonical(live) else { return };
    // Owners that no server wrote may lead anywhere but to a panic.
    let _ = lay(Some(&live));
    // A null in place of a list's key, or none, is a key of its own to apply, upstream too, but a zero once it is stored.
    if has_null(&config) || canonical(config.clone()).is_none_or(|stored| has_more(&stored, &config)) {
        return;
    }
    if let Some(Value::Object(metadata)) = live.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    let Some(once) = lay(Some(&live)).ok().and_then(|applied| canonical(applied.object)) else { return };
    if let Some(twice) = lay(Some(&once)).ok().and_then(|applied| canonical(applied.object)) {
        assert_eq!(twice, once, "applying twice is not the same as once");
    }
}

/// Has `stored` fields that `written` has not?
fn has_more(stored: &Value, written: &Value) -> bool {
    match (stored, written) {
        (Value::Object(stored), Value::Object(written)) => {
            stored.iter().any(|(name, value)| written.get(name).is_none_or(|own| has_more(value, own)))
        }
        (Value::Array(stored), Value::Array(written)) => {
            stored.iter().zip(written).any(|(stored, written)| has_more(stored, written))
        }
        _ => false,
    }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}
