//! What programs that write in numbers may ask for: options of ours.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_apiserver::{Config, Identity, Server};
use tombolo_store::{EmbeddedOptions, EmbeddedStore, MemoryStore};

use crate::client::Client;

const EVENTS: &str = "/api/v1/namespaces/default/events";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn hub() -> Client {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.written_by_programs = &[("", "pods")];
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    client.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    client
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"}})
}

fn managers(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    all.map(|entry| entry["manager"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn owners_of_fields_are_kept_once_somebody_applies() {
    let client = hub().await;
    let (one, status) = (format!("{PODS}/a"), json!({"status": {"message": "m"}}));
    let made = client.post(PODS, pod("a")).await.expect(201);
    let changed = client.merge(&format!("{one}/status"), status.clone()).await.expect(200);
    let labelled = client.merge(&one, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    for object in [&made, &changed, &labelled] {
        assert!(object["metadata"].get("managedFields").is_none(), "{object}");
    }
    assert_eq!((&labelled["status"]["message"], &labelled["spec"]["nodeName"]), (&json!("m"), &json!("n")));
    // Another kind is as it always was.
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    assert_eq!(managers(&client.post(EVENTS, event).await.expect(201)), ["test"]);

    let label = |value: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"c": value}}});
    let applied = client.apply(&one, "someone", label("1")).await.expect(200);
    assert!(managers(&applied).contains(&"someone"), "{applied}");
    client.apply(&one, "other", label("2")).await.expect(409);
    let changed = client.merge(&one, json!({"metadata": {"labels": {"d": "e"}}})).await.expect(200);
    assert!(managers(&changed).contains(&"test"), "{changed}");
}

#[tokio::test]
async fn a_new_object_keeps_its_status_for_who_may_write_both() {
    let client = hub().await;
    let plain = client.post(PODS, pod("plain")).await.expect(201);
    assert_eq!(plain["status"]["phase"], "Pending");
    let whole = client.post(&format!("{PODS}?withStatus=true"), pod("whole")).await.expect(201);
    assert_eq!(whole["status"]["phase"], "Running");
    assert_eq!(
        (&whole["status"]["podIP"], &whole["status"]["qosClass"]),
        (&json!("10.0.0.1"), &json!("BestEffort"))
    );

    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = |resources: &[&str]| json!({"metadata": {"name": "maker"}, "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["create", "update"]}]});
    client.post(&format!("{rbac}/roles"), role(&["pods"])).await.expect(201);
    let binding = json!({"metadata": {"name": "maker"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maker"},
        "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}]});
    client.post(&format!("{rbac}/rolebindings"), binding).await.expect(201);
    let eve = client.acting("eve", &[]);
    let refused = eve.post(&format!("{PODS}?withStatus=true"), pod("eves")).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("pods/status"), "{refused}");
    eve.post(PODS, pod("eves")).await.expect(201);
    client.put(&format!("{rbac}/roles/maker"), role(&["pods", "pods/status"])).await.expect(200);
    eve.post(&format!("{PODS}?withStatus=true"), pod("whole-of-eve")).await.expect(201);
}

#[tokio::test]
async fn what_programs_make_costs_no_sync_and_what_people_want_does() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { flush_interval: Duration::from_secs(3600), ..Default::default() };
    let store = EmbeddedStore::open(folder.path(), options).unwrap();
    let mut config = Config::new(Arc::new(store));
    config.made_by_programs = &[("", "pods", "example.com/mirror")];
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    client.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let written = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap());
        files.map(|file| file.len()).sum::<u64>()
    };
    let mirror = |name: &str| {
        let mut mirror = pod(name);
        mirror["metadata"]["labels"] = json!({"example.com/mirror": "w"});
        mirror
    };
    client.post(PODS, pod("people")).await.expect(201);
    let before = written();
    for round in 0..100 {
        let one = format!("{PODS}/m-{round}");
        client.post(PODS, mirror(&format!("m-{round}"))).await.expect(201);
        client.merge(&format!("{one}/status"), json!({"status": {"message": "m"}})).await.expect(200);
        if round > 0 {
            client.delete(&format!("{one}?gracePeriodSeconds=0")).await.expect(200);
        }
    }
    assert_eq!(written(), before, "mirrors are made, changed and removed");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    client.post(leases, json!({"metadata": {"name": "l"}, "spec": {}})).await.expect(201);
    client.merge(&format!("{leases}/l"), json!({"spec": {"holderIdentity": "h"}})).await.expect(200);
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    client.post(EVENTS, event).await.expect(201);
    assert_eq!(written(), before, "a lease is renewed and something happens");
    let grown = |what: &str, before: u64| {
        let now = written();
        assert!(now > before, "{what}");
        now
    };
    client.delete(&format!("{PODS}/m-0")).await.expect(200);
    let after = grown("somebody wants one gone", before);
    client.merge(&format!("{PODS}/people/status"), json!({"status": {"message": "m"}})).await.expect(200);
    let after = grown("a pod of people changes", after);
    client.delete(&format!("{PODS}/people?gracePeriodSeconds=0")).await.expect(200);
    grown("a pod of people is removed", after);
}
