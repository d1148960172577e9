//! Port forwarding: from a client's stream to a port inside the pod.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::spdy::{self, Event, Session};
use super::websocket::{self, Socket};
use super::{Body, text};
use crate::node::Shared;
use crate::pod::spec;

const SPDY: &[&str] = &["portforward.k8s.io"];
const TUNNELLED: &str = "SPDY/3.1+portforward.k8s.io";
const CHANNELS: &str = "v4.channel.k8s.io";
/// Pieces waiting for a program in the pod; the connection waits when it is full.
const PIECES: usize = 32;
const PIECE: usize = 32 * 1024;

/// How to reach the ports of one pod.
#[derive(Clone)]
struct Pod {
    /// Whose network namespace; none for a pod on the host's network.
    pid: Option<u32>,
}

impl Pod {
    async fn connect(&self, port: u16) -> std::io::Result<TcpStream> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let Some(pid) = self.pid else { return TcpStream::connect(address).await };
        // The socket must be made inside the pod's namespace; afterwards it works from any thread.
        let connect = move || {
            tombolo_net::inside(pid, move || {
                std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(10))
            })
        };
        let stream = tokio::task::spawn_blocking(connect).await.map_err(std::io::Error::other)??;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }
}

pub(super) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    namespace: &str,
    name: &str,
    ports: Vec<String>,
) -> Response<Body> {
    let Some(object) = shared.find(namespace, name) else {
        return text(StatusCode::NOT_FOUND, format!("pod {namespace}/{name} is not on this node"));
    };
    let state = shared.ctx.runtime.pod(spec::uid(&object)).await.unwrap_or_default();
    let Some(sandbox) = state.sandbox else {
        return text(StatusCode::BAD_REQUEST, format!("pod {namespace}/{name} is not running"));
    };
    let host_network = object.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
    let pod = Pod { pid: (!host_network).then_some(sandbox.pid) };
    if !websocket::asked(&request) {
        return match spdy::upgrade(request, SPDY) {
            Ok((response, _, connection)) => {
                tokio::spawn(async move {
                    if let Some(connection) = connection.await {
                        forward(Session::start(connection), pod).await;
                    }
                });
                response
            }
            Err(response) => response,
        };
    }
    let (response, protocol, socket) = match websocket::upgrade(request, &[TUNNELLED, CHANNELS]) {
        Ok(upgraded) => upgraded,
        Err(response) => return response,
    };
    let ports: Vec<u16> = ports.iter().flat_map(|p| p.split(',')).filter_map(|p| p.parse().ok()).collect();
    tokio::spawn(async move {
        let Some(socket) = socket.await else { return };
        if protocol == TUNNELLED {
            forward(Session::start(tunnelled(socket)), pod).await;
        } else {
            channels(socket, ports, pod).await;
        }
    });
    response
}

/// Streams come in pairs with one request number: one for data, one for an error message.
async fn forward(mut session: Session, pod: Pod) {
    let mut errors: HashMap<String, u32> = HashMap::new();
    let mut inputs: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    while let Some(event) = session.next().await {
        match event {
            Event::Opened { stream, headers } => {
                let header = |name: &str| {
                    headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).unwrap_or_default()
                };
                let request = header("requestid");
                match header("streamtype").as_str() {
                    "error" => drop(errors.insert(request, stream)),
                    "data" => {
                        let Ok(port) = header("port").parse::<u16>() else {
                            session.reset(stream).await;
                            continue;
                        };
                        let (sender, receiver) = mpsc::channel(PIECES);
                        inputs.insert(stream, sender);
                        let error = errors.remove(&request);
                        tokio::spawn(one(session.sender(), stream, error, port, pod.clone(), receiver));
                    }
                    _ => session.reset(stream).await,
                }
            }
            Event::Data { stream, data, fin } => {
                if let Some(input) = inputs.get(&stream)
                    && !data.is_empty()
                    && input.send(data).await.is_err()
                {
                    inputs.remove(&stream);
                }
                if fin {
                    inputs.remove(&stream);
                }
            }
            Event::Reset { stream } => drop(inputs.remove(&stream)),
            Event::Closed => return,
        }
    }
}

