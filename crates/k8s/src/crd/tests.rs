use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::field::FieldError;
use crate::patch::tests::any_json;
use crate::validate::custom_meta;

/// Conversations with a kube-apiserver 1.36: custom resources and definitions, and what it said about them.
fn golden() -> Value {
    serde_json::from_str(include_str!("golden.json")).unwrap()
}

type Cause = (String, String, String);

fn ours(errors: &[FieldError]) -> Vec<Cause> {
    let mut causes: Vec<_> = errors
        .iter()
        .map(|e| (e.kind.cause().to_owned(), e.path.clone(), comparable(&e.message())))
        .collect();
    causes.sort();
    causes
}

fn theirs(case: &Value) -> Vec<Cause> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let causes = case["causes"].as_array().into_iter().flatten();
    let mut causes: Vec<_> = causes
        // The cost of rules is not estimated here.
        .filter(|c| !text(&c["message"]).contains("estimated rule cost"))
        .map(|c| (text(&c["reason"]), text(&c["field"]), comparable(&text(&c["message"]))))
        .collect();
    causes.sort();
    causes
}

/// Values of Go structs and the words of Go's regexp and CEL parsers cannot be the same.
fn comparable(message: &str) -> String {
    let loose = ["Invalid value: {", "Invalid value: [{", "must be a valid regular expression"];
    match loose.iter().find(|l| message.contains(**l)) {
        Some(marker) => (*marker).to_owned(),
        None => message.to_owned(),
    }
}

fn custom() -> Custom {
    Custom::new(&golden()["schema"]).unwrap()
}

#[test]
fn custom_resources_are_pruned_defaulted_and_validated_as_upstream_does() {
    let custom = custom();
    for case in golden()["cases"].as_array().unwrap() {
        let mut object = case["object"].clone();
        custom.prune(&mut object);
        custom.default(&mut object);
        let mut errors = custom_meta(&object, None, true);
        errors.extend(custom.validate(&object, None));
        assert_eq!(ours(&errors), theirs(case), "{}", case["object"]["spec"]);
        if let Some(result) = case.get("result") {
            assert_eq!(object["spec"], result["spec"]);
        }
    }
}

#[test]
fn updates_see_transition_rules_and_spare_what_did_not_change() {
    let custom = custom();
    for case in golden()["updates"].as_array().unwrap() {
        let mut object = case["object"].clone();
        custom.prune(&mut object);
        custom.default(&mut object);
        let errors = custom.validate(&object, Some(&case["old"]));
        assert_eq!(ours(&errors), theirs(case), "{}", case["object"]["spec"]);
    }
}

#[test]
fn a_tightened_schema_leaves_old_objects_writable() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 2}, "b": {"type": "string"},
        "c": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 10"}]}}}}});
    let custom = Custom::new(&schema).unwrap();
    let old = json!({"spec": {"a": "long", "b": "x", "c": 1}});
    let new = json!({"spec": {"a": "long", "b": "y", "c": 1}});
    assert_eq!(custom.validate(&new, Some(&old)), []);
    assert_eq!(custom.validate(&new, None).len(), 2);
    let worse = json!({"spec": {"a": "longer", "b": "y", "c": 2}});
    assert!(!custom.validate(&worse, Some(&old)).is_empty());
}

fn paths(errors: &[FieldError]) -> Vec<&str> {
    errors.iter().map(|error| error.path.as_str()).collect()
}

#[test]
fn values_under_names_with_dots_are_checked_on_update() {
    let rule = json!([{"rule": "self < 10"}]);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "r": {"type": "object", "additionalProperties": {"type": "integer", "x-kubernetes-validations": rule}}}}}});
    let custom = Custom::new(&schema).unwrap();
    let of = |spec: Value| json!({ "spec": spec });
    let old = of(json!({"m": {}, "r": {"a": 1}}));
    let new = of(json!({"m": {"a.b": "x"}, "r": {"a": 1}}));
    let errors = custom.validate(&new, Some(&old));
    assert_eq!(paths(&errors), ["spec.m.a.b", "<nil>"]);
    assert_eq!(custom.validate(&new, Some(&new)), []);
    let new = of(json!({"m": {}, "r": {"a": 1, "a.b": 11}}));
    assert_eq!(paths(&custom.validate(&new, Some(&old))), ["spec.r.a.b"]);
    assert_eq!(custom.validate(&new, Some(&new)), []);
}

