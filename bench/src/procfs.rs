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

/// Processes that belong together: some known ones, those with a mark in their command line, and all descendants.
pub struct Family(Vec<u32>);

impl Family {
    pub fn of(known: &[u32], marks: &[String]) -> Result<Self> {
        let mut parents = Vec::new();
        let mut members: Vec<u32> = known.to_vec();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process may end while it is looked at.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let parent =
                stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
            parents.extend(parent.map(|parent: u32| (pid, parent)));
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            if marks.iter().any(|mark| line.contains(mark.as_str())) && pid != std::process::id() {
                members.push(pid);
            }
        }
        loop {
            let more: Vec<u32> = parents
                .iter()
                .filter(|(pid, parent)| members.contains(parent) && !members.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            members.extend(more);
        }
        members.sort_unstable();
        members.dedup();
        Ok(Self(members))
    }

    pub fn pids(&self) -> &[u32] {
        &self.0
    }

    /// Memory of all of them in MB; a page that several share counts once.
    pub fn pss_mb(&self) -> Result<f64> {
        let mut kb = 0;
        for pid in &self.0 {
            let Ok(rollup) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
            let line = rollup.lines().find(|l| l.starts_with("Pss:")).context("no Pss in smaps_rollup")?;
            kb += line.split_whitespace().nth(1).context("no value")?.parse::<u64>()?;
        }
        Ok(kb as f64 / 1024.0)
    }
}

/// Bytes that these processes sent to the block layer so far, less what was dropped before it got there.
pub fn written(pids: &[u32]) -> u64 {
    let field = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    let one = |pid: &u32| {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        field(&io, "write_bytes:").saturating_sub(field(&io, "cancelled_write_bytes:"))
    };
    pids.iter().map(one).sum()
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

/// Processor time to the nanosecond, for spans too short for [`cpu`]. Threads that ended are not in it.
pub fn cpu_exact(pids: &[u32]) -> Result<Duration> {
    let mut total = 0;
    for pid in pids {
        for task in
            fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?
        {
            // A thread may end between the listing and the look.
            let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            total += stat.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(total))
}
