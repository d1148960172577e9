use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tombolo_apiserver::{Config, Identity, Server};
use tombolo_store::MemoryStore;

use crate::client::{Client, brief};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOOS: &str = "/apis/example.com/v1/namespaces/default/foos";

fn definition() -> Value {
    let schema = |extra: Value| {
        let mut properties = json!({"color": {"type": "string", "default": "red"}, "replicas": {"type": "integer", "maximum": 10}});
        for (key, value) in extra.as_object().unwrap() {
            properties[key] = value.clone();
        }
        let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
        json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}, "status": status}}})
    };
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    json!({
        "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo", "singular": "foo"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema(json!({})),
                 "subresources": {"status": {}, "scale": scale}, "selectableFields": [{"jsonPath": ".spec.color"}],
                 "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}]},
                {"name": "v1beta1", "served": true, "storage": false, "schema": schema(json!({"size": {"type": "string", "default": "big"}})),
                 "subresources": {"status": {}}},
            ],
        },
    })
}

fn foo(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name}, "spec": spec})
}

async fn defined() -> Client {
    let client = Client::new().await;
    client.get(FOOS).await.expect(404);
    let made = client.post(DEFINITIONS, definition()).await.expect(201);
    let established = made["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .any(|c| c["type"] == "Established" && c["status"] == "True");
    assert!(established, "{made}");
    client
}

#[tokio::test]
async fn a_defined_kind_is_served_at_once_with_defaults_and_without_unknown_fields() {
    let client = defined().await;
    let made = client.post(FOOS, foo("a", json!({"bogus": 1, "replicas": 2}))).await;
    assert_eq!(made.warnings, ["299 - \"unknown field \\\"spec.bogus\\\"\""]);
    assert_eq!(made.expect(201)["spec"], json!({"color": "red", "replicas": 2}));
    client.post(FOOS, foo("b", json!({"replicas": 11}))).await.expect(422);
    let groups = client.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(groups["resources"][0]["name"], "foos");
}

#[tokio::test]
async fn more_unknown_fields_than_an_answer_has_room_for_are_dropped_all_the_same() {
    let client = defined().await;
    let unknown: serde_json::Map<_, _> = (0..50_000).map(|n| (format!("bogus{n}"), json!(1))).collect();
    let made = client.post(FOOS, foo("a", json!(unknown))).await;
    assert!((10..1_000).contains(&made.warnings.len()), "{} warnings", made.warnings.len());
    assert_eq!(made.expect(201)["spec"], json!({"color": "red"}));
}

#[tokio::test]
async fn what_only_a_webhook_could_convert_is_shown_in_its_own_version_alone() {
    let client = Client::new().await;
    let mut definition = definition();
    let webhook =
        json!({"clientConfig": {"url": "https://convert.example.com"}, "conversionReviewVersions": ["v1"]});
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
    let beta = &mut definition["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    beta["properties"].as_object_mut().unwrap().remove("replicas");
    client.post(DEFINITIONS, definition).await.expect(201);
    client.post(FOOS, foo("a", json!({}))).await.expect(201);
    client.get(&format!("{FOOS}/a")).await.expect(200);
    let beta = "/apis/example.com/v1beta1/namespaces/default/foos";
    let mut object = foo("b", json!({}));
    object["apiVersion"] = json!("example.com/v1beta1");
    for refused in [
        client.get(&format!("{beta}/a")).await,
        client.get(beta).await,
        client.post(beta, object).await,
        client.merge(&format!("{beta}/a/status"), json!({"status": {}})).await,
    ] {
        let message = refused.expect(500)["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with("use example.com/v1"), "{message}");
    }
    // Who cleans up looks at metadata only, in whichever version comes first.
    let metadata =
        client.with_header("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    assert_eq!(metadata.get(beta).await.expect(200)["items"][0]["metadata"]["name"], "a");
    client.delete(&format!("{beta}/a")).await.expect(200);
    // What this version does not know is not lost when somebody waits for the end.
    let mut held = foo("held", json!({"replicas": 3}));
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    client.post(FOOS, held).await.expect(201);
    client.delete(&format!("{beta}/held")).await.expect(200);
    let marked = client.get(&format!("{FOOS}/held")).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    assert_eq!(marked["spec"], json!({"color": "red", "replicas": 3}));
    let collector =
        client.with_header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    collector.merge(&format!("{beta}/held"), json!({"metadata": {"finalizers": null}})).await.expect(200);
    client.get(&format!("{FOOS}/held")).await.expect(404);
}

#[tokio::test]
async fn each_version_shows_the_object_in_its_own_form() {
    let client = defined().await;
    client.post(FOOS, foo("a", json!({}))).await.expect(201);
    let path = "/apis/example.com/v1beta1/namespaces/default/foos/a";
    let beta = client.get(path).await.expect(200);
    assert_eq!(beta["apiVersion"], "example.com/v1beta1");
    assert_eq!(beta["spec"], json!({"color": "red", "size": "big"}));
    let list = client.get("/apis/example.com/v1beta1/foos").await.expect(200);
    assert_eq!(list["items"][0]["spec"]["size"], "big");
}

#[tokio::test]
async fn a_default_added_later_shows_on_what_was_stored_before() {
    let client = defined().await;
    client.post(FOOS, foo("a", json!({}))).await.expect(201);
    let path = format!("{DEFINITIONS}/foos.example.com");
    let add = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/shape",
        "value": {"type": "string", "default": "round"},
    }]);
    client.send(Method::PATCH, &path, "application/json-patch+json", add.to_string()).await.expect(200);
    assert_eq!(client.get(&format!("{FOOS}/a")).await.expect(200)["spec"]["shape"], "round");
    assert_eq!(client.get(FOOS).await.expect(200)["items"][0]["spec"]["shape"], "round");
}

#[tokio::test]
async fn a_watch_ends_when_its_definition_changes_and_the_next_one_shows_the_new_form() {
    let client = defined().await;
    let mut before = client.watch(&format!("{FOOS}?watch=true")).await;
    let mut quiet = client.watch(&format!("{FOOS}?watch=true&labelSelector=nobody")).await;
    client.post(FOOS, foo("a", json!({}))).await.expect(201);
    assert_eq!(brief(&before.next().await), ("ADDED".to_owned(), "a".to_owned()));
    let path = format!("{DEFINITIONS}/foos.example.com");
    // What does not change what is served ends nothing.
    client.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    client.post(FOOS, foo("b", json!({}))).await.expect(201);
    assert_eq!(brief(&before.next().await), ("ADDED".to_owned(), "b".to_owned()));
    let shape = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/shape",
        "value": {"type": "string"},
    }]);
    client.send(Method::PATCH, &path, "application/json-patch+json", shape.to_string()).await.expect(200);
    let ended = tokio::time::timeout(Duration::from_secs(20), quiet.line()).await;
    assert_eq!(ended.expect("the watch goes on"), None, "without another request");
    let mut after = client.watch(&format!("{FOOS}?watch=true")).await;
    client.post(FOOS, foo("c", json!({"shape": "round"}))).await.expect(201);
    let ended = tokio::time::timeout(Duration::from_secs(20), before.line()).await;
    assert_eq!(ended.expect("the watch goes on"), None);
    let shown = loop {
        let event = after.next().await;
        if brief(&event).1 == "c" {
            break event;
        }
    };
    assert_eq!(shown["object"]["spec"]["shape"], "round");
}

