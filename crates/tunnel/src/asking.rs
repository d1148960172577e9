//! When a dialer asks "are you there?", and when it stops waiting for the answer. Pure: the time is passed in.
//!
//! At rest there is one beat per interval. What comes more often comes only while an answer is overdue: asking costs a few
//! bytes, giving up a tie that is well costs a new one and every log that is followed through it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Missed intervals after which the peer counts as gone, however slow the link is.
pub const MISSES: u32 = 3;
/// How often a silent peer is asked before it counts as gone. With one packet in ten lost each way, a peer that is there
/// leaves that many unanswered once in half a million beats.
const ASKS: u32 = 8;
/// Between two of these, in round trips: an answer that was lost is not waited for much longer than it would have taken.
const PACE: u32 = 2;
/// No peer is given up sooner, however near it is: a hub may be busy for a while, and all its sites would dial at once.
const SHORTEST: Duration = Duration::from_secs(10);
/// A peer whose port is closed, as its machine says, need only be asked whether that is true: so many round trips, and time
/// to answer.
const DOUBTED: u32 = 4;
const SHORTEST_DOUBTED: Duration = Duration::from_secs(1);

/// How long a peer may leave questions unanswered.
fn patience(interval: Duration, rtt: Option<Duration>) -> Duration {
    let longest = interval * MISSES;
    rtt.map_or(longest, |rtt| rtt.saturating_mul(ASKS * PACE).max(SHORTEST).min(longest))
}

/// The same, for a peer of which somebody says that it is gone.
fn patience_in_doubt(interval: Duration, rtt: Option<Duration>) -> Duration {
    let usual = patience(interval, rtt);
    rtt.map_or(usual, |rtt| rtt.saturating_mul(DOUBTED).max(SHORTEST_DOUBTED).min(usual))
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Ask,
    /// Nothing to do before then, unless something is heard.
    Wait(Instant),
    /// The peer is gone; it was silent for so long.
    GiveUp(Duration),
}

/// A question that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub sequence: u32,
    pub sent: Instant,
    /// On the boot clock, where there is one.
    pub sent_boot: Option<u64>,
}

pub struct Asking {
    interval: Duration,
    rtt: Option<Duration>,
    /// Not answered yet, oldest first. Answers come in order.
    open: VecDeque<Asked>,
    next: u32,
    /// When the peer is asked again after it answered all.
    due: Instant,
    heard: Instant,
    /// Since when somebody says that the peer is gone, and it has not been heard on a question that came later.
    doubted: Option<Instant>,
}

impl Asking {
    pub fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, rtt: None, open: VecDeque::new(), next: 0, due: now, heard: now, doubted: None }
    }

    pub fn step(&self, now: Instant) -> Step {
        let (Some(first), Some(last)) = (self.open.front(), self.open.back()) else {
            return if self.doubted.is_some() || now >= self.due { Step::Ask } else { Step::Wait(self.due) };
        };
        let silent = first.sent.max(self.heard);
        let usual = patience(self.interval, self.rtt);
        let doubt = self.doubted.map(|since| since + patience_in_doubt(self.interval, self.rtt));
        let end = doubt.map_or(silent + usual, |end| end.min(silent + usual));
        if now >= end {
            return Step::GiveUp(now.saturating_duration_since(silent));
        }
        let again = last.sent + usual / ASKS;
        let unasked = self.doubted.is_some_and(|since| last.sent < since);
        if unasked || now >= again { Step::Ask } else { Step::Wait(again.min(end)) }
    }

    /// The peer is being asked.
    pub fn ask(&mut self, now: Instant, boot: Option<u64>) -> Asked {
        let asked = Asked { sequence: self.next, sent: now, sent_boot: boot };
        self.next = self.next.wrapping_add(1);
        self.open.push_back(asked);
        asked
    }

    /// The peer answered. Gives the question; none if that was not the one to be answered.
    pub fn answer(&mut self, sequence: u32, now: Instant) -> Option<Asked> {
        let asked = self.open.pop_front().filter(|asked| asked.sequence == sequence)?;
        self.rtt = Some(now.saturating_duration_since(asked.sent));
        self.heard = now;
        // The second beat comes at once, so that the hub learns the round trip early.
        self.due = if sequence == 0 { now } else { now + self.interval };
        // An answer may have been on its way when the peer died.
        self.doubted = self.doubted.filter(|since| asked.sent < *since);
        Some(asked)
    }

    /// Asks now, if nothing is under way.
    pub fn hurry(&mut self, now: Instant) {
        self.due = self.due.min(now);
    }

    /// Somebody who may be wrong, or lie, says that the peer is gone: it is asked, and must answer soon.
    pub fn doubt(&mut self, now: Instant) {
        self.doubted.get_or_insert(now);
    }

    pub fn doubted(&self) -> bool {
        self.doubted.is_some()
    }
}

#[cfg(test)]
#[path = "asking_tests.rs"]
mod tests;
