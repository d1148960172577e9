//! The server's memory over a run.

use anyhow::{Context, Result, ensure};

/// A bound on what the server may keep beside the objects: 32 MB of values for watchers that come back, held as
/// values and as rendered lines, and what the allocator keeps of bursts.
const HISTORY_MB: f64 = 96.0;
/// Until it is full, history grows with what was changed: runs of 15 s were measured at 2.4 KB for each change, of which the
/// allocator's first steps are a part.
const KB_PER_CHANGE: f64 = 4.0;
/// Two thirds of a run count as warm-up when the run is long enough to fill the history.
const LONG_RUN: usize = 30;
/// How much the later part of a long run may be above the earlier.
const GROWTH: f64 = 1.15;
/// What may come and go in any run.
const SLACK_MB: f64 = 8.0;

/// Resident memory after each round, in MB.
#[derive(Debug, Default)]
pub struct Memory {
    samples: Vec<f64>,
    /// How many changes there were before the first sample, and before the last.
    changes: (usize, usize),
}

impl Memory {
    /// Looks at the server after so many changes.
    pub fn sample(&mut self, pid: u32, changes: usize) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kb: f64 = line.split_whitespace().nth(1).context("no value")?.parse()?;
        self.note(kb / 1024.0, changes);
        Ok(kb / 1024.0)
    }

    fn note(&mut self, mb: f64, changes: usize) {
        if self.samples.is_empty() {
            self.changes.0 = changes;
        }
        self.changes.1 = changes;
        self.samples.push(mb);
    }

    /// The objects are few and stay few: what grows is history, and that is bounded. A short run is held to what its changes may
    /// have added to it; a long one must be level.
    pub fn is_flat(&self) -> Result<()> {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else { return Ok(()) };
        let changes = self.changes.1 - self.changes.0;
        let room = (SLACK_MB + changes as f64 * KB_PER_CHANGE / 1024.0).min(HISTORY_MB);
        ensure!(
            last - first < room,
            "memory grew from {first:.1} to {last:.1} MB; the history of {changes} changes may have {room:.1}"
        );
        if self.samples.len() >= LONG_RUN {
            let third = self.samples.len() / 3;
            let peak = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
            let (before, after) = (peak(&self.samples[third..2 * third]), peak(&self.samples[2 * third..]));
            ensure!(
                after < before * GROWTH + SLACK_MB,
                "memory is not flat: at most {before:.1} MB in the second third, {after:.1} MB in the last"
            );
        }
        Ok(())
    }

    pub fn range(&self) -> (f64, f64) {
        (self.samples.first().copied().unwrap_or(0.0), self.samples.last().copied().unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand changes between two samples.
    fn of(samples: impl IntoIterator<Item = f64>) -> Memory {
        let mut memory = Memory::default();
        samples.into_iter().enumerate().for_each(|(i, mb)| memory.note(mb, i * 1000));
        memory
    }

    #[test]
    fn a_leak_is_found_and_a_history_that_fills_is_not_one() {
        let filling = |i: usize| 30.0 + (i as f64 * 5.0).min(50.0);
        assert!(of((0..60).map(filling)).is_flat().is_ok());
        assert!(of((0..60).map(|i| 30.0 + i as f64)).is_flat().is_err());
        assert!(of([30.0, 200.0]).is_flat().is_err());
    }

    #[test]
    fn a_short_run_may_grow_by_the_history_of_its_changes_and_no_more() {
        assert!(of([60.0, 62.5, 65.0, 67.0]).is_flat().is_ok());
        assert!(of([60.0, 70.0, 80.0, 90.0]).is_flat().is_err());
    }
}
