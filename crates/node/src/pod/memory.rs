//! What a pod's worker remembers between two looks at the truth. Losing it (a restart of the node) costs nothing
//! but a fresh backoff and a fresh round of probes.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The first restart is immediate; then the wait doubles up to the limit.
const FIRST_DELAY: Duration = Duration::from_secs(10);
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// A container that ran this long is healthy again: its backoff is forgotten.
const HEALTHY_AFTER: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    containers: HashMap<String, ContainerMemory>,
    /// Set once the pod was given up for a reason of its own: (reason, message).
    pub failed: Option<(String, String)>,
    /// Ids of containers that are being stopped.
    pub stopping: Vec<String>,
    /// A pod whose phase was final once never starts again.
    pub finished: bool,
    /// Why nothing may start now.
    pub held: Option<String>,
    pub sandbox_retry: Option<Timestamp>,
    pub sandbox_failures: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerMemory {
    delay: Duration,
    /// Why it waits: (reason, message).
    pub waiting: Option<(String, String)>,
    /// Not before this time.
    pub not_before: Option<Timestamp>,
    /// Why the node stopped the container with this id.
    pub stopped_for: Option<(String, String)>,
    pub probes: Probes,
    /// The id the probe results belong to.
    pub probed: String,
}

/// The latest word of each probe; `None` while there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probes {
    pub startup: Option<bool>,
    pub readiness: Option<bool>,
    pub liveness: Option<bool>,
}

impl Memory {
    pub fn container(&self, name: &str) -> Option<&ContainerMemory> {
        self.containers.get(name)
    }

    pub fn container_mut(&mut self, name: &str) -> &mut ContainerMemory {
        self.containers.entry(name.to_owned()).or_default()
    }

    pub fn probes(&self, name: &str, id: &str) -> Probes {
        self.containers.get(name).filter(|c| c.probed == id).map(|c| c.probes).unwrap_or_default()
    }
}

impl ContainerMemory {
    /// When a container that ended may start again. Pure: asking twice gives the same answer.
    pub fn may_start_at(&self, started: Timestamp, finished: Timestamp) -> Timestamp {
        if finished.duration_since(started) >= HEALTHY_AFTER {
            return finished;
        }
        finished.checked_add(SignedDuration::try_from(self.delay).unwrap_or_default()).unwrap_or(finished)
    }

    /// Called when it is started again.
    pub fn restarted(&mut self, started: Timestamp, finished: Timestamp) {
        if finished.duration_since(started) >= HEALTHY_AFTER {
            self.delay = Duration::ZERO;
        }
        self.delay = if self.delay.is_zero() { FIRST_DELAY } else { (self.delay * 2).min(LONGEST_DELAY) };
    }

    /// Called when a start failed: the next try waits.
    pub fn start_failed(&mut self, now: Timestamp, reason: &str, message: String) {
        self.delay = if self.delay.is_zero() { FIRST_DELAY } else { (self.delay * 2).min(LONGEST_DELAY) };
        self.waiting = Some((reason.to_owned(), message));
        self.not_before = now.checked_add(SignedDuration::try_from(self.delay).unwrap_or_default()).ok();
    }

    pub fn delay(&self) -> Duration {
        self.delay
    }
}
