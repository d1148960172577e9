use proptest::prelude::*;
use serde_json::{Value, json};

use super::compare::{Delta, Side};
use super::*;
use crate::crd;
use crate::patch::tests::any_json;
use crate::schema::{Type, type_of};

const NOW: &str = "2026-01-02T03:04:05Z";

fn kind(api_version: &str, kind: &str) -> &'static Type {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    type_of(group, version, kind).expect("a built-in kind")
}

fn write(manager: &'static str, api_version: &'static str) -> Write<'static> {
    Write { manager, subresource: "", api_version, now: NOW, reset: &[] }
}

/// Entries without their times, ordered by identity.
fn owners(list: Option<&Value>) -> Vec<Entry> {
    let mut entries = decode(list, true).unwrap();
    entries.iter_mut().for_each(|e| e.time = None);
    entries.sort_by_key(|e| (e.manager.clone(), e.applied, e.subresource.clone()));
    entries
}

/// Everything in `part` is in `whole`.
fn within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(k, v)| {
            k == "managedFields"
                || *v == json!({})
                || v.is_null()
                || whole.get(k).is_some_and(|w| within(v, w))
        }),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(p, w)| within(p, w))
        }
        _ => part == whole,
    }
}

/// `golden.json` holds conversations with a kube-apiserver 1.36: what was sent and what came back.
#[test]
fn ownership_moves_as_on_a_real_api_server() {
    let chains: Vec<Value> = serde_json::from_str(include_str!("golden.json")).unwrap();
    for chain in &chains {
        let (version, name) = (chain["apiVersion"].as_str().unwrap(), chain["kind"].as_str().unwrap());
        let schema = Schema::Type(kind(version, name));
        let mut live: Option<&Value> = None;
        for (i, step) in chain["steps"].as_array().unwrap().iter().enumerate() {
            let text = |field: &str| step[field].as_str().unwrap();
            let has_status = name != "ConfigMap" && name != "Role";
            let write = Write {
                manager: text("manager"),
                subresource: text("subresource"),
                api_version: version,
                now: "2099-01-01T00:00:00Z",
                reset: reset_fields(name, has_status, text("subresource")),
            };
            let context = format!("{name} step {i}: {} by {}", text("op"), text("manager"));
            let result = step.get("result");
            if text("op") == "apply" {
                let outcome = apply(live, &step["config"], schema, &write, step["force"] == true);
                match (outcome, result) {
                    (Ok(applied), Some(result)) => {
                        let ours = owners(managed_fields(&applied.object));
                        assert_eq!(ours, owners(managed_fields(result)), "{context}");
                        let mut object = applied.object.clone();
                        for field in ["resourceVersion", "generation"] {
                            object["metadata"].as_object_mut().unwrap().remove(field);
                        }
                        assert!(within(&object, result), "{context}: {object:#} is not within {result:#}");
                    }
                    (Err(error), None) => {
                        assert_eq!(error.to_string(), text("message"), "{context}");
                        if let ApplyError::Conflicts(conflicts) = &error
                            && conflicts.0.len() == 1
                        {
                            let cause = &step["causes"][0];
                            assert_eq!(conflicts.0[0].message(), cause["message"].as_str().unwrap());
                            assert_eq!(conflicts.0[0].field(), cause["field"].as_str().unwrap());
                        }
                    }
                    (ours, _) => panic!("{context}: {ours:?}"),
                }
            } else {
                // The client sends what it read; the answer carries the new owners.
                let mut sent = result.unwrap().clone();
                sent["metadata"].as_object_mut().unwrap().remove("managedFields");
                // Admission adds these after ownership is recorded.
                for field in ["priority", "preemptionPolicy"] {
                    sent.get_mut("spec").and_then(Value::as_object_mut).map(|spec| spec.remove(field));
                }
                let ours = track_update(live, &sent, schema, &write);
                let theirs = managed_fields(result.unwrap());
                assert_eq!(owners(ours.as_ref()), owners(theirs), "{context}");
            }
            live = result.or(live);
        }
    }
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "d"}, "data": data})
}

