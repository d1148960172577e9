//! Events, which the older group takes almost as they come and the newer one checks.

use serde_json::Value;

use super::at::{At, Errors};
use crate::names;

/// What both groups call by names of their own.
struct Names {
    subject: &'static str,
    reporter: &'static str,
    message: &'static str,
}

const CORE: Names = Names { subject: "involvedObject", reporter: "reportingComponent", message: "message" };
const EVENTS: Names = Names { subject: "regarding", reporter: "reportingController", message: "note" };

pub(super) fn core_event(e: &mut Errors, event: &At<'_, '_>) {
    common(e, event, &CORE);
}

pub(super) fn core_event_update(e: &mut Errors, event: &At<'_, '_>, _old: &Value) {
    common(e, event, &CORE);
}

pub(super) fn event(e: &mut Errors, event: &At<'_, '_>) {
    common(e, event, &EVENTS);
    let metadata = event.get("metadata");
    let name = metadata.get("name");
    e.complaints(&name, names::dns_subdomain(name.str()));
    series(e, event);
    if event.get("eventTime").is_empty() {
        e.required(&event.get("eventTime"), "");
    }
    let kind = event.get("type");
    if !matches!(kind.str(), "Normal" | "Warning") {
        e.invalid_value(&kind, &Value::from(""), format!("has invalid value: {}", kind.str()));
    }
    for (field, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ] {
        let value = event.get(field).value;
        let unset = match value {
            Value::Object(source) => source.values().all(|v| v == "" || v.is_null()),
            value => value.is_null() || value == 0,
        };
        if !unset {
            e.invalid_value(&event.get(shown), &Value::from(""), "needs to be unset");
        }
    }
}

pub(super) fn event_update(e: &mut Errors, event: &At<'_, '_>, old: &Value) {
    common(e, event, &EVENTS);
    if !super::same(event.get("series").value, &old["series"]) {
        series(e, event);
    }
    for (field, shown) in [
        ("regarding", "involvedObject"),
        ("reason", "reason"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        e.immutable(&event.get(shown).with(event.get(field).value), &old[field]);
    }
}

/// What any event must satisfy. One with a time was made by a client that knows the newer group.
fn common(e: &mut Errors, event: &At<'_, '_>, names: &Names) {
    let metadata = event.get("metadata");
    let namespace = metadata.get("namespace").str();
    let subject = event.get(names.subject);
    let of_subject = subject.get("namespace");
    let dated = !event.get("eventTime").is_empty();
    let astray = match (of_subject.str(), dated) {
        ("", true) => !matches!(namespace, "default" | "kube-system"),
        ("", false) => !matches!(namespace, "" | "default"),
        (of_subject, _) => !dated && of_subject != namespace,
    };
    if astray {
        // The older group's name is told to clients of both.
        let place = event.get("involvedObject");
        let shown = Value::from(of_subject.str());
        e.invalid_value(&place.get("namespace"), &shown, "does not match event.namespace");
    }
    if !dated {
        return;
    }
    let reporter = event.get(names.reporter);
    if reporter.is_empty() {
        e.required(&reporter, "");
    }
    e.complaints(&reporter, crate::names::label_key(reporter.str()));
    for field in ["reportingInstance", "action", "reason"] {
        let at = event.get(field);
        if at.is_empty() {
            e.required(&at, "");
        }
        at_most(e, &at, at.str(), 128);
    }
    at_most(e, &event.get("message"), event.get(names.message).str(), 1024);
}

fn at_most(e: &mut Errors, at: &At<'_, '_>, text: &str, most: usize) {
    if text.len() > most {
        e.invalid_value(at, &Value::from(""), format!("can have at most {most} characters"));
    }
}

fn series(e: &mut Errors, event: &At<'_, '_>) {
    let series = event.get("series");
    if !series.is_set() {
        return;
    }
    if series.get("count").int().unwrap_or_default() < 2 {
        e.invalid_value(&series.get("count"), &Value::from(""), "should be at least 2");
    }
    if series.get("lastObservedTime").is_empty() {
        e.required(&series.get("lastObservedTime"), "");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn said(group: &str, event: &Value) -> Vec<String> {
        crate::validate::create(group, "Event", true, event).into_iter().map(|e| e.path).collect()
    }

    #[test]
    fn the_newer_group_asks_for_more() {
        let event = json!({"metadata": {"name": "a", "namespace": "default"}});
        assert!(said("", &event).is_empty());
        assert_eq!(said("events.k8s.io", &event), ["eventTime", "type"]);
    }

    #[test]
    fn an_event_lives_beside_its_subject() {
        let event = json!({
            "metadata": {"name": "a", "namespace": "here"}, "involvedObject": {"namespace": "there"},
        });
        assert_eq!(said("", &event), ["involvedObject.namespace"]);
    }
}
