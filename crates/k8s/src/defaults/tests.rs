use serde_json::json;

use super::*;
use crate::{decode, schema};

fn defaulted(input: &Value) -> Value {
    let api_version = input["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let type_ = schema::type_of(group, version, input["kind"].as_str().unwrap()).unwrap();
    let mut value = decode::json(input.to_string().as_bytes(), Some(type_)).unwrap().value;
    apply(&mut value, type_, Timestamp::UNIX_EPOCH);
    value
}

/// What a real kube-apiserver made of minimal objects; `data/README.md` says how it was recorded.
#[test]
fn objects_are_defaulted_as_upstream_defaults_them() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../data/defaults_observed.json")).unwrap();
    assert!(cases.len() > 30);
    let mut wrong = Vec::new();
    for case in &cases {
        let mut got = defaulted(&case["in"]);
        strip(&mut got);
        if got != case["out"] {
            wrong.push(format!("{}\n  got    {got}\n  wanted {}", case["in"], case["out"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Leaves what the registry and admission fill in, not defaulting.
fn strip(value: &mut Value) {
    let labels = value["metadata"].get("labels").cloned();
    value["metadata"] = labels.map_or(json!({}), |l| json!({"labels": l}));
    value.as_object_mut().unwrap().remove("status");
}

#[test]
fn defaulting_twice_changes_nothing() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../data/defaults_observed.json")).unwrap();
    for case in &cases {
        let once = defaulted(&case["in"]);
        assert_eq!(defaulted(&once), once);
    }
}

#[test]
fn phases_and_stored_versions_are_filled_in() {
    let namespace = defaulted(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}));
    assert_eq!(namespace["status"]["phase"], "Active");
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}});
    assert_eq!(defaulted(&claim)["status"]["phase"], "Pending");
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": {"group": "g", "scope": "Cluster",
        "names": {"kind": "FooBar", "plural": "foobars"}, "versions": [{"name": "v1", "served": true, "storage": true}]}});
    let crd = defaulted(&crd);
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(crd["spec"]["names"]["listKind"], "FooBarList");
    assert_eq!(crd["spec"]["names"]["singular"], "foobar");
}

#[test]
fn latest_images_are_always_pulled() {
    let policy = |image: &str| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": image}]}});
        defaulted(&pod)["spec"]["containers"][0]["imagePullPolicy"].as_str().unwrap().to_owned()
    };
    for image in ["nginx", "nginx:latest", "localhost:5000/nginx", "a/b:latest@sha256:00"] {
        assert_eq!(policy(image), "Always", "{image}");
    }
    for image in ["nginx:1", "nginx@sha256:00", "localhost:5000/nginx:1", ""] {
        assert_eq!(policy(image), "IfNotPresent", "{image}");
    }
}

#[test]
fn the_address_of_a_pod_that_stands_alone_is_the_first_of_all() {
    let addresses = |status: Value| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "status": status});
        defaulted(&pod)["status"].clone()
    };
    let of = |one: &str, all: &[&str]| {
        let all: Vec<Value> = all.iter().map(|ip| json!({ "ip": ip })).collect();
        json!({"podIP": one, "podIPs": all})
    };
    let both = of("10.0.0.1", &["10.0.0.1", "fd00::1"]);
    assert_eq!(addresses(both.clone()), both);
    assert_eq!(addresses(of("10.0.0.9", &["10.0.0.1", "fd00::1"])), of("10.0.0.9", &["10.0.0.9"]));
    assert_eq!(addresses(json!({"podIP": "10.0.0.9"})), of("10.0.0.9", &["10.0.0.9"]));
    assert_eq!(addresses(json!({"podIPs": [{"ip": "10.0.0.1"}]})), of("10.0.0.1", &["10.0.0.1"]));
    assert_eq!(addresses(json!({"phase": "Pending"})), json!({"phase": "Pending"}));
}

#[test]
fn every_hook_belongs_to_a_type() {
    assert!(hooks::HOOKS.iter().all(|(name, _)| schema::type_named(name).is_some()));
}
