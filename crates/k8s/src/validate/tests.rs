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

fn sample_pod_spec() -> Value {
    json!({"containers": [
        {"name": "a", "image": "i", "securityContext": {"appArmorProfile": {"type": "Localhost"}}},
        {"name": "b", "image": "i", "securityContext": {"windowsOptions": {"hostProcess": true}}},
    ]})
}

#[test]
fn pods_stored_before_a_check_was_made_stay_writable() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": sample_pod_spec()});
    let selector = json!({"matchLabels": {"a": "b"}});
    let mut job = template.clone();
    job["spec"]["restartPolicy"] = json!("Never");
    for (version, kind, body, changes) in [
        ("v1", "Pod", json!({"spec": sample_pod_spec()}), "/spec/containers/0/image"),
        ("v1", "PodTemplate", json!({"template": template}), "/template/spec/containers/0/image"),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"selector": selector, "template": template}}),
            "/spec/template/spec/containers/0/image",
        ),
        (
            "apps/v1",
            "StatefulSet",
            json!({"spec": {"selector": selector, "template": template, "serviceName": "s"}}),
            "/spec/template/spec/containers/0/image",
        ),
        (
            "batch/v1",
            "CronJob",
            json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": job}}}}),
            "/spec/schedule",
        ),
    ] {
        let mut object = body;
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"] = json!({"name": "n", "namespace": "d", "resourceVersion": "1"});
        let old = prepared(&object);
        let group = resource(kind, version).group;
        assert_eq!(create(group, kind, true, &old).len(), 3, "{kind}");
        let mut new = old.clone();
        let place = new.pointer_mut(changes).unwrap();
        *place = json!(if kind == "CronJob" { "1 * * * *" } else { "j" });
        assert_eq!(update(group, kind, &new, &old), [], "{kind}");
        let mut good = old.clone();
        good.pointer_mut(changes).unwrap().clone_from(new.pointer(changes).unwrap());
        let text = good.to_string();
        let text = text
            .replace("Localhost", "Unconfined")
            .replace(r#""hostProcess":true"#, r#""hostProcess":false"#);
        let good: Value = serde_json::from_str(&text).unwrap();
        assert!(update(group, kind, &new, &good).len() >= 3, "{kind}: what an update brings is looked at");
    }
}

#[test]
fn a_pod_stored_before_a_check_was_made_can_be_resized_and_debugged() {
    let old = prepared(&json!({"apiVersion": "v1", "kind": "Pod", "spec": sample_pod_spec(),
        "metadata": {"name": "n", "namespace": "d", "resourceVersion": "1"}}));
    let mut new = old.clone();
    new["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    assert_eq!(resize_update(&new, &old), []);
    let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
    let mut debugged = old.clone();
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i",
        "imagePullPolicy": "Always", "terminationMessagePolicy": "File", "securityContext": profile("Unconfined")}]);
    assert_eq!(ephemeral_containers_update(&debugged, &old), []);
    debugged["spec"]["ephemeralContainers"][0]["securityContext"] = profile("Localhost");
    assert_eq!(ephemeral_containers_update(&debugged, &old).len(), 1);
}

#[test]
fn only_finalizers_that_an_update_adds_are_checked() {
    let of = |finalizers: &[&str]| json!({"metadata": {"name": "n", "resourceVersion": "1", "finalizers": finalizers}});
    let old = of(&["not a name", "orphan", "foregroundDeletion"]);
    assert_eq!(custom_meta(&old, None, false).len(), 2);
    assert_eq!(custom_meta(&old, Some(&old), false), []);
    assert_eq!(custom_meta(&of(&["not a name"]), Some(&old), false), []);
    let errors = custom_meta(&of(&["not a name", "nor this"]), Some(&old), false);
    assert_eq!(errors.iter().map(|e| e.value.as_str()).collect::<Vec<_>>(), [r#""nor this""#]);
    assert_eq!(custom_meta(&of(&["orphan", "foregroundDeletion"]), Some(&of(&["orphan"])), false).len(), 1);
}

#[test]
fn finalizers_of_built_in_kinds_are_checked_on_every_way_to_write_them() {
    let of = |finalizers: &[&str]| {
        prepared(
            &json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]},
            "metadata": {"name": "n", "namespace": "d", "resourceVersion": "1", "finalizers": finalizers}}),
        )
    };
    type Write = fn(&Value, &Value) -> Vec<FieldError>;
    let ways: [(&str, Write); 4] = [
        ("update", |new, old| update("", "Pod", new, old)),
        ("status", |new, old| status_update("", "Pod", new, old)),
        ("resize", resize_update),
        ("ephemeralcontainers", ephemeral_containers_update),
    ];
    let none = of(&[]);
    for (name, write) in ways {
        for bad in [&["orphan", "foregroundDeletion"][..], &["exa mple/x"], &["unqualified"]] {
            let errors = write(&of(bad), &none);
            assert_eq!(errors.len(), 1, "{name} {bad:?}: {errors:?}");
            assert!(errors[0].path.starts_with("metadata.finalizers"));
            assert_eq!(write(&of(bad), &of(bad)), [], "{name} {bad:?}");
        }
        assert_eq!(write(&of(&["example.com/x", "orphan"]), &none), [], "{name}");
    }
}

