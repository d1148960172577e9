//! Group commit: writers queue, one thread writes.
//!
//! ```text
//!  writer: check against what is pending, take a revision, queue  ──>  wait for the answer
//!                                   │
//!  log thread:    take the whole queue ──> one frame, one sync ──> publish ──> answer ──> wake watchers
//! ```
//!
//! The lock on [`Head`] is never held during a sync, so the next batch forms while the last one is on its way to
//! disk. The queue needs no bound of its own: every writer waits for its answer, so it holds at most one entry for
//! each call under way, and the caller bounds those.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::frame::Entry;
use super::log::Log;
use crate::mvcc::{Change, Mvcc};
use crate::{Durability, Expect, Key, Record, StoreError};

/// How many revisions are reserved on disk ahead of their use. Volatile writes cost one sync per half of it.
const REVISION_BLOCK: u64 = 100_000;
/// How long a small batch waits for the writers of the last one to come back. About a quarter of a sync.
const GATHER: Duration = Duration::from_micros(100);
/// Cleaning rests for so long after it failed, usually because the disk is full.
const CLEANING_REST: Duration = Duration::from_secs(10);

/// What the writers and the log thread share.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) mvcc: Mvcc,
    head: Mutex<Head>,
    work: Condvar,
    flush_interval: Duration,
}

#[derive(Debug)]
struct Head {
    queue: Vec<Queued>,
    /// While the log thread waits for a batch of this size to form; 0 when it does not.
    gathering: usize,
    /// The size of the last batch.
    last_batch: usize,
    /// The newest state of every key that has a write under way.
    pending: HashMap<Key, Pending>,
    /// The next revision to hand out.
    next: u64,
    /// Volatile writes may be published at once up to this revision, for it can no longer be handed out again.
    reserved: u64,
    /// More revisions should be reserved before they run out.
    wants_revisions: bool,
    /// The log thread has taken writes that it has not yet published: nothing may overtake them.
    busy: bool,
    /// What is newer in memory than on disk, with the revision of the last such write.
    unwritten: HashMap<Key, u64>,
    flush_at: Option<Instant>,
    stop: bool,
}

#[derive(Debug)]
struct Pending {
    revision: u64,
    record: Option<Record>,
}

#[derive(Debug)]
enum Queued {
    Write(Write),
    /// Answered when everything before it is.
    Barrier(oneshot::Sender<()>),
}

#[derive(Debug)]
struct Write {
    entry: Entry,
    durability: Durability,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// The outcome of a write: its revision and what was there before.
pub(crate) type Written = (u64, Option<Record>);

/// What to do after a look at the head.
enum Step {
    Done(Written),
    Wait(oneshot::Receiver<Result<(), StoreError>>, Written),
    Retry(oneshot::Receiver<()>),
}

impl Commit {
    pub(crate) fn new(mvcc: Mvcc, reserved: u64, flush_interval: Duration) -> Self {
        let head = Head {
            queue: Vec::new(),
            gathering: 0,
            last_batch: 0,
            pending: HashMap::new(),
            next: mvcc.revision() + 1,
            reserved,
            wants_revisions: false,
            busy: false,
            unwritten: HashMap::new(),
            flush_at: None,
            stop: false,
        };
        Commit { mvcc, head: Mutex::new(head), work: Condvar::new(), flush_interval }
    }

    /// Writes, and waits until it is as durable as asked. Once queued it happens even if the caller goes away.
    pub(crate) async fn write(
        &self,
        key: &str,
        value: Option<Bytes>,
        expect: Expect,
        durability: Durability,
    ) -> Result<Written, StoreError> {
        loop {
            match self.begin(key, value.clone(), expect, durability)? {
                Step::Done(written) => return Ok(written),
                Step::Wait(answer, written) => {
                    return answer.await.unwrap_or(Err(StoreError::Closed)).map(|()| written);
                }
                // Closed or not, the next look tells.
                Step::Retry(barrier) => drop(barrier.await),
            }
        }
    }

