//! The hub's calls to the site's API: forwarded as they come, in the name of the identity the owner made for the hub.
//! Logs, exec and port-forward pass unparsed.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tombolo_tunnel::{Connection, Reply, full};

use crate::config::{ActingAs, SiteDial};

/// Largest request body that is passed on (an object is at most 1.5 MB in etcd).
const BODY: usize = 3 << 20;

#[derive(Clone)]
pub struct Server {
    pub site: Client,
    pub dial: Option<Arc<dyn SiteDial>>,
    pub acting_as: Option<ActingAs>,
}

impl Server {
    /// Serves streams that the hub opens, until the connection ends.
    pub async fn run(self, connection: Connection) {
        while let Some((_class, io)) = connection.accept().await {
            let server = self.clone();
            tokio::spawn(tombolo_tunnel::serve_http(io, move |request| server.clone().handle(request)));
        }
    }

    async fn handle(self, mut request: Request<Incoming>) -> Reply {
        impersonate(request.headers_mut(), self.acting_as.as_ref());
        let answer = match &self.dial {
            Some(dial) => match dial.dial().await {
                Ok(io) => tombolo_tunnel::forward(request, io, "site").await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            },
            None => self.through_client(request).await,
        };
        answer.unwrap_or_else(|error| {
            tracing::warn!(%error, "a call of the hub did not reach the site's API");
            full(StatusCode::BAD_GATEWAY, "text/plain", format!("the site's API does not answer: {error}"))
        })
    }

    async fn through_client(&self, mut request: Request<Incoming>) -> Result<Reply, String> {
        let client_side =
            request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
        let (mut parts, body) = request.into_parts();
        parts.uri = path.parse().map_err(|_| format!("bad path {path}"))?;
        parts.headers.remove(header::HOST);
        parts.headers.remove(header::CONTENT_LENGTH);
        let body =
            http_body_util::Limited::new(body, BODY).collect().await.map_err(|e| e.to_string())?.to_bytes();
        let request = Request::from_parts(parts, Body::from(body));
        let mut response = self.site.send(request).await.map_err(|e| e.to_string())?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client_side) = client_side
        {
            let site_side = hyper::upgrade::on(&mut response);
            tokio::spawn(async move {
                let (Ok(client), Ok(site)) = tokio::join!(client_side, site_side) else { return };
                let (mut client, mut site) = (TokioIo::new(client), TokioIo::new(site));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut site).await;
            });
        }
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
}

/// Whatever the hub claims about who asks is dropped: only the owner decides as whom the hub acts here.
pub fn impersonate(headers: &mut HeaderMap, acting_as: Option<&ActingAs>) {
    let claimed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-") || name.as_str().starts_with("x-remote-"))
        .cloned()
        .collect();
    for name in claimed {
        headers.remove(name);
    }
    headers.remove(header::AUTHORIZATION);
    let Some(acting_as) = acting_as else { return };
    if let Ok(user) = HeaderValue::from_str(&acting_as.user) {
        headers.insert("impersonate-user", user);
    }
    for group in &acting_as.groups {
        if let Ok(group) = HeaderValue::from_str(group) {
            headers.append("impersonate-group", group);
        }
    }
}

/// A client that acts as the identity given.
pub fn acting(client: &Client, acting_as: Option<&ActingAs>) -> Client {
    let Some(acting_as) = acting_as.cloned() else { return client.clone() };
    Client::new(Acting { client: client.clone(), acting_as: Arc::new(acting_as) }, "default")
}

#[derive(Clone)]
struct Acting {
    client: Client,
    acting_as: Arc<ActingAs>,
}

impl tower_service::Service<Request<Body>> for Acting {
    type Response = http::Response<Body>;
    type Error = kube::Error;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, kube::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), kube::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        impersonate(request.headers_mut(), Some(&self.acting_as));
        let client = self.client.clone();
        Box::pin(async move { client.send(request).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_cannot_choose_as_whom_it_acts() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("impersonate-user", "admin"),
            ("impersonate-group", "system:masters"),
            ("impersonate-extra-scopes", "all"),
            ("x-remote-user", "admin"),
            ("authorization", "Bearer stolen"),
            ("accept", "application/json"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let owner = ActingAs { user: "hub-north".into(), groups: vec!["hubs".into()] };
        impersonate(&mut headers, Some(&owner));
        let all: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().expect("text"))).collect();
        assert_eq!(all.len(), 3);
        for wanted in
            [("impersonate-user", "hub-north"), ("impersonate-group", "hubs"), ("accept", "application/json")]
        {
            assert!(all.contains(&wanted), "{wanted:?} in {all:?}");
        }
    }
}
