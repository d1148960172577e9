//! A queue of keys in which every key waits at most once and is worked on by one worker at a time.
//!
//! Bounded by the number of live objects, because a key that waits already is not added again.

use super::Key;
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// A controller (by its index in the engine) and the object it shall look at.
pub type Task = (usize, Key);

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// A status write waits so long for the changes that follow at once, and longer while other keys are worked on: what a
/// status says is news, what the others do is what the news are about.
const STATUS_GATHER: Duration = Duration::from_millis(10);
const STATUS_PATIENCE: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Default)]
struct Inner {
    ready: VecDeque<Task>,
    tasks: HashMap<Task, Progress>,
    /// Ordered by time; a task waits at most once, for the earliest time it was given.
    later: BTreeSet<(Instant, Task)>,
    due: HashMap<Task, Instant>,
    running: usize,
}

#[derive(Default)]
struct Progress {
    waiting: bool,
    running: bool,
    failures: u32,
    /// Since when a status write waits.
    deferred: Option<Instant>,
}

impl Queue {
    pub fn add(&self, task: Task) {
        if self.inner.lock().add(task) {
            self.wake.notify_one();
        }
    }

    pub fn add_after(&self, task: Task, delay: Duration) {
        if delay.is_zero() {
            return self.add(task);
        }
        self.inner.lock().add_at(Instant::now() + delay, task);
        self.wake.notify_one();
    }

    /// The next task whose time has come. The caller must call [`Queue::done`] with it.
    pub async fn next(&self) -> Task {
        loop {
            let due = {
                let mut inner = self.inner.lock();
                let now = Instant::now();
                while let Some((at, _)) = inner.later.first()
                    && *at <= now
                {
                    if let Some((_, task)) = inner.later.pop_first() {
                        inner.due.remove(&task);
                        inner.add(task);
                    }
                }
                if let Some(task) = inner.ready.pop_front() {
                    let progress = inner.tasks.entry(task.clone()).or_default();
                    progress.waiting = false;
                    progress.running = true;
                    inner.running += 1;
                    return task;
                }
                inner.later.first().map(|(at, _)| *at)
            };
            match due {
                Some(at) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Work on the task ended; a failed one comes back after a pause that doubles with every failure.
    pub fn done(&self, task: Task, failed: bool) {
        let mut inner = self.inner.lock();
        inner.running = inner.running.saturating_sub(1);
        let Some(progress) = inner.tasks.get_mut(&task) else { return };
        progress.running = false;
        progress.failures = if failed { progress.failures + 1 } else { 0 };
        let (waiting, failures) = (progress.waiting, progress.failures);
        if waiting {
            inner.ready.push_back(task);
        } else if failed {
            let pause = FIRST_RETRY * 2u32.saturating_pow(failures.min(14) - 1);
            inner.add_at(Instant::now() + pause.min(LAST_RETRY), task);
        } else if !inner.due.contains_key(&task) {
            inner.tasks.remove(&task);
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// Whether a status write of this (running) task shall wait; then the task comes back by itself. A busy queue gathers
    /// status writes but never starves them.
    pub fn defer(&self, task: &Task) -> bool {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let busy = !inner.ready.is_empty() || inner.running > 1;
        let Some(progress) = inner.tasks.get_mut(task) else { return false };
        let since = *progress.deferred.get_or_insert(now);
        let longest = if busy { STATUS_PATIENCE } else { STATUS_GATHER };
        if now - since >= longest {
            progress.deferred = None;
            return false;
        }
        inner.add_at(now + STATUS_GATHER, task.clone());
        true
    }

    #[cfg(test)]
    fn try_next(&self) -> Option<Task> {
        use futures::FutureExt;
        self.next().now_or_never()
    }
}

impl Inner {
    fn add_at(&mut self, at: Instant, task: Task) {
        match self.due.get(&task).copied() {
            Some(known) if known <= at => return,
            Some(known) => drop(self.later.remove(&(known, task.clone()))),
            None => {}
        }
        self.due.insert(task.clone(), at);
        self.later.insert((at, task));
    }

    fn add(&mut self, task: Task) -> bool {
        let progress = self.tasks.entry(task.clone()).or_default();
        if progress.waiting {
            return false;
        }
        progress.waiting = true;
        if progress.running {
            return false;
        }
        self.ready.push_back(task);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &str) -> Task {
        (0, Key::new("", name))
    }

    #[test]
    fn a_key_waits_once_however_often_it_is_added() {
        let queue = Queue::default();
        queue.add(task("a"));
        queue.add(task("a"));
        assert_eq!(queue.try_next(), Some(task("a")));
        assert_eq!(queue.try_next(), None);
    }

    #[test]
    fn a_key_added_while_it_is_worked_on_comes_again_after_it() {
        let queue = Queue::default();
        queue.add(task("a"));
        queue.try_next().unwrap();
        queue.add(task("a"));
        assert_eq!(queue.try_next(), None);
        queue.done(task("a"), false);
        assert_eq!(queue.try_next(), Some(task("a")));
    }

    #[tokio::test]
    async fn a_failed_key_comes_back_after_a_pause() {
        let queue = Queue::default();
        queue.add(task("a"));
        queue.try_next().unwrap();
        queue.done(task("a"), true);
        assert_eq!(queue.try_next(), None);
        assert_eq!(queue.next().await, task("a"));
    }

    #[tokio::test]
    async fn a_status_write_waits_for_what_follows_at_once_and_longer_while_others_are_busy() {
        let queue = Queue::default();
        queue.add(task("a"));
        queue.try_next().unwrap();
        assert!(queue.defer(&task("a")));
        queue.done(task("a"), false);
        assert_eq!(queue.next().await, task("a"));
        assert!(!queue.defer(&task("a")), "nothing followed");
        queue.done(task("a"), false);

        queue.add(task("a"));
        queue.add(task("b"));
        assert_eq!((queue.try_next(), queue.try_next()), (Some(task("a")), Some(task("b"))));
        let began = Instant::now();
        while queue.defer(&task("a")) {
            queue.done(task("a"), false);
            assert_eq!(queue.next().await, task("a"));
        }
        let waited = began.elapsed();
        assert!(waited >= STATUS_PATIENCE && waited < STATUS_PATIENCE * 2, "{waited:?}");
    }
}