#[test]
fn an_unchanged_write_keeps_the_owners_and_their_times() {
    let schema = Schema::Type(kind("v1", "ConfigMap"));
    let mut live = config_map(json!({"a": "1"}));
    live["metadata"]["managedFields"] = track_update(None, &live, schema, &write("one", "v1")).unwrap();
    let later = Write { now: "2027-01-01T00:00:00Z", ..write("two", "v1") };
    assert_eq!(track_update(Some(&live), &live, schema, &later).as_ref(), managed_fields(&live));
    let again = apply(Some(&live), &config_map(json!({"a": "1"})), schema, &later, false).unwrap();
    assert!(!again.changed);
}

#[test]
fn an_empty_list_forgets_all_owners() {
    let schema = Schema::Type(kind("v1", "ConfigMap"));
    let mut live = config_map(json!({"a": "1"}));
    live["metadata"]["managedFields"] = track_update(None, &live, schema, &write("one", "v1")).unwrap();
    let mut new = config_map(json!({"a": "2"}));
    new["metadata"]["managedFields"] = json!([{}]);
    assert_eq!(track_update(Some(&live), &new, schema, &write("two", "v1")), None);
}

#[test]
fn several_conflicts_are_listed_by_owner() {
    let schema = Schema::Type(kind("v1", "ConfigMap"));
    let mut live = config_map(json!({"a": "1", "b": "1"}));
    live["metadata"]["managedFields"] = track_update(None, &live, schema, &write("one", "v1")).unwrap();
    let config = config_map(json!({"a": "2", "b": "2"}));
    let error = apply(Some(&live), &config, schema, &write("two", "v1"), false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"one\" using v1:\n- .data.a\n- .data.b"
    );
}

#[test]
fn custom_resources_are_owned_as_their_schema_says() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"}}}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "plain": {"type": "array", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}}});
    let schema = crd::Schema::parse(&schema).unwrap();
    let schema = Schema::Root(&schema);
    let config = json!({"apiVersion": "x.io/v1", "kind": "X", "metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {
        "ports": [{"port": 80, "name": "web"}], "tags": ["a"], "plain": ["b"], "free": {"deep": {"er": [1]}}}});
    let applied = apply(None, &config, schema, &write("me", "x.io/v1"), false).unwrap();
    let expected = json!({
        "f:metadata": {"f:labels": {"f:a": {}}},
        "f:spec": {
            "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}}},
            "f:tags": {"v:\"a\"": {}}, "f:plain": {}, "f:free": {"f:deep": {".": {}, "f:er": {}}}}});
    assert_eq!(applied.object["metadata"]["managedFields"][0]["fieldsV1"], expected);
    let twice = json!({"apiVersion": "x.io/v1", "kind": "X", "metadata": {"name": "x"}, "spec": {"tags": ["a", "a"], "no": 1}});
    let error = apply(None, &twice, schema, &write("me", "x.io/v1"), false).unwrap_err().to_string();
    assert!(error.contains(".spec.no: field not declared in schema"), "{error}");
    assert!(error.contains(".spec.tags: duplicate entries for key [=\"a\"]"), "{error}");
}

#[test]
fn scheduled_updates_of_many_managers_are_bounded() {
    let schema = Schema::Type(kind("v1", "ConfigMap"));
    let mut live = config_map(json!({}));
    for i in 0..30 {
        let mut new = live.clone();
        new["data"][format!("k{i}")] = json!("v");
        let manager = format!("m{i:02}");
        let write = Write { manager: &manager, ..write("", "v1") };
        let owners = track_update(if i == 0 { None } else { Some(&live) }, &new, schema, &write);
        new["metadata"]["managedFields"] = owners.unwrap();
        live = new;
    }
    let entries = decode(managed_fields(&live), true).unwrap();
    assert_eq!(entries.len(), 10);
    assert!(entries.iter().any(|e| e.manager == "ancient-changes"));
}

