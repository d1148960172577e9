//! Which path means what.

use std::collections::HashMap;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::{Body, forward, json, logs, remote, stats, text, websocket};
use crate::node::Shared;
use crate::pod::{plan, spec};
use crate::runtime::{ContainerPhase, ExecRequest};

/// Query parameters; a name may appear more than once.
pub(super) struct Query(HashMap<String, Vec<String>>);

impl Query {
    fn parse(query: &str) -> Query {
        let mut map: HashMap<String, Vec<String>> = HashMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            map.entry(decode(name)).or_default().push(decode(value));
        }
        Query(map)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.first().map(String::as_str)
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.0.get(name).cloned().unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match (bytes[at], escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (_, Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', None) => out.push(b' '),
            (byte, None) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

pub(super) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let query = Query::parse(request.uri().query().unwrap_or(""));
    let reading = request.method() == Method::GET;
    let streaming = reading || request.method() == Method::POST;
    match parts.as_slice() {
        ["healthz"] | ["livez"] | ["readyz"] if reading => text(StatusCode::OK, "ok"),
        ["pods"] if reading => pods(&shared),
        ["containerLogs", namespace, pod, container] if reading => {
            let answer = logs::answer(&shared, namespace, pod, container, &query).await;
            if websocket::asked(&request) { websocket::stream_answer(request, answer) } else { answer }
        }
        ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] if streaming => {
            match running(&shared, namespace, pod, container).await {
                Ok((uid, id)) => {
                    let exec = ExecRequest {
                        command: query.all("command"),
                        tty: query.flag("tty"),
                        stdin: query.flag("input") || query.flag("stdin"),
                        stdout: query.flag("output") || query.flag("stdout"),
                        stderr: query.flag("error") || query.flag("stderr"),
                        streamed: true,
                    };
                    remote::exec(shared, request, uid, id, exec).await
                }
                Err(response) => response,
            }
        }
        ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] if streaming => {
            match running(&shared, namespace, pod, container).await {
                Ok((uid, id)) => {
                    let tty = shared.find(namespace, pod).and_then(|p| spec::container(&p, container)?.tty)
                        == Some(true);
                    let wants = ExecRequest {
                        command: Vec::new(),
                        tty,
                        stdin: query.flag("input") || query.flag("stdin"),
                        stdout: query.flag("output") || query.flag("stdout"),
                        stderr: query.flag("error") || query.flag("stderr"),
                        streamed: true,
                    };
                    remote::attach(shared, request, uid, id, wants).await
                }
                Err(response) => response,
            }
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] if streaming => {
            let ports = [query.all("port"), query.all("ports")].concat();
            forward::answer(shared, request, namespace, pod, ports).await
        }
        ["run", namespace, pod, container] if request.method() == Method::POST => {
            match running(&shared, namespace, pod, container).await {
                Ok((uid, id)) => {
                    let command =
                        query.get("cmd").unwrap_or("").split_whitespace().map(str::to_owned).collect();
                    let exec = ExecRequest { command, stdout: true, stderr: true, ..ExecRequest::default() };
                    match crate::probe::exec(&shared.ctx, &uid, &id, &exec).await {
                        Ok((0, output)) => text(StatusCode::OK, output),
                        Ok((code, output)) => text(
                            StatusCode::INTERNAL_SERVER_ERROR,
                            format!("{output}\ncommand exited with {code}"),
                        ),
                        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
                    }
                }
                Err(response) => response,
            }
        }
        ["stats", "summary"] if reading => json(&stats::summary(&shared).await),
        ["metrics", "resource"] if reading => text(StatusCode::OK, stats::resource_metrics(&shared).await),
        ["metrics"] if reading => text(StatusCode::OK, ""),
        _ => text(StatusCode::NOT_FOUND, format!("404 page not found: {} {path}\n", request.method())),
    }
}

fn pods(shared: &Shared) -> Response<Body> {
    let items: Vec<_> = shared.pods().iter().map(|pod| (**pod).clone()).collect();
    json(&serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// The pod's uid and the id of its running container.
pub(super) async fn running(
    shared: &Shared,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<(String, String), Response<Body>> {
    let missing = || text(StatusCode::NOT_FOUND, format!("pod {namespace}/{pod} is not on this node"));
    let object = shared.find(namespace, pod).ok_or_else(missing)?;
    let uid = spec::uid(&object).to_owned();
    let state = shared
        .ctx
        .runtime
        .pod(&uid)
        .await
        .map_err(|e| text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    let current =
        plan::latest(&state, container).filter(|c| matches!(c.phase, ContainerPhase::Running { .. }));
    let current = current
        .ok_or_else(|| text(StatusCode::NOT_FOUND, format!("container not found (\"{container}\")")))?;
    Ok((uid, current.id.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_escaped_parameters_are_read() {
        let query = Query::parse("command=sh&command=-c&command=echo+%22a%2Bb%22&stdin=true&tty=false");
        assert_eq!(query.all("command"), ["sh", "-c", "echo \"a+b\""]);
        assert!(query.flag("stdin") && !query.flag("tty") && !query.flag("stdout"));
    }
}
