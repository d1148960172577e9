//! One SPDY connection: frames in as events, frames out in order.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::frame::{Decoder, Encoder, Frame};

/// Events and frames in flight; a full queue makes the other side wait, as the protocol has no flow control here.
const QUEUE: usize = 32;
const LARGEST_DATA: usize = 32 * 1024;
const REFUSED: u32 = 3;

#[derive(Debug)]
pub(crate) enum Event {
    Opened { stream: u32, headers: Vec<(String, String)> },
    Data { stream: u32, data: Bytes, fin: bool },
    Reset { stream: u32 },
    Closed,
}

/// The server's end of a connection. Dropping it closes the connection once everything queued is written.
pub(crate) struct Session {
    events: mpsc::Receiver<Event>,
    frames: mpsc::Sender<Frame>,
}

/// Writes to streams; may be cloned and sent around.
#[derive(Clone)]
pub(crate) struct Sender(mpsc::Sender<Frame>);

impl Session {
    pub fn start(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Session {
        let (reader, writer) = tokio::io::split(io);
        let (event_sender, events) = mpsc::channel(QUEUE);
        let (frames, frame_receiver) = mpsc::channel(QUEUE);
        tokio::spawn(write(writer, frame_receiver));
        tokio::spawn(read(reader, event_sender, frames.downgrade()));
        Session { events, frames }
    }

    /// Opens a stream from this end. The end that dialed has the odd numbers.
    pub async fn open(&self, stream: u32, headers: Vec<(String, String)>) {
        let _ = self.frames.send(Frame::Open { stream, headers, fin: false }).await;
    }

    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    pub fn sender(&self) -> Sender {
        Sender(self.frames.clone())
    }

    pub async fn send(&self, stream: u32, data: Bytes, fin: bool) {
        self.sender().send(stream, data, fin).await;
    }

    pub async fn reset(&self, stream: u32) {
        let _ = self.frames.send(Frame::Reset { stream, status: REFUSED }).await;
    }
}

impl Sender {
    /// Sends data in pieces clients accept. Silently nothing when the connection is gone: the reader says so.
    pub async fn send(&self, stream: u32, mut data: Bytes, fin: bool) {
        loop {
            let piece = data.split_to(data.len().min(LARGEST_DATA));
            let last = data.is_empty();
            if self.0.send(Frame::Data { stream, data: piece, fin: fin && last }).await.is_err() || last {
                return;
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Frame>) {
    let mut encoder = Encoder::new();
    let mut buffer = BytesMut::new();
    while let Some(frame) = frames.recv().await {
        encoder.encode(&frame, &mut buffer);
        while let Ok(frame) = frames.try_recv() {
            encoder.encode(&frame, &mut buffer);
        }
        if writer.write_all(&buffer).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        buffer.clear();
    }
    let _ = writer.shutdown().await;
}

async fn read(
    mut reader: impl AsyncRead + Unpin,
    events: mpsc::Sender<Event>,
    frames: mpsc::WeakSender<Frame>,
) {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::with_capacity(16 * 1024);
    'connection: loop {
        loop {
            let frame = match decoder.decode(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "a SPDY connection is cut");
                    break 'connection;
                }
            };
            let event = match frame {
                Frame::Open { stream, headers, .. } => {
                    let Some(frames) = frames.upgrade() else { break 'connection };
                    if frames.send(Frame::Reply { stream }).await.is_err() {
                        break 'connection;
                    }
                    Event::Opened { stream, headers }
                }
                Frame::Data { stream, data, fin } => Event::Data { stream, data, fin },
                Frame::Reset { stream, .. } => Event::Reset { stream },
                Frame::Ping { id } => {
                    if let Some(frames) = frames.upgrade() {
                        let _ = frames.send(Frame::Ping { id }).await;
                    }
                    continue;
                }
                Frame::GoAway => break 'connection,
                Frame::Reply { .. } | Frame::Other => continue,
            };
            if events.send(event).await.is_err() {
                break 'connection;
            }
        }
        match reader.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let _ = events.send(Event::Closed).await;
}
