//! Reaching pods: logs, exec, attach and port forwarding pass through to where the pod runs.

use async_trait::async_trait;
use http::HeaderMap;
use serde_json::Value;

use crate::auth::Identity;
use crate::upgrade::Io;

/// What a client wants from a pod.
#[derive(Debug, Clone)]
pub struct PodStream {
    pub namespace: String,
    pub pod: Value,
    /// The Node object that the pod is bound to, if there is one.
    pub node: Option<Value>,
    /// `log`, `exec`, `attach`, `portforward` or `proxy`.
    pub subresource: String,
    /// The client's query, as it stood in the URL.
    pub query: String,
    /// For `proxy`: the path behind it.
    pub path: String,
    /// For `proxy`: the pod's port speaks TLS.
    pub tls: bool,
    pub user: Identity,
}

/// A connection on which the client's request is repeated.
pub struct Upstream {
    pub stream: Box<dyn Io>,
    /// What to ask for there.
    pub path_and_query: String,
    /// Headers to add.
    pub headers: HeaderMap,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Unreachable(String),
}

/// Finds the way to a pod.
#[async_trait]
pub trait PodConnector: Send + Sync + 'static {
    async fn connect(&self, request: PodStream) -> Result<Upstream, ConnectError>;
}

/// Ways to nodes that lead through no address: a tunnel that the node dialed, or the node in the same process.
#[async_trait]
pub trait NodeStreams: Send + Sync + 'static {
    /// A stream on which the node serves the kubelet API; `None` where the node has to be dialed.
    async fn open(&self, node: &str) -> Option<Box<dyn Io>>;
}
