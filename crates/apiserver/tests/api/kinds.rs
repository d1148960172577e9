use http::Method;
use serde_json::{Value, json};

use crate::client::Client;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn with_account() -> Client {
    let client = Client::new().await;
    client
        .post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}}))
        .await
        .expect(201);
    client
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn a_pod_gets_an_account_a_token_a_priority_and_a_phase() {
    let client = with_account().await;
    let made = client.post(PODS, pod("a")).await.expect(201);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert!(made["spec"]["volumes"][0]["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(made["spec"]["containers"][0]["volumeMounts"][0]["readOnly"], true);
    assert_eq!((&made["spec"]["priority"], &made["status"]["phase"]), (&json!(0), &json!("Pending")));
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(made["status"]["qosClass"], "BestEffort");
}

#[tokio::test]
async fn a_binding_sets_the_node_once() {
    let client = with_account().await;
    client.post(PODS, pod("a")).await.expect(201);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    client.post(&format!("{PODS}/a/binding"), binding.clone()).await.expect(201);
    let bound = client.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    client.post(&format!("{PODS}/a/binding"), binding).await.expect(409);
    let on_node = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.expect(200);
    assert_eq!(on_node["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_bound_pod_is_deleted_in_two_steps() {
    let client = with_account().await;
    client.post(PODS, pod("a")).await.expect(201);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    client.post(&format!("{PODS}/a/binding"), binding).await.expect(201);
    let marked = client.delete(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    client.get(&format!("{PODS}/a")).await.expect(200);
    client.delete(&format!("{PODS}/a?gracePeriodSeconds=0")).await.expect(200);
    client.get(&format!("{PODS}/a")).await.expect(404);
}

#[tokio::test]
async fn an_eviction_waits_for_its_budget() {
    let client = with_account().await;
    let mut labelled = pod("a");
    labelled["metadata"]["labels"] = json!({"app": "x"});
    client.post(PODS, labelled).await.expect(201);
    client.merge(&format!("{PODS}/a/status"), json!({"status": {"phase": "Running"}})).await.expect(200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    client.post(budgets, budget).await.expect(201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let refused = client.post(&format!("{PODS}/a/eviction"), eviction.clone()).await.expect(429);
    assert_eq!(refused["details"]["causes"][0]["reason"], "DisruptionBudget");
    let allow = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    client.merge(&format!("{budgets}/b/status"), allow).await.expect(200);
    client.post(&format!("{PODS}/a/eviction"), eviction).await.expect(201);
    client.get(&format!("{PODS}/a")).await.expect(404);
    let left = client.get(&format!("{budgets}/b")).await.expect(200);
    assert_eq!(left["status"]["disruptionsAllowed"].as_i64().unwrap_or(0), 0);
}

#[tokio::test]
async fn services_never_share_an_address_or_a_port() {
    let client = Client::new().await;
    let service = |i: usize| json!({"metadata": {"name": format!("s{i}")}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let made = futures::future::join_all((0..50).map(|i| {
        let client = client.clone();
        async move { client.post(SERVICES, service(i)).await.expect(201) }
    }))
    .await;
    let unique = |pointer: &str| {
        made.iter()
            .map(|s| s.pointer(pointer).unwrap().to_string())
            .collect::<std::collections::BTreeSet<_>>()
            .len()
    };
    assert_eq!((unique("/spec/clusterIP"), unique("/spec/ports/0/nodePort")), (50, 50));
}

#[tokio::test]
async fn a_deleted_service_gives_its_address_back() {
    let client = Client::new().await;
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.96.7.7", "ports": [{"port": 80, "nodePort": 31000}], "type": "NodePort"}});
    client.post(SERVICES, service("a")).await.expect(201);
    let taken = client.post(SERVICES, service("b")).await.expect(422);
    assert!(taken["message"].as_str().unwrap().contains("already allocated"), "{taken}");
    client.delete(&format!("{SERVICES}/a")).await.expect(200);
    client.post(SERVICES, service("b")).await.expect(201);
    let kept =
        client.merge(&format!("{SERVICES}/b"), json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    assert_eq!(kept["spec"]["clusterIP"], "10.96.7.7");
    let plain =
        client.merge(&format!("{SERVICES}/b"), json!({"spec": {"type": "ClusterIP"}})).await.expect(200);
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
    let other = json!({"metadata": {"name": "c"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 31000}]}});
    client.post(SERVICES, other).await.expect(201);
}

#[tokio::test]
async fn a_namespace_empties_before_it_goes() {
    let client = Client::new().await;
    let made = client.post("/api/v1/namespaces", json!({"metadata": {"name": "x"}})).await.expect(201);
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "x");
    let deleted = client.delete("/api/v1/namespaces/x").await.expect(200);
    assert_eq!(deleted["status"]["phase"], "Terminating");
    let refused =
        client.post("/api/v1/namespaces/x/configmaps", json!({"metadata": {"name": "a"}})).await.expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut done = client.get("/api/v1/namespaces/x").await.expect(200);
    done["spec"]["finalizers"] = json!([]);
    client.put("/api/v1/namespaces/x/finalize", done).await.expect(200);
    client.get("/api/v1/namespaces/x").await.expect(404);
    client
        .post("/api/v1/namespaces/nowhere/configmaps", json!({"metadata": {"name": "a"}}))
        .await
        .expect(404);
    client.delete("/api/v1/namespaces/default").await.expect(403);
}

#[tokio::test]
async fn events_have_two_faces() {
    let client = Client::new().await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"}, "reason": "R", "message": "m"});
    client.post("/api/v1/namespaces/default/events", event).await.expect(201);
    let other = client.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!((&other["regarding"]["name"], &other["note"]), (&json!("a"), &json!("m")));
    let query = "fieldSelector=regarding.name%3Da";
    let list =
        client.get(&format!("/apis/events.k8s.io/v1/namespaces/default/events?{query}")).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let list = client
        .get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Db")
        .await
        .expect(200);
    assert_eq!(list["items"], json!([]));
}

#[tokio::test]
async fn replicas_are_scaled_through_scale() {
    let client = Client::new().await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    client.post("/apis/apps/v1/namespaces/default/deployments", deployment).await.expect(201);
    let path = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    let scale = client.get(path).await.expect(200);
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("app=d")));
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = 3.into();
    client.put(path, wanted.clone()).await.expect(200);
    client.put(path, wanted.clone()).await.expect(409);

    wanted["metadata"] = json!({"name": "d"});
    wanted["spec"]["replicas"] = 0.into();
    let forced = format!("{path}?force=true");
    let none = client.apply(&forced, "scaler", wanted.clone()).await.expect(200);
    assert_eq!(none["spec"]["replicas"].as_i64().unwrap_or(0), 0);
    let kept = client.get("/apis/apps/v1/namespaces/default/deployments/d").await.expect(200);
    assert_eq!(kept["spec"]["replicas"], 0);
    for wrong in [
        json!({"name": "d", "resourceVersion": scale["metadata"]["resourceVersion"]}),
        json!({"name": "d", "uid": "another"}),
    ] {
        wanted["metadata"] = wrong;
        client.apply(&forced, "scaler", wanted.clone()).await.expect(409);
    }
    wanted["metadata"] = json!({"name": "e"});
    client.apply(&forced, "scaler", wanted).await.expect(400);
}

#[tokio::test]
async fn an_annotation_written_with_the_status_leaves_the_generation_of_a_deployment_alone() {
    let client = Client::new().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    client.post(path, deployment).await.expect(201);
    let annotated = |value: &str| json!({"metadata": {"annotations": {"a": value}}});
    let noted = client.merge(&format!("{path}/d/status"), annotated("1")).await.expect(200);
    assert_eq!(
        (&noted["metadata"]["annotations"]["a"], &noted["metadata"]["generation"]),
        (&json!("1"), &json!(1))
    );
    let changed = client.merge(&format!("{path}/d"), annotated("2")).await.expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);
}

#[tokio::test]
async fn a_limit_range_fills_in_and_bounds() {
    let client = with_account().await;
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "500m"}, "max": {"cpu": "1"}}]}});
    client.post("/api/v1/namespaces/default/limitranges", range).await.expect(201);
    let made = client.post(PODS, pod("a")).await.expect(201);
    assert_eq!(made["spec"]["containers"][0]["resources"]["limits"]["cpu"], "500m");
    let mut greedy = pod("b");
    greedy["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
    let refused = client.post(PODS, greedy).await.expect(403);
    assert!(
        refused["message"].as_str().unwrap().contains("maximum cpu usage per Container is 1, but limit is 2")
    );
}

