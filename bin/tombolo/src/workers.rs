//! The threads that do the work, and where they wake up.
//!
//! A processor that sleeps under a hypervisor looks taken to the scheduler of its guest. It then wakes all workers on the one that is
//! awake, where they take turns of some milliseconds while the others sleep: a thousand watchers saw a write after 10 ms
//! instead of 6 (`bench/watches.md`). So each worker of a server keeps to its own share of the processors. On a node they may run anywhere:
//! there are containers to get out of the way of, and whatever a worker starts is confined as it is.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tokio::runtime::{Builder, Runtime};

pub const WORKERS: usize = 2;

/// For a server: each worker in its own share of the processors.
pub fn apart() -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Ok(all) = sched_getaffinity(SELF)
        && let Some(shares) = shares(&all)
    {
        // The runtime's other threads are started by workers, and do what takes long.
        builder.on_thread_start(move || confine(&all));
        builder.on_thread_park(move || settle(&shares));
    }
    builder.worker_threads(WORKERS).enable_all().build()
}

pub fn anywhere(count: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(count).enable_all().build()
}

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

/// Processors can be taken from a running program. The kernel then finds a place by itself, which is as good.
fn confine(processors: &CpuSet) {
    let _ = sched_setaffinity(SELF, processors);
}

/// Only workers park.
fn settle(shares: &[CpuSet; WORKERS]) {
    static WORKER: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SETTLED: Cell<bool> = const { Cell::new(false) });
    if !SETTLED.replace(true) {
        confine(&shares[WORKER.fetch_add(1, Ordering::Relaxed) % WORKERS]);
    }
}

/// Neighbours stay together: they share a cache. `None` where there is not one for each worker.
fn shares(all: &CpuSet) -> Option<[CpuSet; WORKERS]> {
    let there: Vec<usize> = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap_or(false)).collect();
    if there.len() < WORKERS {
        return None;
    }
    let mut shares = [CpuSet::new(); WORKERS];
    for (place, cpu) in there.iter().enumerate() {
        shares[place * WORKERS / there.len()].set(*cpu).ok()?;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(processors: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        processors.iter().for_each(|cpu| set.set(*cpu).expect("a processor's number"));
        set
    }

    #[test]
    fn every_processor_is_in_one_share() {
        assert_eq!(shares(&set(&[0, 1])), Some([set(&[0]), set(&[1])]));
        assert_eq!(shares(&set(&[1, 4, 5, 9, 11])), Some([set(&[1, 4, 5]), set(&[9, 11])]));
        assert_eq!(shares(&set(&[3])), None);
    }

    #[test]
    fn workers_keep_apart_and_long_work_runs_anywhere() {
        let all = sched_getaffinity(SELF).expect("affinity");
        let Some(shares) = shares(&all) else { return println!("one processor: nothing to share") };
        let runtime = apart().expect("a runtime");
        // They settle when they first have nothing to do.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let here = || sched_getaffinity(SELF).expect("affinity");
        let (worker, long) = runtime.block_on(async {
            tokio::spawn(async move { (here(), tokio::task::spawn_blocking(here).await.expect("a thread")) })
                .await
                .expect("a task")
        });
        assert!(shares.contains(&worker), "{worker:?}");
        assert_eq!(long, all);
    }
}
