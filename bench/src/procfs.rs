//! What processes cost, read from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Clock ticks per second of `/proc/<pid>/stat`; fixed at 100 on Linux for user space.
const TICKS: u64 = 100;

/// Resident memory of these processes in MB, each page counted by its share where the kernel tells.
pub fn resident_mb(pids: &[u32]) -> Result<f64> {
    let mut kb = 0;
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("process {pid} is gone"))?;
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).context("no VmRSS")?;
        kb += line.split_whitespace().nth(1).context("no value")?.parse::<u64>()?;
    }
    Ok(kb as f64 / 1024.0)
}

/// Processor time these processes used so far.
pub fn cpu(pids: &[u32]) -> Result<Duration> {
    let mut ticks = 0;
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
            .with_context(|| format!("process {pid} is gone"))?;
        let rest = stat.rsplit(')').next().context("odd stat line")?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        ticks += fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    }
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}