#[tokio::test]
async fn a_replica_that_has_not_heard_of_a_change_spoils_no_event_for_others() {
    let store = Arc::new(MemoryStore::new());
    let replica = async || Client {
        server: Server::start(Config::new(store.clone())).await.unwrap(),
        identity: Some(Identity::system("admin")),
        headers: Vec::new(),
    };
    let (one, other) = (replica().await, replica().await);
    one.post(DEFINITIONS, definition()).await.expect(201);
    let mut late = other.watch(&format!("{FOOS}?watch=true")).await;
    let shape = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/shape",
        "value": {"type": "string"},
    }]);
    let path = format!("{DEFINITIONS}/foos.example.com");
    one.send(Method::PATCH, &path, "application/json-patch+json", shape.to_string()).await.expect(200);
    let mut watch = one.watch(&format!("{FOOS}?watch=true")).await;
    one.post(FOOS, foo("a", json!({"shape": "round"}))).await.expect(201);
    // It looks first, and either shows what it knows or has ended.
    let _ = late.line().await;
    assert_eq!(watch.next().await["object"]["spec"]["shape"], "round");
}

#[tokio::test]
async fn status_and_scale_are_subresources() {
    let client = defined().await;
    client.post(FOOS, foo("a", json!({"replicas": 1}))).await.expect(201);
    let path = format!("{FOOS}/a");
    let status = client
        .merge(&format!("{path}/status"), json!({"status": {"replicas": 1}, "spec": {"color": "blue"}}))
        .await;
    let status = status.expect(200);
    assert_eq!((&status["status"]["replicas"], &status["spec"]["color"]), (&json!(1), &json!("red")));
    assert_eq!(status["metadata"]["generation"], 1);
    let scale = client.merge(&format!("{path}/scale"), json!({"spec": {"replicas": 4}})).await.expect(200);
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"], &scale["status"]["replicas"]),
        (&json!("Scale"), &json!(4), &json!(1))
    );
    assert_eq!(client.get(&path).await.expect(200)["metadata"]["generation"], 2);
}

