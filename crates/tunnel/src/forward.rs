//! HTTP arriving on one stream, answered by a handler or forwarded to another stream; upgrades are copied unparsed.

use std::convert::Infallible;
use std::future::Future;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::{Io, TunnelError};

pub type HttpBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;
pub type Reply = Response<HttpBody>;

/// Serves HTTP/1.1 and HTTP/2 on one stream until the peer is done.
pub async fn serve_http<H, Fut>(io: impl Io, handler: H)
where
    H: Fn(Request<Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(io), service).await {
        tracing::debug!(%error, "a forwarded connection ended early");
    }
}

/// Sends `request` over `upstream` (HTTP/1.1) and gives back the answer; on an upgrade, bytes then flow both ways.
pub async fn forward(
    mut request: Request<Incoming>,
    upstream: impl Io,
    host: &str,
) -> Result<Reply, TunnelError> {
    let upgraded_client =
        request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
    *request.uri_mut() = path.parse().map_err(|_| TunnelError::Protocol(format!("bad path {path}")))?;
    *request.version_mut() = http::Version::HTTP_11;
    if let Ok(host) = host.parse() {
        request.headers_mut().insert(header::HOST, host);
    }
    let broken = |error: hyper::Error| TunnelError::Protocol(error.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(upstream)).await.map_err(broken)?;
    tokio::spawn(connection.with_upgrades());
    let mut response = sender.send_request(request).await.map_err(broken)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = upgraded_client
    {
        let upstream = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        });
    }
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
}

/// An answer with a body at hand.
pub fn full(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
