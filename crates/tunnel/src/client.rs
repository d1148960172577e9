//! A Kubernetes client whose connections are streams of a tunnel.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection as Connected_};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{BoxIo, Class, Connection, TunnelError};

/// Idle streams are closed soon: opening one costs no round trip, and each that is open costs a hub 25 KB.
const KEEP_IDLE: Duration = Duration::from_secs(2);

/// A client for the API served at the other end of `connection`. Every request in flight has a stream of its own, so that
/// a large answer never delays a small one.
pub fn client(connection: Connection) -> kube::Client {
    client_with(move || {
        let connection = connection.clone();
        async move { connection.open(Class::Control).await }
    })
}

/// A client whose connections come from `open` (plain HTTP on whatever streams it gives).
pub fn client_with<F, Fut, E>(open: F) -> kube::Client
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<BoxIo, E>> + Send + 'static,
    E: Into<TunnelError> + 'static,
{
    let connector = Connector { open };
    let http: hyper_util::client::legacy::Client<_, kube::client::Body> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(KEEP_IDLE)
            .pool_max_idle_per_host(4)
            .pool_timer(TokioTimer::new())
            .build(connector);
    let service = AbsoluteUri { inner: http };
    kube::Client::new(service, "default")
}

/// kube asks for paths; hyper's pool wants an authority.
#[derive(Clone)]
struct AbsoluteUri<S> {
    inner: S,
}

impl<S, B> tower_service::Service<http::Request<B>> for AbsoluteUri<S>
where
    S: tower_service::Service<http::Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<B>) -> S::Future {
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        if let Ok(uri) = Uri::builder().scheme("http").authority("tombolo").path_and_query(path).build() {
            *request.uri_mut() = uri;
        }
        self.inner.call(request)
    }
}

#[derive(Clone)]
struct Connector<F> {
    open: F,
}

impl<F, Fut, E> tower_service::Service<Uri> for Connector<F>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<BoxIo, E>> + Send + 'static,
    E: Into<TunnelError>,
{
    type Response = TokioIo<Stream>;
    type Error = TunnelError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, TunnelError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), TunnelError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let opening = (self.open)();
        Box::pin(async move { Ok(TokioIo::new(Stream(opening.await.map_err(Into::into)?))) })
    }
}

/// A local type, so that hyper's marker trait can be given to it.
struct Stream(BoxIo);

impl Connected_ for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