#[tokio::test]
async fn a_limit_range_bounds_claims_when_they_are_made_and_changed() {
    let client = Client::new().await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |name: &str, size: &str| json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    client.post(claims, claim("before", "1Gi")).await.expect(201);
    client.post(claims, claim("leaving", "1Gi")).await.expect(201);
    client.delete(&format!("{claims}/leaving")).await.expect(200);
    let limit =
        json!({"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}, "max": {"storage": "4Gi"}});
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [limit]}});
    client.post("/api/v1/namespaces/default/limitranges", range).await.expect(201);
    let refused = client.post(claims, claim("large", "5Gi")).await.expect(403);
    assert_eq!(
        refused["message"],
        "persistentvolumeclaims \"large\" is forbidden: maximum storage usage per PersistentVolumeClaim is 4Gi, but request is 5Gi"
    );
    client.post(claims, claim("right", "3Gi")).await.expect(201);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let refused = client.merge(&format!("{claims}/before"), labels).await.expect(403);
    assert!(refused["message"].as_str().unwrap().ends_with("is 2Gi, but request is 1Gi"), "{refused}");
    let status = json!({"status": {"phase": "Lost"}});
    client.merge(&format!("{claims}/before/status"), status).await.expect(200);
    let released = json!({"metadata": {"finalizers": null}});
    client.merge(&format!("{claims}/leaving"), released).await.expect(200);
}

