//! Pings of a few bytes on a stream of their own.
//!
//! The acceptor (hub) first says how often; then the dialer (site) sends `sequence, round trip in microseconds` (8 bytes)
//! and gets the sequence back (4 bytes). So both ends know the round trip and when they last heard from each other. A dialer
//! that misses an answer asks again before the interval is over ([`crate::asking`]); the acceptor answers all in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::BoxIo;
use crate::asking::{Asked, Asking, MISSES, Step};

/// Often enough for a lease of 60 s and for most NATs, seldom enough for 8 KB in five minutes.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(20);
/// How long an acceptor waits for the first beat.
pub const FIRST_BEAT: Duration = Duration::from_secs(30);

pub struct Beat {
    epoch: Instant,
    /// Microseconds since `epoch`.
    heard: AtomicU64,
    /// Microseconds, 0 = unknown.
    rtt: AtomicU64,
    /// When the last answered beat was sent (dialer only): milliseconds on the boot clock, 0 = none yet.
    answered: AtomicU64,
    started: Mutex<bool>,
    poke: Notify,
    doubt: Notify,
}

impl Beat {
    pub fn new() -> Self {
        Self {
            epoch: Instant::now(),
            heard: AtomicU64::new(0),
            rtt: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            started: Mutex::new(false),
            poke: Notify::new(),
            doubt: Notify::new(),
        }
    }

    pub fn rtt(&self) -> Option<Duration> {
        Some(self.rtt.load(Ordering::Relaxed)).filter(|us| *us > 0).map(Duration::from_micros)
    }

    pub fn last_heard(&self) -> Instant {
        self.epoch + Duration::from_micros(self.heard.load(Ordering::Relaxed))
    }

    pub fn answered(&self) -> Option<u64> {
        Some(self.answered.load(Ordering::Relaxed)).filter(|millis| *millis > 0)
    }

    pub fn poke(&self) {
        self.poke.notify_one();
    }

    pub fn doubt(&self) {
        self.doubt.notify_one();
    }

    pub fn started(&self) -> bool {
        *self.started.lock()
    }

    fn hear(&self, rtt: Duration) {
        self.heard.store(self.epoch.elapsed().as_micros() as u64, Ordering::Relaxed);
        if !rtt.is_zero() {
            self.rtt.store(rtt.as_micros() as u64, Ordering::Relaxed);
        }
        *self.started.lock() = true;
    }
}

/// Milliseconds since this machine was started, time asleep included. None where the kernel does not say.
pub fn boot_millis() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1000 + hundredths.parse::<u64>().ok()? * 10)
}

/// Runs until the connection is closed or the peer is gone; says why.
pub async fn dialer(io: BoxIo, beat: &Beat, closing: &CancellationToken) -> String {
    tokio::select! {
        why = keep_time(io, beat) => why,
        () = closing.cancelled() => "closed here".into(),
    }
}

async fn keep_time(mut io: BoxIo, beat: &Beat) -> String {
    let interval = match tokio::time::timeout(FIRST_BEAT, io.read_u32()).await {
        Ok(Ok(ms)) => Duration::from_millis(u64::from(ms.max(100))),
        Ok(Err(error)) => return format!("the heartbeat ended: {error}"),
        Err(_) => return "the hub did not answer the first heartbeat".into(),
    };
    let (echoes, mut frames) = tokio::io::split(io);
    // A stream, because a number that is half read must not be lost when something else comes first.
    let echoes = futures::stream::unfold(echoes, |mut io| async { Some((io.read_u32().await, io)) });
    let mut echoes = std::pin::pin!(echoes);
    let mut asking = Asking::new(interval, Instant::now());
    loop {
        let until = match asking.step(Instant::now()) {
            Step::Wait(until) => until,
            Step::GiveUp(silent) if asking.doubted() => {
                return format!("the hub's port is closed, and no heartbeat for {silent:.1?}");
            }
            Step::GiveUp(silent) => return format!("no heartbeat for {silent:.1?}"),
            Step::Ask => {
                let asked = asking.ask(Instant::now(), boot_millis());
                let frame = frame(&asked, beat.rtt());
                let sent = async {
                    frames.write_all(&frame).await?;
                    frames.flush().await
                };
                match tokio::time::timeout(interval * MISSES, sent).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => return format!("the heartbeat ended: {error}"),
                    Err(_) => return format!("no room for a heartbeat in {:?}", interval * MISSES),
                }
            }
        };
        tokio::select! {
            Some(echo) = echoes.next() => match echo.map(|echo| (echo, asking.answer(echo, Instant::now()))) {
                Ok((_, Some(asked))) => {
                    beat.hear(asked.sent.elapsed());
                    beat.answered.store(asked.sent_boot.unwrap_or(0), Ordering::Relaxed);
                }
                Ok((echo, None)) => return format!("heartbeat {echo} was answered out of turn"),
                Err(error) => return format!("the heartbeat ended: {error}"),
            },
            () = beat.poke.notified() => asking.hurry(Instant::now()),
            () = beat.doubt.notified() => asking.doubt(Instant::now()),
            () = tokio::time::sleep_until(until.into()) => {}
        }
    }
}

fn frame(asked: &Asked, rtt: Option<Duration>) -> [u8; 8] {
    let rtt = rtt.unwrap_or_default().as_micros().min(u128::from(u32::MAX)) as u32;
    let mut frame = [0u8; 8];
    frame[..4].copy_from_slice(&asked.sequence.to_be_bytes());
    frame[4..].copy_from_slice(&rtt.to_be_bytes());
    frame
}

/// The hub's end.
pub async fn acceptor(mut io: BoxIo, interval: Duration, beat: &Beat, closing: &CancellationToken) -> String {
    let patience = interval * MISSES;
    let greeting = interval.as_millis().min(u128::from(u32::MAX)) as u32;
    if let Err(error) = async {
        io.write_u32(greeting).await?;
        io.flush().await
    }
    .await
    {
        return format!("the heartbeat ended: {error}");
    }
    loop {
        let exchange = async {
            let sequence = io.read_u32().await?;
            let rtt = io.read_u32().await?;
            beat.hear(Duration::from_micros(u64::from(rtt)));
            io.write_u32(sequence).await?;
            io.flush().await
        };
        tokio::select! {
            done = tokio::time::timeout(patience, exchange) => match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return format!("the heartbeat ended: {error}"),
                Err(_) => return format!("no heartbeat for {patience:?}"),
            },
            () = closing.cancelled() => return "closed here".into(),
        }
    }
}
