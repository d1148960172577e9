//! Whether much is being asked for right now. What people want then goes first, and what is said about it waits a little.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many things within so long a time are a rush.
const MANY: usize = 8;
const WITHIN: Duration = Duration::from_millis(500);

/// News wait so long during a rush: the steps that follow each other are then told at once.
pub const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Rush(VecDeque<Instant>);

impl Rush {
    /// Something is done because somebody wants it.
    pub fn note(&mut self, now: Instant) {
        self.0.push_back(now);
        if self.0.len() > MANY {
            self.0.pop_front();
        }
    }

    pub fn is_on(&self, now: Instant) -> bool {
        self.0.len() == MANY
            && self.0.front().is_some_and(|first| now.saturating_duration_since(*first) < WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rush_is_many_things_in_a_short_time_and_passes() {
        let (mut rush, start) = (Rush::default(), Instant::now());
        for n in 0..100 {
            rush.note(start + WITHIN * n);
            assert!(!rush.is_on(start + WITHIN * n), "one after the other is none");
        }
        let then = start + WITHIN * 200;
        for _ in 0..MANY {
            assert!(!rush.is_on(then));
            rush.note(then);
        }
        assert!(rush.is_on(then));
        assert!(!rush.is_on(then + WITHIN));
    }
}
