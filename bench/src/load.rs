//! The load generator: raw requests, so that its own cost stays small. That cost is reported beside the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

/// One request whose whole answer is read; gives the number of bytes.
pub async fn send(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Result<u64> {
    let mut request = Request::builder().method(method).uri(path);
    let body = match body {
        Some(value) => {
            let kind =
                if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
            request = request.header("content-type", kind);
            Body::from(serde_json::to_vec(value)?)
        }
        None => Body::empty(),
    };
    let response = client.send(request.body(body)?).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut total = 0;
    while let Some(frame) = body.frame().await {
        total += frame?.data_ref().map_or(0, |data| data.len() as u64);
    }
    ensure!(status.is_success(), "{method} {path}: {status}");
    Ok(total)
}

/// Creates ConfigMaps of 200 bytes from `clients` connections for `time`; gives how many were acknowledged.
pub async fn create_config_maps(clients: Vec<kube::Client>, time: Duration) -> Result<u64> {
    let serial = Arc::new(AtomicU64::new(0));
    let deadline = Instant::now() + time;
    let workers = clients.into_iter().map(|client| {
        let serial = serial.clone();
        tokio::spawn(async move {
            let mut done = 0u64;
            while Instant::now() < deadline {
                let n = serial.fetch_add(1, Ordering::Relaxed);
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{n}")},
                                    "data": {"value": "x".repeat(200)}});
                send(&client, "POST", "/api/v1/namespaces/default/configmaps", Some(&object)).await?;
                done += 1;
            }
            anyhow::Ok(done)
        })
    });
    let mut total = 0;
    for worker in workers.collect::<Vec<_>>() {
        total += worker.await??;
    }
    Ok(total)
}

/// `count` pods that no node runs.
pub async fn create_pods(clients: &[kube::Client], count: usize) -> Result<()> {
    let template = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"app": "bench"}},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "example.com/main:1",
                 "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "resources": {"requests": {"cpu": "10m"}}}]}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    // There already, where a controller or the server makes it.
    let _ = send(&clients[0], "POST", "/api/v1/namespaces/default/serviceaccounts", Some(&account)).await;
    let each = |n: usize| {
        let mut pod = template.clone();
        pod["metadata"]["name"] = json!(format!("pod-{n:05}"));
        let client = clients[n % clients.len()].clone();
        async move { send(&client, "POST", "/api/v1/namespaces/default/pods", Some(&pod)).await }
    };
    let mut results = futures::stream::iter((0..count).map(each)).buffer_unordered(clients.len());
    while let Some(result) = results.next().await {
        result?;
    }
    Ok(())
}