#[tokio::test]
async fn custom_kinds_take_no_strategic_merge_and_no_protobuf() {
    let client = defined().await;
    client.post(FOOS, foo("a", json!({}))).await.expect(201);
    let kind = "application/strategic-merge-patch+json";
    client.send(Method::PATCH, &format!("{FOOS}/a"), kind, "{}").await.expect(415);
    client.send(Method::POST, FOOS, "application/vnd.kubernetes.protobuf", "k8s\0").await.expect(415);
}

#[tokio::test]
async fn selectable_fields_and_columns_come_from_the_definition() {
    let client = defined().await;
    for (name, color) in [("a", "red"), ("b", "blue")] {
        client.post(FOOS, foo(name, json!({"color": color}))).await.expect(201);
    }
    let list = client.get(&format!("{FOOS}?fieldSelector=spec.color%3Dblue")).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let table = client
        .with_header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .get(FOOS)
        .await
        .expect(200);
    assert_eq!(table["rows"][1]["cells"], json!(["b", "blue"]));
}

#[tokio::test]
async fn apply_of_a_custom_kind_owns_field_by_field() {
    let client = defined().await;
    let path = format!("{FOOS}/a");
    client.apply(&path, "one", foo("a", json!({"color": "blue"}))).await.expect(201);
    client.apply(&path, "two", foo("a", json!({"replicas": 3}))).await.expect(200);
    let refused =
        client.apply(&path, "two", foo("a", json!({"replicas": 3, "color": "green"}))).await.expect(409);
    assert_eq!(refused["details"]["causes"][0]["field"], ".spec.color");
}

#[tokio::test]
async fn deleting_a_definition_deletes_its_objects() {
    let client = defined().await;
    client.post(FOOS, foo("a", json!({}))).await.expect(201);
    let path = format!("{DEFINITIONS}/foos.example.com");
    client.delete(&path).await.expect(200);
    let gone = async {
        while client.get(&path).await.code != 404 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the definition stays");
    client.get(FOOS).await.expect(404);
    client.post(DEFINITIONS, definition()).await.expect(201);
    assert_eq!(client.get(FOOS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn names_that_are_taken_are_not_accepted() {
    let client = defined().await;
    let mut other = definition();
    other["metadata"]["name"] = "bars.example.com".into();
    other["spec"]["names"] = json!({"plural": "bars", "kind": "Foo", "singular": "bar"});
    let made = client.post(DEFINITIONS, other).await.expect(201);
    let accepted = made["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "NamesAccepted")
        .unwrap();
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("False"), &json!("KindConflict")));
}

#[tokio::test]
async fn a_server_answers_while_rules_take_long_and_ends_them_for_who_waits() {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.rule_time = Duration::from_millis(300);
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    let mut made = definition();
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["list"] = json!({
        "type": "array", "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x + y > 0))"}],
    });
    client.post(DEFINITIONS, made).await.expect(201);
    let list = |items: usize| json!({"list": vec![1; items]});
    let slow = {
        let (client, object) = (client.clone(), foo("slow", list(5000)));
        tokio::spawn(async move { client.post(FOOS, object).await })
    };
    // On this test's one thread: whatever holds it up holds up everything.
    while !slow.is_finished() {
        client.get("/api/v1/namespaces/default").await.expect(200);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let refused = slow.await.unwrap().expect(422);
    assert!(refused["message"].as_str().unwrap().contains("running out of cost budget"), "{refused}");
    // They cannot be stopped. One does not keep out another; two do, but for small ones.
    client.post(FOOS, foo("slow", list(5000))).await.expect(422);
    client.post(FOOS, foo("large", list(5000))).await.expect(429);
    client.post(FOOS, foo("small", list(20))).await.expect(201);
}

#[tokio::test]
async fn rules_are_run_for_large_objects_too() {
    let client = Client::new().await;
    let mut made = definition();
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["list"] = json!({
        "type": "array", "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "self.all(x, x in [1, 2] && x in self)", "message": "one or two"}],
    });
    client.post(DEFINITIONS, made).await.expect(201);
    let mut list = vec![1; 2000];
    client.post(FOOS, foo("good", json!({"list": list}))).await.expect(201);
    list.push(3);
    let refused = client.post(FOOS, foo("bad", json!({"list": list}))).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("one or two"), "{refused}");
}
