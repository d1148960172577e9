//! Whether the machine runs short of memory or disk.

use std::path::Path;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Upkeep;
use crate::machine;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub memory: bool,
    pub disk: bool,
}

/// What the numbers mean. Pure.
pub(crate) fn judge(upkeep: &Upkeep, memory_available: u64, disk: Option<(u64, u64)>) -> Pressure {
    let little = |total: u64, free: u64| free < total / 100 * upkeep.least_disk_percent && free < 5 << 30;
    Pressure {
        memory: memory_available < upkeep.least_memory,
        disk: disk.is_some_and(|(total, free)| little(total, free)),
    }
}

fn look(upkeep: &Upkeep, data_dir: &Path) -> Pressure {
    judge(upkeep, machine::memory_available_in(&upkeep.meminfo), machine::disk_bytes(data_dir))
}

pub(crate) fn watch(
    upkeep: Upkeep,
    data_dir: std::path::PathBuf,
    shutdown: CancellationToken,
) -> watch::Receiver<Pressure> {
    let (sender, receiver) = watch::channel(look(&upkeep, &data_dir));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(upkeep.round) => {}
            }
            let now = look(&upkeep, &data_dir);
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
        let judge = |memory, disk| judge(&Upkeep::default(), memory, disk);
        assert_eq!(judge(1 << 30, Some((100 << 30, 50 << 30))), Pressure::default());
        assert!(judge(50 << 20, None).memory);
        assert!(judge(1 << 30, Some((10 << 30, 100 << 20))).disk);
        assert!(!judge(1 << 30, Some((1000 << 30, 50 << 30))).disk, "5 % of a huge disk is plenty");
    }
}
