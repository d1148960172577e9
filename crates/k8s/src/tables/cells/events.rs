//! Events. Core/v1 and events.k8s.io/v1 name their fields differently.

use jiff::Timestamp;
use serde_json::Value;

use crate::tables::age;
use crate::tables::text::{or, text};

fn event_field<'a>(object: &'a Value, core: &str, new: &str) -> &'a Value {
    object.pointer(core).or_else(|| object.pointer(new)).unwrap_or(&Value::Null)
}

pub fn event_first_seen(object: &Value, now: Timestamp) -> String {
    let first = event_field(object, "/firstTimestamp", "/deprecatedFirstTimestamp");
    age(Some(first).filter(|t| t.is_string()).or(object.get("eventTime")), now)
}

pub fn event_last_seen(object: &Value, now: Timestamp) -> Value {
    let series = object.pointer("/series/lastObservedTime");
    let last = event_field(object, "/lastTimestamp", "/deprecatedLastTimestamp");
    match series.or(Some(last).filter(|t| t.is_string())) {
        Some(time) => age(Some(time), now).into(),
        None => event_first_seen(object, now).into(),
    }
}

pub fn event_count(object: &Value, _: Timestamp) -> Value {
    let series = object.pointer("/series/count").and_then(Value::as_i64);
    let count = event_field(object, "/count", "/deprecatedCount").as_i64().filter(|c| *c > 0);
    // An event that happened once has no count in the newer API.
    series.or(count).unwrap_or(1).into()
}

pub fn event_object(object: &Value, _: Timestamp) -> Value {
    let target = event_field(object, "/involvedObject", "/regarding");
    let kind = text(target, "/kind").to_lowercase();
    let name = text(target, "/name");
    if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
}

pub fn event_subobject(object: &Value, _: Timestamp) -> Value {
    text(event_field(object, "/involvedObject", "/regarding"), "/fieldPath").into()
}

pub fn event_source(object: &Value, _: Timestamp) -> Value {
    let source = event_field(object, "/source", "/deprecatedSource");
    let reporter =
        event_field(object, "/reportingComponent", "/reportingController").as_str().unwrap_or_default();
    let component = or(text(source, "/component"), reporter);
    let host = or(text(source, "/host"), text(object, "/reportingInstance"));
    if host.is_empty() { component.into() } else { format!("{component}, {host}").into() }
}

pub fn event_message(object: &Value, _: Timestamp) -> Value {
    event_field(object, "/message", "/note").as_str().unwrap_or_default().trim().into()
}