#[test]
fn items_with_keys_are_spared_wherever_they_move() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"l": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["v"],
            "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 2}}}}}}}});
    let custom = Custom::new(&schema).unwrap();
    let of = |list: Value| json!({"spec": {"l": list}});
    let old = of(json!([{"k": "a", "v": "long"}, {"k": "b"}]));
    let moved = of(json!([{"k": "b"}, {"k": "c", "v": "ok"}, {"k": "a", "v": "long"}]));
    assert_eq!(custom.validate(&moved, Some(&old)), []);
    let worse = of(json!([{"k": "a"}, {"k": "b", "v": "long"}]));
    assert_eq!(paths(&custom.validate(&worse, Some(&old))), ["spec.l[0].v", "spec.l[1].v"]);
}

#[test]
fn problems_that_name_no_field_are_spared_only_where_their_value_is_the_same() {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer", "format": "int32"}, "a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let custom = Custom::new(&schema).unwrap();
    let old = json!({"n": 1, "a": "x"});
    let errors = custom.validate(&json!({"n": 3_000_000_000_u64, "a": "x"}), Some(&old));
    assert_eq!(paths(&errors), ["<nil>"]);
    let large = json!({"n": 3_000_000_000_u64, "a": "x"});
    assert_eq!(custom.validate(&json!({"n": 3_000_000_000_u64, "a": "y"}), Some(&large)), []);
    let neither = json!({"metadata": {"labels": {"l": "1"}}, "n": 1});
    assert!(!custom.validate(&neither, Some(&old)).is_empty());
    assert!(!custom.validate(&neither, Some(&neither)).is_empty(), "it is a problem of the whole");
}

#[test]
fn lists_that_were_never_unique_may_stay_so() {
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"a": set, "b": set}}}});
    let custom = Custom::new(&schema).unwrap();
    let of = |a: Value, b: Value| json!({"spec": {"a": a, "b": b}});
    let doubled = of(json!(["x", "x"]), json!([]));
    assert_eq!(custom.validate(&of(json!(["x", "x", "y"]), json!(["z", "z"])), Some(&doubled)), []);
    let unique = of(json!(["x"]), json!([]));
    assert_eq!(paths(&custom.validate(&doubled, Some(&unique))), ["spec.a[1]"]);
    assert_eq!(paths(&custom.validate(&doubled, None)), ["spec.a[1]"]);
}

#[test]
fn definitions_are_refused_for_upstreams_reasons() {
    for case in golden()["definitions"].as_array().unwrap() {
        let mut object = case["object"].clone();
        default_definition(&mut object);
        let errors = validate_definition(&object);
        assert_eq!(ours(&errors), theirs(case), "{}", case["object"]["spec"]);
        if case["code"] == 201 {
            assert_eq!(object["spec"]["names"], case["result"]);
            assert_eq!(object["status"]["storedVersions"], case["stored"]);
        }
    }
}

#[test]
fn unknown_fields_are_named_by_their_paths() {
    let custom = custom();
    let mut object = json!({"apiVersion": "g.example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "bogus": 1, "ownerReferences": [{"x": 1}]},
        "spec": {"unknown": 1, "ports": [{"port": 1}, {"port": 2, "odd": 1}], "free": {"kept": 1}}, "extra": 1});
    let expected =
        ["extra", "metadata.bogus", "metadata.ownerReferences[0].x", "spec.ports[1].odd", "spec.unknown"];
    assert_eq!(custom.prune(&mut object), expected);
    assert_eq!(object["spec"]["free"], json!({"kept": 1}));
    assert_eq!(custom.prune(&mut object), Vec::<String>::new());
}

#[test]
fn unknown_fields_deep_in_metadata_are_named_after_it_was_brought_into_form() {
    let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "one": embedded,
        "many": {"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": embedded}}}}});
    let custom = Custom::new(&schema).unwrap();
    let owner = json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": "u"});
    let resource = |owner: &Value| json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "ownerReferences": [owner]}});
    let whole = |owner: &Value| {
        let mut object = resource(owner);
        object["spec"] = json!({"one": resource(owner), "many": [resource(owner)]});
        object
    };
    let mut odd = owner.clone();
    odd["bogus"] = json!(1);
    let mut object = whole(&odd);
    custom.coerce(&mut object).unwrap();
    let expected = [
        "metadata.ownerReferences[0].bogus",
        "spec.many[0].metadata.ownerReferences[0].bogus",
        "spec.one.metadata.ownerReferences[0].bogus",
    ];
    assert_eq!(custom.prune(&mut object), expected);
    let mut plain = whole(&owner);
    custom.coerce(&mut plain).unwrap();
    assert_eq!(object, plain);
}

