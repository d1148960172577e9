//! Lists of tens of thousands of items: each test takes minutes if every item is compared with every other.

use serde_json::{Value, json};

use super::*;

const MANY: usize = 40_000;

fn many(item: impl Fn(usize) -> Value) -> Value {
    Value::Array((0..MANY).map(item).collect())
}

fn named(spec: Value) -> Value {
    json!({"metadata": {"name": "n", "namespace": "d", "resourceVersion": "1"}, "spec": spec})
}

/// How many problems there are below this path.
fn count(errors: &[FieldError], path: &str) -> usize {
    errors.iter().filter(|error| error.path.starts_with(path)).count()
}

#[test]
fn mounts_are_compared_with_many_devices() {
    let mut mounts = many(|i| json!({"name": "v", "mountPath": format!("/m{i}")}));
    mounts[0]["mountPath"] = json!("/d7");
    let devices = many(|i| json!({"name": format!("d{i}"), "devicePath": format!("/d{i}")}));
    let container = json!({"name": "c", "image": "i", "volumeMounts": mounts, "volumeDevices": devices});
    let pod = named(json!({"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]}));
    let errors = create("", "Pod", true, &pod);
    assert_eq!(count(&errors, "spec.containers[0].volumeMounts"), 1);
    assert_eq!(count(&errors, "spec.containers[0].volumeDevices"), MANY, "no volume has their names");
}

#[test]
fn claim_templates_are_compared_with_many_volumes() {
    let claims = many(|i| {
        json!({"metadata": {"name": format!("v{i}")}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    });
    let volumes = many(|i| json!({"name": format!("v{}", i + 1), "emptyDir": {"sizeLimit": "-1"}}));
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}});
    let set = named(json!({"selector": {"matchLabels": {"a": "b"}}, "volumeClaimTemplates": claims,
        "template": template}));
    let errors = create("apps", "StatefulSet", true, &set);
    assert_eq!(count(&errors, "spec.template.spec.volumes"), 1, "only the last is no claim");
}

#[test]
fn limits_of_many_types_are_told_apart() {
    let mut limits = many(|i| json!({"type": format!("example.com/t{i}")}));
    limits[MANY - 1] = limits[0].clone();
    let errors = create("", "LimitRange", true, &named(json!({ "limits": limits })));
    assert_eq!(count(&errors, &format!("spec.limits[{}].type", MANY - 1)), 1);
}

#[test]
fn many_binding_conditions_of_a_device_are_compared() {
    let device = json!({"name": "d", "bindingConditions": many(|i| json!(format!("good{i}"))),
        "bindingFailureConditions": many(|i| json!(format!("bad{i}")))});
    let slice = named(json!({"driver": "d.example.com", "nodeName": "n", "devices": [device],
        "pool": {"name": "p", "resourceSliceCount": 1, "generation": 1}}));
    let errors = create("resource.k8s.io", "ResourceSlice", false, &slice);
    assert_eq!(count(&errors, "spec.devices[0].binding"), 2, "too many of each");
}

#[test]
fn many_spread_constraints_are_told_apart() {
    let mut constraints =
        many(|i| json!({"maxSkew": 1, "topologyKey": format!("k{i}"), "whenUnsatisfiable": "DoNotSchedule"}));
    constraints[MANY - 1] = constraints[1].clone();
    let pod = named(json!({"containers": [{"name": "c", "image": "i"}],
        "topologySpreadConstraints": constraints}));
    let errors = create("", "Pod", true, &pod);
    assert_eq!(count(&errors, "spec.topologySpreadConstraints"), 1);
    assert_eq!(count(&errors, "spec.topologySpreadConstraints[1].{"), 1, "the first of the two is named");
}

#[test]
fn an_object_being_deleted_may_lose_many_finalizers() {
    let of = |finalizers: Value| {
        json!({"metadata": {"name": "n", "namespace": "d", "resourceVersion": "1", "finalizers": finalizers,
            "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    };
    let old = of(many(|i| json!(format!("example.com/f{i}"))));
    let mut finalizers = many(|i| json!(format!("example.com/f{}", MANY - 1 - i)));
    assert_eq!(update("", "ConfigMap", &of(finalizers.clone()), &old), []);
    finalizers[0] = json!("example.com/new");
    finalizers[1] = json!("example.com/new");
    let errors = update("", "ConfigMap", &of(finalizers), &old);
    assert_eq!(count(&errors, "metadata.finalizers"), 1);
    assert!(errors[0].detail.ends_with(r#"[]string{"example.com/new"}"#), "{}", errors[0].detail);
}

#[test]
fn many_ephemeral_containers_stay() {
    let of = |list: Value| {
        named(json!({"containers": [{"name": "c", "image": "i"}], "ephemeralContainers": list}))
    };
    let container = |i: usize| json!({"name": format!("e{i}"), "image": "i"});
    let old = of(many(container));
    let turned = many(|i| container(MANY - 1 - i));
    let gone = "existing ephemeral containers";
    let complaints = |new: &Value| -> usize {
        let errors = ephemeral_containers_update(new, &old);
        errors.iter().filter(|error| error.detail.starts_with(gone)).count()
    };
    assert_eq!(complaints(&of(turned)), 0);
    assert_eq!(complaints(&of(json!([container(0)]))), MANY - 1);
}

#[test]
fn complaints_about_many_controllers_do_not_grow_with_their_square() {
    let owner = |i: usize| json!({"apiVersion": "v1", "kind": "K", "name": format!("o{i}"), "uid": "u", "controller": true});
    let object = json!({"metadata": {"name": "n", "namespace": "d", "ownerReferences": many(owner)}});
    let errors = create("", "ConfigMap", true, &object);
    assert_eq!(count(&errors, "metadata.ownerReferences"), 15);
}

#[test]
fn annotations_are_compared_with_many_containers() {
    let containers = many(|i| json!({"name": format!("c{i}"), "image": "i"}));
    let key = |i: usize| format!("container.apparmor.security.beta.kubernetes.io/c{}", i + 1);
    let annotations: serde_json::Map<_, _> = (0..MANY).map(|i| (key(i), json!("unconfined"))).collect();
    let mut pod = named(json!({ "containers": containers }));
    pod["metadata"]["annotations"] = json!(annotations);
    let errors = create("", "Pod", true, &pod);
    let missing = |error: &&FieldError| error.detail == "container not found";
    assert_eq!(errors.iter().filter(missing).count(), 1, "only the last");
}

#[test]
fn a_stored_volume_that_is_wrong_today_does_not_keep_its_pod_from_changing() {
    let disk = json!({"diskName": "d", "diskURI": "/subscriptions/s", "kind": "Shared"});
    let volumes = json!([{"name": "v", "azureDisk": disk}]);
    let mut pod = named(json!({"containers": [{"name": "c", "image": "i"}], "volumes": volumes}));
    assert_eq!(count(&create("", "Pod", true, &pod), "spec.volumes"), 1);
    let old = pod.clone();
    pod["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(count(&update("", "Pod", &pod, &old), "spec.volumes"), 0);
}
