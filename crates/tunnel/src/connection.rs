//! A connection on which both ends open and accept byte streams, whatever carries it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::heartbeat::{self, Beat};
use crate::held::Held;
use crate::mux::Mux;
use crate::site_socket::Refusals;
use crate::{BoxIo, Io};

/// Streams waiting to be accepted; more are reset (mux) or wait at the peer (QUIC).
const ACCEPT_QUEUE: usize = 64;
/// How long a bulk stream waits for the bulk connection to be there (TCP carrier).
const BULK_WAIT: Duration = Duration::from_secs(10);
/// A peer that opens a stream says at once what class it is.
const CLASS_WAIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// API calls and watches.
    Control,
    /// Logs, exec, port-forward: what may be large.
    Bulk,
}

#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error("the tunnel is closed: {0}")]
    Closed(String),
    #[error("the tunnel broke: {0}")]
    Io(#[from] std::io::Error),
    #[error("the tunnel has no bulk connection after {0:?}; the other side did not dial it")]
    NoBulk(Duration),
    #[error("the peer does not speak this protocol: {0}")]
    Protocol(String),
}

/// Cheap to clone; closes when told, when the carrier ends, or when the peer goes silent.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    carrier: Carrier,
    incoming: tokio::sync::Mutex<mpsc::Receiver<(Class, BoxIo)>>,
    beat: Beat,
    closing: CancellationToken,
    why: Mutex<Option<String>>,
    name: &'static str,
    /// Every accepted bulk stream holds one more of it.
    bulk_streams: Arc<()>,
}

enum Carrier {
    Quic(quinn::Connection),
    Mux { control: Mux, bulk: watch::Sender<Option<Mux>>, queue: mpsc::Sender<(Class, BoxIo)> },
}

const CONTROL_BYTE: u8 = b'c';
const BULK_BYTE: u8 = b'b';
const HEARTBEAT_BYTE: u8 = b'h';

/// Of a QUIC stream: the highest is sent first.
fn priority(byte: u8) -> i32 {
    match byte {
        HEARTBEAT_BYTE => 2,
        CONTROL_BYTE => 1,
        _ => 0,
    }
}

