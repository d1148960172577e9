//! A line in the log for whoever is refused, so that attempts leave a trace.
//!
//! The same refusal is told once a minute: whoever asks in vain a thousand times a second must not fill the disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const ONCE_IN: Duration = Duration::from_secs(60);
/// Different refusals that are told within a minute; beyond that they are only counted by the metrics.
const MOST: usize = 1000;

#[derive(Default)]
pub struct Refusals(Mutex<HashMap<String, Instant>>);

impl Refusals {
    /// Whether this was not told lately.
    fn is_news(&self, what: &str, now: Instant) -> bool {
        let mut told = self.0.lock();
        if told.get(what).is_some_and(|at| now.saturating_duration_since(*at) < ONCE_IN) {
            return false;
        }
        if told.len() >= MOST {
            told.retain(|_, at| now.saturating_duration_since(*at) < ONCE_IN);
        }
        let room = told.len() < MOST;
        if room {
            told.insert(what.to_owned(), now);
        }
        room
    }

    /// Somebody who is known may not do this.
    pub fn forbidden(&self, user: &str, why: &str) {
        if self.is_news(&format!("{user} {why}"), Instant::now()) {
            tracing::warn!(user, why, "a request was refused");
        }
    }

    /// A token that opens nothing. Only its public half is told.
    pub fn token(&self, id: &str, why: &str) {
        if self.is_news(&format!("token {id} {why}"), Instant::now()) {
            tracing::warn!(token = id, why, "a token was refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_refusal_is_told_once_a_minute_and_a_flood_is_not_told_at_all() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        assert!(refusals.is_news("a", start));
        assert!(!refusals.is_news("a", start + Duration::from_secs(59)));
        assert!(refusals.is_news("a", start + ONCE_IN));
        let told = (0..3 * MOST).filter(|n| refusals.is_news(&n.to_string(), start + ONCE_IN)).count();
        assert_eq!(told, MOST - 1);
        assert!(refusals.is_news("b", start + 3 * ONCE_IN));
    }
}
