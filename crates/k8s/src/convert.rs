//! Between versions of the built-in kinds that are served in more than one: events, which two groups serve, and
//! autoscalers. Everything else is served in one stable version.
//!
//! A conversion loses nothing: what the older version has no field for travels in upstream's annotations.

mod autoscaler;

use serde_json::{Map, Value};

use crate::{decode, schema};

/// The group-version in which a kind is stored, when it is served in several.
pub fn storage_version(group: &str, kind: &str) -> Option<(&'static str, &'static str)> {
    match (group, kind) {
        ("" | "events.k8s.io", "Event") => Some(("", "v1")),
        ("autoscaling", "HorizontalPodAutoscaler") => Some(("autoscaling", "v2")),
        _ => None,
    }
}

/// Converts an object to another group-version of its kind. Objects of kinds with one version come back as they are.
pub fn convert(object: Value, group: &str, version: &str) -> Value {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let from = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let to = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    if from == to {
        return object;
    }
    let Value::Object(mut fields) = object else { return object };
    match (kind.as_str(), to.as_str()) {
        ("Event", "events.k8s.io/v1") => rename(&mut fields, |(core, new)| (core, new)),
        ("Event", "v1") => rename(&mut fields, |(core, new)| (new, core)),
        ("HorizontalPodAutoscaler", "autoscaling/v1") => autoscaler::to_v1(&mut fields),
        ("HorizontalPodAutoscaler", "autoscaling/v2") => autoscaler::to_v2(&mut fields),
        _ => return Value::Object(fields),
    }
    fields.insert("apiVersion".to_owned(), to.into());
    let object = Value::Object(fields);
    // Each version writes its own empty fields.
    let type_ = schema::type_of(group, version, &kind);
    match type_.map(|t| decode::value(object.clone(), t)) {
        Some(Ok(decoded)) => decoded.value,
        _ => object,
    }
}

/// Fields of core/v1 events and their names in events.k8s.io/v1.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn rename(
    fields: &mut Map<String, Value>,
    direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    for (from, to) in EVENT_FIELDS.map(direction) {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests;
