use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tombolo_apiserver::{Config, Identity, Server};
use tombolo_store::MemoryStore;

use crate::client::{Client, brief};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.into(), name.into())
}

#[tokio::test]
async fn a_watch_goes_on_from_the_list_it_follows() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let list = client.get(MAPS).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut events = client.watch(&format!("{MAPS}?watch=true&resourceVersion={version}")).await;
    client.config_map("b", json!({})).await;
    client.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await.expect(200);
    client.delete(&format!("{MAPS}/b")).await.expect(200);
    assert_eq!(brief(&events.next().await), event("ADDED", "b"));
    let modified = events.next().await;
    assert_eq!(brief(&modified), event("MODIFIED", "a"));
    let deleted = events.next().await;
    assert_eq!(brief(&deleted), event("DELETED", "b"));
    // The last state carries the revision of the deletion.
    let number = |v: &serde_json::Value| {
        v["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
    };
    assert!(number(&deleted) > number(&modified));
}

#[tokio::test]
async fn a_watch_of_generations_leaves_out_changes_of_status_and_labels() {
    let client = Client::new().await;
    let all = "/apis/apps/v1/namespaces/default/deployments";
    let pods =
        json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": pods}});
    let made = client.post(all, deployment).await.expect(201);
    let version = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let query = format!("watch=1&resourceVersion={version}&generationChangesOnly=true");
    let mut events = client.watch(&format!("{all}?{query}")).await;
    client.merge(&format!("{all}/a/status"), json!({"status": {"replicas": 1}})).await.expect(200);
    client.merge(&format!("{all}/a"), json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    client.merge(&format!("{all}/a"), json!({"spec": {"replicas": 2}})).await.expect(200);
    let modified = events.next().await;
    assert_eq!(brief(&modified), event("MODIFIED", "a"));
    assert_eq!(modified["object"]["spec"]["replicas"], 2, "what came before it is left out");
    assert_eq!(modified["object"]["metadata"]["labels"]["x"], "y");
}

#[tokio::test]
async fn a_quiet_watch_is_told_now_and_then_how_far_it_is() {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.bookmark_every = Duration::from_millis(20);
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    let mut quiet = client.watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=true")).await;
    let mut plain = client.watch(&format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    let made =
        client.post("/api/v1/namespaces", json!({"metadata": {"name": "elsewhere"}})).await.expect(201);
    let version = |object: &serde_json::Value| -> u64 {
        object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    for _ in 0..2 {
        let bookmark = quiet.next().await;
        assert_eq!(bookmark["type"], "BOOKMARK");
        assert!(version(&bookmark["object"]) >= version(&made), "{bookmark}");
    }
    assert!(plain.line().await.is_none(), "who did not ask for them hears nothing until the end");
    // Longer than any clock goes.
    client.watch(&format!("{MAPS}?watch=1&timeoutSeconds=9223372036854775807")).await;
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_what_is_there() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let mut events = client.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(brief(&events.next().await), event("ADDED", "a"));
    client.config_map("b", json!({})).await;
    assert_eq!(brief(&events.next().await), event("ADDED", "b"));
}

#[tokio::test]
async fn the_end_of_the_initial_events_is_marked() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = client.watch(&format!("{MAPS}?{query}")).await;
    assert_eq!(brief(&events.next().await), event("ADDED", "a"));
    let mark = events.next().await;
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn objects_enter_and_leave_a_selection() {
    let client = Client::new().await;
    let mut events = client.watch(&format!("{MAPS}?watch=1&labelSelector=in%3Dyes&resourceVersion=0")).await;
    client.config_map("a", json!({"in": "no"})).await;
    let label = |value: &str| json!({"metadata": {"labels": {"in": value}}});
    client.merge(&format!("{MAPS}/a"), label("yes")).await.expect(200);
    client.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await.expect(200);
    client.merge(&format!("{MAPS}/a"), label("no")).await.expect(200);
    client.delete(&format!("{MAPS}/a")).await.expect(200);
    client.config_map("b", json!({"in": "yes"})).await;
    for wanted in [event("ADDED", "a"), event("MODIFIED", "a"), event("DELETED", "a"), event("ADDED", "b")] {
        assert_eq!(brief(&events.next().await), wanted);
    }
}

#[tokio::test]
async fn a_version_that_is_forgotten_ends_in_expired() {
    let client = Client::new().await;
    let old = client.config_map("a", json!({})).await;
    client.config_map("b", json!({})).await;
    client.config_map("c", json!({})).await;
    let store = client.server.store();
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let version = old["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = client.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    let error = events.next().await;
    assert_eq!((error["type"].as_str(), error["object"]["code"].as_i64()), (Some("ERROR"), Some(410)));
    assert!(events.line().await.is_none());
}

#[tokio::test]
async fn a_watch_of_one_name_sees_only_that_name() {
    let client = Client::new().await;
    let query = "watch=1&fieldSelector=metadata.name%3Dab&resourceVersion=0";
    let mut events = client.watch(&format!("{MAPS}?{query}")).await;
    for name in ["a", "abc", "ab"] {
        client.config_map(name, json!({})).await;
    }
    assert_eq!(brief(&events.next().await), event("ADDED", "ab"));
}

#[tokio::test]
async fn a_stopping_server_ends_its_watches() {
    let client = Client::new().await;
    let mut events =
        client.watch(&format!("{MAPS}?watch=1&resourceVersion=0&allowWatchBookmarks=true")).await;
    client.server.shutdown(std::time::Duration::from_secs(1)).await.unwrap();
    assert_eq!(events.next().await["type"], "BOOKMARK");
    assert!(events.line().await.is_none());
}
