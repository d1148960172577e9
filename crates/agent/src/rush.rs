//! Whether much is going on right now. What people want then goes first, and what is said about it waits a little.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many things within so long a time are a rush.
const MANY: usize = 8;
const WITHIN: Duration = Duration::from_millis(500);

/// News wait so long during a rush: the steps that follow each other are then told at once.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The things that were last done, each once, the latest at the end.
pub struct Rush<K>(VecDeque<(K, Instant)>);

impl<K> Default for Rush<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: PartialEq> Rush<K> {
    /// Something is done about `key`. One thing alone makes no rush, however often it changes.
    pub fn note(&mut self, key: K, now: Instant) {
        self.0.retain(|(other, _)| *other != key);
        self.0.push_back((key, now));
        if self.0.len() > MANY {
            self.0.pop_front();
        }
    }

    pub fn is_on(&self, now: Instant) -> bool {
        self.0.len() == MANY
            && self.0.front().is_some_and(|(_, first)| now.saturating_duration_since(*first) < WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rush_is_many_things_in_a_short_time_and_passes() {
        let (mut rush, start) = (Rush::default(), Instant::now());
        for n in 0..100 {
            rush.note(n, start + WITHIN * n);
            assert!(!rush.is_on(start + WITHIN * n), "one after the other is none");
        }
        let then = start + WITHIN * 200;
        for n in 0..10 * MANY {
            assert!(!rush.is_on(then), "few things that change often are none");
            rush.note(n as u32 % (MANY as u32 - 1), then);
        }
        for n in 0..MANY as u32 {
            rush.note(1000 + n, then);
        }
        assert!(rush.is_on(then));
        assert!(!rush.is_on(then + WITHIN));
    }
}
