use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::type_of;

fn pod() -> Option<&'static Type> {
    type_of("", "v1", "Pod")
}

fn error(text: &str, type_: Option<&'static Type>) -> String {
    json(text.as_bytes(), type_).unwrap_err().to_string()
}

#[test]
fn empty_fields_go_and_always_written_fields_come() {
    let text = r#"{"kind":"Service","metadata":{"name":"a","labels":{},"generation":0},"spec":{"ports":[{"port":80,"name":""}],
        "allocateLoadBalancerNodePorts":false,"publishNotReadyAddresses":false},"status":null}"#;
    let decoded = json(text.as_bytes(), type_of("", "v1", "Service")).unwrap();
    assert_eq!(
        decoded.value,
        json!({"kind":"Service","metadata":{"name":"a"},
            "spec":{"ports":[{"port":80,"targetPort":0}],"allocateLoadBalancerNodePorts":false},
            "status":{"loadBalancer":{}}})
    );
    assert!(decoded.warnings.is_empty());
}

#[test]
fn strict_findings_are_upstream_s_words_in_upstream_s_order() {
    let text = r#"{"apiVersion":"v1","kind":"Pod","spec":{"foo":{"bar":1},"foo":2,"Containers":[],
        "containers":[{"name":"c","name":"d","image":"x","x":1}],"nodeSelector":{"a":"b","a":"c"}}}"#;
    let decoded = json(text.as_bytes(), pod()).unwrap();
    assert_eq!(
        decoded.warnings,
        [
            r#"unknown field "spec.foo""#,
            r#"unknown field "spec.Containers""#,
            r#"duplicate field "spec.containers[0].name""#,
            r#"unknown field "spec.containers[0].x""#,
            r#"duplicate field "spec.nodeSelector.a""#,
        ]
    );
    assert_eq!(decoded.value["spec"]["containers"][0]["name"], "d");
    assert_eq!(decoded.value["spec"]["nodeSelector"], json!({"a":"c"}));
    assert!(decoded.value["spec"].get("foo").is_none());
}

#[test]
fn at_most_a_hundred_findings_are_kept() {
    let fields: Vec<_> = (0..150).map(|i| format!("\"f{i}\":1")).collect();
    let decoded = json(format!("{{{}}}", fields.join(",")).as_bytes(), pod()).unwrap();
    assert_eq!(decoded.warnings.len(), 100);
}

