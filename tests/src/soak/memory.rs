//! The server's memory over a run.

use anyhow::{Context, Result, ensure};

/// A bound on what the server may keep beside the objects: 32 MB of values for watchers that come back, held as
/// values and as rendered lines, and what the allocator keeps of bursts.
const HISTORY_MB: f64 = 96.0;
/// Two thirds of a run count as warm-up when the run is long enough to fill the history.
const LONG_RUN: usize = 30;
/// How much the later part of a long run may be above the earlier.
const GROWTH: f64 = 1.15;
const SLACK_MB: f64 = 8.0;

/// Resident memory after each round, in MB.
#[derive(Debug, Default)]
pub struct Memory {
    samples: Vec<f64>,
}

impl Memory {
    pub fn sample(&mut self, pid: u32) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kb: f64 = line.split_whitespace().nth(1).context("no value")?.parse()?;
        self.samples.push(kb / 1024.0);
        Ok(kb / 1024.0)
    }

    /// The objects are few and stay few: what grows is history, and that is bounded. A short run is held to that
    /// bound; a long one must be level.
    pub fn is_flat(&self) -> Result<()> {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else { return Ok(()) };
        ensure!(last - first < HISTORY_MB, "memory grew from {first:.1} to {last:.1} MB, beyond any history");
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

    #[test]
    fn a_leak_is_found_and_a_history_that_fills_is_not_one() {
        let filling = |i: usize| 30.0 + (i as f64 * 5.0).min(50.0);
        assert!(Memory { samples: (0..60).map(filling).collect() }.is_flat().is_ok());
        assert!(Memory { samples: (0..60).map(|i| 30.0 + i as f64).collect() }.is_flat().is_err());
        assert!(Memory { samples: vec![30.0, 200.0] }.is_flat().is_err());
    }
}
