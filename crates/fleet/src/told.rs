//! Roots that must be looked at again because sites said something of them, and when.
//!
//! What people want goes first: while roots are being placed or taken away, news of others gather for a while, and all that
//! was said of a root is then shown at once. A root whose plan takes long, because it is on a thousand sites, rests for
//! several times that long, and all such roots together get a third of the time.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::object::Key;

/// A step at a site shows in several reports.
const GATHER: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_millis(250);
const TAKES_LONG: Duration = Duration::from_millis(20);
const REST: u32 = 4;

#[derive(Default)]
pub struct Told {
    /// From when on news of a root gather.
    since: HashMap<Key, Instant>,
    queue: BTreeSet<(Instant, Key)>,
    resting: HashMap<Key, Instant>,
    /// Until then no root that takes long is due.
    quiet_until: Option<Instant>,
}

impl Told {
    pub fn add(&mut self, key: Key, now: Instant) {
        if self.since.contains_key(&key) {
            return;
        }
        let since = match self.resting.get(&key) {
            Some(rested) => now.max(*rested).max(self.quiet_until.unwrap_or(now)),
            None => now,
        };
        self.since.insert(key.clone(), since);
        self.queue.insert((since, key));
    }

    /// Takes out those whose time has come, the longest waiting first.
    pub fn due(&mut self, now: Instant, busy: bool) -> Vec<Key> {
        let mut due = Vec::new();
        while self.next(busy).is_some_and(|at| at <= now)
            && let Some((_, key)) = self.queue.pop_first()
        {
            self.since.remove(&key);
            due.push(key);
        }
        due
    }

    /// When the next one is due.
    pub fn next(&self, busy: bool) -> Option<Instant> {
        Some(self.queue.first()?.0 + if busy { PATIENCE } else { GATHER })
    }

    /// A root was planned, which took so long.
    pub fn planned(&mut self, key: &Key, took: Duration, now: Instant) {
        if took > TAKES_LONG {
            self.resting.insert(key.clone(), now + took * REST);
            self.quiet_until = Some(now + took * 2);
        } else {
            self.resting.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("apps/v1", "Deployment", "d", name)
    }

    #[test]
    fn news_gather_for_a_moment_and_longer_while_others_are_placed() {
        let (mut told, start) = (Told::default(), Instant::now());
        told.add(key("a"), start);
        told.add(key("a"), start + GATHER / 2);
        assert_eq!(told.next(false), Some(start + GATHER));
        assert!(told.due(start + GATHER, true).is_empty());
        assert_eq!(told.due(start + GATHER, false), [key("a")]);
        assert!(told.due(start + PATIENCE, false).is_empty(), "once");
        told.add(key("b"), start + GATHER);
        told.add(key("a"), start);
        assert_eq!(told.due(start + PATIENCE * 2, true), [key("a"), key("b")], "never starved, in order");
    }

    #[test]
    fn a_root_that_takes_long_rests_and_others_do_not() {
        let (mut told, start) = (Told::default(), Instant::now());
        let long = TAKES_LONG * 10;
        told.planned(&key("large"), long, start);
        told.add(key("large"), start);
        told.add(key("small"), start);
        assert_eq!(told.due(start + GATHER, false), [key("small")]);
        assert_eq!(told.next(false), Some(start + long * REST + GATHER));
        assert_eq!(told.due(start + long * REST + GATHER, false), [key("large")]);
        told.planned(&key("large"), GATHER, start);
        told.add(key("large"), start);
        assert_eq!(told.due(start + GATHER, false), [key("large")]);
    }
}
