//! How much memory the fleet takes, containers included.

use std::collections::{HashMap, HashSet};
use std::fs;

use super::fleet::Fleet;

/// Megabytes of all processes of the fleet; memory that several share is counted once.
pub fn of(fleet: &Fleet) -> u64 {
    let dir = fleet.dir().to_string_lossy().into_owned();
    let mut parents = HashMap::new();
    let mut ours: HashSet<i32> = fleet.members.iter().filter_map(|m| m.pid).collect();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: the state, then the parent.
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        parents.insert(pid, parent.unwrap_or(0));
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_own = pid == i32::try_from(std::process::id()).unwrap_or(0);
        if !is_own && String::from_utf8_lossy(&line).contains(&dir) {
            ours.insert(pid);
        }
    }
    // Containers are children of what outlives a site's process.
    loop {
        let more: Vec<_> = parents
            .iter()
            .filter(|(pid, up)| ours.contains(up) && !ours.contains(pid))
            .map(|(p, _)| *p)
            .collect();
        if more.is_empty() {
            break;
        }
        ours.extend(more);
    }
    ours.iter().map(|pid| proportional_kb(*pid)).sum::<u64>() / 1024
}

fn proportional_kb(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
