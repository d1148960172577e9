//! What the hub was told of one Work, and what of it has arrived.
//!
//! Reports do not wait for each other: over a slow link the answer to one comes long after the next change. Each is the
//! difference to what the hub has when those before it have arrived. Should they arrive in another order, their answers
//! tell (by revision) what came of it, and the rest is reported again.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::difference::{apply, merge_patch, rewrite, widen};
use crate::rush::PATIENCE;

/// Reports of one Work under way at once; further changes wait, and then travel together.
pub const FLIGHTS: usize = 8;
/// Between two reports of one Work. The first change travels at once; an object that starts or ends changes many times in
/// a few milliseconds, and every report costs the hub three writes.
pub const REST: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct Told {
    /// What the hub is known to show when nothing is under way.
    acked: Value,
    /// What the hub shows once all that is under way has arrived in order.
    sent: Value,
    /// Reports under way, in the order they were sent.
    flights: Vec<Flight>,
    /// Nobody knows what became of earlier reports: the next one says everything.
    uncertain: bool,
    reported: Option<Instant>,
    /// Since when a change is held back.
    held_back: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Flight {
    id: u64,
    patch: Value,
    /// Revision of the answer.
    landed: Option<u64>,
}

impl Told {
    /// `known`: what the hub shows.
    pub fn new(known: Value) -> Self {
        Self {
            acked: known.clone(),
            sent: known,
            flights: Vec::new(),
            uncertain: false,
            reported: None,
            held_back: None,
        }
    }

    /// The hub has spoken after a time in which nobody knew what it shows.
    pub fn is_known(&mut self, known: Value) {
        self.acked = known.clone();
        self.sent = known;
    }

    /// What the hub is known to show in one field.
    pub fn arrived(&self, field: &str) -> Option<&Value> {
        self.acked.get(field)
    }

    /// May a change be reported now? In a rush it is held back for a while, which begins when this is first asked.
    pub fn is_free(&mut self, now: Instant, rush: bool) -> bool {
        let since = self.held_back.or(rush.then_some(now));
        self.held_back = since;
        let held_back = rush && since.is_some_and(|s| now.saturating_duration_since(s) < PATIENCE);
        self.flights.len() < FLIGHTS && !self.rests(now) && !held_back
    }

    /// Does a change wait only for a moment to pass?
    pub fn waits(&self, now: Instant) -> bool {
        self.rests(now) || self.held_back.is_some()
    }

    fn rests(&self, now: Instant) -> bool {
        self.reported.is_some_and(|then| now.saturating_duration_since(then) < REST)
    }

    /// The report, called `id`, after which the hub shows what is `wanted`. `None`: it does so without.
    pub fn tell(&mut self, wanted: Value, id: u64, now: Instant) -> Option<Value> {
        let patch = if std::mem::take(&mut self.uncertain) {
            rewrite(&self.sent, &wanted)
        } else {
            merge_patch(&self.sent, &wanted)?
        };
        self.sent = wanted;
        (self.reported, self.held_back) = (Some(now), None);
        self.flights.push(Flight { id, patch: patch.clone(), landed: None });
        Some(patch)
    }

    /// The hub took a report at this revision, or (0) never will. Says whether there may be more to report.
    pub fn landed(&mut self, id: u64, revision: u64) -> bool {
        let Some(flight) = self.flights.iter_mut().find(|f| f.id == id) else { return false };
        flight.landed = Some(revision);
        if self.flights.iter().any(|f| f.landed.is_none()) {
            return false;
        }
        let mut flights = std::mem::take(&mut self.flights);
        flights.sort_by_key(|f| f.landed);
        for flight in &flights {
            apply(&mut self.acked, &flight.patch);
        }
        let short = self.acked != self.sent;
        if short {
            self.sent = self.acked.clone();
        }
        short
    }

    /// Nobody knows which of the reports under way arrive. Says whether there were any.
    pub fn lose_sight(&mut self) -> bool {
        let flights = std::mem::take(&mut self.flights);
        if flights.is_empty() {
            return false;
        }
        for flight in &flights {
            widen(&mut self.acked, &flight.patch);
        }
        self.sent = self.acked.clone();
        self.uncertain = true;
        true
    }
}
