//! Commands and attachments over a client's streams, whatever protocol carries them.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{Body, text, websocket};
use crate::node::Shared;
use crate::runtime::{ExecRequest, Output, Session};

/// Pieces in flight in each direction; a slow end makes the other wait.
pub(super) const PIECES: usize = 16;
const PIECE: usize = 32 * 1024;

/// From the client.
#[derive(Debug)]
pub(super) enum Inbound {
    Stdin(Bytes),
    StdinEnd,
    Resize { columns: u16, rows: u16 },
}

/// To the client. `Status` is the last word.
#[derive(Debug)]
pub(super) enum Outbound {
    Stdout(Bytes),
    Stderr(Bytes),
    Status(Value),
}

/// The client's end of a session. The sender closes when the client is gone.
pub(super) struct Client {
    pub inbound: mpsc::Receiver<Inbound>,
    pub outbound: mpsc::Sender<Outbound>,
}

pub(super) async fn exec(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    uid: String,
    id: String,
    exec: ExecRequest,
) -> Response<Body> {
    if exec.command.is_empty() {
        return text(StatusCode::BAD_REQUEST, "you must specify at least 1 command");
    }
    if !(exec.stdin || exec.stdout || exec.stderr) {
        return text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr");
    }
    accept(request, exec.clone(), move |client| async move {
        match shared.ctx.runtime.exec(&uid, &id, &exec).await {
            Ok(session) => carry(session, client, true).await,
            Err(error) => {
                let _ = client.outbound.send(Outbound::Status(failure(&error.to_string()))).await;
            }
        }
    })
}

pub(super) async fn attach(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    uid: String,
    id: String,
    wants: ExecRequest,
) -> Response<Body> {
    let stdin = wants.stdin;
    accept(request, wants, move |client| async move {
        match shared.ctx.runtime.attach(&uid, &id, stdin).await {
            Ok(session) => carry(session, client, false).await,
            Err(error) => {
                let _ = client.outbound.send(Outbound::Status(failure(&error.to_string()))).await;
            }
        }
    })
}

/// Takes the client over with the protocol it asks for, and runs `session` on it.
fn accept<F: Future<Output = ()> + Send + 'static>(
    request: Request<Incoming>,
    wants: ExecRequest,
    session: impl FnOnce(Client) -> F + Send + 'static,
) -> Response<Body> {
    if websocket::asked(&request) {
        return websocket::remote_command(request, wants, session);
    }
    super::spdy::remote_command(request, wants, session)
}

/// Carries bytes between a session and a client until the session ends.
async fn carry(session: Session, client: Client, report_code: bool) {
    let Session { stdin, stdout, stderr, resize, mut done } = session;
    let Client { mut inbound, outbound } = client;
    let input = async move {
        let mut stdin = stdin;
        while let Some(message) = inbound.recv().await {
            match message {
                Inbound::Stdin(data) => {
                    if let Some(pipe) = &mut stdin
                        && (pipe.write_all(&data).await.is_err() || pipe.flush().await.is_err())
                    {
                        stdin = None;
                    }
                }
                Inbound::StdinEnd => stdin = None,
                Inbound::Resize { columns, rows } => {
                    let _ = resize.send((columns, rows)).await;
                }
            }
        }
    };
    let input = tokio::spawn(input);
    let out = tokio::spawn(pump(stdout, outbound.clone(), Outbound::Stdout));
    let err = tokio::spawn(pump(stderr, outbound.clone(), Outbound::Stderr));
    // Dropping `done` when the client goes away ends the command.
    let outcome = tokio::select! {
        outcome = &mut done => outcome,
        () = outbound.closed() => {
            input.abort();
            return;
        }
    };
    let _ = tokio::join!(out, err);
    input.abort();
    let status = match outcome {
        Ok(Ok(0)) => json!({"metadata": {}, "status": "Success"}),
        Ok(Ok(_)) if !report_code => json!({"metadata": {}, "status": "Success"}),
        Ok(Ok(code)) => exit_status(code),
        Ok(Err(reason)) => failure(&reason),
        Err(_) => failure("the session was cut off"),
    };
    let _ = outbound.send(Outbound::Status(status)).await;
}

async fn pump(stream: Option<Output>, outbound: mpsc::Sender<Outbound>, wrap: impl Fn(Bytes) -> Outbound) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0u8; PIECE];
    while let Ok(count) = stream.read(&mut buffer).await {
        if count == 0 || outbound.send(wrap(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
            return;
        }
    }
}

/// What clients parse to find the exit code.
fn exit_status(code: i32) -> Value {
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit code {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

fn failure(message: &str) -> Value {
    json!({"metadata": {}, "status": "Failure", "message": format!("Internal error occurred: {message}"), "reason": "InternalError",
        "details": {"causes": [{"message": message}]}, "code": 500})
}
