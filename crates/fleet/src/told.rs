//! Roots that must be looked at again because sites said something of them, and when.
//!
//! What people want goes first: in a rush of roots that are placed, taken away or told of, news gather for a while, and all that
//! was said of a root is then shown at once. A root whose plan takes long, because it is on a thousand sites, rests for
//! several times that long, and all such roots together get a third of the time.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use tombolo_agent::rush::PATIENCE;

use crate::object::Key;

/// A step at a site shows in several reports.
const GATHER: Duration = Duration::from_millis(10);
const TAKES_LONG: Duration = Duration::from_millis(20);
const REST: u32 = 4;

#[derive(Default)]
pub struct Told {
    /// From when on news of a root gather.
    since: HashMap<Key, Instant>,
    quick: BTreeSet<(Instant, Key)>,
    slow: BTreeSet<(Instant, Key)>,
    resting: HashMap<Key, Instant>,
    /// Until then no root that takes long is due.
    quiet_until: Option<Instant>,
}

impl Told {
    pub fn add(&mut self, key: Key, now: Instant) {
        if self.since.contains_key(&key) {
            return;
        }
        let rested = self.resting.get(&key);
        let since = rested.map_or(now, |rested| now.max(*rested));
        let queue = if rested.is_some() { &mut self.slow } else { &mut self.quick };
        queue.insert((since, key.clone()));
        self.since.insert(key, since);
    }

    /// Takes out those whose time has come, the longest waiting first, and of those that take long only one.
    pub fn due(&mut self, now: Instant, rush: bool) -> Vec<Key> {
        let mut due = Vec::new();
        while self.next_quick(rush).is_some_and(|at| at <= now)
            && let Some((_, key)) = self.quick.pop_first()
        {
            due.push(key);
        }
        if self.next_slow(rush).is_some_and(|at| at <= now) {
            due.extend(self.slow.pop_first().map(|(_, key)| key));
        }
        for key in &due {
            self.since.remove(key);
        }
        due
    }

    /// When the next one is due.
    pub fn next(&self, rush: bool) -> Option<Instant> {
        self.next_quick(rush).into_iter().chain(self.next_slow(rush)).min()
    }

    fn next_quick(&self, rush: bool) -> Option<Instant> {
        Some(self.quick.first()?.0 + gather(rush))
    }

    fn next_slow(&self, rush: bool) -> Option<Instant> {
        let at = self.slow.first()?.0 + gather(rush);
        Some(self.quiet_until.map_or(at, |quiet| at.max(quiet)))
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

fn gather(rush: bool) -> Duration {
    if rush { PATIENCE } else { GATHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("apps/v1", "Deployment", "d", name)
    }

    #[test]
    fn news_gather_for_a_moment_and_longer_in_a_rush() {
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

    #[test]
    fn of_roots_that_take_long_one_at_a_time_is_planned() {
        let (mut told, start) = (Told::default(), Instant::now());
        let long = TAKES_LONG * 2;
        for name in ["one", "two"] {
            told.planned(&key(name), long, start);
            told.add(key(name), start);
        }
        let rested = start + long * REST + GATHER;
        assert_eq!(told.due(rested, false), [key("one")]);
        told.planned(&key("one"), long, rested);
        assert!(told.due(rested, false).is_empty(), "others get their share of the time");
        assert_eq!(told.due(rested + long * 2, false), [key("two")]);
    }
}
