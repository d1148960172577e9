//! Passing a request through to where a pod runs. After a 101 the bytes are copied both ways, unread.

use std::sync::Arc;

use http::{HeaderName, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;

use crate::http::body::Body;
use crate::http::status::{Failure, Result};
use crate::pods::{ConnectError, PodStream, Upstream};
use crate::registry::resource::Shared;
use crate::registry::write;
use crate::server::Call;
use crate::subresource::links;

pub async fn handle(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let app = call.app.clone();
    let upstream = match resource.plural.as_str() {
        "pods" => {
            let request = pod_request(call, resource).await?;
            app.pods.connect(request).await
        }
        "nodes" => {
            let (_, name, port) = split_name(&call.target.name);
            let name = name.to_owned();
            let Some(node) = app.object("", "v1", "nodes", "", &name).await? else {
                return Err(resource.not_found(&name));
            };
            app.kubelet.to_node(&node, port, format!("/{}{}", call.target.rest, query(call))).await
        }
        _ => service(call, resource).await?,
    };
    let upstream = upstream.map_err(|error| match error {
        ConnectError::NotFound(text) => Failure::new(404, "NotFound", text),
        ConnectError::BadRequest(text) => Failure::bad_request(text),
        ConnectError::Forbidden(text) => Failure::new(403, "Forbidden", text),
        ConnectError::Unreachable(text) => Failure::new(503, "ServiceUnavailable", text),
    })?;
    let proxied = call.target.subresource == "proxy" && !call.headers.contains_key(header::UPGRADE);
    let moved = links::with_slash(&call.method, &call.path, &call.target.rest).filter(|_| proxied);
    if let Some(place) = moved {
        let answer = Response::builder().status(StatusCode::MOVED_PERMANENTLY);
        let answer = answer.header(header::LOCATION, place + &query(call));
        return answer.body(Body::empty()).map_err(Failure::internal);
    }
    forward(call, upstream, body).await
}

fn query(call: &Call) -> String {
    if call.raw_query.is_empty() { String::new() } else { format!("?{}", call.raw_query) }
}

/// `[scheme:]name[:port]`, as the name of a proxied object may be written.
fn split_name(text: &str) -> (&str, &str, Option<&str>) {
    match text.split(':').collect::<Vec<_>>().as_slice() {
        [name] => ("", name, None),
        [name, port] => ("", name, Some(*port)),
        [scheme, name, port] => (scheme, name, Some(*port).filter(|p| !p.is_empty())),
        _ => ("", text, None),
    }
}

async fn pod_request(call: &Call, resource: &Shared) -> Result<PodStream> {
    let (_, name, _) = split_name(&call.target.name);
    let Some(pod) = call.app.object("", "v1", "pods", &call.target.namespace, name).await? else {
        return Err(resource.not_found(name));
    };
    let node = match write::text(&pod, "/spec/nodeName") {
        "" => None,
        node => call.app.object("", "v1", "nodes", "", node).await?,
    };
    let subresource = call.target.subresource.clone();
    let mut query = call.raw_query.clone();
    if matches!(subresource.as_str(), "log" | "exec" | "attach") {
        let container = container(call, &pod, name)?;
        if call.query.get("container").is_none() {
            query = format!("{query}{}container={container}", if query.is_empty() { "" } else { "&" });
        }
    }
    let (scheme, _, port) = split_name(&call.target.name);
    let mut path = format!("/{}", call.target.rest);
    if let Some(port) = port {
        // The connector needs the port; it travels in front of the path.
        path = format!(":{port}{path}");
    }
    Ok(PodStream {
        namespace: call.target.namespace.clone(),
        pod,
        node,
        subresource,
        query,
        path,
        tls: scheme == "https",
        user: (*call.user).clone(),
    })
}

/// The container meant, or an error that names the choices.
fn container<'a>(call: &'a Call, pod: &'a Value, name: &str) -> Result<String> {
    let names = |key: &str| -> Vec<&'a str> {
        pod["spec"][key].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect()
    };
    let (main, init, ephemeral) =
        (names("containers"), names("initContainers"), names("ephemeralContainers"));
    match call.query.get("container") {
        Some(wanted) => {
            if main.contains(&wanted) || init.contains(&wanted) || ephemeral.contains(&wanted) {
                return Ok(wanted.to_owned());
            }
            Err(Failure::bad_request(format!("container {wanted} is not valid for pod {name}")))
        }
        None => match main.as_slice() {
            [only] => Ok((*only).to_owned()),
            _ => {
                let mut text = format!(
                    "a container name must be specified for pod {name}, choose one of: [{}]",
                    main.join(" ")
                );
                if !init.is_empty() {
                    text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                }
                Err(Failure::bad_request(text))
            }
        },
    }
}

