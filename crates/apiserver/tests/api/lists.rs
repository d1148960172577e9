use serde_json::{Value, json};

use crate::client::Client;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_list_is_in_order_and_selects_by_label_and_field() {
    let client = Client::new().await;
    for (name, app) in [("b", "x"), ("a", "y"), ("c", "x")] {
        client.config_map(name, json!({"app": app})).await;
    }
    assert_eq!(names(&client.get(MAPS).await.expect(200)), ["a", "b", "c"]);
    assert_eq!(names(&client.get(&format!("{MAPS}?labelSelector=app%3Dx")).await.expect(200)), ["b", "c"]);
    let one = format!("{MAPS}?fieldSelector=metadata.name%3Db");
    assert_eq!(names(&client.get(&one).await.expect(200)), ["b"]);
    let not = format!("{MAPS}?fieldSelector=metadata.name!%3Db&labelSelector=app%20in%20(x)");
    assert_eq!(names(&client.get(&not).await.expect(200)), ["c"]);
    client.get(&format!("{MAPS}?fieldSelector=data.x%3Db")).await.expect(400);
}

#[tokio::test]
async fn pages_of_a_list_show_one_state_and_end() {
    let client = Client::new().await;
    for i in 0..5 {
        client.config_map(&format!("m{i}"), json!({})).await;
    }
    let first = client.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["m0", "m1"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    client.delete(&format!("{MAPS}/m2")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["m2", "m3"]);
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = client.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&last), ["m4"]);
    assert!(last["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn an_expired_page_says_how_to_go_on() {
    let client = Client::new().await;
    for i in 0..3 {
        client.config_map(&format!("m{i}"), json!({})).await;
    }
    let first = client.get(&format!("{MAPS}?limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    client.config_map("z", json!({})).await;
    let store = client.server.store();
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let expired = client.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let rest = client.get(&format!("{MAPS}?limit=10&continue={token}")).await.expect(200);
    assert_eq!(names(&rest), ["m1", "m2", "z"]);
}

#[tokio::test]
async fn a_selective_page_is_full_when_there_is_more() {
    let client = Client::new().await;
    for i in 0..30 {
        client.config_map(&format!("m{i:02}"), json!({"even": (i % 2 == 0).to_string()})).await;
    }
    let path = format!("{MAPS}?limit=10&labelSelector=even%3Dtrue");
    let first = client.get(&path).await.expect(200);
    assert_eq!(names(&first).len(), 10);
    assert!(first["metadata"].get("remainingItemCount").is_none());
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = client.get(&format!("{path}&continue={token}")).await.expect(200);
    assert_eq!(names(&rest), ["m20", "m22", "m24", "m26", "m28"]);
}

#[tokio::test]
async fn versions_in_the_future_and_contradictions_are_refused() {
    let client = Client::new().await;
    let future = client
        .get(&format!("{MAPS}?resourceVersion=99999&resourceVersionMatch=NotOlderThan"))
        .await
        .expect(504);
    assert_eq!(future["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "sendInitialEvents=true",
    ] {
        client.get(&format!("{MAPS}?{query}")).await.expect(422);
    }
    client.get(&format!("{MAPS}?continue=nonsense")).await.expect(400);
}

#[tokio::test]
async fn a_large_list_arrives_whole() {
    let client = Client::new().await;
    for i in 0..300 {
        let object = json!({"metadata": {"name": format!("m{i:03}")}, "data": {"x": "y".repeat(2000)}});
        client.post(MAPS, object).await.expect(201);
    }
    let list = client.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 300);
    assert_eq!(list["kind"], "ConfigMapList");
}

#[tokio::test]
async fn tables_and_metadata_come_when_asked_for() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let table = client.with_header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    let table = table.get(MAPS).await.expect(200);
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"][0], "a");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial =
        client.with_header("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let partial = partial.get(MAPS).await.expect(200);
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert!(partial["items"][0].get("data").is_none());
}
