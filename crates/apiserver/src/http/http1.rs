//! HTTP/1.1. A watch has its connection to itself: nothing else can come through until it ends. So it is taken out of hyper's
//! hands and written straight to the wire: a thousand clients that watch see a write a tenth sooner. Where the connection becomes
//! something else (exec, tunnels), hyper's part is over too; after a watch it begins anew.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use futures::Stream;
use http::{Method, Request, Response, StatusCode, Version, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;
use tokio_util::io::poll_write_buf;

use super::body::{Body, Events};
use crate::aside::Aside;
use crate::auth::Identity;
use crate::server::Server;
use crate::upgrade::{BoxIo, Offer};

const HEAD: Duration = Duration::from_secs(60);

/// What becomes of a connection when hyper lets go of it.
#[derive(Default)]
enum Next {
    #[default]
    End,
    Watch {
        head: Vec<u8>,
        events: Events,
        keep: bool,
    },
    Upgrade(oneshot::Sender<BoxIo>),
}

/// Serves one byte stream until it ends, becomes something else, or the server stops.
pub async fn serve(server: Server, io: BoxIo, identity: Option<Arc<Identity>>) {
    let mut io = Rewound { before: Bytes::new(), io };
    loop {
        let (result, next);
        (result, io, next) = requests(&server, io, identity.clone()).await;
        if let Err(error) = result {
            tracing::debug!(%error, "a connection ended");
            return;
        }
        match next {
            Next::End => break,
            Next::Upgrade(taker) => {
                // Who asked for it may be gone.
                let _ = taker.send(Box::new(io));
                return;
            }
            Next::Watch { head, events, keep } => {
                let Rewound { before, io: wire } = io;
                let mut watch = Watch {
                    io: wire,
                    events,
                    out: Bytes::from(head).chain(Bytes::new()).chain(&[]),
                    client: Aside::default(),
                    read: before.into(),
                    ended: false,
                };
                let whole = std::future::poll_fn(|cx| watch.poll(cx)).await;
                io = Rewound { before: watch.read.into(), io: watch.io };
                if whole.is_err() || !keep {
                    break;
                }
            }
        }
    }
    let _ = io.shutdown().await;
}

/// Answers requests until the connection is to be used otherwise, and gives it back.
async fn requests(
    server: &Server,
    io: Rewound,
    identity: Option<Arc<Identity>>,
) -> (hyper::Result<()>, Rewound, Next) {
    let next: Arc<Mutex<Next>> = Arc::default();
    let service = service_fn(|mut request: Request<hyper::body::Incoming>| {
        let (server, identity, next) = (server.clone(), identity.clone(), next.clone());
        // In a box, which is gone once there is an answer: a connection holds the room for this as long as it lives.
        Box::pin(async move {
            let may_watch = request.method() == Method::GET && request.version() == Version::HTTP_11;
            let keep = !asks_to_close(&request);
            let (taker, taken) = oneshot::channel();
            if request.headers().contains_key(header::UPGRADE) {
                request.extensions_mut().insert(Offer::new(taken));
            }
            let mut response = server.answer(request.map(Into::into), identity).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                *next.lock() = Next::Upgrade(taker);
            } else if may_watch && let Some(events) = response.body_mut().take_events() {
                *next.lock() = Next::Watch { head: head(&response), events, keep };
                return std::future::pending().await;
            }
            Ok::<_, std::convert::Infallible>(response)
        })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(io), service);
    let stop = server.stopping();
    let (mut stopping, mut stopped) = (Aside::default(), pin!(stop.cancelled()));
    let result = std::future::poll_fn(|cx| {
        if stopping.poll(cx, |cx| stopped.as_mut().poll(cx)).is_ready() {
            Pin::new(&mut connection).graceful_shutdown();
        }
        match connection.poll_without_shutdown(cx) {
            Poll::Pending if matches!(*next.lock(), Next::Watch { .. }) => Poll::Ready(Ok(())),
            other => other,
        }
    })
    .await;
    let parts = connection.into_parts();
    let Rewound { before, io } = parts.io.into_inner();
    let before = if before.is_empty() { parts.read_buf } else { [parts.read_buf, before].concat().into() };
    let next = std::mem::take(&mut *next.lock());
    (result, Rewound { before, io }, next)
}

fn asks_to_close<B>(request: &Request<B>) -> bool {
    let words = request.headers().get_all(header::CONNECTION).into_iter().filter_map(|v| v.to_str().ok());
    words.flat_map(|v| v.split(',')).any(|word| word.trim().eq_ignore_ascii_case("close"))
}

fn head(response: &Response<Body>) -> Vec<u8> {
    let status = response.status();
    let mut out =
        format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or_default())
            .into_bytes();
    for (name, value) in response.headers() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    let now = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT");
    out.extend_from_slice(format!("transfer-encoding: chunked\r\ndate: {now}\r\n\r\n").as_bytes());
    out
}

/// A watch on its connection. One event is under way at a time: a client that does not read stops only itself.
struct Watch {
    io: BoxIo,
    events: Events,
    /// What is still to be written.
    out: Chunk,
    client: Aside,
    /// What the client said meanwhile: the beginning of its next request.
    read: Vec<u8>,
    ended: bool,
}

/// A client that sends more than this during a watch is not listened to until the watch is over.
const AHEAD: usize = 64 * 1024;

impl Watch {
    /// Ready when the whole answer is written, or the connection broke.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            if self.out.has_remaining() {
                if ready!(poll_write_buf(Pin::new(&mut self.io), cx, &mut self.out))? == 0 {
                    return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
                }
                continue;
            }
            if self.ended {
                return Pin::new(&mut self.io).poll_flush(cx);
            }
            match Pin::new(&mut self.events).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => self.out = chunk(event),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(std::io::Error::other(error))),
                Poll::Ready(None) => {
                    self.ended = true;
                    self.out = chunk(Bytes::new());
                }
                Poll::Pending => {
                    let _ = Pin::new(&mut self.io).poll_flush(cx)?;
                    return self.poll_client(cx);
                }
            }
        }
    }

    /// Sees whether the client is still there.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Watch { io, read, .. } = self;
        self.client.poll(cx, |cx| {
            while read.len() < AHEAD {
                let mut bytes = [0; 512];
                let mut buffer = ReadBuf::new(&mut bytes);
                ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer))?;
                if buffer.filled().is_empty() {
                    return Poll::Ready(Err(std::io::ErrorKind::UnexpectedEof.into()));
                }
                read.extend_from_slice(buffer.filled());
            }
            Poll::Pending
        })
    }
}

/// The event itself is not copied: its many watchers share it.
type Chunk = Chain<Chain<Bytes, Bytes>, &'static [u8]>;

/// An empty one is the last.
fn chunk(event: Bytes) -> Chunk {
    Bytes::from(format!("{:x}\r\n", event.len())).chain(event).chain(b"\r\n")
}

/// A byte stream of which something was read already.
struct Rewound {
    before: Bytes,
    io: BoxIo,
}

impl AsyncRead for Rewound {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.before.is_empty() {
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        let count = this.before.len().min(buffer.remaining());
        buffer.put_slice(&this.before.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