/// An object with pod-like lists, small enough that two of them often meet.
fn any_pod() -> impl Strategy<Value = Value> {
    let text = || prop::sample::select(vec!["a", "b", "c"]);
    let port = (80..83u16, prop::option::of(prop::sample::select(vec!["TCP", "UDP"]))).prop_map(
        |(port, protocol)| match protocol {
            Some(protocol) => json!({"containerPort": port, "protocol": protocol}),
            None => json!({"containerPort": port}),
        },
    );
    let ports = prop::collection::vec(port, 0..3).prop_map(unique(&["containerPort", "protocol"]));
    let container = (text(), text(), ports)
        .prop_map(|(name, image, ports)| json!({"name": name, "image": image, "ports": ports}));
    let containers = prop::collection::vec(container, 0..3).prop_map(unique(&["name"]));
    let labels = prop::collection::btree_map(text(), text(), 0..3);
    let finalizers = prop::collection::btree_set(text(), 0..3);
    (containers, labels, finalizers, prop::option::of(text())).prop_map(|(containers, labels, finalizers, node)| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels,
            "finalizers": finalizers}, "spec": {"containers": containers, "nodeName": node}});
        without_empty(&mut pod);
        pod
    })
}

/// Nobody owns an empty list, so a configuration that has one cannot be undone.
fn without_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(without_empty);
            map.retain(|_, v| !matches!(v, Value::Null) && *v != json!([]) && *v != json!({}));
        }
        Value::Array(list) => list.iter_mut().for_each(without_empty),
        _ => {}
    }
}

fn unique(keys: &'static [&'static str]) -> impl Fn(Vec<Value>) -> Vec<Value> + Clone {
    move |items| {
        let mut out: Vec<Value> = Vec::new();
        for item in items {
            let key = |v: &Value| -> Vec<Value> {
                keys.iter().map(|k| v.get(k).cloned().unwrap_or_else(|| json!("TCP"))).collect()
            };
            if !out.iter().any(|o| key(o) == key(&item)) {
                out.push(item);
            }
        }
        out
    }
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(live in any_pod(), config in any_pod()) {
        let schema = Schema::Type(kind("v1", "Pod"));
        let once = apply(Some(&live), &config, schema, &write("me", "v1"), true).unwrap();
        let twice = apply(Some(&once.object), &config, schema, &write("me", "v1"), false).unwrap();
        prop_assert!(!twice.changed);
        prop_assert_eq!(once.object, twice.object);
    }

    #[test]
    fn applying_and_then_applying_nothing_returns(config in any_pod()) {
        let schema = Schema::Type(kind("v1", "Pod"));
        let mut live = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "z"}});
        live["metadata"]["managedFields"] = track_update(None, &live, schema, &write("other", "v1")).unwrap();
        let there = apply(Some(&live), &config, schema, &write("me", "v1"), false);
        if let Ok(there) = there {
            let nothing = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
            let back = apply(Some(&there.object), &nothing, schema, &write("me", "v1"), false).unwrap();
            prop_assert_eq!(back.object, live);
        }
    }

    #[test]
    fn another_manager_keeps_what_it_owns(first in any_pod(), second in any_pod()) {
        let schema = Schema::Type(kind("v1", "Pod"));
        let one = apply(None, &first, schema, &write("one", "v1"), false).unwrap();
        if let Ok(two) = apply(Some(&one.object), &second, schema, &write("two", "v1"), false) {
            let nothing = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
            let left = apply(Some(&two.object), &nothing, schema, &write("two", "v1"), false).unwrap();
            let again = apply(Some(&left.object), &first, schema, &write("one", "v1"), false).unwrap();
            // The order of a keyed list belongs to nobody.
            let delta = Delta::of(Side::Value(&left.object), Side::Value(&again.object), schema);
            prop_assert!(delta.is_empty(), "{} became {}", one.object, left.object);
        }
    }

    #[test]
    fn no_json_makes_tracking_panic(old in any_json(), new in any_json()) {
        let pod = Schema::Type(kind("v1", "Pod"));
        for schema in [pod, Schema::Deduced] {
            track_update(Some(&old), &new, schema, &write("me", "v1"));
            track_update(None, &new, schema, &write("me", "v1"));
            let _ = apply(Some(&old), &new, schema, &write("me", ""), true);
        }
    }

    #[test]
    fn an_object_does_not_differ_from_itself(object in any_json()) {
        let delta = Delta::of(Side::Value(&object), Side::Value(&object), Schema::Deduced);
        prop_assert!(delta.is_empty());
    }
}
