//! Connections that stop being HTTP: a client with the right to a path takes the byte stream over.

use async_trait::async_trait;
use http::{HeaderValue, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::auth::Identity;
use crate::http::body::Body;
use crate::http::status::{Failure, Result};
use crate::server::Call;

/// A byte stream.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Gets the connection of each client that upgrades on its path.
#[async_trait]
pub trait UpgradeHandler: Send + Sync + 'static {
    async fn serve(&self, identity: Identity, io: Box<dyn Io>);
}

/// Answers 101 and hands the connection over once the answer is sent.
pub fn take_over(call: &mut Call, handler: std::sync::Arc<dyn UpgradeHandler>) -> Result<Response<Body>> {
    let wanted = call.headers.get(header::UPGRADE).cloned();
    let (Some(protocol), Some(upgrade)) = (wanted, call.upgrade.take()) else {
        return Err(Failure::bad_request(
            "this path takes over the connection; send an Upgrade header over HTTP/1.1",
        ));
    };
    let identity = (*call.user).clone();
    call.app.tracker.spawn(async move {
        match upgrade.await {
            Ok(io) => handler.serve(identity, Box::new(TokioIo::new(io))).await,
            Err(error) => tracing::debug!(%error, "an upgrade failed"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, protocol);
    Ok(response)
}