#[tokio::test]
async fn what_is_refused_uses_up_no_quota() {
    let client = Client::new().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"services": "2", "configmaps": "9"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    client.post(quotas, quota).await.expect(201);
    client.merge(&format!("{quotas}/q/status"), json!({"status": {"hard": hard}})).await.expect(200);
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, port: u32, address: &str| json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": port}]}});
    client.post(services, service("a", 80, "10.96.7.7")).await.expect(201);
    client.post(services, service("b", 70_000, "")).await.expect(422);
    client.post(services, service("c", 80, "10.96.7.7")).await.expect(422);
    client.post(services, service("a", 80, "")).await.expect(409);
    let maps = "/api/v1/namespaces/default/configmaps";
    client.post(maps, json!({"metadata": {"name": "Not A Name"}})).await.expect(422);
    let used = client.get(&format!("{quotas}/q")).await.expect(200)["status"]["used"].clone();
    assert_eq!(used, json!({"services": "1"}));
    // Nor does who is refused for the quota keep the address.
    client.post(services, service("d", 80, "")).await.expect(201);
    client.post(services, service("e", 80, "10.96.7.8")).await.expect(403);
    client.delete(&format!("{services}/d")).await.expect(200);
    client
        .merge(&format!("{quotas}/q/status"), json!({"status": {"used": {"services": "1"}}}))
        .await
        .expect(200);
    client.post(services, service("f", 80, "10.96.7.8")).await.expect(201);
}

#[tokio::test]
async fn a_quota_is_charged_and_then_refuses() {
    let client = Client::new().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "2"}}});
    client.post(quotas, quota).await.expect(201);
    let synced = json!({"status": {"hard": {"configmaps": "2"}, "used": {"configmaps": "0"}}});
    client.merge(&format!("{quotas}/q/status"), synced).await.expect(200);
    for name in ["a", "b"] {
        client.config_map(name, json!({})).await;
    }
    let maps = "/api/v1/namespaces/default/configmaps";
    let refused = client.post(maps, json!({"metadata": {"name": "c"}})).await.expect(403);
    let text = "exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2";
    assert!(refused["message"].as_str().unwrap().contains(text), "{refused}");
    let used = client.get(&format!("{quotas}/q")).await.expect(200);
    assert_eq!(used["status"]["used"]["configmaps"], "2");
}

#[tokio::test]
async fn a_pod_stays_within_its_namespace_s_level_when_it_is_changed() {
    let client = with_account().await;
    client.post(PODS, pod("old")).await.expect(201);
    let sized = |cpu: &str| json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
    client
        .post(PODS, json!({"metadata": {"name": "sized"}, "spec": {"containers": sized("1m")}}))
        .await
        .expect(201);
    let level = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    let path = "/api/v1/namespaces/default";
    client.merge(path, level("baseline")).await.expect(200);
    let debugger = |context: Value| {
        let container = json!({"name": "d", "image": "i", "securityContext": context});
        json!({"spec": {"ephemeralContainers": [container]}})
    };
    let debug = format!("{PODS}/old/ephemeralcontainers");
    let refused = client.merge(&debug, debugger(json!({"privileged": true}))).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("violates PodSecurity \"baseline:latest\""));
    client.merge(&debug, debugger(json!({}))).await.expect(200);
    // A pod that was there before the level is judged when what it runs changes, and only then.
    client.merge(path, level("restricted")).await.expect(200);
    let one = format!("{PODS}/old");
    let image = |image: &str| json!({"spec": {"containers": [{"name": "c", "image": image}]}});
    client.merge(&one, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    client.merge(&format!("{one}/status"), json!({"status": {"phase": "Running"}})).await.expect(200);
    let strategic = "application/strategic-merge-patch+json";
    let change = client.send(Method::PATCH, &one, strategic, image("j").to_string()).await.expect(403);
    assert!(change["message"].as_str().unwrap().contains("violates PodSecurity \"restricted:latest\""));
    let more = json!({"spec": {"containers": sized("2m")}}).to_string();
    client.send(Method::PATCH, &format!("{PODS}/sized/resize"), strategic, more).await.expect(200);
    client.merge(path, level("privileged")).await.expect(200);
    client.send(Method::PATCH, &one, strategic, image("j").to_string()).await.expect(200);
}

