//! Whether the machine runs short of memory or disk.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::machine;

const LOOK: Duration = Duration::from_secs(10);
/// As upstream: 100 MiB of memory, 10 % of the disk.
const LEAST_MEMORY: u64 = 100 << 20;
const LEAST_DISK_PERCENT: u64 = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub memory: bool,
    pub disk: bool,
}

/// What the numbers mean. Pure.
pub(crate) fn judge(memory_available: u64, disk: Option<(u64, u64)>) -> Pressure {
    Pressure {
        memory: memory_available < LEAST_MEMORY,
        disk: disk.is_some_and(|(total, free)| free < total / 100 * LEAST_DISK_PERCENT && free < 5 << 30),
    }
}

pub(crate) fn look(data_dir: &Path) -> Pressure {
    judge(machine::memory_available_bytes(), machine::disk_bytes(data_dir))
}

pub(crate) fn watch(data_dir: std::path::PathBuf, shutdown: CancellationToken) -> watch::Receiver<Pressure> {
    let (sender, receiver) = watch::channel(look(&data_dir));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let now = look(&data_dir);
            sender.send_if_modified(|old| std::mem::replace(old, now) != now);
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_or_a_nearly_full_small_disk_is_pressure() {
        assert_eq!(judge(1 << 30, Some((100 << 30, 50 << 30))), Pressure::default());
        assert!(judge(50 << 20, None).memory);
        assert!(judge(1 << 30, Some((10 << 30, 100 << 20))).disk);
        assert!(!judge(1 << 30, Some((1000 << 30, 50 << 30))).disk, "5 % of a huge disk is plenty");
    }
}
