use http::Method;
use serde_json::json;

use crate::client::Client;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment(name: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    })
}

#[tokio::test]
async fn a_created_object_carries_what_only_the_server_sets() {
    let client = Client::new().await;
    let made = client.config_map("a", json!({})).await;
    let metadata = &made["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert!(metadata["uid"].as_str().unwrap().len() == 36 && metadata["creationTimestamp"].is_string());
    assert_eq!(metadata["managedFields"][0]["manager"], "test");
    assert_eq!(client.get(&format!("{MAPS}/a")).await.expect(200), made);
}

#[tokio::test]
async fn creating_twice_is_refused_with_already_exists() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let again = client.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(409);
    assert_eq!(again["reason"], "AlreadyExists");
    assert_eq!(again["message"], "configmaps \"a\" already exists");
}

#[tokio::test]
async fn a_generated_name_begins_with_its_base() {
    let client = Client::new().await;
    let made = client.post(MAPS, json!({"metadata": {"generateName": "web-"}})).await.expect(201);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
}

#[tokio::test]
async fn an_update_based_on_an_old_version_is_a_conflict() {
    let client = Client::new().await;
    let first = client.config_map("a", json!({})).await;
    let path = format!("{MAPS}/a");
    let mut change = first.clone();
    change["data"]["a"] = "c".into();
    let second = client.put(&path, change.clone()).await.expect(200);
    assert_ne!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    change["data"]["a"] = "d".into();
    let refused = client.put(&path, change).await.expect(409);
    assert!(refused["message"].as_str().unwrap().contains("the object has been modified"));
}

#[tokio::test]
async fn an_update_that_changes_nothing_writes_nothing() {
    let client = Client::new().await;
    let first = client.config_map("a", json!({})).await;
    let second = client.put(&format!("{MAPS}/a"), first.clone()).await.expect(200);
    assert_eq!(first, second);
}

#[tokio::test]
async fn the_generation_counts_changes_of_the_spec_only() {
    let client = Client::new().await;
    let made = client.post(DEPLOYMENTS, deployment("a")).await.expect(201);
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["spec"]["replicas"], 1);
    let path = format!("{DEPLOYMENTS}/a");
    let labelled = client.merge(&path, json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 1);
    let scaled = client.merge(&path, json!({"spec": {"replicas": 3}})).await.expect(200);
    assert_eq!(scaled["metadata"]["generation"], 2);
}

#[tokio::test]
async fn status_is_written_through_its_own_endpoint_only() {
    let client = Client::new().await;
    client.post(DEPLOYMENTS, deployment("a")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/a");
    let main = client.merge(&path, json!({"status": {"replicas": 7}})).await.expect(200);
    assert!(main["status"].get("replicas").is_none(), "{main}");
    let patch = json!({"status": {"replicas": 7}, "spec": {"replicas": 9}});
    let status = client.merge(&format!("{path}/status"), patch).await.expect(200);
    assert_eq!(status["status"]["replicas"], 7);
    assert_eq!(status["spec"]["replicas"], 1);
}

#[tokio::test]
async fn all_four_patch_types_change_an_object() {
    let client = Client::new().await;
    client.post(DEPLOYMENTS, deployment("a")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/a");
    let json_patch = json!([{"op": "replace", "path": "/spec/replicas", "value": 2}]).to_string();
    let made = client.send(Method::PATCH, &path, "application/json-patch+json", json_patch).await.expect(200);
    assert_eq!(made["spec"]["replicas"], 2);
    let strategic =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "d", "image": "j"}]}}}}).to_string();
    let kind = "application/strategic-merge-patch+json";
    let made = client.send(Method::PATCH, &path, kind, strategic).await.expect(200);
    assert_eq!(made["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2);
    let applied = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": 5}});
    let refused = client.apply(&path, "me", applied.clone()).await.expect(409);
    assert_eq!(refused["details"]["causes"][0]["reason"], "FieldManagerConflict");
    let forced = client.apply(&format!("{path}?force=true"), "me", applied).await.expect(200);
    assert_eq!(forced["spec"]["replicas"], 5);
}

#[tokio::test]
async fn apply_creates_what_is_missing() {
    let client = Client::new().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}});
    client.apply(&format!("{MAPS}/a"), "me", map.clone()).await.expect(201);
    let again = client.apply(&format!("{MAPS}/a"), "me", map).await.expect(200);
    assert_eq!(again["metadata"]["managedFields"][0]["operation"], "Apply");
}

