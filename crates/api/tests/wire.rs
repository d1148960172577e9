//! What hubs and sites of the first release say to each other and keep, as it was recorded: a hub and a site of another
//! release read it, and write nothing that those could not read.
//!
//! `wire/*.json` were taken from running programs (a Deployment that was placed and runs, a workload that may run at most
//! once, a tombstone). They are never changed; a release that says more adds files of its own.

use kube::core::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tombolo_api::{Placement, Site, Work};

const WORKS: [&str; 3] = [
    include_str!("wire/work-running.json"),
    include_str!("wire/work-once.json"),
    include_str!("wire/work-tombstone.json"),
];
const SITE: &str = include_str!("wire/site.json");
const PLACEMENT: &str = include_str!("wire/placement.json");

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("a recording is JSON")
}

/// Where `inside` says what `outer` does not.
fn missing(inside: &Value, outer: &Value, at: &str) -> Option<String> {
    match (inside, outer) {
        (Value::Object(inside), Value::Object(outer)) => inside.iter().find_map(|(key, value)| {
            let at = format!("{at}/{key}");
            missing(value, outer.get(key).unwrap_or(&Value::Null), &at)
        }),
        (Value::Array(inside), Value::Array(outer)) if inside.len() == outer.len() => {
            let both = inside.iter().zip(outer).enumerate();
            both.into_iter().find_map(|(n, (a, b))| missing(a, b, &format!("{at}/{n}")))
        }
        (inside, outer) if inside == outer => None,
        // Nothing in it, and not said, are one to every reader.
        (Value::Array(inside), Value::Null) if inside.is_empty() => None,
        (Value::Object(inside), Value::Null) if inside.is_empty() => None,
        (inside, outer) => Some(format!("{at}: {inside} became {outer}")),
    }
}

/// Fields of our own kinds; what is in `object` and `with` belongs to others.
fn each_object(value: &mut Value, act: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                if !["object", "with", "metadata", "delegate", "labels"].contains(&key.as_str()) {
                    each_object(field, act);
                }
            }
            act(fields);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each_object(item, act)),
        _ => {}
    }
}

/// Maps with keys of users' own: a field more in them is an entry more.
fn is_open(fields: &Map<String, Value>) -> bool {
    let quantities = ["cpu", "memory", "pods"].iter().any(|name| fields.contains_key(*name));
    quantities
        || fields.values().all(|value| value.get("phase").is_some())
        || fields.contains_key("matchLabels")
}

fn survives<T: DeserializeOwned + Serialize + Resource>(text: &str) {
    let recorded = parsed(text);
    let read: T = serde_json::from_value(recorded.clone()).expect("a recording is understood");
    let written = serde_json::to_value(&read).expect("JSON");
    // What the first release wrote, this one writes: nothing that a reader of then looks for is gone or has another form.
    assert_eq!(missing(&recorded, &written, ""), None);

    // A later one may say more, anywhere.
    let mut newer = recorded.clone();
    for part in ["spec", "status"] {
        if let Some(part) = newer.get_mut(part) {
            each_object(part, &mut |fields| {
                if !is_open(fields) {
                    fields.insert("saidLater".into(), json!({"by": "another release"}));
                }
            });
        }
    }
    assert_ne!(newer, recorded);
    let understood: T = serde_json::from_value(newer).expect("what is not known is left out");
    assert_eq!(serde_json::to_value(&understood).expect("JSON"), written);

    // And an earlier one may have said less, of anything.
    let mut names = std::collections::BTreeSet::new();
    for part in ["spec", "status"] {
        if let Some(part) = recorded.get(part) {
            each_object(&mut part.clone(), &mut |fields| names.extend(fields.keys().cloned()));
        }
    }
    for name in names {
        let mut older = recorded.clone();
        for part in ["spec", "status"] {
            if let Some(part) = older.get_mut(part) {
                each_object(part, &mut |fields| drop(fields.remove(&name)));
            }
        }
        if let Err(error) = serde_json::from_value::<T>(older) {
            panic!("without {name} it is not understood: {error}");
        }
    }
}

#[test]
fn works_of_the_first_release_are_read_and_written() {
    for work in WORKS {
        survives::<Work>(work);
    }
}

#[test]
fn sites_of_the_first_release_are_read_and_written() {
    survives::<Site>(SITE);
}

#[test]
fn placements_of_the_first_release_are_read_and_written() {
    survives::<Placement>(PLACEMENT);
}

/// The recordings have in them what matters.
#[test]
fn the_recordings_say_what_hub_and_site_live_on() {
    let [running, once, tombstone] = WORKS.map(|text| serde_json::from_str::<Work>(text).expect("a Work"));
    let status = running.status.expect("a status");
    assert!(status.object.is_some() && !status.pods.is_empty() && status.root_generation > 0);
    assert!(running.spec.hub.epoch > 0 && !running.spec.with.is_empty() && running.spec.replicas.is_some());
    assert!(once.spec.lease.is_some_and(|lease| lease.seconds > 0));
    assert!(once.status.is_some_and(|status| status.tie.is_some()));
    assert!(tombstone.spec.tombstone.is_some_and(|tombstone| tombstone.epoch > 0));
    let site: Site = serde_json::from_str(SITE).expect("a Site");
    let status = site.status.clone().expect("a status");
    assert!(
        site.is_ready() && status.hub_epoch.is_some() && !status.shapes.is_empty() && status.agent.is_some()
    );
}
