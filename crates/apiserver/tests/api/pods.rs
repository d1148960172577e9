use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tombolo_apiserver::{Config, ConnectError, Identity, PodConnector, PodStream, Server, Upstream};
use tombolo_store::MemoryStore;

use crate::client::Client;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Fails as the pod's name says.
struct NoWay;

#[async_trait]
impl PodConnector for NoWay {
    async fn connect(&self, request: PodStream) -> Result<Upstream, ConnectError> {
        let why = format!("no way to {}", request.pod["metadata"]["name"].as_str().unwrap_or_default());
        Err(match request.pod["metadata"]["name"].as_str() {
            Some("missing") => ConnectError::NotFound(why),
            Some("bad") => ConnectError::BadRequest(why),
            _ => ConnectError::Unreachable(why),
        })
    }
}

async fn with_pods(connector: Option<Arc<dyn PodConnector>>, names: &[&str]) -> Client {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.pods = connector;
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    client.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    for name in names {
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        client.post(PODS, pod).await.expect(201);
    }
    client
}

#[tokio::test]
async fn why_a_pod_cannot_be_reached_is_a_status_of_its_own() {
    let client = with_pods(Some(Arc::new(NoWay)), &["missing", "bad", "far"]).await;
    for (name, code, reason) in
        [("missing", 404, "NotFound"), ("bad", 400, "BadRequest"), ("far", 503, "ServiceUnavailable")]
    {
        for way in ["log", "exec?command=ls", "attach", "portforward", "proxy/"] {
            let answer: Value = client.get(&format!("{PODS}/{name}/{way}")).await.expect(code);
            assert_eq!(
                (&answer["kind"], &answer["reason"]),
                (&json!("Status"), &json!(reason)),
                "{name}/{way}"
            );
            assert_eq!(answer["message"], format!("no way to {name}"));
        }
    }
    client.get(&format!("{PODS}/nothing/log")).await.expect(404);
}

#[tokio::test]
async fn a_pod_on_no_node_and_a_node_that_does_not_answer_are_told_apart() {
    let client = with_pods(None, &["loose", "bound"]).await;
    let answer = client.get(&format!("{PODS}/loose/log")).await.expect(400);
    assert_eq!(answer["message"], "pod loose does not have a host assigned");
    client.get(&format!("{PODS}/loose/log?container=other")).await.expect(400);

    // Nobody listens on port 1.
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                      "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    client.post("/api/v1/nodes", node.clone()).await.expect(201);
    let binding = json!({"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n"}});
    client.post(&format!("{PODS}/bound/binding"), binding).await.expect(201);
    let answer = client.get(&format!("{PODS}/bound/log")).await.expect(503);
    let message = answer["message"].as_str().unwrap();
    assert!(message.starts_with("cannot reach node n at 127.0.0.1:1: "), "{message}");
}
