//! JSON patches, merge patches and strategic merge patches of objects that are there, as dry runs.

use http::Method;
use serde_json::{Map, Value, json};

use crate::answers::Case;
use crate::damage::{damages, walk};

pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// An object that both servers have.
pub struct Target {
    pub kind: String,
    pub path: String,
    pub object: Value,
    pub custom: bool,
}

impl Target {
    fn case(&self, what: String, query: &str, content: &'static str, body: &Value) -> Case {
        let path = format!("{}?dryRun=All{query}", self.path);
        Case::new(&self.kind, what, Method::PATCH, path, body).content(content)
    }
}

/// What upstream alone minds: fields that are only written, or are raw, and a counter in an annotation. And who owns a port that is there twice, or anything
/// once a status that nobody takes does not fit the schema, matters to nobody.
fn is_left_out(target: &Target, spot: &str, what: &str) -> bool {
    let kind = target.object["kind"].as_str().unwrap_or_default();
    match kind {
        "Secret" => spot == "/stringData" && what.ends_with(" kept"),
        "ControllerRevision" => spot == "/data",
        "Deployment" => spot.ends_with("/ports") && what == "doubled",
        "DaemonSet" => spot == "/metadata" && (what == "replaced" || what == "some kept"),
        "Widget" | "Plan" => spot.starts_with("/status") && (what.contains(" for ") || what == "null item"),
        _ => false,
    }
}

/// At every place: removed, of another type, and what lists and maps can be told to do.
pub fn add_everywhere(target: &Target, cases: &mut Vec<Case>) {
    let mut spots = Vec::new();
    walk(&target.object, String::new(), &mut spots);
    for spot in
        spots.iter().filter(|spot| !["", "/apiVersion", "/kind", "/metadata/name"].contains(&spot.as_str()))
    {
        let value = target.object.pointer(spot).unwrap_or(&Value::Null);
        let mut add = |what: &str, content: &'static str, patch: &Value| {
            if (content != STRATEGIC || !target.custom) && !is_left_out(target, spot, what) {
                let short = content.trim_start_matches("application/").split('-').next().unwrap_or_default();
                cases.push(target.case(format!("{short} {spot} {what}"), "", content, patch));
            }
        };
        add("removed", JSON_PATCH, &json!([{"op": "remove", "path": spot}]));
        let damages = damages(value);
        if let Some((what, Some(other))) = damages.last() {
            add(what, JSON_PATCH, &json!([{"op": "replace", "path": spot, "value": other}]));
        }
        let steps: Vec<String> =
            spot.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        // Patches other than JSON patches cannot point into lists.
        if steps.iter().any(|step| step.parse::<usize>().is_ok()) {
            continue;
        }
        for content in [MERGE, STRATEGIC] {
            add("null", content, &nested(&steps, Value::Null));
            if let Some((what, Some(other))) = damages.last() {
                add(what, content, &nested(&steps, other.clone()));
            }
        }
        for (what, patch) in strategies(steps.last().map_or("", String::as_str), value) {
            add(what, STRATEGIC, &nested(&steps[..steps.len() - 1], patch));
        }
    }
}

/// A value at a place where nothing else is.
fn nested(steps: &[String], value: Value) -> Value {
    steps.iter().rev().fold(value, |value, step| Value::Object(Map::from_iter([(step.clone(), value)])))
}

