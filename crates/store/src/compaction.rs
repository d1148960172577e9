//! Which revision is old enough to forget.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Remembers which revision was current when, and says which one is older than the retention.
/// Does nothing by itself: call [`CompactionSchedule::sample`] every so often, and compact at what it returns.
#[derive(Debug)]
pub struct CompactionSchedule {
    retention: Duration,
    samples: VecDeque<(Instant, u64)>,
}

impl CompactionSchedule {
    /// Kubernetes keeps five minutes of history.
    pub const RETENTION: Duration = Duration::from_secs(300);

    pub fn new(retention: Duration) -> Self {
        CompactionSchedule { retention, samples: VecDeque::new() }
    }

    /// Notes that `revision` is current at `now`. Returns the newest noted revision that was current a whole
    /// retention ago, once: everything before it may go.
    pub fn sample(&mut self, now: Instant, revision: u64) -> Option<u64> {
        if self.samples.back().is_none_or(|&(_, last)| last != revision) {
            self.samples.push_back((now, revision));
        }
        let mut old = None;
        while let Some(&(at, revision)) = self.samples.front()
            && now.saturating_duration_since(at) >= self.retention
        {
            old = Some(revision);
            self.samples.pop_front();
        }
        old
    }
}

impl Default for CompactionSchedule {
    fn default() -> Self {
        CompactionSchedule::new(Self::RETENTION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_compacted_once_and_only_after_the_retention() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut schedule = CompactionSchedule::default();
        assert_eq!(schedule.sample(at(0), 10), None);
        assert_eq!(schedule.sample(at(60), 20), None);
        assert_eq!(schedule.sample(at(299), 30), None);
        assert_eq!(schedule.sample(at(300), 40), Some(10));
        assert_eq!(schedule.sample(at(301), 41), None);
        assert_eq!(schedule.sample(at(900), 41), Some(41));
    }

    #[test]
    fn an_idle_store_is_compacted_up_to_where_it_stands_and_then_left_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut schedule = CompactionSchedule::default();
        assert_eq!(schedule.sample(at(0), 7), None);
        assert_eq!(schedule.sample(at(300), 7), Some(7));
        assert_eq!(schedule.sample(at(301), 7), None);
    }
}
