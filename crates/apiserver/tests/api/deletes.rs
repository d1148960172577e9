//! What may come with a delete. That the answers are upstream's, the differential test compares.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Client};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn delete(client: &Client, path: &str, options: Value) -> Answer {
    client.send(Method::DELETE, path, "application/json", options.to_string()).await
}

/// A pod that waits for its node when it is deleted.
async fn waiting_pod(client: &Client) {
    client.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    client.post(PODS, json!({"metadata": {"name": "a"}, "spec": spec})).await.expect(201);
}

#[tokio::test]
async fn a_body_that_is_something_else_deletes_nothing() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let one = format!("{MAPS}/a");
    for wrong in [
        json!({"apiVersion": "v1", "kind": "Pod"}),
        json!({"kind": "ConfigMap"}),
        json!({"apiVersion": "a/b/c"}),
        json!({"propagationPolicy": 7}),
        json!([]),
    ] {
        let refused = delete(&client, &one, wrong.clone()).await;
        assert_eq!(refused.code, 400, "{wrong}: {}", refused.text);
        delete(&client, MAPS, wrong).await.expect(400);
    }
    client.delete(&format!("{one}?gracePeriodSeconds=soon")).await.expect(400);
    client.get(&one).await.expect(200);
    delete(&client, &one, json!({"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions"})).await.expect(200);
    client.get(&one).await.expect(404);
}

#[tokio::test]
async fn the_policy_of_the_body_becomes_a_finalizer() {
    let client = Client::new().await;
    for (options, wanted) in [
        (json!({"propagationPolicy": "Orphan"}), json!(["orphan"])),
        (json!({"propagationPolicy": "Foreground"}), json!(["foregroundDeletion"])),
        (json!({"orphanDependents": true}), json!(["orphan"])),
    ] {
        let name = wanted[0].as_str().unwrap().to_ascii_lowercase() + &options.to_string().len().to_string();
        client.config_map(&name, json!({})).await;
        let marked = delete(&client, &format!("{MAPS}/{name}"), options).await.expect(200);
        assert_eq!(marked["metadata"]["finalizers"], wanted);
    }
    client.config_map("b", json!({})).await;
    let one = format!("{MAPS}/b");
    let both = json!({"propagationPolicy": "Orphan", "orphanDependents": true});
    delete(&client, &one, both).await.expect(422);
    delete(&client, &one, json!({"propagationPolicy": "Sometimes"})).await.expect(422);
    delete(&client, &one, json!({"dryRun": ["All"]})).await.expect(200);
    client.get(&one).await.expect(200);
    delete(&client, &one, json!({"propagationPolicy": "Background"})).await.expect(200);
    client.get(&one).await.expect(404);
}

#[tokio::test]
async fn a_version_that_is_over_protects_what_came_after_it() {
    let client = Client::new().await;
    let made = client.config_map("a", json!({})).await;
    let one = format!("{MAPS}/a");
    let changed = client.merge(&one, json!({"data": {"n": "1"}})).await.expect(200);
    let only =
        |object: &Value| json!({"preconditions": {"resourceVersion": object["metadata"]["resourceVersion"]}});
    delete(&client, &one, only(&made)).await.expect(409);
    delete(&client, &one, only(&changed)).await.expect(200);
}

#[tokio::test]
async fn a_second_delete_shortens_the_wait_and_never_lengthens_it() {
    let client = Client::new().await;
    waiting_pod(&client).await;
    let one = format!("{PODS}/a");
    let time = |pod: &Value| -> jiff::Timestamp {
        pod["metadata"]["deletionTimestamp"].as_str().unwrap().parse().unwrap()
    };
    let grace = |pod: &Value| pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap();
    let first = client.delete(&format!("{one}?gracePeriodSeconds=600")).await.expect(200);
    let longer = client.delete(&format!("{one}?gracePeriodSeconds=900")).await.expect(200);
    assert_eq!((grace(&first), &first["metadata"]), (600, &longer["metadata"]));
    let shorter = client.delete(&format!("{one}?gracePeriodSeconds=100")).await.expect(200);
    assert_eq!(grace(&shorter), 100);
    // Counted from the first delete, not from this one.
    assert_eq!(time(&first).as_second() - time(&shorter).as_second(), 500);
    client.delete(&format!("{one}?gracePeriodSeconds=0")).await.expect(200);
    client.get(&one).await.expect(404);
}

#[tokio::test]
async fn who_asks_for_dependents_in_the_old_way_hears_that_it_is_not_done_yet() {
    let client = Client::new().await;
    let map = json!({"metadata": {"name": "a", "finalizers": ["x.io/y"]}});
    client.post(MAPS, map).await.expect(201);
    delete(&client, &format!("{MAPS}/a"), json!({"orphanDependents": false})).await.expect(202);
    client.get(&format!("{MAPS}/a")).await.expect(200);
}

#[tokio::test]
async fn an_old_memory_of_when_a_pod_ends_does_not_keep_its_node_from_reporting() {
    let client = Client::new().await;
    waiting_pod(&client).await;
    let one = format!("{PODS}/a");
    let first = client.delete(&format!("{one}?gracePeriodSeconds=600")).await.expect(200);
    let last = client.delete(&format!("{one}?gracePeriodSeconds=60")).await.expect(200);
    let report = json!({"metadata": {"deletionTimestamp": first["metadata"]["deletionTimestamp"]}, "status": {"message": "ends"}});
    let reported = client.merge(&format!("{one}/status"), report).await.expect(200);
    assert_eq!(reported["status"]["message"], "ends");
    assert_eq!(reported["metadata"]["deletionTimestamp"], last["metadata"]["deletionTimestamp"]);
    // Nobody else marks an object so.
    client.config_map("b", json!({})).await;
    let marked = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    client.merge(&format!("{MAPS}/b"), marked).await.expect(422);
}