/// Patches of the parent of a field that use what only strategic merge patches know.
fn strategies(name: &str, value: &Value) -> Vec<(&'static str, Value)> {
    let member = |key: String, value: Value| Value::Object(Map::from_iter([(key, value)]));
    let both = |order: Value, list: Value| json!({(format!("$setElementOrder/{name}")): order, (name.to_owned()): list});
    match value {
        Value::Array(items) => {
            let Some(first) = items.first() else { return Vec::new() };
            let reversed: Vec<&Value> = items.iter().rev().collect();
            let mut out = vec![
                ("replaced", member(name.into(), json!([{"$patch": "replace"}, first]))),
                ("emptied", member(name.into(), json!([{"$patch": "replace"}]))),
                ("in another order", both(json!(reversed), json!(items))),
                ("only ordered", member(format!("$setElementOrder/{name}"), json!(reversed))),
                ("deleted from", member(format!("$deleteFromPrimitiveList/{name}"), json!([first]))),
                ("with an unknown directive", member(name.into(), json!([{"$patch": "whatever"}]))),
            ];
            if let Some(keyed) = first.as_object() {
                let (key, old) = KEYS
                    .iter()
                    .find_map(|key| keyed.get_key_value(*key))
                    .unwrap_or_else(|| keyed.iter().next().expect("the corpus has no empty items"));
                let new = match old {
                    Value::Number(n) => json!(n.as_i64().unwrap_or_default() + 1),
                    _ => json!("more"),
                };
                let with = |more: &[(&str, Value)]| {
                    let mut item = keyed.clone();
                    item.extend(more.iter().map(|(k, v)| ((*k).to_owned(), v.clone())));
                    Value::Object(item)
                };
                let only = |value: &Value| json!({(key.clone()): value});
                out.push((
                    "item deleted",
                    member(name.into(), json!([{(key.clone()): old, "$patch": "delete"}])),
                ));
                out.push((
                    "missing item deleted",
                    member(name.into(), json!([{(key.clone()): new, "$patch": "delete"}])),
                ));
                out.push(("item added", member(name.into(), json!([with(&[(key, new.clone())])]))));
                out.push((
                    "item added in order",
                    both(json!([only(&new), only(old)]), json!([with(&[(key, new.clone())])])),
                ));
                out.push(("item without a key", member(name.into(), json!([{"unheard": 1}]))));
                out.push(("item with null", member(name.into(), json!([with(&[("unheard", Value::Null)])]))));
            } else {
                out.push(("item added", member(name.into(), json!(["more"]))));
                out.push(("item added in order", both(json!(["more", first]), json!(["more"]))));
                out.push((
                    "missing item deleted",
                    member(format!("$deleteFromPrimitiveList/{name}"), json!(["x"])),
                ));
            }
            out
        }
        Value::Object(fields) => {
            let Some((first, content)) = fields.iter().next() else { return Vec::new() };
            vec![
                ("replaced", member(name.into(), json!({(first.clone()): content, "$patch": "replace"}))),
                ("deleted", member(name.into(), json!({"$patch": "delete"}))),
                ("merged", member(name.into(), json!({"$patch": "merge"}))),
                ("with an unknown directive", member(name.into(), json!({"$patch": "whatever"}))),
                ("some kept", member(name.into(), json!({(first.clone()): content, "$retainKeys": [first]}))),
                ("none kept", member(name.into(), json!({(first.clone()): content, "$retainKeys": []}))),
                ("unknown field", member(name.into(), json!({"unheard": {"a": 1}}))),
            ]
        }
        _ => Vec::new(),
    }
}

/// What tells the items of lists apart, for most lists.
const KEYS: &[&str] =
    &["name", "containerPort", "port", "mountPath", "topologyKey", "type", "key", "ip", "uid"];

