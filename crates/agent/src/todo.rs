//! Works to act on: each once, one task per Work at a time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::rush::Rush;

/// The longest wait between attempts.
const SLOWEST: Duration = Duration::from_secs(60);

/// Bounded by the number of Works: a name is in it at most once.
#[derive(Default)]
pub struct Todo {
    inner: Mutex<Inner>,
    notify: Notify,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<String>,
    queued: HashSet<String>,
    active: HashSet<String>,
    /// To be run again after the one that is active.
    again: HashSet<String>,
    later: HashMap<String, Wait>,
    attempts: HashMap<String, u32>,
    rush: Rush<String>,
}

#[derive(Clone, Copy)]
struct Wait {
    until: Instant,
    /// Something stood in the way; it may be gone before the time is over.
    refused: bool,
}

impl Todo {
    pub fn add(&self, work: &str) {
        let mut inner = self.inner.lock();
        inner.later.remove(work);
        inner.enqueue(work);
        drop(inner);
        self.notify.notify_one();
    }

    /// After a wait that grows with every attempt since the last success.
    pub fn retry(&self, work: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let attempts = inner.attempts.entry(work.to_owned()).or_default();
        let wait = Duration::from_secs(1).saturating_mul(1 << (*attempts).min(6)).min(SLOWEST);
        *attempts += 1;
        inner.later.insert(work.to_owned(), Wait { until: now + wait, refused: true });
        drop(inner);
        self.notify.notify_one();
    }

    /// Puts off the Work, unless it is due earlier anyway.
    pub fn later(&self, work: &str, at: Instant) {
        let mut inner = self.inner.lock();
        let wait = inner.later.entry(work.to_owned()).or_insert(Wait { until: at, refused: false });
        wait.until = wait.until.min(at);
        drop(inner);
        self.notify.notify_one();
    }

    pub fn succeeded(&self, work: &str) {
        self.inner.lock().attempts.remove(work);
    }

    /// Brings forward all that was refused: what stood in its way may be gone.
    pub fn hurry(&self) {
        let mut inner = self.inner.lock();
        let waiting: Vec<String> =
            inner.later.extract_if(|_, wait| wait.refused).map(|(work, _)| work).collect();
        if waiting.is_empty() {
            return;
        }
        for work in waiting {
            inner.enqueue(&work);
        }
        drop(inner);
        self.notify.notify_one();
    }

    /// A Work is reported to the hub. Where many are, the steps that follow are told together.
    pub fn reported(&self, work: &str, now: Instant) {
        self.inner.lock().rush.note(work.to_owned(), now);
    }

    pub fn is_rush(&self, now: Instant) -> bool {
        self.inner.lock().rush.is_on(now)
    }

    /// The next Work; [`Todo::done`] must be called for it.
    pub async fn next(&self) -> String {
        loop {
            let wait = {
                let mut inner = self.inner.lock();
                let now = Instant::now();
                let due: Vec<String> =
                    inner.later.extract_if(|_, wait| wait.until <= now).map(|(work, _)| work).collect();
                for work in due {
                    inner.enqueue(&work);
                }
                if let Some(work) = inner.queue.pop_front() {
                    inner.queued.remove(&work);
                    inner.rush.note(work.clone(), now);
                    inner.active.insert(work.clone());
                    return work;
                }
                inner.later.values().map(|wait| wait.until).min().map(|at| at.saturating_duration_since(now))
            };
            match wait {
                Some(wait) => drop(tokio::time::timeout(wait, self.notify.notified()).await),
                None => self.notify.notified().await,
            }
        }
    }

    pub fn done(&self, work: &str) {
        let mut inner = self.inner.lock();
        inner.active.remove(work);
        if inner.again.remove(work) {
            inner.enqueue(work);
        }
        drop(inner);
        self.notify.notify_one();
    }
}

impl Inner {
    fn enqueue(&mut self, work: &str) {
        if self.active.contains(work) {
            self.again.insert(work.to_owned());
        } else if self.queued.insert(work.to_owned()) {
            self.queue.push_back(work.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_work_runs_once_at_a_time_and_again_when_it_changed_meanwhile() {
        let todo = Todo::default();
        todo.add("a");
        todo.add("a");
        todo.add("b");
        assert_eq!(todo.next().await, "a");
        todo.add("a");
        assert_eq!(todo.next().await, "b");
        todo.done("a");
        assert_eq!(todo.next().await, "a");
        todo.done("a");
        todo.done("b");
        let none = tokio::time::timeout(Duration::from_millis(20), todo.next()).await;
        assert!(none.is_err(), "nothing is left");
    }

    #[tokio::test]
    async fn what_was_refused_can_be_hurried_and_what_only_waits_is_not() {
        let todo = Todo::default();
        todo.retry("a", Instant::now());
        todo.later("b", Instant::now() + SLOWEST);
        todo.hurry();
        assert_eq!(todo.next().await, "a");
        let none = tokio::time::timeout(Duration::from_millis(20), todo.next()).await;
        assert!(none.is_err(), "b has its time");
    }
}