    fn begin(
        &self,
        key: &str,
        value: Option<Bytes>,
        expect: Expect,
        durability: Durability,
    ) -> Result<Step, StoreError> {
        let mut head = self.head.lock();
        if head.stop {
            return Err(StoreError::Closed);
        }
        let pending = head.pending.get(key).map(|pending| pending.record.clone());
        let is_pending = pending.is_some();
        let current = pending.unwrap_or_else(|| self.mvcc.get(key));
        let expected = expect.holds(current.as_ref().map(|record| record.revision));
        if !expected || (value.is_none() && current.is_none()) {
            if is_pending {
                // The state that speaks against this write is not on disk yet: it may fail, and nobody may see it
                // before that is known.
                let (done, barrier) = oneshot::channel();
                head.queue.push(Queued::Barrier(done));
                self.work.notify_one();
                return Ok(Step::Retry(barrier));
            }
            return Err(StoreError::Conflict { key: key.to_owned(), current });
        }
        let revision = head.next;
        head.next += 1;
        let (key, created) = match &current {
            Some(record) => (record.key.clone(), record.created),
            None => (key.into(), revision),
        };
        if durability == Durability::Volatile
            && !head.busy
            && head.queue.is_empty()
            && revision <= head.reserved
        {
            head.note_unwritten(key.clone(), revision, self.flush_interval);
            let short = revision + REVISION_BLOCK / 2 > head.reserved;
            head.wants_revisions |= short;
            if short || head.unwritten.len() == 1 {
                self.work.notify_one();
            }
            let woken = self.mvcc.publish([Change { key, value, revision }]);
            drop(head);
            drop(woken);
            return Ok(Step::Done((revision, current)));
        }
        let record = value.clone().map(|value| Record { key: key.clone(), value, created, revision });
        head.pending.insert(key.clone(), Pending { revision, record });
        let (done, answer) = oneshot::channel();
        let entry = Entry { key, value, created, revision };
        head.queue.push(Queued::Write(Write { entry, durability, done }));
        if head.queue.len() == 1 || head.queue.len() == head.gathering {
            self.work.notify_one();
        }
        Ok(Step::Wait(answer, (revision, current)))
    }

    /// Asks the log thread to write everything and end. Further writes are refused.
    pub(crate) fn stop(&self) {
        self.head.lock().stop = true;
        self.work.notify_one();
    }
}

impl Head {
    fn note_unwritten(&mut self, key: Key, revision: u64, interval: Duration) {
        self.unwritten.insert(key, revision);
        self.flush_at.get_or_insert_with(|| Instant::now() + interval);
    }
}

/// Leaves no writer waiting for a log thread that is gone, even if it panicked.
struct HangUp<'a>(&'a Commit);

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        let mut head = self.0.head.lock();
        head.stop = true;
        head.queue.clear();
    }
}

/// The log thread. Runs until [`Commit::stop`] and returns how the log was closed.
pub(crate) fn run(commit: &Arc<Commit>, mut log: Log) -> Result<(), StoreError> {
    let _guard = HangUp(commit);
    let mut cleaning_rests_until: Option<Instant> = None;
    loop {
        let rests = cleaning_rests_until.is_some_and(|until| Instant::now() < until);
        let moved = if rests { Ok(Moved::default()) } else { append_moved(commit, &mut log) };
        let moved = moved.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot clean the log now");
            log.stop_moving();
            cleaning_rests_until = Some(Instant::now() + CLEANING_REST);
            Moved::default()
        });
        let idle = moved.entries.is_empty() && !log.has_moved_all();
        let Some(batch) = commit.take(idle) else { break };
        if let Err(error) = commit_batch(commit, &mut log, batch, &moved) {
            tracing::warn!(%error, "writes were refused");
            log.stop_moving();
        } else if let Err(error) = log.remove_moved() {
            tracing::warn!(%error, "cannot remove a segment of the log");
            cleaning_rests_until = Some(Instant::now() + CLEANING_REST);
        }
    }
    flush(commit, &mut log)?;
    let next = commit.head.lock().next;
    log.close(next - 1)
}