/// One forwarded connection.
async fn one(
    sender: spdy::Sender,
    stream: u32,
    error: Option<u32>,
    port: u16,
    pod: Pod,
    mut input: mpsc::Receiver<Bytes>,
) {
    let connection = match pod.connect(port).await {
        Ok(connection) => connection,
        Err(why) => {
            if let Some(error) = error {
                let message = format!("failed to connect to localhost:{port} inside the pod: {why}");
                sender.send(error, Bytes::from(message), true).await;
            }
            sender.send(stream, Bytes::new(), true).await;
            return;
        }
    };
    let (mut from_pod, mut to_pod) = connection.into_split();
    let upward = tokio::spawn(async move {
        while let Some(data) = input.recv().await {
            if to_pod.write_all(&data).await.is_err() {
                return;
            }
        }
        let _ = to_pod.shutdown().await;
    });
    let mut buffer = vec![0u8; PIECE];
    while let Ok(count) = from_pod.read(&mut buffer).await {
        if count == 0 || sender.is_closed() {
            break;
        }
        sender.send(stream, Bytes::copy_from_slice(&buffer[..count]), false).await;
    }
    // The program in the pod has said its last word. Older clients close their end only after both of ours are.
    upward.abort();
    sender.send(stream, Bytes::new(), true).await;
    if let Some(error) = error {
        sender.send(error, Bytes::new(), true).await;
    }
}

/// The bytes inside a WebSocket's messages as one stream.
fn tunnelled(socket: Socket) -> tokio::io::DuplexStream {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let (mut sink, mut source) = socket.split();
    let (mut reader, mut writer) = tokio::io::split(far);
    tokio::spawn(async move {
        while let Some(Ok(message)) = source.next().await {
            match message {
                Message::Binary(data) if writer.write_all(&data).await.is_err() => {
                    return;
                }
                Message::Close(_) => break,
                _ => {}
            }
        }
        let _ = writer.shutdown().await;
    });
    tokio::spawn(async move {
        let mut buffer = vec![0u8; 64 * 1024];
        while let Ok(count) = reader.read(&mut buffer).await {
            if count == 0
                || sink.send(Message::binary(Bytes::copy_from_slice(&buffer[..count]))).await.is_err()
            {
                break;
            }
        }
        let _ = sink.send(Message::Close(None)).await;
        let _ = sink.close().await;
    });
    near
}

/// The older WebSocket protocol: channel 2n carries the data of port n, channel 2n+1 its errors; each starts with
/// the port number (little endian).
async fn channels(socket: Socket, ports: Vec<u16>, pod: Pod) {
    let (mut sink, mut source) = socket.split();
    let (out, mut out_receiver) = mpsc::channel::<(u8, Bytes)>(PIECES);
    let mut inputs = Vec::new();
    for (index, port) in ports.iter().enumerate().take(100) {
        let channel = index as u8 * 2;
        for first in [channel, channel + 1] {
            let _ = out.send((first, Bytes::copy_from_slice(&port.to_le_bytes()))).await;
        }
        let (sender, mut input) = mpsc::channel::<Bytes>(PIECES);
        inputs.push(sender);
        let (out, pod, port) = (out.clone(), pod.clone(), *port);
        tokio::spawn(async move {
            // Connected when the client has something to say or at once: programs may greet first.
            let connection = match pod.connect(port).await {
                Ok(connection) => connection,
                Err(why) => {
                    let _ = out
                        .send((
                            channel + 1,
                            Bytes::from(format!(
                                "failed to connect to localhost:{port} inside the pod: {why}"
                            )),
                        ))
                        .await;
                    return;
                }
            };
            let (mut from_pod, mut to_pod) = connection.into_split();
            let upward = async {
                while let Some(data) = input.recv().await {
                    if to_pod.write_all(&data).await.is_err() {
                        return;
                    }
                }
            };
            let downward = async {
                let mut buffer = vec![0u8; PIECE];
                while let Ok(count) = from_pod.read(&mut buffer).await {
                    if count == 0
                        || out.send((channel, Bytes::copy_from_slice(&buffer[..count]))).await.is_err()
                    {
                        return;
                    }
                }
            };
            tokio::select! { () = upward => {}, () = downward => {} }
        });
    }
    drop(out);
    loop {
        tokio::select! {
            message = out_receiver.recv() => {
                let Some((channel, data)) = message else { break };
                let mut frame = vec![channel];
                frame.extend_from_slice(&data);
                if sink.send(Message::binary(frame)).await.is_err() {
                    return;
                }
            }
            message = source.next() => {
                let Some(Ok(message)) = message else { return };
                if let Message::Binary(data) = message
                    && let Some(channel) = data.first()
                    && channel % 2 == 0
                    && let Some(input) = inputs.get(usize::from(channel / 2))
                {
                    let _ = input.send(data.slice(1..)).await;
                }
            }
        }
    }
    let _ = sink.send(Message::Close(None)).await;
}