#[tokio::test]
async fn a_dry_run_answers_as_if_but_stores_nothing() {
    let client = Client::new().await;
    let map = json!({"metadata": {"name": "a"}});
    client.post(&format!("{MAPS}?dryRun=All"), map.clone()).await.expect(201);
    client.get(&format!("{MAPS}/a")).await.expect(404);
    client.post(MAPS, map).await.expect(201);
    client.delete(&format!("{MAPS}/a?dryRun=All")).await.expect(200);
    client.get(&format!("{MAPS}/a")).await.expect(200);
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_of_or_dropped_as_asked() {
    let client = Client::new().await;
    let map = json!({"metadata": {"name": "a"}, "bogus": 1});
    let strict = client.post(&format!("{MAPS}?fieldValidation=Strict"), map.clone()).await.expect(400);
    assert!(strict["message"].as_str().unwrap().contains("strict decoding error: unknown field \"bogus\""));
    let warned = client.post(MAPS, map).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"bogus\\\"\""]);
    assert!(warned.expect(201).get("bogus").is_none());
}

#[tokio::test]
async fn a_finalizer_holds_a_deleted_object_until_it_is_removed() {
    let client = Client::new().await;
    let map = json!({"metadata": {"name": "a", "finalizers": ["x.io/y"]}});
    client.post(MAPS, map).await.expect(201);
    let path = format!("{MAPS}/a");
    let marked = client.delete(&path).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    client.get(&path).await.expect(200);
    client.merge(&path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    client.get(&path).await.expect(404);
}

#[tokio::test]
async fn the_propagation_policy_becomes_a_finalizer() {
    let client = Client::new().await;
    client.post(DEPLOYMENTS, deployment("a")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/a?propagationPolicy=Foreground");
    let marked = client.delete(&path).await.expect(200);
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
}

#[tokio::test]
async fn a_delete_with_another_uid_is_refused() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let body = json!({"preconditions": {"uid": "other"}}).to_string();
    let refused = client.send(Method::DELETE, &format!("{MAPS}/a"), "application/json", body).await;
    assert_eq!(refused.expect(409)["reason"], "Conflict");
}

#[tokio::test]
async fn a_put_creates_where_the_kind_allows_it() {
    let client = Client::new().await;
    let lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a";
    client.put(leases, lease.clone()).await.expect(201);
    // Leases are never overwritten blindly.
    client.put(leases, lease).await.expect(422);
    client.put(&format!("{MAPS}/a"), json!({"metadata": {"name": "a"}})).await.expect(404);
}

#[tokio::test]
async fn bodies_past_the_limit_are_refused() {
    let client = Client::new().await;
    let big = json!({"metadata": {"name": "a"}, "data": {"x": "y".repeat(4 << 20)}});
    assert_eq!(client.post(MAPS, big).await.expect(413)["reason"], "RequestEntityTooLarge");
}

#[tokio::test]
async fn many_patches_at_once_all_count() {
    let client = Client::new().await;
    client.config_map("a", json!({})).await;
    let patches = (0..20).map(|i| {
        let client = client.clone();
        async move {
            client.merge(&format!("{MAPS}/a"), json!({"data": {format!("k{i}"): "v"}})).await.expect(200)
        }
    });
    futures::future::join_all(patches).await;
    let map = client.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(map["data"].as_object().unwrap().len(), 21);
}