/// What does not depend on the object's content: odd paths, options and types of patches.
pub fn add_general(target: &Target, cases: &mut Vec<Case>) {
    let name = target.object["metadata"]["name"].clone();
    let operations = [
        ("nothing", json!([])),
        ("test fails", json!([{"op": "test", "path": "/metadata/name", "value": "other"}])),
        ("test passes", json!([{"op": "test", "path": "/metadata/name", "value": name}])),
        ("test of nothing", json!([{"op": "test", "path": "/metadata/nothing", "value": 1}])),
        ("test of nothing for null", json!([{"op": "test", "path": "/metadata/nothing", "value": null}])),
        ("remove nothing", json!([{"op": "remove", "path": "/metadata/nothing"}])),
        ("replace nothing", json!([{"op": "replace", "path": "/metadata/nothing", "value": 1}])),
        ("add below nothing", json!([{"op": "add", "path": "/nothing/below", "value": 1}])),
        (
            "add a label",
            json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b", "c~d/e": "f"}}]),
        ),
        (
            "escapes",
            json!([{"op": "add", "path": "/metadata/annotations", "value": {}}, {"op": "add", "path": "/metadata/annotations/a~1b", "value": "c"}]),
        ),
        (
            "add at the end",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "add", "path": "/metadata/finalizers/-", "value": "c/d"}]),
        ),
        (
            "add in front",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "add", "path": "/metadata/finalizers/0", "value": "c/d"}]),
        ),
        (
            "add past the end",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "add", "path": "/metadata/finalizers/5", "value": "c/d"}]),
        ),
        (
            "negative index",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "add", "path": "/metadata/finalizers/-1", "value": "c/d"}]),
        ),
        (
            "index with zeros",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a/b", "c/d"]}, {"op": "remove", "path": "/metadata/finalizers/01"}]),
        ),
        (
            "index of letters",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "remove", "path": "/metadata/finalizers/x"}]),
        ),
        (
            "move",
            json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}, {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}]),
        ),
        (
            "move nothing",
            json!([{"op": "move", "from": "/metadata/labels/nothing", "path": "/metadata/labels/c"}]),
        ),
        ("copy", json!([{"op": "copy", "from": "/metadata/name", "path": "/metadata/generateName"}])),
        ("unknown operation", json!([{"op": "change", "path": "/metadata/labels"}])),
        ("no operation", json!([{"path": "/metadata/labels"}])),
        ("no path", json!([{"op": "remove"}])),
        ("path without slash", json!([{"op": "remove", "path": "metadata"}])),
        ("no value", json!([{"op": "add", "path": "/metadata/labels"}])),
        ("null value", json!([{"op": "add", "path": "/metadata/labels", "value": null}])),
        ("whole object", json!([{"op": "replace", "path": "", "value": target.object}])),
        ("whole object removed", json!([{"op": "remove", "path": ""}])),
        ("an object", json!({"op": "remove", "path": "/metadata/labels"})),
        ("a text", json!("text")),
        ("numbers", json!([1, 2])),
        ("metadata removed", json!([{"op": "remove", "path": "/metadata"}])),
        ("kind removed", json!([{"op": "remove", "path": "/kind"}])),
        ("other kind", json!([{"op": "replace", "path": "/kind", "value": "Other"}])),
        ("other version", json!([{"op": "replace", "path": "/apiVersion", "value": "other/v1"}])),
    ];
    cases.extend(
        operations.iter().map(|(what, patch)| target.case(format!("json: {what}"), "", JSON_PATCH, patch)),
    );

    let mut contents = vec![MERGE];
    if !target.custom {
        contents.push(STRATEGIC);
    }
    let merges = [
        ("nothing", json!({})),
        ("null", json!(null)),
        ("a list", json!([])),
        ("a text", json!("text")),
        ("metadata null", json!({"metadata": null})),
        ("name", json!({"metadata": {"name": "other"}})),
        ("name null", json!({"metadata": {"name": null}})),
        ("namespace", json!({"metadata": {"namespace": "other"}})),
        ("uid", json!({"metadata": {"uid": "other"}})),
        ("version", json!({"metadata": {"resourceVersion": "1"}})),
        ("version of letters", json!({"metadata": {"resourceVersion": "x"}})),
        ("version null", json!({"metadata": {"resourceVersion": null}})),
        ("created", json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}})),
        ("generation", json!({"metadata": {"generation": 99}})),
        ("deleted", json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}})),
        ("label", json!({"metadata": {"labels": {"a": "b"}}})),
        ("label null", json!({"metadata": {"labels": {"a": null}}})),
        ("bad label", json!({"metadata": {"labels": {"a": "b c"}}})),
        ("label of a number", json!({"metadata": {"labels": {"a": 1}}})),
        ("bad annotation", json!({"metadata": {"annotations": {"a b": "c"}}})),
        ("finalizer", json!({"metadata": {"finalizers": ["example.com/a"]}})),
        ("bad finalizer", json!({"metadata": {"finalizers": ["a b"]}})),
        (
            "owner",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}}),
        ),
        ("bad owner", json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}]}})),
        ("owners forgotten", json!({"metadata": {"managedFields": []}})),
        ("owners null", json!({"metadata": {"managedFields": null}})),
        ("owners of no kind", json!({"metadata": {"managedFields": [{"manager": "x"}]}})),
        ("kind", json!({"kind": "Other"})),
        ("kind null", json!({"kind": null})),
        ("version of the kind", json!({"apiVersion": "other/v1"})),
    ];
    for content in contents {
        let named = |what: &str| format!("{content}: {what}");
        cases.extend(merges.iter().map(|(what, patch)| target.case(named(what), "", content, patch)));
        let unknown = json!({"unheard": 1, "metadata": {"unheard": 1}});
        for query in [
            "&fieldValidation=Strict",
            "&fieldValidation=Warn",
            "&fieldValidation=Ignore",
            "&fieldValidation=Other",
            "&force=true",
            "&fieldManager=somebody",
            "&fieldManager=",
            "&dryRun=Some",
            "&pretty=true",
        ] {
            cases.push(target.case(named(query), query, content, &unknown));
        }
        let long = format!("&fieldManager={}", "x".repeat(129));
        cases.push(target.case(named("long manager"), &long, content, &json!({})));
        let path = format!("{}?dryRun=All", target.path);
        for (what, body) in [
            ("cut off", "{\"metadata\":"),
            ("empty", ""),
            ("twice", "{\"metadata\":{},\"metadata\":{\"labels\":{\"x\":\"y\"}}}"),
            ("no JSON", "a: b"),
        ] {
            let case = Case::raw(&target.kind, named(what), Method::PATCH, path.clone(), body.into());
            cases.push(case.content(content));
        }
        let missing = format!("{}-missing?dryRun=All", target.path);
        cases.push(
            Case::new(&target.kind, named("missing"), Method::PATCH, missing, &json!({})).content(content),
        );
    }
    for content in [
        "application/json",
        "application/yaml",
        "text/plain",
        "",
        "application/merge-patch+json; charset=utf-8",
        STRATEGIC,
        "application/apply-patch+cbor",
    ] {
        cases.push(target.case(format!("content {content}"), "", content, &json!({})));
    }
}