impl Connection {
    /// Over QUIC. The dialer is the end that opens the heartbeat; `interval` counts at the acceptor, which tells the dialer.
    pub fn over_quic(connection: quinn::Connection, dialer: bool, interval: Duration) -> Self {
        let (queue, incoming) = mpsc::channel(ACCEPT_QUEUE);
        let this = Self::new(Carrier::Quic(connection.clone()), incoming, "quic");
        let accept = this.clone();
        let carrier = connection.clone();
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = carrier.accept_bi() => accepted,
                    () = accept.inner.closing.cancelled() => return,
                };
                match accepted {
                    Ok((send, mut recv)) => {
                        let (accept, queue) = (accept.clone(), queue.clone());
                        tokio::spawn(async move {
                            // What flows back on the stream has the class that its opener gave it.
                            let Ok(Ok(byte)) = tokio::time::timeout(CLASS_WAIT, recv.read_u8()).await else {
                                return;
                            };
                            drop(send.set_priority(priority(byte)));
                            accept.hand_on(byte, crate::quic::stream(send, recv), queue, interval).await;
                        });
                    }
                    Err(error) => return accept.close_because(&describe(&error)),
                }
            }
        });
        this.start(dialer);
        this
    }

    /// Over a byte stream with multiplexing, as the control half; the bulk half comes with [`Connection::add_bulk`].
    pub fn over_io(io: impl Io, dialer: bool, interval: Duration) -> Self {
        let (queue, incoming) = mpsc::channel(ACCEPT_QUEUE);
        let (control, streams) = Mux::start(io, dialer);
        let carrier = Carrier::Mux { control, bulk: watch::Sender::new(None), queue: queue.clone() };
        let this = Self::new(carrier, incoming, "tcp");
        this.clone().pump(streams, queue, interval, true);
        this.start(dialer);
        this
    }

    /// Gives a connection made with [`Connection::over_io`] its bulk half.
    pub fn add_bulk(&self, io: impl Io, dialer: bool) -> Result<(), TunnelError> {
        let Carrier::Mux { bulk, queue, .. } = &self.inner.carrier else {
            return Err(TunnelError::Protocol("a bulk half for a connection over QUIC".into()));
        };
        let (mux, streams) = Mux::start(io, dialer);
        self.clone().pump(streams, queue.clone(), heartbeat::DEFAULT_INTERVAL, false);
        bulk.send_replace(Some(mux));
        Ok(())
    }

    fn new(carrier: Carrier, incoming: mpsc::Receiver<(Class, BoxIo)>, name: &'static str) -> Self {
        let inner = Inner {
            carrier,
            incoming: tokio::sync::Mutex::new(incoming),
            beat: Beat::new(),
            closing: CancellationToken::new(),
            why: Mutex::new(None),
            name,
            bulk_streams: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    fn start(&self, dialer: bool) {
        if dialer {
            let this = self.clone();
            tokio::spawn(async move {
                let why = match this.open_with(HEARTBEAT_BYTE).await {
                    Ok(io) => heartbeat::dialer(io, &this.inner.beat, &this.inner.closing).await,
                    Err(error) => error.to_string(),
                };
                this.close_because(&why);
            });
        } else {
            // An acceptor whose dialer never starts its heartbeat must not keep the connection.
            let this = self.clone();
            tokio::spawn(async move {
                let closed = this.inner.closing.cancelled();
                if tokio::time::timeout(heartbeat::FIRST_BEAT, closed).await.is_err()
                    && !this.inner.beat.started()
                {
                    this.close_because("no heartbeat came");
                }
            });
        }
    }

    fn pump(
        self,
        mut streams: mpsc::Receiver<BoxIo>,
        queue: mpsc::Sender<(Class, BoxIo)>,
        interval: Duration,
        vital: bool,
    ) {
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    stream = streams.recv() => match stream {
                        Some(io) => drop(tokio::spawn(self.clone().sort(io, queue.clone(), interval))),
                        None => break,
                    },
                    () = self.inner.closing.cancelled() => return,
                }
            }
            if vital {
                self.close_because("the connection ended");
            } else if let Carrier::Mux { bulk, .. } = &self.inner.carrier {
                // A lost bulk half takes the whole: the dialer then dials both anew.
                bulk.send_replace(None);
                self.close_because("the bulk connection ended");
            }
        });
    }

    /// Reads what class an accepted stream is, and hands it on.
    async fn sort(self, mut io: BoxIo, queue: mpsc::Sender<(Class, BoxIo)>, interval: Duration) {
        if let Ok(Ok(byte)) = tokio::time::timeout(CLASS_WAIT, io.read_u8()).await {
            self.hand_on(byte, io, queue, interval).await;
        }
    }

    async fn hand_on(self, byte: u8, io: BoxIo, queue: mpsc::Sender<(Class, BoxIo)>, interval: Duration) {
        let (class, io): (Class, BoxIo) = match byte {
            CONTROL_BYTE => (Class::Control, io),
            BULK_BYTE => (Class::Bulk, Box::new(Held::new(io, self.inner.bulk_streams.clone()))),
            HEARTBEAT_BYTE => {
                let why = heartbeat::acceptor(io, interval, &self.inner.beat, &self.inner.closing).await;
                return self.close_because(&why);
            }
            other => return tracing::warn!(byte = other, "a stream of an unknown class was dropped"),
        };
        // It waits if it must, in its own task: the carrier bounds how many there can be.
        tokio::select! {
            _ = queue.send((class, io)) => {}
            () = self.inner.closing.cancelled() => {}
        }
    }

    /// Opens a stream to the other end.
    pub async fn open(&self, class: Class) -> Result<BoxIo, TunnelError> {
        self.open_with(if class == Class::Control { CONTROL_BYTE } else { BULK_BYTE }).await
    }

    async fn open_with(&self, byte: u8) -> Result<BoxIo, TunnelError> {
        if self.inner.closing.is_cancelled() {
            return Err(TunnelError::Closed(self.why()));
        }
        let mut io: BoxIo = match &self.inner.carrier {
            Carrier::Quic(connection) => {
                let (send, recv) =
                    connection.open_bi().await.map_err(|error| TunnelError::Closed(describe(&error)))?;
                drop(send.set_priority(priority(byte)));
                crate::quic::stream(send, recv)
            }
            Carrier::Mux { bulk, .. } if byte == BULK_BYTE => bulk_half(bulk).await?.open().await?,
            Carrier::Mux { control, .. } => control.open().await?,
        };
        io.write_u8(byte).await?;
        io.flush().await?;
        Ok(io)
    }

    /// The next stream the other end opened; `None` when the connection is closed.
    pub async fn accept(&self) -> Option<(Class, BoxIo)> {
        let mut incoming = self.inner.incoming.lock().await;
        tokio::select! {
            stream = incoming.recv() => stream,
            () = self.inner.closing.cancelled() => None,
        }
    }

    /// The round trip measured by the last heartbeat.
    pub fn rtt(&self) -> Option<Duration> {
        self.inner.beat.rtt()
    }

    /// When a heartbeat last came.
    pub fn last_heard(&self) -> Instant {
        self.inner.beat.last_heard()
    }

    /// When the last heartbeat that the other end answered was *sent* (dialer only), in milliseconds on the boot clock.
    pub fn answered(&self) -> Option<u64> {
        self.inner.beat.answered()
    }

    /// Sends a heartbeat now (dialer only), to find out at once whether the other end is there.
    pub fn poke(&self) {
        self.inner.beat.poke();
    }

    #[cfg(test)]
    pub(crate) fn doubt(&self) {
        self.inner.beat.doubt();
    }

    /// Whenever a datagram is refused, the other end is asked whether it is there, and must answer soon (dialer only).
    pub(crate) fn doubt_when(&self, refusals: Refusals) {
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = refusals.next() => this.inner.beat.doubt(),
                    () = this.inner.closing.cancelled() => return,
                }
            }
        });
    }

    /// Is a log followed, a shell open or a port forwarded that the other end asked for?
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.inner.bulk_streams) > 1
    }

    /// `quic` or `tcp`.
    pub fn carrier(&self) -> &'static str {
        self.inner.name
    }

    pub fn is_closed(&self) -> bool {
        self.inner.closing.is_cancelled()
    }

    /// Waits until the connection is closed, and says why.
    pub async fn closed(&self) -> String {
        self.inner.closing.cancelled().await;
        self.why()
    }

    /// Closes for the reason given; the peer over QUIC is told it.
    pub fn close(&self, why: &str) {
        self.close_because(why);
    }

    fn close_because(&self, why: &str) {
        // Streams fail before the connection's own end is seen; what the peer said is the better reason.
        let said = match &self.inner.carrier {
            Carrier::Quic(connection) => connection.close_reason().map(|error| describe(&error)),
            Carrier::Mux { .. } => None,
        };
        let why = said.as_deref().unwrap_or(why);
        {
            let mut reason = self.inner.why.lock();
            if reason.is_some() {
                return;
            }
            *reason = Some(why.to_owned());
        }
        self.inner.closing.cancel();
        match &self.inner.carrier {
            Carrier::Quic(connection) => connection.close(0u32.into(), why.as_bytes()),
            Carrier::Mux { control, bulk, .. } => {
                control.close();
                if let Some(bulk) = bulk.send_replace(None) {
                    bulk.close();
                }
            }
        }
    }

    fn why(&self) -> String {
        self.inner.why.lock().clone().unwrap_or_else(|| "unknown reason".into())
    }
}

async fn bulk_half(bulk: &watch::Sender<Option<Mux>>) -> Result<Mux, TunnelError> {
    let mut bulk = bulk.subscribe();
    match tokio::time::timeout(BULK_WAIT, bulk.wait_for(Option::is_some)).await {
        Ok(Ok(mux)) => mux.clone().ok_or(TunnelError::NoBulk(BULK_WAIT)),
        _ => Err(TunnelError::NoBulk(BULK_WAIT)),
    }
}

fn describe(error: &quinn::ConnectionError) -> String {
    match error {
        quinn::ConnectionError::ApplicationClosed(closed) => {
            String::from_utf8_lossy(&closed.reason).into_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
pub(crate) mod tests;