// Every text below was observed on kube-apiserver 1.36.
#[test]
fn wrong_types_are_named_as_go_names_them() {
    let spec = |s: &str| error(&format!(r#"{{"metadata":{{"name":"a"}},"spec":{s}}}"#), pod());
    let container = |s: &str| spec(&format!(r#"{{"containers":[{{"name":"c",{s}}}]}}"#));
    let cases = [
        (
            spec(r#"{"containers":"x"}"#),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            spec(r#"{"containers":[{"name":1}]}"#),
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        (
            container(r#""livenessProbe":{"httpGet":{"port":{}}}"#),
            "json: cannot unmarshal object into Go struct field HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type int32",
        ),
        (
            container(r#""livenessProbe":{"httpGet":5}"#),
            "json: cannot unmarshal number into Go struct field Probe.spec.containers.livenessProbe.ProbeHandler.httpGet of type v1.HTTPGetAction",
        ),
        (
            container(r#""resources":{"limits":{"cpu":true}}"#),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            spec(r#"{"terminationGracePeriodSeconds":1.5}"#),
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        (
            container(r#""ports":[{"containerPort":99999999999}]"#),
            "json: cannot unmarshal number 99999999999 into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            error(r#"{"metadata":[]}"#, pod()),
            "json: cannot unmarshal array into Go struct field Pod.metadata of type v1.ObjectMeta",
        ),
        (
            error(r#"{"metadata":{"labels":{"a":1}}}"#, pod()),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            error(r#"{"metadata":{"creationTimestamp":5}}"#, pod()),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
        (
            error(r#"{"metadata":{"creationTimestamp":"foo"}}"#, pod()),
            r#"parsing time "foo" as "2006-01-02T15:04:05Z07:00": cannot parse "foo" as "2006""#,
        ),
        (
            error(r#"{"data":{"a":1}}"#, type_of("", "v1", "Secret")),
            "json: cannot unmarshal number into Go struct field Secret.data of type []uint8",
        ),
        (
            error(r#"{"data":{"a":"???"}}"#, type_of("", "v1", "Secret")),
            "illegal base64 data at input byte 0",
        ),
        (error(r#"{"data":{"a":"YQ"}}"#, type_of("", "v1", "Secret")), "illegal base64 data at input byte 0"),
        (
            error(
                r#"{"spec":{"renewTime":"2024-01-01T00:00:00Z"}}"#,
                type_of("coordination.k8s.io", "v1", "Lease"),
            ),
            r#"parsing time "2024-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#,
        ),
        (error("{", pod()), "unexpected end of JSON input"),
    ];
    for (got, wanted) in cases {
        assert_eq!(got, wanted);
    }
}

#[test]
fn quantities_and_times_take_their_canonical_form() {
    let text = r#"{"metadata":{"creationTimestamp":"2024-01-01T02:00:00.5+02:00"},
        "spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1000m","memory":1073741824}}}]}}"#;
    let value = json(text.as_bytes(), pod()).unwrap().value;
    assert_eq!(value["metadata"]["creationTimestamp"], "2024-01-01T00:00:00Z");
    assert_eq!(
        value["spec"]["containers"][0]["resources"]["limits"],
        json!({"cpu":"1","memory":"1073741824"})
    );
    let lease = r#"{"spec":{"renewTime":"2024-01-01T00:00:00.123456Z"}}"#;
    let lease = json(lease.as_bytes(), type_of("coordination.k8s.io", "v1", "Lease")).unwrap().value;
    assert_eq!(lease["spec"]["renewTime"], "2024-01-01T00:00:00.123456Z");
}

#[test]
fn nothing_is_kept_of_null() {
    let text = r#"{"metadata":null,"spec":{"containers":[null],"nodeName":null,"tolerations":null,"securityContext":null}}"#;
    let value = json(text.as_bytes(), pod()).unwrap().value;
    assert_eq!(value, json!({"metadata":{},"spec":{"containers":[{"name":"","resources":{}}]},"status":{}}));
}

#[test]
fn schemas_may_be_booleans_or_lists() {
    let text = r#"{"spec":{"group":"g","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{
        "type":"object","additionalProperties":false,"properties":{"a":{"items":{"type":"string","bogus":1},"default":{"x":[1]}}}}}}]}}"#;
    let decoded =
        json(text.as_bytes(), type_of("apiextensions.k8s.io", "v1", "CustomResourceDefinition")).unwrap();
    let schema = &decoded.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(
        *schema,
        json!({"type":"object","additionalProperties":false,"properties":{"a":{"items":{"type":"string"},"default":{"x":[1]}}}})
    );
    assert_eq!(
        decoded.warnings,
        [r#"unknown field "spec.versions[0].schema.openAPIV3Schema.properties.a.items.bogus""#]
    );
}

#[test]
fn yaml_names_duplicates_by_line_first() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  foo: 1\n  name: b\ndata:\n  1: YQ==\n";
    let decoded = yaml(text.as_bytes(), type_of("", "v1", "Secret")).unwrap();
    assert_eq!(decoded.value["metadata"]["name"], "b");
    assert_eq!(decoded.value["data"], json!({"1":"YQ=="}));
    assert_eq!(
        decoded.warnings,
        [r#"line 6: key "name" already set in map"#, r#"unknown field "metadata.foo""#]
    );
}

#[test]
fn custom_resources_are_free_but_for_their_metadata() {
    let text = r#"{"apiVersion":"g/v1","kind":"K","metadata":{"name":"a","x":1,"creationTimestamp":null},"spec":{"a":null,"a":[1.5]}}"#;
    let decoded = custom(text.as_bytes()).unwrap();
    assert_eq!(
        decoded.value,
        json!({"apiVersion":"g/v1","kind":"K","metadata":{"name":"a"},"spec":{"a":[1.5]}})
    );
    assert_eq!(decoded.warnings, [r#"unknown field "metadata.x""#, r#"duplicate field "spec.a""#]);
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let text = "[".repeat(5_000);
    assert!(json(text.as_bytes(), None).is_err());
    assert!(yaml(text.as_bytes(), pod()).is_err());
}

/// JSON in which names and leaves often fit the type at hand, so that both good and bad bodies come up.
fn body() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(Value::from("1500m")),
        Just(Value::from("2024-01-01T00:00:00Z")),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("template"),
        Just("containers"),
        Just("name"),
        Just("labels"),
        Just("ports"),
        Just("containerPort"),
        Just("resources"),
        Just("limits"),
        Just("livenessProbe"),
        Just("httpGet"),
        Just("port"),
        Just("volumes"),
        Just("hostNetwork"),
        Just("creationTimestamp"),
        Just("x"),
    ];
    leaf.prop_recursive(6, 60, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((name.clone(), inner), 0..5).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn what_comes_out_goes_in_again_unchanged(body in body(), kind in prop_oneof![Just("Pod"), Just("Deployment")]) {
        let type_ = type_of(if kind == "Pod" { "" } else { "apps" }, "v1", kind).unwrap();
        if let Ok(first) = json(body.to_string().as_bytes(), Some(type_)) {
            prop_assume!(first.value.is_object());
            let second = value(first.value.clone(), type_).unwrap();
            prop_assert_eq!(&second.value, &first.value);
            prop_assert!(second.warnings.is_empty());
            let mut once = first.value;
            crate::defaults::apply(&mut once, type_, jiff::Timestamp::UNIX_EPOCH);
            let mut twice = once.clone();
            crate::defaults::apply(&mut twice, type_, jiff::Timestamp::UNIX_EPOCH);
            prop_assert_eq!(twice, once);
        }
    }

    #[test]
    fn arbitrary_text_is_decoded_or_refused(text in ".{0,60}") {
        let _ = json(text.as_bytes(), pod());
        let _ = yaml(text.as_bytes(), pod());
        let _ = yaml(text.as_bytes(), None);
    }
}

/// What a real kube-apiserver has written is what we would write: decoding and defaulting leave it alone.
#[test]
fn objects_from_a_real_server_are_left_as_they_are() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../data/rows_observed.json")).unwrap();
    for object in cases.iter().map(|c| &c["object"]) {
        let api_version = object["apiVersion"].as_str().unwrap();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let type_ = type_of(group, version, object["kind"].as_str().unwrap()).unwrap();
        let decoded = json(object.to_string().as_bytes(), Some(type_)).unwrap();
        assert_eq!(decoded.value, *object);
        assert!(decoded.warnings.is_empty(), "{:?}", decoded.warnings);
        let mut defaulted = decoded.value;
        crate::defaults::apply(&mut defaulted, type_, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(defaulted, *object);
    }
}
