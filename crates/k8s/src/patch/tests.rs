use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema::{Type, type_named};

fn kind(name: &str) -> &'static Type {
    type_named(name).expect("a built-in type")
}

fn pod(object: Value, patch: Value) -> Result<Value, PatchError> {
    strategic(&object, &patch, kind("io.k8s.api.core.v1.Pod"))
}

fn deployment(object: Value, patch: Value) -> Result<Value, PatchError> {
    strategic(&object, &patch, kind("io.k8s.api.apps.v1.Deployment"))
}

#[test]
fn json_patch_runs_every_operation_in_order() {
    let object = json!({"a": {"b": [1, 2]}, "m~/n": 1});
    let patch = json!([
        {"op": "test", "path": "/m~0~1n", "value": 1},
        {"op": "add", "path": "/a/b/1", "value": 9},
        {"op": "add", "path": "/a/b/-", "value": 3},
        {"op": "copy", "from": "/a/b", "path": "/c"},
        {"op": "move", "from": "/a/b/0", "path": "/d"},
        {"op": "remove", "path": "/m~0~1n"},
        {"op": "replace", "path": "/e", "value": "new"},
    ]);
    let expected = json!({"a": {"b": [9, 2, 3]}, "c": [1, 9, 2, 3], "d": 1, "e": "new"});
    assert_eq!(json(&object, &patch).unwrap(), expected);
}

#[test]
fn many_lists_may_come_with_an_order() {
    let many = 100_000;
    let mut patch = serde_json::Map::new();
    for i in 0..many {
        patch.insert(format!("$setElementOrder/l{i}"), json!(["b", "a"]));
        patch.insert(format!("l{i}"), json!(["b", "a"]));
    }
    let annotated =
        pod(json!({"metadata": {"annotations": {}}}), json!({"metadata": {"annotations": patch}}));
    let annotated = annotated.unwrap();
    assert_eq!(annotated["metadata"]["annotations"].as_object().unwrap().len(), many);
    assert_eq!(annotated["metadata"]["annotations"]["l7"], json!(["b", "a"]));
}

#[test]
fn json_patch_failures_name_the_path() {
    let fail = |patch: Value| json(&json!({"a": [1]}), &patch).unwrap_err().to_string();
    assert_eq!(
        fail(json!([{"op": "test", "path": "/a", "value": 2}])),
        "testing value /a failed: test failed"
    );
    assert_eq!(
        fail(json!([{"op": "remove", "path": "/x"}])),
        "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value"
    );
    assert_eq!(
        fail(json!([{"op": "add", "path": "/x/y", "value": 1}])),
        "add operation does not apply: doc is missing path: \"/x/y\": missing value"
    );
    assert_eq!(
        fail(json!([{"op": "replace", "path": "/a/5", "value": 1}])),
        "replace operation does not apply: doc is missing key: /a/5: missing value"
    );
    assert_eq!(fail(json!([{"op": "jump"}])), "Unexpected kind: jump");
}

#[test]
fn json_patch_growth_is_bounded() {
    let many = Value::Array(vec![json!({"op": "test", "path": "/a"}); MAX_OPERATIONS + 1]);
    let error = json(&json!({}), &many).unwrap_err();
    let text = "The allowed maximum operations in a JSON patch is 10000, got 10001";
    assert_eq!(error, PatchError::TooLarge(text.into()));
    let doubling: Vec<_> = (0..40).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"})).collect();
    let error = json(&json!({"a": ["x".repeat(100)]}), &Value::Array(doubling)).unwrap_err();
    assert!(error.to_string().starts_with("Unable to complete the copy"), "{error}");
}

#[test]
fn merge_patch_follows_the_rfc() {
    let merged = |a: Value, b: Value| merge(&a, &b).unwrap();
    assert_eq!(
        merged(json!({"a": 1, "b": {"c": 1, "d": 2}}), json!({"a": null, "b": {"c": 3}})),
        json!({"b": {"c": 3, "d": 2}})
    );
    assert_eq!(
        merged(json!({"a": [1, 2]}), json!({"a": [3], "n": {"x": null, "y": 1}})),
        json!({"a": [3], "n": {"y": 1}})
    );
    assert!(matches!(merge(&json!({}), &json!([])), Err(PatchError::BadRequest(_))));
}

#[test]
fn strategic_lists_merge_by_their_key() {
    let live = json!({"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y", "tty": true}]}});
    let patched = pod(live.clone(), json!({"spec": {"containers": [{"name": "b", "image": "z"}]}})).unwrap();
    assert_eq!(
        patched["spec"]["containers"],
        json!([{"name": "a", "image": "x"}, {"name": "b", "image": "z", "tty": true}])
    );
    let added = pod(live.clone(), json!({"spec": {"containers": [{"name": "c"}]}})).unwrap();
    let names: Vec<_> =
        added["spec"]["containers"].as_array().unwrap().iter().map(|c| c["name"].clone()).collect();
    assert_eq!(names, ["c", "a", "b"]);
    let removed =
        pod(live.clone(), json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}})).unwrap();
    assert_eq!(removed["spec"]["containers"].as_array().unwrap().len(), 1);
    let replaced =
        pod(live, json!({"spec": {"containers": [{"name": "z"}, {"$patch": "replace"}]}})).unwrap();
    assert_eq!(replaced["spec"]["containers"], json!([{"name": "z"}]));
}

