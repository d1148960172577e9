//! What whoever runs the server sees: metrics, health, the end.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::json;
use tombolo_apiserver::Body;

use crate::client::Client;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Series by name and labels. Panics on what a scraper would not take.
fn series(text: &str) -> BTreeMap<String, f64> {
    let mut types = BTreeMap::new();
    let mut found = BTreeMap::new();
    assert!(text.ends_with("# EOF\n"), "no end: {text}");
    for line in text.lines().filter(|l| *l != "# EOF") {
        if let Some(rest) = line.strip_prefix("# ") {
            let words: Vec<_> = rest.splitn(3, ' ').collect();
            assert!(matches!(words[0], "HELP" | "TYPE" | "UNIT") && words.len() == 3, "{line}");
            if words[0] == "TYPE" {
                types.insert(words[1].to_owned(), words[2].to_owned());
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let base = name.split('{').next().unwrap_or_default();
        let letters = base.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        assert!(letters && (!name.contains('{') || name.ends_with('}')), "{line}");
        let known = ["", "_total", "_sum", "_count", "_bucket"]
            .iter()
            .any(|end| base.strip_suffix(end).is_some_and(|family| types.contains_key(family)));
        assert!(known, "no type for {line}");
        let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(found.insert(name.to_owned(), value).is_none(), "twice: {line}");
    }
    found
}

/// The sum over the series of a name that have all these labels.
fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let all = series(text);
    let of_name = all.iter().filter(|(s, _)| s.split('{').next() == Some(name));
    of_name.filter(|(s, _)| labels.iter().all(|l| s.contains(l))).map(|(_, value)| value).sum()
}

#[tokio::test]
async fn metrics_count_requests_time_watches_revision_and_memory() {
    let client = Client::new().await;
    let metrics = async || client.get("/metrics").await.text;
    let before = metrics().await;
    client.config_map("a", json!({})).await;
    client.get(MAPS).await.expect(200);
    client.get(&format!("{MAPS}/none")).await.expect(404);
    let mut watch = client
        .watch(&format!(
            "{MAPS}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
        ))
        .await;
    watch.next().await;
    let after = metrics().await;

    let created = ["verb=\"create\"", "resource=\"configmaps\"", "code=\"201\""];
    assert_eq!(sum(&after, "apiserver_request_total", &created), 1.0, "{after}");
    assert_eq!(sum(&after, "apiserver_request_total", &["verb=\"list\"", "resource=\"configmaps\""]), 1.0);
    assert_eq!(sum(&after, "apiserver_request_total", &["code=\"404\""]), 1.0);
    assert_eq!(sum(&after, "apiserver_request_duration_seconds_count", &["verb=\"create\""]), 1.0);
    assert!(sum(&after, "apiserver_request_duration_seconds_sum", &["verb=\"create\""]) > 0.0);
    assert_eq!(sum(&after, "apiserver_open_watches", &[]), 1.0);
    assert_eq!(sum(&after, "apiserver_requests_running", &[]), 1.0, "the one that asks");
    let revision = |text: &str| sum(text, "tombolo_store_revision", &[]);
    assert_eq!(revision(&after), revision(&before) + 1.0);
    assert!(sum(&after, "process_resident_memory_bytes", &[]) > 1e6);

    drop(watch);
    assert_eq!(sum(&metrics().await, "apiserver_open_watches", &[]), 0.0);
    // Names that strangers make up do not become series.
    let stranger = Client { identity: None, ..client.clone() };
    for n in 0..10 {
        stranger.get(&format!("/apis/group-{n}/v1/things")).await.expect(403);
        client.get(&format!("/apis/group-{n}/v1/things")).await.expect(404);
    }
    assert!(!metrics().await.contains("group-"));
}

#[tokio::test]
async fn a_stop_ends_watches_with_a_bookmark_and_lets_requests_finish() {
    let client = Client::new().await;
    let made = client.config_map("a", json!({})).await;
    let mut watch = client.watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=true")).await;
    assert_eq!(watch.next().await["type"], "ADDED");
    let mut plain = client.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(plain.next().await["type"], "ADDED");
    // Under way when the stop comes: its body is still to be sent.
    let (send, receive) = tokio::sync::oneshot::channel::<()>();
    let body = futures::stream::once(async move {
        let _ = receive.await;
        Ok(Bytes::from_static(br#"{"metadata":{"name":"late"}}"#))
    });
    let request =
        Request::post(MAPS).header("content-type", "application/json").body(Body::stream(body)).unwrap();
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn({
        let (server, identity) = (client.server.clone(), client.identity.clone().unwrap());
        async move { server.serve_stream(far, identity).await }
    });
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let late = tokio::spawn(async move { sender.send_request(request).await });
    while client.get("/metrics").await.text.contains("apiserver_requests_running 1\n") {
        tokio::task::yield_now().await;
    }

    let server = client.server.clone();
    server.stopping().cancel();
    let last = watch.next().await;
    assert_eq!(last["type"], "BOOKMARK");
    assert_eq!(last["object"]["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert!(watch.line().await.is_none() && plain.line().await.is_none(), "watches go on");
    assert_eq!(client.get("/readyz").await.code, 500, "no new clients are wanted");
    assert_eq!(client.get("/livez").await.code, 200);
    send.send(()).unwrap();
    let answer = late.await.unwrap().unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    answer.into_body().collect().await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), serving).await.expect("the connection goes on").unwrap();
    tokio::time::timeout(Duration::from_secs(10), server.shutdown(Duration::from_secs(5)))
        .await
        .expect("the stop hangs")
        .unwrap();
    assert_eq!(client.post(MAPS, json!({"metadata": {"name": "too-late"}})).await.code, 503);
}

#[tokio::test]
async fn the_openapi_document_comes_in_the_form_that_is_asked_for() {
    let client = Client::new().await;
    let ask = async |accept: &str| {
        let response = client.with_header("accept", accept).raw(Method::GET, "/openapi/v2", "", "").await;
        let code = response.status().as_u16();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let tag = response.headers().get("etag").map(|t| t.to_str().unwrap().to_owned());
        (code, kind, tag, response.into_body().collect().await.unwrap().to_bytes())
    };
    // What client-go sends.
    let old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let (code, kind, tag, bytes) = ask(old).await;
    assert_eq!((code, kind.as_str()), (200, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"));
    assert!(bytes.starts_with(b"\x0a\x032.0"), "{:?}", &bytes[..8]);
    let (code, kind, json_tag, bytes) = ask("application/json").await;
    assert_eq!((code, kind.as_str()), (200, "application/json"));
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["swagger"], "2.0");
    assert_ne!(tag, json_tag, "a cache would take one for the other");
    let known = client.with_header("accept", old).with_header("if-none-match", tag.as_deref().unwrap());
    assert_eq!(known.get("/openapi/v2").await.code, 304);
    assert_eq!(ask("text/html").await.0, 406);
}