#[test]
fn tolerations_of_a_pod_stay_but_for_their_seconds() {
    let of = |tolerations: Value| {
        let mut spec = json!({"containers": [{"name": "a", "image": "i"}]});
        spec["tolerations"] = tolerations;
        prepared(&json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": "n", "namespace": "d", "resourceVersion": "1"}}))
    };
    let one = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let old = of(json!([one("a", 1), one("b", 1)]));
    assert_eq!(update("", "Pod", &of(json!([one("c", 1), one("b", 2), one("a", 3)])), &old), []);
    assert_eq!(update("", "Pod", &of(json!([one("a", 1), one("c", 1)])), &old)[0].path, "spec.tolerations");
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

fn with_status(kind: &str, status: Value) -> Value {
    let version = if kind == "Ingress" { "networking.k8s.io/v1" } else { "v1" };
    let spec = match kind {
        "Service" => json!({"type": "LoadBalancer"}),
        _ => json!({}),
    };
    json!({"apiVersion": version, "kind": kind, "spec": spec, "status": status,
        "metadata": {"name": "n", "namespace": "d", "resourceVersion": "1"}})
}

fn status_complaints(kind: &str, new: Value, old: Value) -> Vec<String> {
    let group = if kind == "Ingress" { "networking.k8s.io" } else { "" };
    let errors = status_update(group, kind, &with_status(kind, new), &with_status(kind, old));
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn addresses_that_a_status_has_already_may_stay() {
    let points = |list: Value| json!({"loadBalancer": {"ingress": list}});
    let old =
        json!([{"ip": "::ffff:1.2.3.4", "ipMode": "VIP"}, {"hostname": "not a name"}, {"ip": "010.0.0.1"}]);
    let new = json!([{"hostname": "not a name"}, {"ip": "::ffff:1.2.3.4", "ipMode": "Proxy"},
        {"ip": "010.0.0.1", "ports": [{"port": 1}]}, {"ip": "1.2.3.4"}]);
    for kind in ["Service", "Ingress"] {
        assert_eq!(status_complaints(kind, points(new.clone()), points(old.clone())), Vec::<String>::new());
        let complaints = status_complaints(kind, points(new.clone()), points(json!([])));
        assert_eq!(complaints.len(), 3, "{complaints:?}");
    }
    let pod =
        json!({"podIP": "::ffff:1.2.3.4", "podIPs": [{"ip": "::ffff:1.2.3.4"}, {"ip": "x"}, {"ip": "y"}]});
    let mut ready = pod.clone();
    ready["phase"] = json!("Running");
    assert_eq!(status_complaints("Pod", ready.clone(), pod), Vec::<String>::new());
    assert!(!status_complaints("Pod", ready, json!({})).is_empty());
}

#[test]
fn a_load_balancer_has_addresses_and_names() {
    let of =
        |point: Value| status_complaints("Service", json!({"loadBalancer": {"ingress": [point]}}), json!({}));
    let at = "status.loadBalancer.ingress[0]";
    for good in
        [json!({"ip": "1.2.3.4", "ipMode": "Proxy"}), json!({"ip": "::1"}), json!({"hostname": "a.b"})]
    {
        assert_eq!(of(good), Vec::<String>::new());
    }
    for (bad, complaint) in [
        (
            json!({"hostname": "1.2.3.4"}),
            r#".hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address"#,
        ),
        (json!({"ipMode": "VIP"}), ".ipMode: Forbidden: may not be specified when `ip` is not set"),
        (
            json!({"ip": "1.2.3.4", "ipMode": "vip"}),
            r#".ipMode: Unsupported value: "vip": supported values: "Proxy", "VIP""#,
        ),
        (
            json!({"ip": "::ffff:1.2.3.4"}),
            r#".ip: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address"#,
        ),
        (json!({"ip": "010.0.0.1"}), r#".ip: Invalid value: "010.0.0.1": must not have leading 0s"#),
    ] {
        assert_eq!(of(bad), [format!("{at}{complaint}")]);
    }
    assert_eq!(of(json!({"hostname": "a_b"})).len(), 1);
    let ingress = json!({"loadBalancer": {"ingress": [{"hostname": "1.2.3.4"}]}});
    assert_eq!(status_complaints("Ingress", ingress, json!({})).len(), 1);
}

#[test]
fn the_addresses_of_a_pod_are_of_different_families() {
    let of = |one: &str, all: &[&str]| {
        let all: Vec<Value> = all.iter().map(|ip| json!({ "ip": ip })).collect();
        status_complaints("Pod", json!({"podIP": one, "podIPs": all}), json!({}))
    };
    assert_eq!(of("10.0.0.1", &["10.0.0.1", "fd00::1"]), Vec::<String>::new());
    assert_eq!(of("10.0.0.9", &["10.0.0.1", "10.0.0.2"]), Vec::<String>::new(), "the one alone wins");
    let families = "may specify no more than one IP for each IP family";
    for (all, count) in [
        (&["10.0.0.1", "10.0.0.2"][..], 1),
        (&["10.0.0.1", "fd00::1", "fd00::2"], 1),
        (&["10.0.0.1", "x"], 3),
    ] {
        let complaints = of("10.0.0.1", all);
        assert_eq!(complaints.len(), count, "{complaints:?}");
        assert!(complaints.iter().any(|complaint| complaint.ends_with(families)), "{complaints:?}");
    }
    let shown = r#"status.podIPs[0]: Invalid value: "x": "#;
    assert!(of("x", &[])[0].starts_with(shown) && of("", &["x"])[0].starts_with(shown));
}

#[test]
fn ambiguous_addresses_of_a_stored_object_may_stay_but_no_new_ones_come() {
    let of = |ips: &[&str], ranges: &[&str]| {
        prepared(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "n", "namespace": "d", "resourceVersion": "1", "annotations": {"a": "::ffff:4.4.4.4"}},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 1}], "externalIPs": ips, "loadBalancerSourceRanges": ranges}}))
    };
    let old = of(&["::ffff:1.2.3.4"], &[" 10.0.0.1/8"]);
    assert_eq!(create("", "Service", true, &old).len(), 2);
    assert_eq!(update("", "Service", &of(&["1.1.1.1", "::ffff:1.2.3.4"], &["10.0.0.1/8"]), &old), []);
    assert_eq!(update("", "Service", &of(&["::ffff:4.4.4.4"], &["10.0.0.0/08"]), &old).len(), 2);
}