#[test]
fn set_element_order_arranges_and_keeps_what_only_the_server_has() {
    let live = json!({"spec": {"containers": [{"name": "a"}, {"name": "side"}, {"name": "b"}]}});
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "a", "image": "new"}],
    }});
    let patched = pod(live.clone(), patch).unwrap();
    assert_eq!(
        patched["spec"]["containers"],
        json!([{"name": "side"}, {"name": "b"}, {"name": "a", "image": "new"}])
    );
    let wrong =
        json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}});
    assert!(pod(live, wrong).unwrap_err().to_string().starts_with("The order in patch list"));
}

#[test]
fn an_added_element_takes_the_place_of_a_deleted_one() {
    let live = json!({"spec": {"containers": [{"name": "a"}, {"name": "side"}, {"name": "b"}]}});
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "new"}, {"name": "b"}],
        "containers": [{"name": "a", "$patch": "delete"}, {"name": "new"}, {"name": "b"}],
    }});
    let patched = pod(live, patch).unwrap();
    assert_eq!(patched["spec"]["containers"], json!([{"name": "side"}, {"name": "new"}, {"name": "b"}]));
}

#[test]
fn retain_keys_clears_the_other_members_of_a_union() {
    let live = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(deployment(live, patch).unwrap(), json!({"spec": {"strategy": {"type": "Recreate"}}}));
    let bad = json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}});
    let error = deployment(json!({"spec": {"strategy": {}}}), bad).unwrap_err();
    assert_eq!(error, PatchError::BadRequest("invalid patch format of retainKeys".into()));
}

#[test]
fn only_values_can_be_deleted_from_a_list_by_value() {
    let live = json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}});
    let delete =
        |list: &str, items: Value| json!({"spec": {format!("$deleteFromPrimitiveList/{list}"): items}});
    let error = pod(live.clone(), delete("containers", json!(["a"]))).unwrap_err();
    assert_eq!(error, PatchError::Contradiction("list element types are not identical".into()));
    let merged = pod(live.clone(), delete("containers", json!([{"name": "a", "image": "j"}]))).unwrap();
    assert_eq!(merged["spec"]["containers"][0], json!({"name": "a", "image": "j"}));
    assert!(pod(live.clone(), delete("containers", json!([{"image": "j"}]))).is_err(), "no key");
    assert_eq!(pod(live.clone(), delete("containers", json!([]))).unwrap(), live);
    assert_eq!(pod(live.clone(), delete("volumes", json!(["v"]))).unwrap(), live, "nothing to delete from");
    let tolerations = json!({"spec": {"tolerations": [{"key": "a"}]}});
    let error = pod(tolerations, delete("tolerations", json!([{"key": "a"}]))).unwrap_err();
    assert_eq!(error, PatchError::Contradiction("cannot merge lists without merge key for struct".into()));
}

#[test]
fn primitive_lists_merge_as_sets_and_shrink_on_request() {
    let live = json!({"metadata": {"finalizers": ["a/x", "b/y"]}});
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}});
    assert_eq!(pod(live.clone(), patch).unwrap(), json!({"metadata": {"finalizers": ["b/y"]}}));
    let patch = json!({"metadata": {"finalizers": ["c/z", "a/x"]}});
    let patched = pod(live, patch).unwrap();
    assert_eq!(patched["metadata"]["finalizers"], json!(["c/z", "a/x", "b/y"]));
}

#[test]
fn directives_replace_or_clear_a_map() {
    let live = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
    let patch = json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}});
    assert_eq!(pod(live.clone(), patch).unwrap(), json!({"metadata": {"labels": {"c": "3"}}}));
    let patch = json!({"metadata": {"labels": {"$patch": "delete"}}});
    assert_eq!(pod(live.clone(), patch).unwrap(), json!({"metadata": {"labels": {}}}));
    let patch = json!({"metadata": {"labels": {"a": null}, "annotations": {"x": null, "y": "1"}}});
    let expected = json!({"metadata": {"labels": {"b": "2"}, "annotations": {"y": "1"}}});
    assert_eq!(pod(live, patch).unwrap(), expected);
}

#[test]
fn a_list_element_without_its_merge_key_is_refused() {
    let live = json!({"spec": {"containers": [{"name": "a"}]}});
    let error = pod(live, json!({"spec": {"containers": [{"image": "x"}]}})).unwrap_err();
    assert!(error.to_string().ends_with("does not contain declared merge key: name"), "{error}");
}

/// Arbitrary JSON, made of few enough names that patches meet what they patch.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "containers",
        "name",
        "labels",
        "finalizers",
        "ports",
        "containerPort",
        "protocol",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "a",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..4i64).prop_map(Value::from),
        prop::sample::select(vec!["a", "b", "replace", "delete", "merge", ""]).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_makes_a_patch_panic(object in any_json(), patch in any_json()) {
        let _ = json(&object, &patch);
        let _ = merge(&object, &patch);
        let _ = strategic(&object, &patch, kind("io.k8s.api.core.v1.Pod"));
    }

    #[test]
    fn merge_patches_are_idempotent(object in any_json(), patch in any_json()) {
        if let Ok(once) = merge(&object, &patch) {
            prop_assert_eq!(merge(&once, &patch).unwrap(), once);
        }
    }

    #[test]
    fn adding_and_removing_a_member_returns(object in any_json(), value in any_json()) {
        prop_assume!(object.is_object());
        let there = json(&object, &json!([{"op": "add", "path": "/new", "value": value}])).unwrap();
        let back = json(&there, &json!([{"op": "test", "path": "/new", "value": value}, {"op": "remove", "path": "/new"}]));
        prop_assert_eq!(back.unwrap(), object);
    }
}