#[test]
fn whole_floats_of_a_patch_are_integers() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer", "format": "int64"}, "list": {"type": "array", "items": {"type": "integer"}},
        "x": {"type": "number"}}}}});
    let custom = Custom::new(&schema).unwrap();
    let mut object = json!({"apiVersion": "g/v1", "kind": "K", "spec": {"n": 2.0, "list": [-3.0], "x": 2.5}});
    let text = object.to_string();
    custom.coerce(&mut object).unwrap();
    assert_eq!(object["spec"], json!({"n": 2, "list": [-3], "x": 2.5}));
    assert_eq!(object, crate::decode::custom(text.as_bytes()).unwrap().value, "as a create is decoded");
    assert_eq!(custom.validate(&object, None), []);
    for other in [2.5, 1e16] {
        object["spec"]["n"] = json!(other);
        custom.coerce(&mut object).unwrap();
        assert_ne!(custom.validate(&object, None), [], "{other}");
    }
}

#[test]
fn numbers_that_do_not_fit_their_type_are_refused() {
    let schema = json!({"type": "object", "properties": {
        "plain": {"type": "integer"}, "small": {"type": "integer", "format": "int32"},
        "large": {"type": "integer", "format": "int64"}, "float": {"type": "number", "format": "float"}}});
    let custom = Custom::new(&schema).unwrap();
    let complaints = |name: &str, number: &str| -> Vec<String> {
        let object = json!({name: serde_json::from_str::<Value>(number).unwrap()});
        custom.validate(&object, None).into_iter().map(|error| error.detail).collect()
    };
    for (name, number) in [
        ("plain", "9223372036854775807"),
        ("plain", "-9223372036854775808"),
        ("plain", "2.0"),
        ("small", "-2147483648"),
        ("float", "3e38"),
    ] {
        assert_eq!(complaints(name, number), Vec::<String>::new(), "{name} {number}");
    }
    let kind = |name: &str, is: &str, not: &str| format!("{name} in body must be of type {is}: {not:?}");
    let range = |name: &str, of: &str| format!("Checked value must be of type {of} in {name}");
    for (name, number, expected) in [
        (
            "plain",
            "9223372036854775808",
            vec![kind("plain", "integer", "number"), range("plain", "integer (default format)")],
        ),
        ("plain", "1e16", vec![kind("plain", "integer", "number")]),
        (
            "plain",
            "1e19",
            vec![kind("plain", "integer", "number"), range("plain", "integer (default format)")],
        ),
        (
            "large",
            "9223372036854775808",
            vec![kind("large", "int64", "float64"), range("large", "integer with format int64")],
        ),
        (
            "small",
            "9223372036854775808",
            vec![kind("small", "int32", "float64"), range("small", "integer with format int32")],
        ),
        ("small", "2147483648", vec![range("small", "integer with format int32")]),
        ("small", "true", vec![kind("small", "int32", "")]),
        ("small", "\"1\"", vec![kind("small", "integer", "string")]),
        ("float", "1e39", vec![range("float", "number with format float")]),
    ] {
        assert_eq!(complaints(name, number), expected, "{name} {number}");
    }
}

#[test]
fn many_items_are_told_apart() {
    let schema = json!({"type": "object", "properties": {"l": {
        "type": "array", "items": {"type": "integer"}, "uniqueItems": true}}});
    let custom = Custom::new(&schema).unwrap();
    let mut list: Vec<usize> = (0..200_000).collect();
    assert_eq!(custom.validate(&json!({ "l": list }), None), []);
    list.push(0);
    assert_eq!(paths(&custom.validate(&json!({ "l": list }), None)), ["l"]);
}

#[test]
fn names_and_group_of_a_definition_do_not_change() {
    let mut old = golden()["definitions"][0]["object"].clone();
    default_definition(&mut old);
    old["metadata"]["resourceVersion"] = json!("1");
    set_condition(&mut old, "Established", "True", "InitialNamesAccepted", "", "2026-01-01T00:00:00Z");
    assert!(has_condition(&old, "Established"));
    assert_eq!(validate_definition_update(&old, &old), []);
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["names"]["plural"] = json!("others");
    let paths: Vec<_> = validate_definition_update(&new, &old).into_iter().map(|e| e.path).collect();
    assert_eq!(paths, ["spec.scope", "spec.names.plural"]);
    assert_eq!(storage_version(&old), Some("v1"));
}

#[test]
fn a_custom_resource_version_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Custom>();
}

proptest! {
    #[test]
    fn no_json_makes_a_custom_resource_panic(mut object in any_json(), schema in any_json()) {
        let custom = custom();
        custom.prune(&mut object);
        custom.default(&mut object);
        custom.validate(&object, None);
        let _ = validate_definition(&schema);
    }

    #[test]
    fn pruning_and_defaulting_are_idempotent(mut object in any_json()) {
        let custom = custom();
        custom.prune(&mut object);
        custom.default(&mut object);
        let once = object.clone();
        prop_assert_eq!(custom.prune(&mut object), Vec::<String>::new());
        custom.default(&mut object);
        prop_assert_eq!(object, once);
    }
}
