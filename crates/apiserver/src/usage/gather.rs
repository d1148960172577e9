//! Asking the nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::Instant;

use super::sample::{Sample, Window};
use crate::registry::write;
use crate::server::App;

/// Figures so young are given again.
const FRESH: Duration = Duration::from_secs(5);
/// An answer so old says nothing about now.
const STALE: Duration = Duration::from_secs(120);
/// Between two answers when there is none to compare with.
const APART: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);
/// Nodes asked at the same time.
const AT_ONCE: usize = 32;
const LARGEST: usize = 16 << 20;

/// The last figures of every node. One request gathers at a time; others wait and find fresh ones.
#[derive(Default)]
pub struct Usage {
    last: tokio::sync::Mutex<HashMap<String, (Instant, Window)>>,
}

impl Usage {
    /// The figures of these nodes, by name.
    pub async fn windows(&self, app: &Arc<App>, nodes: &[Value]) -> HashMap<String, Window> {
        let mut last = self.last.lock().await;
        last.retain(|_, (taken, _)| taken.elapsed() < STALE);
        let mut asked = Vec::new();
        for node in nodes {
            let (app, node, name) = (app.clone(), node.clone(), write::name_of(node).to_owned());
            let before = last.get(&name).cloned();
            asked.push(async move { Some((name, measure(&app, &node, before).await?)) });
        }
        let found: Vec<(String, (Instant, Window))> = futures::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await;
        last.extend(found.iter().cloned());
        found.into_iter().map(|(name, (_, window))| (name, window)).collect()
    }
}

async fn measure(app: &App, node: &Value, last: Option<(Instant, Window)>) -> Option<(Instant, Window)> {
    let before = match last {
        Some((taken, window)) if taken.elapsed() < FRESH => return Some((taken, window)),
        Some((_, window)) => window.after,
        None => {
            let first = ask(app, node).await?;
            tokio::time::sleep(APART).await;
            first
        }
    };
    let after = ask(app, node).await?;
    Some((Instant::now(), Window { before, after }))
}

async fn ask(app: &App, node: &Value) -> Option<Sample> {
    let name = write::name_of(node);
    let asked = async {
        let upstream = app.kubelet.to_node(node, None, "/stats/summary".into()).await.map_err(boxed)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(upstream.stream)).await.map_err(boxed)?;
        app.tracker.spawn(async move {
            let _ = connection.await;
        });
        let request = Request::get(upstream.path_and_query).header(http::header::HOST, "kubelet");
        let request = request.body(Empty::<bytes::Bytes>::new()).map_err(boxed)?;
        let response = sender.send_request(request).await.map_err(boxed)?;
        let body = Limited::new(response.into_body(), LARGEST).collect().await?.to_bytes();
        serde_json::from_slice::<Value>(&body).map_err(boxed)
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(summary)) => Sample::read(&summary),
        Ok(Err(error)) => {
            tracing::debug!(node = name, %error, "the node's figures could not be read");
            None
        }
        Err(_) => {
            tracing::debug!(node = name, "the node does not give its figures in time");
            None
        }
    }
}

fn boxed(error: impl std::error::Error + Send + Sync + 'static) -> crate::BoxError {
    Box::new(error)
}
