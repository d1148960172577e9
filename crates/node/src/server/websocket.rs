//! The WebSocket protocols of Kubernetes: one byte of channel, then data.

use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::remote::{Client, Inbound, Outbound, PIECES};
use super::{Body, text};
use crate::runtime::ExecRequest;

pub(super) type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// In v5: "this channel ends", followed by the channel.
const CLOSE: u8 = 255;

/// Newest first. The empty name and the plain one carry no status object, only text.
const REMOTE_COMMAND: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];

pub(super) fn asked(request: &Request<Incoming>) -> bool {
    let has = |name: header::HeaderName, word: &str| {
        let values = request.headers().get_all(name);
        values
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|v| v.split(',').any(|part| part.trim().eq_ignore_ascii_case(word)))
    };
    has(header::UPGRADE, "websocket") && has(header::CONNECTION, "upgrade")
}

/// Answers the handshake. Returns the response, the protocol agreed on, and the socket once the client follows.
pub(super) fn upgrade(
    mut request: Request<Incoming>,
    known: &[&'static str],
) -> Result<(Response<Body>, &'static str, impl Future<Output = Option<Socket>> + Send), Response<Body>> {
    let offered: Vec<String> = request
        .headers()
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(',').map(|p| p.trim().to_owned()).collect::<Vec<_>>())
        .collect();
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY).cloned() else {
        return Err(text(StatusCode::BAD_REQUEST, "Sec-WebSocket-Key is missing"));
    };
    let chosen = known.iter().copied().find(|p| offered.iter().any(|o| o == p));
    let Some(protocol) = chosen.or(offered.is_empty().then_some("")) else {
        return Err(text(
            StatusCode::FORBIDDEN,
            format!("none of the offered protocols {offered:?} is known; known are {known:?}"),
        ));
    };
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    if !protocol.is_empty() {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let socket = async move {
        let upgraded = upgraded.await.ok()?;
        let config =
            WebSocketConfig::default().max_message_size(Some(16 << 20)).max_frame_size(Some(16 << 20));
        Some(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await)
    };
    Ok((response, protocol, socket))
}

/// Messages without channels: one direction, bytes only.
const PLAIN: &[&str] = &["binary.k8s.io", "base64.binary.k8s.io"];

/// Sends the body of a good answer as messages, to a client that asked for a WebSocket.
pub(super) fn stream_answer(request: Request<Incoming>, answer: Response<Body>) -> Response<Body> {
    use base64::Engine;
    if answer.status() != StatusCode::OK {
        return answer;
    }
    let (response, protocol, socket) = match upgrade(request, PLAIN) {
        Ok(upgraded) => upgraded,
        Err(response) => return response,
    };
    tokio::spawn(async move {
        let Some(mut socket) = socket.await else { return };
        let mut body = answer.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            let message = if protocol.contains("base64") {
                Message::text(base64::engine::general_purpose::STANDARD.encode(&data))
            } else {
                Message::Binary(data)
            };
            if socket.send(message).await.is_err() {
                return;
            }
        }
        let _ = socket.close(None).await;
    });
    response
}

pub(super) fn remote_command<F: Future<Output = ()> + Send + 'static>(
    request: Request<Incoming>,
    wants: ExecRequest,
    session: impl FnOnce(Client) -> F + Send + 'static,
) -> Response<Body> {
    let (response, protocol, socket) = match upgrade(request, REMOTE_COMMAND) {
        Ok(upgraded) => upgraded,
        Err(response) => return response,
    };
    tokio::spawn(async move {
        let Some(socket) = socket.await else { return };
        let (in_sender, inbound) = mpsc::channel(PIECES);
        let (outbound, out_receiver) = mpsc::channel(PIECES);
        let codec = Codec { base64: protocol.contains("base64"), plain_errors: !protocol.starts_with('v') };
        let carried = tokio::spawn(carry(socket, codec, wants, in_sender, out_receiver));
        session(Client { inbound, outbound }).await;
        let _ = carried.await;
    });
    response
}

struct Codec {
    base64: bool,
    /// Before v4 the error channel carries text, and nothing on success.
    plain_errors: bool,
}

