//! What the workload itself says about when it ran: every run appends the time since the boot to a file of its own.

use std::path::Path;

use anyhow::{Context, Result};

/// One run of a container, from its first stamp to its last, in hundredths of a second on the machine's boot clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where, and an id of its own.
    pub name: String,
    pub first: u64,
    pub last: u64,
}

impl Run {
    pub fn node(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// All runs so far, the earliest first.
pub fn runs(dir: &Path) -> Result<Vec<Run>> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        let text = std::fs::read_to_string(file.path())?;
        // The last line may be half written.
        let stamps: Vec<u64> = text.lines().filter_map(hundredths).collect();
        if let (Some(first), Some(last)) = (stamps.first(), stamps.last()) {
            let name = file.file_name().to_string_lossy().into_owned();
            all.push(Run { name, first: *first, last: *last });
        }
    }
    all.sort_by_key(|run| run.first);
    Ok(all)
}

fn hundredths(line: &str) -> Option<u64> {
    let (seconds, rest) = line.trim().split_once('.')?;
    (rest.len() == 2).then_some(())?;
    Some(seconds.parse::<u64>().ok()? * 100 + rest.parse::<u64>().ok()?)
}

pub fn now() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    text.split_whitespace().next().and_then(hundredths).context("uptime")
}

/// Two runs that were there at the same moment, if there are any.
pub fn overlap(runs: &[Run]) -> Option<(&Run, &Run)> {
    let mut last: Option<&Run> = None;
    for run in runs {
        if let Some(before) = last.filter(|before| run.first <= before.last) {
            return Some((before, run));
        }
        if last.is_none_or(|before| run.last > before.last) {
            last = Some(run);
        }
    }
    None
}

/// Who runs it now.
pub fn holder(dir: &Path) -> Result<Option<String>> {
    let now = now()?;
    Ok(runs(dir)?.into_iter().find(|run| run.last + 100 > now).map(|run| run.node().to_owned()))
}

#[test]
fn runs_that_touch_are_found() {
    let run = |name: &str, first, last| Run { name: name.into(), first, last };
    assert_eq!(overlap(&[run("a", 1, 5), run("b", 6, 9), run("c", 10, 11)]), None);
    assert!(overlap(&[run("a", 1, 20), run("b", 6, 9), run("c", 10, 11)]).is_some());
    assert!(overlap(&[run("a", 1, 5), run("b", 5, 9)]).is_some());
}