#[tokio::test]
async fn ephemeral_containers_come_by_their_own_way_only_and_do_not_hinder_a_resize() {
    let client = with_account().await;
    let sized = |cpu: &str| json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
    client
        .post(PODS, json!({"metadata": {"name": "a"}, "spec": {"containers": sized("1m")}}))
        .await
        .expect(201);
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
    let one = format!("{PODS}/a");
    // Who may update a pod may not run something else in it.
    client.merge(&one, debug.clone()).await.expect(422);
    client.merge(&format!("{one}/ephemeralcontainers"), debug).await.expect(200);
    client.merge(&one, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    client.merge(&one, json!({"spec": {"ephemeralContainers": null}})).await.expect(422);
    let more = json!({"spec": {"containers": sized("2m")}}).to_string();
    let strategic = "application/strategic-merge-patch+json";
    let resized = client.send(Method::PATCH, &format!("{one}/resize"), strategic, more).await.expect(200);
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2m");
    assert_eq!(resized["spec"]["ephemeralContainers"][0]["name"], "d");
}

#[tokio::test]
async fn a_level_that_does_not_exist_is_refused_and_one_that_is_stored_allows_least() {
    let client = with_account().await;
    let labelled = |labels: Value| json!({"metadata": {"name": "n", "labels": labels}});
    let namespaces = "/api/v1/namespaces";
    let wrong = json!({"pod-security.kubernetes.io/enforce": "baselin"});
    let refused = client.post(namespaces, labelled(wrong.clone())).await.expect(422);
    assert_eq!(
        refused["message"],
        "Namespace \"n\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"baselin\": \
         must be one of privileged, baseline, restricted"
    );
    let version = json!({"pod-security.kubernetes.io/warn-version": "v1.07"});
    let refused = client.post(namespaces, labelled(version)).await.expect(422);
    assert_eq!(
        refused["details"]["causes"][0]["field"],
        "metadata.labels[pod-security.kubernetes.io/warn-version]"
    );
    let right = json!({"pod-security.kubernetes.io/audit": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.30"});
    client.post(namespaces, labelled(right)).await.expect(201);
    client.merge(&format!("{namespaces}/n"), labelled(wrong.clone())).await.expect(422);
    // Status is written by controllers, and not held to this.
    client
        .merge(&format!("{namespaces}/default/status"), json!({"metadata": {"labels": wrong}}))
        .await
        .expect(200);
    let refused = client.post(PODS, pod("a")).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("violates PodSecurity \"restricted:latest\""));
    // What is wrong already stands in nobody's way.
    let other = json!({"metadata": {"labels": {"a": "b"}}});
    client.merge(&format!("{namespaces}/default"), other).await.expect(200);
}

#[tokio::test]
async fn a_collection_is_deleted_page_by_page_when_a_limit_is_given() {
    let client = Client::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        client.config_map(name, json!({})).await;
    }
    let maps = "/api/v1/namespaces/default/configmaps";
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let first = client.delete(&format!("{maps}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    assert_eq!(names(&client.get(maps).await.expect(200)), ["c", "d", "e"]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.delete(&format!("{maps}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["c", "d"]);
    client.delete(&format!("{maps}?resourceVersion=x")).await.expect(400);
    for bad in ["resourceVersionMatch=Exact", "sendInitialEvents=true"] {
        let refused = client.delete(&format!("{maps}?{bad}")).await.expect(422);
        assert_eq!(refused["details"]["kind"], "ListOptions", "{bad}");
    }
    client.delete(&format!("{maps}?limit=2&continue=x")).await.expect(400);
    assert_eq!(names(&client.get(maps).await.expect(200)), ["e"]);
    let last = client.delete(&format!("{maps}?limit=2")).await.expect(200);
    assert_eq!(names(&last), ["e"]);
    assert!(last["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let client = Client::new().await;
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        client.config_map(name, json!({"app": app})).await;
    }
    let maps = "/api/v1/namespaces/default/configmaps";
    let deleted =
        client.send(Method::DELETE, &format!("{maps}?labelSelector=app%3Dx"), "", "").await.expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    assert_eq!(client.get(maps).await.expect(200)["items"].as_array().unwrap().len(), 1);
}