#[test]
fn what_a_node_has_is_no_less_than_nothing() {
    let of =
        |cpu: &str, gpus: &str| json!({"capacity": {"cpu": cpu}, "allocatable": {"example.com/gpu": gpus}});
    let complaints = |new: Value, old: Value| status_complaints("Node", new, old).len();
    assert_eq!(complaints(of("2500m", "2"), json!({})), 0);
    let complaint = r#"status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0"#;
    assert_eq!(status_complaints("Node", of("-1", "2"), json!({})), [complaint]);
    assert_eq!(complaints(of("-1", "2500m"), json!({})), 2);
    assert_eq!(complaints(of("-1", "2500m"), of("-1", "2500m")), 0, "what was stored may stay");
}

#[test]
fn the_path_of_an_app_armor_profile_is_bounded() {
    let of = |length: usize| {
        let profile = json!({"type": "Localhost", "localhostProfile": "p".repeat(length)});
        prepared(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "namespace": "d"},
            "spec": {"containers": [{"name": "c", "image": "i", "securityContext": {"appArmorProfile": profile}}]}}))
    };
    assert_eq!(create("", "Pod", true, &of(4095)), []);
    let errors = create("", "Pod", true, &of(4096));
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].to_string(),
        "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Too long: may not be more than 4095 bytes"
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