/// What cleaning appended to a segment. It counts only once it is synced.
#[derive(Default)]
struct Moved {
    entries: Vec<Entry>,
    segment: u64,
}

/// Appends again what cleaning moves next, unsynced.
fn append_moved(commit: &Commit, log: &mut Log) -> Result<Moved, StoreError> {
    let mut moved = Vec::new();
    for key in log.keys_to_move() {
        match commit.mvcc.get(&key) {
            Some(Record { key, value, created, revision }) => {
                moved.push(Entry { key, value: Some(value), created, revision });
            }
            None => log.abandon(&key),
        }
    }
    if moved.is_empty() {
        return Ok(Moved::default());
    }
    let segment = log.append(&moved, log.reserved())?;
    Ok(Moved { entries: moved, segment })
}

/// What the log thread does in one turn.
struct Turn {
    queue: Vec<Queued>,
    next: u64,
    flush: bool,
    reserve: bool,
}

impl Commit {
    /// Waits for work, unless there is some already. `None` when it is time to end.
    fn take(&self, may_wait: bool) -> Option<Turn> {
        let mut head = self.head.lock();
        loop {
            if head.stop && head.queue.is_empty() {
                return None;
            }
            let flush = head.flush_at.is_some_and(|at| at <= Instant::now());
            if !may_wait || flush || head.wants_revisions || !head.queue.is_empty() {
                self.gather(&mut head);
                let queue = std::mem::take(&mut head.queue);
                head.busy = !queue.is_empty();
                let reserve = std::mem::take(&mut head.wants_revisions);
                return Some(Turn { queue, next: head.next, flush, reserve });
            }
            match head.flush_at {
                Some(at) => drop(self.work.wait_until(&mut head, at)),
                None => self.work.wait(&mut head),
            }
        }
    }
}

impl Commit {
    /// Right after a batch was answered its writers are about to write again: without a short wait the first of them
    /// would get a sync of its own and all others would wait for two. A lone writer never waits here.
    fn gather(&self, head: &mut parking_lot::MutexGuard<'_, Head>) {
        if !head.queue.is_empty() && head.queue.len() < head.last_batch {
            head.gathering = head.last_batch;
            let deadline = Instant::now() + GATHER;
            while head.queue.len() < head.gathering && !self.work.wait_until(head, deadline).timed_out() {}
            head.gathering = 0;
        }
        head.last_batch = head.queue.len();
    }
}

fn commit_batch(commit: &Commit, log: &mut Log, turn: Turn, moved: &Moved) -> Result<(), StoreError> {
    let Turn { queue, next, flush: flush_now, reserve } = turn;
    let mut barriers = Vec::new();
    let mut writes = Vec::with_capacity(queue.len());
    for queued in queue {
        match queued {
            Queued::Write(write) => writes.push(write),
            Queued::Barrier(done) => barriers.push(done),
        }
    }
    if let Err(error) = make_durable(log, &writes, moved, next, reserve) {
        commit.refuse(writes, barriers, &error);
        return Err(error);
    }
    commit.publish(writes, barriers, log.reserved());
    if flush_now && let Err(error) = flush(commit, log) {
        tracing::warn!(%error, "cannot write volatile records; they stay in memory");
    }
    Ok(())
}

/// Brings what must be on disk there: the durable ones of these writes, what cleaning moved, and the reservation.
fn make_durable(
    log: &mut Log,
    writes: &[Write],
    moved: &Moved,
    next: u64,
    reserve: bool,
) -> Result<(), StoreError> {
    let durable = |write: &&Write| write.durability == Durability::Durable;
    let entries: Vec<Entry> = writes.iter().filter(durable).map(|write| write.entry.clone()).collect();
    let unreserved = writes.last().is_some_and(|write| write.entry.revision > log.reserved());
    if !entries.is_empty() || unreserved || reserve {
        let reserved = next + REVISION_BLOCK;
        let segment = log.append(&entries, reserved)?;
        log.sync()?;
        log.reserve(reserved);
        log.settle(&moved.entries, moved.segment);
        log.settle(&entries, segment);
    } else if !moved.entries.is_empty() || log.has_moved_all() {
        log.sync()?;
        log.settle(&moved.entries, moved.segment);
    }
    Ok(())
}

