//! Policy, quota and access.

use jiff::Timestamp;
use serde_json::Value;

use super::{condition, deleting, pair};
use crate::tables::text::{human_duration, items, join, or, selector, show, text};

pub fn quota(object: &Value, limits: bool) -> Value {
    let hard = object.pointer("/status/hard").and_then(Value::as_object);
    let mut rows: Vec<String> = hard
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| {
            let used = object.pointer("/status/used").and_then(|u| u.get(name)).map_or("0".to_owned(), show);
            format!("{name}: {used}/{}", show(hard))
        })
        .collect();
    rows.sort();
    rows.join(", ").into()
}

pub fn subjects(object: &Value, kind: &str) -> Value {
    let names: Vec<String> = items(object, "/subjects")
        .iter()
        .filter(|s| text(s, "/kind") == kind)
        .map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
            _ => text(s, "/name").to_owned(),
        })
        .collect();
    names.join(", ").into()
}

pub fn requested_duration(object: &Value, _: Timestamp) -> Value {
    match object.pointer("/spec/expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => human_duration(seconds).into(),
        None => "<none>".into(),
    }
}

pub fn request_condition(object: &Value, _: Timestamp) -> Value {
    let is = |type_| condition(object, "/status/conditions", type_).is_some();
    let mut status = String::from(if is("Denied") {
        "Denied"
    } else if is("Approved") {
        "Approved"
    } else {
        "Pending"
    });
    if is("Failed") {
        status.push_str(",Failed");
    }
    if !text(object, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status.into()
}

pub fn policy_kind(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/paramKind").is_none_or(Value::is_null) {
        return "<unset>".into();
    }
    pair(object, "/spec/paramKind/apiVersion", "/spec/paramKind/kind")
}

pub fn policy_parameters(object: &Value, _: Timestamp) -> Value {
    let Some(parameters) = object.pointer("/spec/paramRef").filter(|p| p.is_object()) else {
        return "<unset>".into();
    };
    match text(parameters, "/name") {
        "" if parameters.get("selector").is_some() => selector(parameters.get("selector")).into(),
        "" => "<unset>".into(),
        name => format!("{}/{name}", or(text(parameters, "/namespace"), "*")).into(),
    }
}

pub fn missing_priority_level(object: &Value, _: Timestamp) -> Value {
    condition(object, "/status/conditions", "Dangling").map_or("?", |c| text(c, "/status")).into()
}

pub fn claim_state(object: &Value, _: Timestamp) -> Value {
    let allocated = object.pointer("/status/allocation").is_some_and(|a| !a.is_null());
    let reserved = !items(object, "/status/reservedFor").is_empty();
    let states = [
        (deleting(object), "deleted"),
        (!allocated && !deleting(object), "pending"),
        (allocated, "allocated"),
        (allocated && reserved, "reserved"),
    ];
    join(states.into_iter().filter(|(on, _)| *on).map(|(_, name)| name), ",").into()
}
