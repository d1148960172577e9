use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::patch::tests::any_json;
use crate::resources::RESOURCES;
use crate::{decode, defaults};

/// Objects sent to a kube-apiserver 1.36, and what it said about them.
fn golden() -> Value {
    serde_json::from_str(include_str!("golden.json")).unwrap()
}

type Cause = (String, String, String);

fn ours(errors: Vec<FieldError>) -> Vec<Cause> {
    let cause = |e: &FieldError| (e.kind.cause().to_owned(), e.path.clone(), comparable(&e.message()));
    let mut causes: Vec<_> = errors.iter().map(cause).collect();
    causes.sort();
    causes.dedup();
    causes
}

fn theirs(case: &Value) -> Vec<Cause> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let causes = case["causes"].as_array().into_iter().flatten();
    let mut causes: Vec<_> = causes
        // Whether containers may be privileged is a setting of that server.
        .filter(|c| c["message"] != "Forbidden: disallowed by cluster policy")
        .map(|c| (text(&c["reason"]), text(&c["field"]), comparable(&text(&c["message"]))))
        .collect();
    causes.sort();
    causes.dedup();
    causes
}

/// Go shows some values in its own way: structs with their internal names, and differences between objects.
fn comparable(message: &str) -> String {
    let message = message.split('\n').next().unwrap_or_default();
    match message.find("value: {").or_else(|| message.find("value: [{")) {
        Some(at) => {
            let detail = message.rsplit_once("}: ").or(message.rsplit_once("]: ")).map_or("", |(_, d)| d);
            format!("{}value: …: {detail}", &message[..at])
        }
        None => message.to_owned(),
    }
}

fn resource(kind: &str, version: &str) -> &'static crate::resources::Resource {
    RESOURCES.iter().find(|r| r.kind == kind && r.api_version() == version).unwrap()
}

/// What the server checks: the decoded and defaulted object.
fn prepared(object: &Value) -> Value {
    let kind = resource(object["kind"].as_str().unwrap(), object["apiVersion"].as_str().unwrap()).type_();
    let mut value = decode::value(object.clone(), kind).unwrap().value;
    defaults::apply(&mut value, kind, "2026-01-01T00:00:00Z".parse().unwrap());
    value
}

#[test]
fn creates_are_refused_for_upstreams_reasons() {
    let mut wrong = Vec::new();
    for case in golden()["creates"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let row = resource(kind, case["object"]["apiVersion"].as_str().unwrap());
        let object = prepared(&case["object"]);
        let found = ours(create(row.group, kind, row.namespaced, &object));
        if found != theirs(case) {
            wrong.push(format!("{}\n  ours:   {found:?}\n  theirs: {:?}", case["object"], theirs(case)));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn updates_are_refused_for_upstreams_reasons() {
    let mut wrong = Vec::new();
    for case in golden()["updates"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let row = resource(kind, case["object"]["apiVersion"].as_str().unwrap());
        let found = ours(update(row.group, kind, &prepared(&case["object"]), &case["old"]));
        if found != theirs(case) {
            wrong.push(format!("{}\n  ours:   {found:?}\n  theirs: {:?}", case["object"], theirs(case)));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn counters_in_a_status_must_fit_together() {
    let old = json!({"kind": "Deployment", "metadata": {"name": "a", "resourceVersion": "1"}, "status": {}});
    let mut new = old.clone();
    new["status"] = json!({"replicas": 1, "readyReplicas": 2, "availableReplicas": -1});
    let paths: Vec<_> =
        status_update("apps", "Deployment", &new, &old).into_iter().map(|e| e.to_string()).collect();
    assert_eq!(
        paths,
        [
            "status.availableReplicas: Invalid value: -1: must be greater than or equal to 0",
            "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
        ]
    );
}

#[test]
fn field_managers_are_short_and_printable() {
    assert!(field_manager("kubectl").is_empty());
    assert_eq!(field_manager(&"a".repeat(129)).len(), 1);
    assert_eq!(field_manager("a\nb")[0].path, "fieldManager");
}

proptest! {
    #[test]
    fn no_json_makes_validation_panic(object in any_json(), old in any_json()) {
        for row in RESOURCES {
            create(row.group, row.kind, row.namespaced, &object);
            update(row.group, row.kind, &object, &old);
            status_update(row.group, row.kind, &object, &old);
        }
    }
}