/// Writes what is only in memory, without a sync.
fn flush(commit: &Commit, log: &mut Log) -> Result<(), StoreError> {
    let unwritten = {
        let mut head = commit.head.lock();
        head.flush_at = None;
        std::mem::take(&mut head.unwritten)
    };
    let entry = |(key, &revision): (&Key, &u64)| match commit.mvcc.get(key) {
        Some(Record { key, value, created, revision }) => {
            Some(Entry { key, value: Some(value), created, revision })
        }
        None => log.holds(key).then(|| Entry { key: key.clone(), value: None, created: 0, revision }),
    };
    let entries: Vec<Entry> = unwritten.iter().filter_map(entry).collect();
    if entries.is_empty() {
        return Ok(());
    }
    match log.append(&entries, log.reserved()) {
        Ok(segment) => {
            log.settle(&entries, segment);
            Ok(())
        }
        Err(error) => {
            let mut head = commit.head.lock();
            for (key, revision) in unwritten {
                if !head.unwritten.contains_key(&key) {
                    head.note_unwritten(key, revision, commit.flush_interval);
                }
            }
            Err(error)
        }
    }
}

impl Commit {
    fn publish(&self, writes: Vec<Write>, barriers: Vec<oneshot::Sender<()>>, reserved: u64) {
        let change = |write: &Write| {
            let Entry { key, value, revision, .. } = &write.entry;
            Change { key: key.clone(), value: value.clone(), revision: *revision }
        };
        let woken = (!writes.is_empty()).then(|| self.mvcc.publish(writes.iter().map(change)));
        let mut head = self.head.lock();
        for Write { entry, durability, .. } in &writes {
            if head.pending.get(&entry.key).is_some_and(|pending| pending.revision == entry.revision) {
                head.pending.remove(&entry.key);
            }
            match durability {
                Durability::Durable => drop(head.unwritten.remove(&entry.key)),
                Durability::Volatile => {
                    head.note_unwritten(entry.key.clone(), entry.revision, self.flush_interval)
                }
            }
        }
        head.reserved = reserved;
        head.busy = false;
        drop(head);
        for write in writes {
            // A writer that went away does not need its answer.
            let _ = write.done.send(Ok(()));
        }
        barriers.into_iter().for_each(release);
        drop(woken);
    }

    /// Fails these writes, and all that were queued since: they were checked against a state that will not be.
    fn refuse(&self, writes: Vec<Write>, barriers: Vec<oneshot::Sender<()>>, error: &StoreError) {
        let mut head = self.head.lock();
        head.pending.clear();
        head.busy = false;
        let later = std::mem::take(&mut head.queue);
        drop(head);
        for write in writes {
            let _ = write.done.send(Err(again(error)));
        }
        barriers.into_iter().for_each(release);
        for queued in later {
            match queued {
                Queued::Write(write) => drop(write.done.send(Err(again(error)))),
                Queued::Barrier(barrier) => release(barrier),
            }
        }
    }
}

/// Lets the one behind a barrier look again, if it is still there.
fn release(barrier: oneshot::Sender<()>) {
    let _ = barrier.send(());
}

/// The same error for one more writer.
fn again(error: &StoreError) -> StoreError {
    match error {
        StoreError::Full { path } => StoreError::Full { path: path.clone() },
        StoreError::Io { action, path, source } => {
            let source = match source.raw_os_error() {
                Some(errno) => std::io::Error::from_raw_os_error(errno),
                None => std::io::Error::new(source.kind(), source.to_string()),
            };
            StoreError::Io { action, path: path.clone(), source }
        }
        other => StoreError::Unavailable(other.to_string()),
    }
}
