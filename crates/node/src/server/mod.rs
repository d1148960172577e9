//! The kubelet API: logs, commands, port forwarding, statistics.
//!
//! Served over any byte stream ([`Node::serve_stream`]) and, if asked for, over TLS on a port. Authorization is the
//! caller's business for streams; on the port only clients with a certificate of the cluster's authority get in.

mod authorize;
mod certificate;
mod forward;
mod logs;
mod remote;
mod route;
pub(crate) mod spdy;
mod stats;
mod tls;
mod websocket;

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::node::{Node, Shared};

use authorize::{Answers, Caller};
pub(crate) use certificate::Shown;
pub use tls::TlsServer;
pub(crate) use tls::listen;

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) fn text(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    let body = Full::new(Bytes::from(message.into())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

pub(crate) fn json(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut response = text(StatusCode::OK, "");
            *response.body_mut() =
                Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync();
            let kind = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
            response
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(crate) fn streamed(
    chunks: impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> Response<Body> {
    let mut response = text(StatusCode::OK, "");
    *response.body_mut() = StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync();
    response
}

impl Node {
    /// Serves the kubelet API to whoever is at the other end, until it hangs up. The caller has authorized it.
    pub async fn serve_stream(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        serve(self.shared.clone(), io).await;
    }

    /// The kubelet API for clients that show who they are, wherever their streams come from; the port does the same. `None`
    /// for a node that has no port.
    pub fn tls_server(&self) -> Option<TlsServer> {
        self.tls.clone()
    }

    /// The same, detached from the node's own lifetime: for handing to an acceptor.
    pub fn stream_server(&self) -> StreamServer {
        StreamServer { shared: self.shared.clone() }
    }
}

/// Serves the kubelet API on streams; cheap to clone.
#[derive(Clone)]
pub struct StreamServer {
    shared: Arc<Shared>,
}

impl StreamServer {
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        serve(self.shared.clone(), io).await;
    }
}

pub(crate) async fn serve(shared: Arc<Shared>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    serve_caller(shared, io, None).await;
}

/// `caller`: who must be asked about; `None` where whoever handed over the stream has done that.
async fn serve_caller(
    shared: Arc<Shared>,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    caller: Option<(Caller, Arc<Answers>)>,
) {
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (shared, caller) = (shared.clone(), caller.clone());
        async move {
            if let Some((caller, answers)) = &caller
                && !answers.allows(&shared.ctx, caller, request.method(), request.uri().path()).await
            {
                return Ok(text(
                    StatusCode::FORBIDDEN,
                    "Forbidden: the API server does not allow this on nodes",
                ));
            }
            Ok::<_, std::convert::Infallible>(route::answer(shared, request).await)
        }
    });
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    if let Err(error) = server.serve_connection_with_upgrades(TokioIo::new(io), service).await {
        tracing::debug!(%error, "a kubelet API connection ended");
    }
}
