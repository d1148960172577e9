use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tombolo_apiserver::{
    Config, ConnectError, Identity, Io, NodeStreams, PodConnector, PodStream, Server, Upstream,
};
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

/// A node whose answer says that one container has used half a processor since the last time, for nodes called `n`.
#[derive(Default)]
struct Busy(std::sync::atomic::AtomicU64);

#[async_trait]
impl NodeStreams for Busy {
    async fn open(&self, node: &str) -> Option<Box<dyn Io>> {
        if node != "n" {
            return None;
        }
        let turn = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let figures = |nanos: u64| json!({"time": format!("2026-01-01T00:00:{:02}Z", 10 + turn), "usageCoreNanoSeconds": nanos});
        let memory = json!({"workingSetBytes": 3 << 20});
        let container = json!({"name": "c", "startTime": "2026-01-01T00:00:00Z", "cpu": figures(turn * 500_000_000), "memory": memory});
        let summary = json!({"node": {"cpu": figures(turn * 1_000_000_000), "memory": memory},
            "pods": [{"podRef": {"uid": "u"}, "containers": [container]}]});
        let (near, mut far) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let _ = far.read(&mut [0; 4096]).await;
            let body = summary.to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = far.write_all((head + &body).as_bytes()).await;
        });
        Some(Box::new(near))
    }
}

#[tokio::test]
async fn what_nodes_use_is_asked_of_them_and_a_silent_one_is_left_out() {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.nodes = Some(Arc::new(Busy::default()));
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    for name in ["n", "silent"] {
        client.post("/api/v1/nodes", json!({"metadata": {"name": name}})).await.expect(201);
    }
    let groups = client.get("/apis").await.expect(200).to_string();
    assert!(groups.contains("metrics.k8s.io/v1beta1"), "kubectl top looks for it");
    let metrics = client.get("/apis/metrics.k8s.io/v1beta1/nodes").await.expect(200);
    let items = metrics["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{metrics}");
    assert_eq!(items[0]["metadata"]["name"], "n");
    assert_eq!(items[0]["usage"], json!({"cpu": "1000000000n", "memory": "3072Ki"}));
    client.get("/apis/metrics.k8s.io/v1beta1/nodes/n").await.expect(200);
    client.get("/apis/metrics.k8s.io/v1beta1/nodes/silent").await.expect(404);
    client.get("/apis/metrics.k8s.io/v1beta1/pods").await.expect(200);
    client.acting("nobody", &[]).get("/apis/metrics.k8s.io/v1beta1/nodes").await.expect(403);
    client.delete("/apis/metrics.k8s.io/v1beta1/nodes/n").await.expect(405);
}
