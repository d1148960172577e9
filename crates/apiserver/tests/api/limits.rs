use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tombolo_apiserver::{Body, Config, Identity, Limits, Server};
use tombolo_store::MemoryStore;

use crate::client::Client;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn limited(limits: Limits) -> Client {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.limits = limits;
    let server = Server::start(config).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    let binding = json!({
        "metadata": {"name": "eve"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    client.post(path, binding).await.expect(201);
    client
}

const PLENTY: Limits = Limits {
    reads: 100,
    writes: 100,
    waiting: 100,
    patience: Duration::from_secs(20),
    per_second: 1000,
    burst: 1000,
};

/// Checks a refusal: the code, the header that clients wait by, and the same in the body.
async fn assert_told_to_wait(client: &Client, method: Method) {
    let response = client.raw(method.clone(), MAPS, "application/json", r#"{"metadata":{"name":"x"}}"#).await;
    assert_eq!(response.status().as_u16(), 429);
    let seconds: u32 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(seconds >= 1);
    let body =
        client.send(method, MAPS, "application/json", r#"{"metadata":{"name":"x"}}"#).await.expect(429);
    assert_eq!((&body["kind"], &body["reason"]), (&json!("Status"), &json!("TooManyRequests")));
    assert_eq!(body["details"]["retryAfterSeconds"], json!(seconds));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_held() {
    let client = limited(PLENTY).await;
    let large = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"k":"{}"}}}}"#, "x".repeat(3 * 1024 * 1024));
    let answer = client.send(Method::POST, MAPS, "application/json", large).await.expect(413);
    assert_eq!(answer["reason"], "RequestEntityTooLarge");
    // Without a length, and without an end: it is let go as soon as it is too much.
    let endless = futures::stream::repeat_with(|| Ok(Bytes::from_static(&[b' '; 64 * 1024])));
    let request =
        Request::post(MAPS).header("content-type", "application/json").body(Body::stream(endless)).unwrap();
    let response = client.server.handle(request, client.identity.clone()).await;
    assert_eq!(response.status().as_u16(), 413);
}

#[tokio::test]
async fn one_user_who_asks_too_often_is_told_to_wait_and_others_are_not() {
    let client = limited(Limits { per_second: 1, burst: 5, ..PLENTY }).await;
    let eve = client.acting("eve", &[]);
    for _ in 0..5 {
        eve.get(MAPS).await.expect(200);
    }
    assert_told_to_wait(&eve, Method::GET).await;
    client.acting("adam", &[]).get(MAPS).await.expect(403);
    for _ in 0..10 {
        client.get(MAPS).await.expect(200);
    }
    let stranger = Client { identity: None, ..client };
    for _ in 0..10 {
        stranger.get("/healthz").await.expect(200);
    }
}

/// A request that keeps its slot, because its client sends the body slowly: until the sender is used.
fn slow(client: &Client) -> (tokio::sync::oneshot::Sender<()>, impl Future<Output = Response<Body>>) {
    let (send, receive) = tokio::sync::oneshot::channel::<()>();
    let body = futures::stream::once(async move {
        let _ = receive.await;
        Ok(Bytes::from_static(br#"{"metadata":{"name":"slow"}}"#))
    });
    let request =
        Request::post(MAPS).header("content-type", "application/json").body(Body::stream(body)).unwrap();
    let (server, identity) = (client.server.clone(), client.identity.clone());
    (send, async move { server.handle(request, identity).await })
}

#[tokio::test]
async fn requests_beyond_the_slots_wait_for_one() {
    let client = limited(Limits { writes: 1, waiting: 1, ..PLENTY }).await;
    let eve = client.acting("eve", &[]);
    let (send, slow) = slow(&eve);
    tokio::pin!(slow);
    assert!(futures::poll!(slow.as_mut()).is_pending());
    let next = eve.post(MAPS, json!({"metadata": {"name": "then"}}));
    tokio::pin!(next);
    assert!(futures::poll!(next.as_mut()).is_pending(), "the only slot is taken");
    // The line is full.
    assert_told_to_wait(&eve, Method::POST).await;
    eve.get(MAPS).await.expect(200);
    client.post(MAPS, json!({"metadata": {"name": "admin"}})).await.expect(201);
    send.send(()).unwrap();
    assert_eq!(slow.await.status().as_u16(), 201);
    let made: Value = next.await.expect(201);
    assert_eq!(made["metadata"]["name"], "then");
}

#[tokio::test]
async fn who_has_waited_long_enough_is_told_so() {
    let client = limited(Limits { writes: 1, patience: Duration::from_millis(50), ..PLENTY }).await;
    let eve = client.acting("eve", &[]);
    let (_send, slow) = slow(&eve);
    tokio::pin!(slow);
    assert!(futures::poll!(slow.as_mut()).is_pending());
    assert_told_to_wait(&eve, Method::POST).await;
}
