//! Pings of a few bytes on a stream of their own.
//!
//! The acceptor (hub) first says how often; then the dialer (site) sends `sequence, round trip in microseconds` (8 bytes)
//! and gets the sequence back (4 bytes). So both ends know the round trip and when they last heard from each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::BoxIo;

/// Often enough for a lease of 60 s and for most NATs, seldom enough for 8 KB in five minutes.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(20);
/// How long an acceptor waits for the first beat.
pub const FIRST_BEAT: Duration = Duration::from_secs(30);
/// Missed intervals after which the peer counts as gone.
const MISSES: u32 = 3;

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
pub async fn dialer(mut io: BoxIo, beat: &Beat, closing: &CancellationToken) -> String {
    let interval = match tokio::time::timeout(FIRST_BEAT, io.read_u32()).await {
        Ok(Ok(ms)) => Duration::from_millis(u64::from(ms.max(100))),
        Ok(Err(error)) => return format!("the heartbeat ended: {error}"),
        Err(_) => return "the hub did not answer the first heartbeat".into(),
    };
    let patience = interval * MISSES;
    for sequence in 0u32.. {
        let (sent, sent_boot) = (Instant::now(), boot_millis());
        let rtt = beat.rtt().unwrap_or_default().as_micros().min(u128::from(u32::MAX)) as u32;
        let mut frame = [0u8; 8];
        frame[..4].copy_from_slice(&sequence.to_be_bytes());
        frame[4..].copy_from_slice(&rtt.to_be_bytes());
        let exchange = async {
            io.write_all(&frame).await?;
            io.flush().await?;
            io.read_u32().await
        };
        tokio::select! {
            answer = tokio::time::timeout(patience, exchange) => match answer {
                Ok(Ok(echo)) if echo == sequence => {
                    beat.hear(sent.elapsed());
                    beat.answered.store(sent_boot.unwrap_or(0), Ordering::Relaxed);
                }
                Ok(Ok(echo)) => return format!("heartbeat {sequence} was answered as {echo}"),
                Ok(Err(error)) => return format!("the heartbeat ended: {error}"),
                Err(_) => return format!("no heartbeat for {patience:?}"),
            },
            () = closing.cancelled() => return "closed here".into(),
        }
        tokio::select! {
            // The second beat comes at once, so that the hub learns the round trip early.
            () = tokio::time::sleep(if sequence == 0 { Duration::ZERO } else { interval }) => {}
            () = beat.poke.notified() => {}
            () = closing.cancelled() => return "closed here".into(),
        }
    }
    "the heartbeat counted to its end".into()
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
