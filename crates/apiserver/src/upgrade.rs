//! Connections that stop being HTTP: a client with the right to a path takes the byte stream over.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Extensions, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use crate::auth::Identity;
use crate::http::body::{Body, BoxError};
use crate::http::status::{self, Failure};
use crate::server::Call;

/// A byte stream.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

pub type BoxIo = Box<dyn Io>;

/// The connection of a request, to be had once the answer is sent.
pub enum Upgrade {
    Offered(oneshot::Receiver<BoxIo>),
    Hyper(OnUpgrade),
}

/// How an offer travels with its request; it is taken once.
#[derive(Clone)]
pub struct Offer(Arc<Mutex<Option<oneshot::Receiver<BoxIo>>>>);

impl Offer {
    pub fn new(connection: oneshot::Receiver<BoxIo>) -> Self {
        Self(Arc::new(Mutex::new(Some(connection))))
    }
}

impl Upgrade {
    pub fn of(extensions: &mut Extensions) -> Option<Self> {
        if let Some(Offer(offered)) = extensions.remove() {
            return offered.lock().take().map(Self::Offered);
        }
        extensions.remove().map(Self::Hyper)
    }

    pub async fn connection(self) -> Result<BoxIo, BoxError> {
        Ok(match self {
            Self::Offered(connection) => connection.await?,
            Self::Hyper(upgrade) => Box::new(TokioIo::new(upgrade.await?)),
        })
    }
}

/// Gets the connection of each client that upgrades on its path.
#[async_trait]
pub trait UpgradeHandler: Send + Sync + 'static {
    async fn serve(&self, identity: Identity, io: BoxIo);
}

/// Answers 101 and hands the connection over once the answer is sent.
pub fn take_over(call: &mut Call, handler: Arc<dyn UpgradeHandler>) -> status::Result<Response<Body>> {
    let wanted = call.headers.get(header::UPGRADE).cloned();
    let (Some(protocol), Some(upgrade)) = (wanted, call.upgrade.take()) else {
        return Err(Failure::bad_request(
            "this path takes over the connection; send an Upgrade header over HTTP/1.1",
        ));
    };
    let identity = (*call.user).clone();
    call.app.tracker.spawn(async move {
        match upgrade.connection().await {
            Ok(io) => handler.serve(identity, io).await,
            Err(error) => tracing::debug!(%error, "an upgrade failed"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, protocol);
    Ok(response)
}
