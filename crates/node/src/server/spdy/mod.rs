//! SPDY/3.1 for commands and port forwarding: what kube-apiserver speaks to kubelets, and what kubectl before 1.31
//! speaks to everybody.

mod frame;
mod session;

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;

pub(crate) use session::{Event, Sender, Session};

use super::remote::{Client, Inbound, Outbound, PIECES};
use super::websocket::size;
use super::{Body, text};
use crate::runtime::ExecRequest;

const REMOTE_COMMAND: &[&str] =
    &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
/// All streams must be open within this time.
const OPENING: std::time::Duration = std::time::Duration::from_secs(30);

pub(super) fn asked(request: &Request<Incoming>) -> bool {
    request.headers().get(header::UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"SPDY/3.1"))
}

/// Answers the handshake: the response, the protocol, and the connection once it is ours.
pub(super) fn upgrade(
    mut request: Request<Incoming>,
    known: &[&'static str],
) -> Result<
    (Response<Body>, &'static str, impl Future<Output = Option<TokioIo<hyper::upgrade::Upgraded>>> + Send),
    Response<Body>,
> {
    if !asked(&request) {
        return Err(text(StatusCode::BAD_REQUEST, "this needs an upgrade to SPDY/3.1 or a WebSocket"));
    }
    let offered: Vec<String> = request
        .headers()
        .get_all(STREAM_PROTOCOL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(',').map(|p| p.trim().to_owned()).collect::<Vec<_>>())
        .collect();
    let chosen = known.iter().copied().find(|p| offered.iter().any(|o| o == p));
    let Some(protocol) = chosen.or(offered.is_empty().then(|| known[known.len() - 1])) else {
        let mut response = text(
            StatusCode::FORBIDDEN,
            format!("none of the offered protocols {offered:?} is known; known are {known:?}"),
        );
        for protocol in known {
            response
                .headers_mut()
                .append("x-accepted-stream-protocol-versions", HeaderValue::from_static(protocol));
        }
        return Err(response);
    };
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    let upgraded = hyper::upgrade::on(&mut request);
    Ok((response, protocol, async move { upgraded.await.ok().map(TokioIo::new) }))
}

pub(super) fn remote_command<F: Future<Output = ()> + Send + 'static>(
    request: Request<Incoming>,
    wants: ExecRequest,
    session: impl FnOnce(Client) -> F + Send + 'static,
) -> Response<Body> {
    let (response, protocol, connection) = match upgrade(request, REMOTE_COMMAND) {
        Ok(upgraded) => upgraded,
        Err(response) => return response,
    };
    let plain_errors = protocol != "v4.channel.k8s.io";
    tokio::spawn(async move {
        let Some(connection) = connection.await else { return };
        let mut spdy = Session::start(connection);
        let Ok(Some(streams)) =
            tokio::time::timeout(OPENING, open_streams(&mut spdy, &wants, protocol)).await
        else {
            return;
        };
        let (in_sender, inbound) = mpsc::channel(PIECES);
        let (outbound, out_receiver) = mpsc::channel(PIECES);
        let carried = tokio::spawn(carry(spdy, streams, plain_errors, in_sender, out_receiver));
        session(Client { inbound, outbound }).await;
        let _ = carried.await;
    });
    response
}

/// Stream numbers by what they carry.
type Streams = HashMap<&'static str, u32>;

async fn open_streams(spdy: &mut Session, wants: &ExecRequest, protocol: &str) -> Option<Streams> {
    let mut expected = vec!["error"];
    expected.extend(wants.stdin.then_some("stdin"));
    expected.extend(wants.stdout.then_some("stdout"));
    expected.extend((wants.stderr && !wants.tty).then_some("stderr"));
    expected.extend(
        (wants.tty && matches!(protocol, "v3.channel.k8s.io" | "v4.channel.k8s.io")).then_some("resize"),
    );
    let mut streams = Streams::new();
    while streams.len() < expected.len() {
        match spdy.next().await? {
            Event::Opened { stream, headers } => {
                let kind =
                    headers.iter().find(|(name, _)| name == "streamtype").map(|(_, value)| value.as_str());
                match expected.iter().find(|name| Some(**name) == kind) {
                    Some(name) => drop(streams.insert(name, stream)),
                    None => spdy.reset(stream).await,
                }
            }
            Event::Closed => return None,
            _ => {}
        }
    }
    Some(streams)
}

async fn carry(
    mut spdy: Session,
    streams: Streams,
    plain_errors: bool,
    inbound: mpsc::Sender<Inbound>,
    mut outbound: mpsc::Receiver<Outbound>,
) {
    let stream = |name: &str| streams.get(name).copied();
    let is = |id: u32, name: &str| stream(name) == Some(id);
    loop {
        tokio::select! {
            message = outbound.recv() => match message {
                Some(Outbound::Stdout(data)) => if let Some(id) = stream("stdout") { spdy.send(id, data, false).await },
                Some(Outbound::Stderr(data)) => if let Some(id) = stream("stderr") { spdy.send(id, data, false).await },
                Some(Outbound::Status(status)) => {
                    for name in ["stdout", "stderr"] {
                        if let Some(id) = stream(name) {
                            spdy.send(id, Bytes::new(), true).await;
                        }
                    }
                    if let Some(id) = stream("error") {
                        let failed = status["status"] != "Success";
                        let words = match (plain_errors, failed) {
                            (true, false) => String::new(),
                            (true, true) => status["message"].as_str().unwrap_or("").to_owned(),
                            (false, _) => status.to_string(),
                        };
                        spdy.send(id, Bytes::from(words), true).await;
                    }
                    break;
                }
                None => break,
            },
            event = spdy.next() => match event {
                Some(Event::Data { stream: id, data, fin }) => {
                    let resize = is(id, "resize");
                    let news = if resize { size(&data) } else if is(id, "stdin") && !data.is_empty() { Some(Inbound::Stdin(data)) } else { None };
                    if let Some(news) = news {
                        let _ = inbound.send(news).await;
                    }
                    if fin && is(id, "stdin") {
                        let _ = inbound.send(Inbound::StdinEnd).await;
                    }
                }
                Some(Event::Opened { stream, .. }) => spdy.reset(stream).await,
                // Some clients reset their input when they are done with it.
                Some(Event::Reset { stream: id }) => if is(id, "stdin") { let _ = inbound.send(Inbound::StdinEnd).await; },
                Some(Event::Closed) | None => return,
            },
        }
    }
    // The client closes when it has read everything.
    let drain = async { while !matches!(spdy.next().await, Some(Event::Closed) | None) {} };
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), drain).await;
}
