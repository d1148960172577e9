//! Commands in containers and connections to their main process: the runtime names an address that speaks the same
//! SPDY as a kubelet, and this is the client's end of it.

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::runtime::{RuntimeError, Session};
use crate::server::spdy::{Event, Sender, Session as Spdy};

const BUFFER: usize = 64 * 1024;
const PROTOCOL: &str = "v4.channel.k8s.io";

/// Which streams to open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

// Odd numbers belong to the end that dials; fixed ones make the routing below a match.
const ERROR: u32 = 1;
const STDIN: u32 = 3;
const STDOUT: u32 = 5;
const STDERR: u32 = 7;
const RESIZE: u32 = 9;

pub(super) async fn connect(url: &str, wanted: Wanted) -> Result<Session, RuntimeError> {
    let failed = |what: String| RuntimeError::Create(format!("streams of the runtime at {url}: {what}"));
    let uri: Uri = url.parse().map_err(|e| failed(format!("{e}")))?;
    let authority = uri.authority().ok_or_else(|| failed("no address".into()))?.clone();
    let socket = TcpStream::connect(authority.as_str()).await.map_err(|e| failed(e.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|e| failed(e.to_string()))?;
    tokio::spawn(connection.with_upgrades());
    let request = Request::post(uri.path_and_query().map_or("/", |p| p.as_str()))
        .header(header::HOST, authority.as_str())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .header("x-stream-protocol-version", PROTOCOL)
        .body(Empty::<Bytes>::new())
        .map_err(|e| failed(e.to_string()))?;
    let response = sender.send_request(request).await.map_err(|e| failed(e.to_string()))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(failed(format!("answered {}", response.status())));
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(|e| failed(e.to_string()))?;
    let spdy = Spdy::start(TokioIo::new(upgraded));
    let streams = [
        (ERROR, "error", true),
        (STDIN, "stdin", wanted.stdin),
        (STDOUT, "stdout", wanted.stdout),
        (STDERR, "stderr", wanted.stderr && !wanted.tty),
        (RESIZE, "resize", wanted.tty),
    ];
    for (stream, kind, _) in streams.iter().filter(|(_, _, wanted)| *wanted) {
        spdy.open(*stream, vec![("streamtype".into(), (*kind).into())]).await;
    }
    Ok(session(spdy, wanted))
}

fn session(spdy: Spdy, wanted: Wanted) -> Session {
    let (stdin, stdin_end) = duplex(BUFFER);
    let (stdout, stdout_end) = duplex(BUFFER);
    let (stderr, stderr_end) = duplex(BUFFER);
    let (resize, resizes) = mpsc::channel(1);
    let (done_sender, done) = oneshot::channel();
    tokio::spawn(send_input(spdy.sender(), wanted.stdin.then_some(stdin_end), resizes));
    tokio::spawn(carry(spdy, stdout_end, stderr_end, done_sender));
    Session {
        stdin: wanted.stdin.then(|| Box::new(stdin) as _),
        stdout: wanted.stdout.then(|| Box::new(stdout) as _),
        stderr: (wanted.stderr && !wanted.tty).then(|| Box::new(stderr) as _),
        resize,
        done,
    }
}

/// Ends when there is neither input nor a terminal to be resized any more.
async fn send_input(spdy: Sender, mut stdin: Option<DuplexStream>, mut resizes: mpsc::Receiver<(u16, u16)>) {
    let mut buffer = vec![0u8; 16 * 1024];
    loop {
        let input = async {
            match &mut stdin {
                Some(stdin) => stdin.read(&mut buffer).await.unwrap_or(0),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            count = input => {
                spdy.send(STDIN, Bytes::copy_from_slice(&buffer[..count]), count == 0).await;
                if count == 0 {
                    stdin = None;
                }
            }
            size = resizes.recv() => match size {
                Some((width, height)) => {
                    let text = serde_json::json!({"Width": width, "Height": height}).to_string();
                    spdy.send(RESIZE, Bytes::from(text), false).await;
                }
                None => return,
            },
        }
        if spdy.is_closed() {
            return;
        }
    }
}

async fn carry(
    mut spdy: Spdy,
    mut stdout: DuplexStream,
    mut stderr: DuplexStream,
    mut done: oneshot::Sender<Result<i32, String>>,
) {
    let mut verdict = Vec::new();
    loop {
        let event = tokio::select! {
            event = spdy.next() => event,
            // Nobody waits for the command any more.
            () = done.closed() => return,
        };
        match event {
            Some(Event::Data { stream: STDOUT, data, .. }) => drop(stdout.write_all(&data).await),
            Some(Event::Data { stream: STDERR, data, .. }) => drop(stderr.write_all(&data).await),
            Some(Event::Data { stream: ERROR, data, fin }) => {
                verdict.extend_from_slice(&data);
                if fin {
                    break;
                }
            }
            Some(Event::Closed) | None => break,
            Some(_) => {}
        }
    }
    let _ = done.send(outcome(&verdict));
}

/// What the error stream says in the end.
fn outcome(verdict: &[u8]) -> Result<i32, String> {
    // An attached process that ended has nothing to say.
    if verdict.is_empty() {
        return Ok(0);
    }
    let Ok(status) = serde_json::from_slice::<serde_json::Value>(verdict) else {
        return Err(String::from_utf8_lossy(verdict).into_owned());
    };
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let mut codes = causes.filter(|cause| cause["reason"] == "ExitCode");
    match codes.find_map(|cause| cause["message"].as_str()?.parse().ok()) {
        Some(code) => Ok(code),
        None => Err(status["message"].as_str().unwrap_or("the command failed").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_read_from_the_final_status() {
        assert_eq!(outcome(br#"{"status":"Success"}"#), Ok(0));
        let failed = br#"{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(outcome(failed), Ok(3));
        assert_eq!(outcome(br#"{"status":"Failure","message":"no such file"}"#), Err("no such file".into()));
        assert_eq!(outcome(b"plain words"), Err("plain words".into()));
    }
}
