//! Cells that take more than a path.

mod access;
mod batch;
mod events;
mod network;
mod storage;

use jiff::Timestamp;
use serde_json::Value;

use super::text::{int, items, join, or, text};

pub use access::*;
pub use batch::*;
pub use events::*;
pub use network::*;
pub use storage::*;

pub fn count(object: &Value, path: &str) -> usize {
    match object.pointer(path) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(entries)) => entries.len(),
        _ => 0,
    }
}

/// `kind/name`.
pub fn pair(object: &Value, first: &str, second: &str) -> Value {
    format!("{}/{}", text(object, first), text(object, second)).into()
}

pub fn joined_or(object: &Value, path: &str, instead: &str) -> Value {
    or(&join(items(object, path).iter().filter_map(Value::as_str), ","), instead).into()
}

pub fn number_or(object: &Value, path: &str) -> Value {
    object.pointer(path).filter(|v| v.is_number()).cloned().unwrap_or_else(|| "<none>".into())
}

fn seconds(value: Option<&Value>) -> Option<i64> {
    value?.as_str()?.parse::<Timestamp>().ok().map(|t| t.as_second())
}

fn condition<'a>(object: &'a Value, path: &str, type_: &str) -> Option<&'a Value> {
    items(object, path).iter().find(|c| text(c, "/type") == type_)
}

fn deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

pub fn phase(object: &Value, _: Timestamp) -> Value {
    if deleting(object) { "Terminating".into() } else { text(object, "/status/phase").into() }
}

pub fn ready_of_desired(object: &Value, _: Timestamp) -> Value {
    format!("{}/{}", int(object, "/status/readyReplicas"), int(object, "/spec/replicas")).into()
}

pub fn component_status(object: &Value, _: Timestamp) -> Value {
    match condition(object, "/conditions", "Healthy") {
        Some(c) if text(c, "/status") == "True" => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    }
    .into()
}

pub fn controller(object: &Value, _: Timestamp) -> Value {
    let owner = items(object, "/metadata/ownerReferences").iter().find(|o| o["controller"] == true);
    let Some(owner) = owner else { return "<none>".into() };
    let group =
        text(owner, "/apiVersion").split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
    let kind = format!("{}{group}", text(owner, "/kind")).to_lowercase();
    format!("{kind}/{}", text(owner, "/name")).into()
}

pub fn node_status(object: &Value, _: Timestamp) -> Value {
    let ready = match condition(object, "/status/conditions", "Ready") {
        Some(c) if text(c, "/status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = object.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    if cordoned { format!("{ready},SchedulingDisabled").into() } else { ready.into() }
}

pub fn node_roles(object: &Value, _: Timestamp) -> Value {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), "<none>").into()
}

pub fn node_address(object: &Value, type_: &str) -> Value {
    let address = items(object, "/status/addresses").iter().find(|a| text(a, "/type") == type_);
    address.map_or("<none>", |a| text(a, "/address")).into()
}

pub fn node_kernel(object: &Value, _: Timestamp) -> Value {
    let kernel = or(text(object, "/status/nodeInfo/kernelVersion"), "<unknown>");
    match text(object, "/status/nodeInfo/architecture") {
        "" => kernel.into(),
        architecture => format!("{kernel} ({architecture})").into(),
    }
}