/// A Service's ready endpoint.
async fn service(call: &Call, resource: &Shared) -> Result<Result<Upstream, ConnectError>> {
    let (scheme, name, port) = split_name(&call.target.name);
    let namespace = &call.target.namespace;
    let Some(service) = call.app.object("", "v1", "services", namespace, name).await? else {
        return Err(resource.not_found(name));
    };
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let chosen = match port {
        Some(wanted) => ports
            .iter()
            .find(|p| p["name"] == wanted || p["port"].as_u64().is_some_and(|n| wanted.parse() == Ok(n))),
        None => ports.first(),
    };
    let Some(chosen) = chosen else {
        return Err(Failure::new(
            503,
            "ServiceUnavailable",
            format!("no service port {port:?} found for service {name:?}"),
        ));
    };
    let Some(endpoints) = call.app.object("", "v1", "endpoints", namespace, name).await? else {
        return Err(Failure::new(
            503,
            "ServiceUnavailable",
            format!("no endpoints available for service {name:?}"),
        ));
    };
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let port =
            subset["ports"].as_array().into_iter().flatten().find(|p| {
                p["name"].as_str().unwrap_or_default() == chosen["name"].as_str().unwrap_or_default()
            });
        let address = subset["addresses"][0]["ip"].as_str();
        if let (Some(port), Some(address)) = (port.and_then(|p| p["port"].as_u64()), address) {
            let path = format!("/{}{}", call.target.rest, query(call));
            return Ok(crate::kubelet::plain(address, port as u16, scheme == "https", path).await);
        }
    }
    Err(Failure::new(503, "ServiceUnavailable", format!("no endpoints available for service {name:?}")))
}

const HOP_BY_HOP: &[HeaderName] = &[
    header::HOST,
    header::AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHORIZATION,
];

async fn forward(call: &mut Call, upstream: Upstream, body: Body) -> Result<Response<Body>> {
    let broken =
        |e: hyper::Error| Failure::new(502, "InternalError", format!("the pod's node did not answer: {e}"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(upstream.stream)).await.map_err(broken)?;
    call.app.tracker.spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    let upgrading = call.headers.contains_key(header::UPGRADE);
    let mut request = Request::builder().method(call.method.clone()).uri(upstream.path_and_query);
    for (name, value) in &call.headers {
        let skip = HOP_BY_HOP.contains(name)
            || (!upgrading && matches!(*name, header::CONNECTION | header::UPGRADE));
        if !skip && !name.as_str().starts_with("impersonate-") {
            request = request.header(name, value);
        }
    }
    request = request.header(header::HOST, "kubelet");
    for (name, value) in &upstream.headers {
        request = request.header(name, value);
    }
    let body = if upgrading { Body::empty() } else { body };
    let request = request.body(body).map_err(Failure::internal)?;
    let mut response = sender.send_request(request).await.map_err(broken)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // The sender must outlive the answer's body.
        let keep = Arc::new(sender);
        let (mut parts, body) = response.into_parts();
        for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
            parts.headers.remove(name);
        }
        if call.target.subresource == "proxy" && links::are_in(&parts) {
            let prefix = links::prefix(&call.path, &call.target.rest);
            let body = Body::from(body).read(links::LARGEST).await.map_err(Failure::internal)?;
            drop(keep);
            let text = links::rewrite(&String::from_utf8_lossy(&body), &prefix);
            parts.headers.remove(header::CONTENT_LENGTH);
            return Ok(Response::from_parts(parts, Body::from(text)));
        }
        let stream = futures::stream::unfold((Body::from(body), keep), |(mut body, keep)| async move {
            use http_body_util::BodyExt;
            loop {
                match body.frame().await? {
                    Ok(frame) => {
                        if let Ok(data) = frame.into_data() {
                            return Some((Ok(data), (body, keep)));
                        }
                    }
                    Err(error) => return Some((Err(error), (body, keep))),
                }
            }
        });
        return Ok(Response::from_parts(parts, Body::stream(stream)));
    }
    let Some(client) = call.upgrade.take() else {
        return Err(Failure::bad_request("this connection cannot be upgraded; use HTTP/1.1"));
    };
    let far = hyper::upgrade::on(&mut response);
    call.app.tracker.spawn(async move {
        let (Ok(mut near), Ok(far)) = (client.connection().await, far.await) else { return };
        let mut far = TokioIo::new(far);
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let (parts, _) = response.into_parts();
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    Ok(answer)
}