impl Codec {
    fn encode(&self, channel: u8, data: &[u8]) -> Message {
        if self.base64 {
            use base64::Engine;
            let coded = base64::engine::general_purpose::STANDARD.encode(data);
            return Message::text(format!("{}{coded}", (b'0' + channel) as char));
        }
        let mut frame = BytesMut::with_capacity(data.len() + 1);
        frame.put_u8(channel);
        frame.extend_from_slice(data);
        Message::binary(frame.freeze())
    }

    fn decode(&self, message: Message) -> Option<(u8, Bytes)> {
        let data = match message {
            Message::Binary(data) => data,
            Message::Text(data) => Bytes::copy_from_slice(data.as_bytes()),
            _ => return None,
        };
        let (channel, rest) = (*data.first()?, data.slice(1..));
        if self.base64 {
            use base64::Engine;
            let decoded = base64::engine::general_purpose::STANDARD.decode(&rest).ok()?;
            return Some((channel.wrapping_sub(b'0'), decoded.into()));
        }
        Some((channel, rest))
    }
}

async fn carry(
    socket: Socket,
    codec: Codec,
    wants: ExecRequest,
    inbound: mpsc::Sender<Inbound>,
    mut outbound: mpsc::Receiver<Outbound>,
) {
    let (mut sink, mut source) = socket.split();
    // The first message tells the client that it is connected.
    let hello = if wants.stdout {
        STDOUT
    } else if wants.stderr {
        STDERR
    } else {
        ERROR
    };
    if sink.send(codec.encode(hello, b"")).await.is_err() {
        return;
    }
    let mut inbound = Some(inbound);
    let mut keepalive = tokio::time::interval(std::time::Duration::from_secs(30));
    loop {
        tokio::select! {
            message = outbound.recv() => {
                let sent = match message {
                    Some(Outbound::Stdout(data)) if wants.stdout => sink.send(codec.encode(STDOUT, &data)).await,
                    Some(Outbound::Stderr(data)) if wants.stderr => sink.send(codec.encode(STDERR, &data)).await,
                    Some(Outbound::Status(status)) => {
                        let failed = status["status"] != "Success";
                        let text = if codec.plain_errors { status["message"].as_str().unwrap_or("").to_owned() } else { status.to_string() };
                        if failed || !codec.plain_errors {
                            let _ = sink.send(codec.encode(ERROR, text.as_bytes())).await;
                        }
                        break;
                    }
                    Some(_) => Ok(()),
                    None => break,
                };
                if sent.is_err() {
                    return;
                }
            }
            message = source.next(), if inbound.is_some() => {
                let Some(Ok(message)) = message else {
                    // The client is gone: closing the outbound channel ends the session.
                    return;
                };
                if matches!(message, Message::Close(_)) {
                    return;
                }
                let Some((channel, data)) = codec.decode(message) else { continue };
                let event = match channel {
                    STDIN => Some(Inbound::Stdin(data)),
                    RESIZE => size(&data),
                    CLOSE if data.first() == Some(&STDIN) => Some(Inbound::StdinEnd),
                    _ => None,
                };
                if let (Some(event), Some(sender)) = (event, &inbound)
                    && sender.send(event).await.is_err()
                {
                    inbound = None;
                }
            }
            _ = keepalive.tick() => {
                if sink.send(Message::Ping(Bytes::new())).await.is_err() {
                    return;
                }
            }
        }
    }
    // Clients take a close without a code for a broken connection.
    let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = sink.send(Message::Close(Some(normal))).await;
    let _ = sink.close().await;
    // Let the client read the last word before the connection goes.
    let drain = async { while let Some(Ok(_)) = source.next().await {} };
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), drain).await;
}

/// `{"Width":80,"Height":24}`.
pub(super) fn size(data: &[u8]) -> Option<Inbound> {
    let value: serde_json::Value = serde_json::from_slice(data).ok()?;
    let side = |name: &str| value[name].as_u64().and_then(|n| u16::try_from(n).ok());
    Some(Inbound::Resize { columns: side("Width")?, rows: side("Height")? })
}
