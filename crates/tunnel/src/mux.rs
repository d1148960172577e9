//! Many streams over one byte stream.
//!
//! One task drives the connection; others ask it for new streams through a bounded channel.

use futures::future::poll_fn;
use std::task::Poll;
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use tokio_util::sync::CancellationToken;

use crate::{BoxIo, Io, TunnelError};

/// Streams of the peer waiting to be taken; more are reset.
const QUEUE: usize = 64;
/// Streams at once on one connection.
const STREAMS: usize = 512;

#[derive(Clone)]
pub struct Mux {
    asks: mpsc::Sender<oneshot::Sender<Result<BoxIo, String>>>,
    closing: CancellationToken,
}

impl Mux {
    /// Starts the driver; accepted streams come out of the receiver, which ends with the connection.
    pub fn start(io: impl Io, dialer: bool) -> (Self, mpsc::Receiver<BoxIo>) {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(STREAMS);
        config.set_read_after_close(true);
        let mode = if dialer { yamux::Mode::Client } else { yamux::Mode::Server };
        let connection = yamux::Connection::new(io.compat(), config, mode);
        let (asks, asked) = mpsc::channel(QUEUE);
        let (accepted, streams) = mpsc::channel(QUEUE);
        let closing = CancellationToken::new();
        tokio::spawn(drive(connection, asked, accepted, closing.clone()));
        (Self { asks, closing }, streams)
    }

    pub async fn open(&self) -> Result<BoxIo, TunnelError> {
        let (answer, stream) = oneshot::channel();
        let closed = || TunnelError::Closed("the connection ended".into());
        self.asks.send(answer).await.map_err(|_| closed())?;
        stream.await.map_err(|_| closed())?.map_err(TunnelError::Closed)
    }

    pub fn close(&self) {
        self.closing.cancel();
    }
}

async fn drive<T: futures::AsyncRead + futures::AsyncWrite + Unpin>(
    mut connection: yamux::Connection<T>,
    mut asked: mpsc::Receiver<oneshot::Sender<Result<BoxIo, String>>>,
    accepted: mpsc::Sender<BoxIo>,
    closing: CancellationToken,
) {
    let mut waiting: Option<oneshot::Sender<Result<BoxIo, String>>> = None;
    let mut asks_over = false;
    let run = poll_fn(|cx| {
        loop {
            if waiting.is_none() && !asks_over {
                match asked.poll_recv(cx) {
                    Poll::Ready(Some(ask)) => waiting = Some(ask),
                    Poll::Ready(None) => asks_over = true,
                    Poll::Pending => {}
                }
            }
            let mut progress = false;
            if waiting.is_some()
                && let Poll::Ready(opened) = connection.poll_new_outbound(cx)
                && let Some(ask) = waiting.take()
            {
                // The asker may have given up; its stream is then closed by the drop.
                let _ = ask.send(opened.map(boxed).map_err(|error| error.to_string()));
                progress = true;
            }
            match connection.poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => {
                    if accepted.try_send(boxed(stream)).is_err() {
                        tracing::warn!("a stream was reset: {QUEUE} are waiting already");
                    }
                    progress = true;
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if !progress {
                return Poll::Pending;
            }
        }
    });
    tokio::select! {
        () = run => {}
        () = closing.cancelled() => {}
    }
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), poll_fn(|cx| connection.poll_close(cx)))
        .await;
}

fn boxed(stream: yamux::Stream) -> BoxIo {
    Box::new(stream.compat())
}
