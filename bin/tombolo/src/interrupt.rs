//! Ctrl-C and its relatives, for commands that must put things back.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from its creation on: a signal that comes before anybody waits is not lost, and none ends the process.
pub struct Interrupt {
    signals: [Signal; 3],
}

/// The user ended it; the exit code says so. It tells what became of things.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; {0}")]
pub struct Interrupted(pub &'static str);

impl Interrupt {
    pub fn listen() -> Result<Self> {
        let signals = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ];
        Ok(Self { signals })
    }

    /// Ends when one of the signals came.
    pub async fn caught(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
