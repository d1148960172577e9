//! The state in memory that all engines share: versions by key, history by revision, topics by prefix.
//!
//! It knows nothing of disks or networks. An engine decides what happens and hands over the outcome with
//! [`Mvcc::publish`], in revision order; from then on it is visible to readers and watchers.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::runtime::Handle;

use crate::topic::{Topics, Watch};
use crate::{At, Event, Key, Page, Range, Record, StoreError};

/// What the history may hold before the oldest is forgotten, schedule or not: without it a burst of writes between two
/// compactions would grow without bound.
pub(crate) const HISTORY_BYTES: usize = 32 << 20;
/// What an event costs besides the values that it keeps alive.
const EVENT_BYTES: usize = 256;

/// A change that has been decided: a put, or a delete when `value` is `None`.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) value: Option<Bytes>,
    pub(crate) revision: u64,
}

#[derive(Debug)]
pub(crate) struct Mvcc {
    state: RwLock<State>,
    /// The revision up to which everything is visible. Shared with the watchers.
    published: Arc<AtomicU64>,
    history_limit: usize,
    /// Who wakes many watchers; where there is none, whoever publishes.
    runtime: Option<Handle>,
}

#[derive(Debug, Default)]
struct State {
    keys: BTreeMap<Key, Versions>,
    history: VecDeque<Arc<Event>>,
    history_bytes: usize,
    topics: Topics,
    revision: u64,
    compacted: u64,
    closed: bool,
}

/// The versions of one key, newest apart because it is nearly always the one asked for and the only one.
#[derive(Debug)]
struct Versions {
    newest: Version,
    /// Oldest first.
    older: VecDeque<Version>,
}

#[derive(Clone, Debug)]
struct Version {
    /// `None` marks a delete.
    value: Option<Bytes>,
    created: u64,
    revision: u64,
}

impl Mvcc {
    /// Starts from records without history: the revision is also the compacted one.
    pub(crate) fn load(
        records: impl IntoIterator<Item = Record>,
        revision: u64,
        history_limit: usize,
    ) -> Self {
        let keys = records.into_iter().map(Versions::only).collect();
        let state = State { keys, revision, compacted: revision, ..State::default() };
        let published = Arc::new(AtomicU64::new(revision));
        Mvcc { state: RwLock::new(state), published, history_limit, runtime: Handle::try_current().ok() }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Record> {
        let state = self.state.read();
        let (key, versions) = state.keys.get_key_value(key)?;
        versions.newest.record(key)
    }

    pub(crate) fn range(&self, range: Range<'_>) -> Result<Page, StoreError> {
        let state = self.state.read();
        let revision = match range.at {
            At::Latest | At::Cached => state.revision,
            At::AtLeast(requested) | At::Exact(requested) if requested > state.revision => {
                return Err(StoreError::Future { requested, current: state.revision });
            }
            At::AtLeast(_) => state.revision,
            At::Exact(requested) if requested < state.compacted => {
                return Err(StoreError::Compacted { requested, compacted: state.compacted });
            }
            At::Exact(requested) => requested,
        };
        let mut rest = state.under(range.prefix, range.after);
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let mut records = Vec::new();
        while records.len() < limit {
            let Some((key, versions)) = rest.next() else { break };
            records.extend(versions.at(revision).and_then(|version| version.record(key)));
        }
        let live = |versions: &Versions| versions.at(revision).is_some_and(|version| version.value.is_some());
        let remaining = rest.filter(|(_, versions)| live(versions)).count();
        Ok(Page { records, revision, remaining })
    }

    pub(crate) fn count(&self, prefix: &str) -> usize {
        let state = self.state.read();
        state.under(prefix, None).filter(|(_, versions)| versions.newest.value.is_some()).count()
    }

    pub(crate) fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        let mut state = self.state.write();
        if state.closed {
            return Err(StoreError::Closed);
        }
        if after < state.compacted {
            return Err(StoreError::Compacted { requested: after, compacted: state.compacted });
        }
        let State { topics, history, compacted, .. } = &mut *state;
        Ok(topics.subscribe(prefix, after, *compacted, history.iter(), self.published.clone()))
    }

    /// Makes changes visible, all at once and in the given order, and moves the revision to that of the last.
    pub(crate) fn publish(&self, changes: impl IntoIterator<Item = Change>) -> Woken {
        let mut woken = Vec::new();
        let mut state = self.state.write();
        for change in changes {
            let event = Arc::new(state.apply(change));
            state.topics.push(&event, &mut woken);
            state.history_bytes += cost(&event);
            state.history.push_back(event);
        }
        if state.history_bytes > self.history_limit {
            state.forget_down_to(self.history_limit / 4 * 3, &mut woken);
        }
        self.published.store(state.revision, Ordering::Release);
        self.woken(woken)
    }

    fn woken(&self, wakers: Vec<Waker>) -> Woken {
        Woken { wakers, runtime: self.runtime.clone() }
    }

    /// Moves the revision forward without a change.
    pub(crate) fn advance(&self, revision: u64) {
        let mut state = self.state.write();
        state.revision = state.revision.max(revision);
        self.published.store(state.revision, Ordering::Release);
    }

    /// Starts over from other records, after a gap in what was published: every watcher must list again.
    pub(crate) fn replace(&self, records: impl IntoIterator<Item = Record>, revision: u64) {
        let mut woken = Vec::new();
        let mut state = self.state.write();
        state.keys = records.into_iter().map(Versions::only).collect();
        state.history.clear();
        state.history_bytes = 0;
        state.revision = state.revision.max(revision);
        state.compacted = state.revision;
        let compacted = state.compacted;
        state.topics.skip_to(compacted, &mut woken);
        self.published.store(state.revision, Ordering::Release);
        drop(state);
        drop(self.woken(woken));
    }

    pub(crate) fn compact(&self, revision: u64) -> Result<(), StoreError> {
        let mut woken = Vec::new();
        let mut state = self.state.write();
        if revision > state.revision {
            return Err(StoreError::Future { requested: revision, current: state.revision });
        }
        state.forget_before(revision, &mut woken);
        drop(state);
        drop(self.woken(woken));
        Ok(())
    }

    pub(crate) fn close(&self) {
        let mut woken = Vec::new();
        let mut state = self.state.write();
        state.closed = true;
        state.topics.close(&mut woken);
        drop(state);
        drop(self.woken(woken));
    }
}

/// Watchers that have something to read. They are woken when this is dropped, so that whoever published can
/// first do what is more urgent (answer the writer), with no lock held.
///
/// Of many, the workers of the runtime wake a share each. They wake for themselves, which costs no lock, and whoever published
/// does not take the time of a processor from them meanwhile.
#[must_use = "dropping it at once wakes the watchers before the writers"]
pub(crate) struct Woken {
    wakers: Vec<Waker>,
    runtime: Option<Handle>,
}

/// So many are woken at a time.
const SHARE: usize = 16;

impl Drop for Woken {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            while self.wakers.len() > SHARE {
                let wakers = self.wakers.split_off(self.wakers.len() - SHARE);
                let share = Woken { wakers, runtime: None };
                // A runtime that is gone drops it at once, which wakes them too.
                runtime.spawn(async move { drop(share) });
            }
        }
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl State {
    /// The keys under a prefix and after another key.
    fn under<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Versions)> + use<'a> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.keys
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn apply(&mut self, change: Change) -> Event {
        let Change { key, value, revision } = change;
        debug_assert!(revision >= self.revision, "changes are published in revision order");
        self.revision = revision;
        match self.keys.get_mut(&*key) {
            Some(versions) => {
                let previous = versions.newest.value.clone();
                let created = if previous.is_some() { versions.newest.created } else { revision };
                let version = Version { value: value.clone(), created, revision };
                versions.older.push_back(std::mem::replace(&mut versions.newest, version));
                Event::new(key, value, previous, created, revision)
            }
            None => {
                let newest = Version { value: value.clone(), created: revision, revision };
                self.keys.insert(key.clone(), Versions { newest, older: VecDeque::new() });
                Event::new(key, value, None, revision, revision)
            }
        }
    }

    fn forget_before(&mut self, revision: u64, woken: &mut Vec<Waker>) {
        if revision <= self.compacted {
            return;
        }
        self.compacted = revision;
        while self.history.front().is_some_and(|event| event.revision <= revision) {
            self.forget_oldest();
        }
        self.topics.compact(revision, woken);
    }

    fn forget_down_to(&mut self, bytes: usize, woken: &mut Vec<Waker>) {
        while self.history_bytes > bytes {
            let Some(event) = self.history.front() else { break };
            self.compacted = event.revision;
            self.forget_oldest();
        }
        self.topics.compact(self.compacted, woken);
    }

    /// Drops the oldest event, and the versions of its key that no revision from the compacted one on can see.
    fn forget_oldest(&mut self) {
        let Some(event) = self.history.pop_front() else { return };
        self.history_bytes -= cost(&event);
        let Some(versions) = self.keys.get_mut(&*event.key) else { return };
        if versions.newest.revision <= self.compacted {
            versions.older = VecDeque::new();
            if versions.newest.value.is_none() {
                self.keys.remove(&*event.key);
            }
        } else {
            let visible = versions.older.partition_point(|version| version.revision <= self.compacted);
            versions.older.drain(..visible.saturating_sub(1));
            let forgotten = |oldest: &Version| oldest.revision <= self.compacted && oldest.value.is_none();
            if versions.older.front().is_some_and(forgotten) {
                versions.older.pop_front();
            }
        }
    }
}

impl Versions {
    /// A key without history.
    fn only(record: Record) -> (Key, Versions) {
        let Record { key, value, created, revision } = record;
        (key, Versions { newest: Version { value: Some(value), created, revision }, older: VecDeque::new() })
    }

    /// The version that was newest at a revision.
    fn at(&self, revision: u64) -> Option<&Version> {
        if self.newest.revision <= revision {
            return Some(&self.newest);
        }
        self.older.iter().rev().find(|version| version.revision <= revision)
    }
}

impl Version {
    fn record(&self, key: &Key) -> Option<Record> {
        let value = self.value.clone()?;
        Some(Record { key: key.clone(), value, created: self.created, revision: self.revision })
    }
}

/// The superseded value, and the new one once more: as watchers get it.
fn cost(event: &Event) -> usize {
    let length = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
    EVENT_BYTES + length(&event.previous) + length(&event.value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn put(mvcc: &Mvcc, key: &str, value: usize) {
        let revision = mvcc.revision() + 1;
        let value = Some(Bytes::from(vec![0; value]));
        drop(mvcc.publish([Change { key: key.into(), value, revision }]));
    }

    #[test]
    fn a_history_over_its_bound_forgets_its_oldest_and_tells_slow_watchers() {
        let mvcc = Mvcc::load([], 1, 10_000);
        let mut slow = mvcc.watch("/hot", 1).unwrap();
        let mut quiet = mvcc.watch("/cold", 1).unwrap();
        for _ in 0..100 {
            put(&mvcc, "/hot", 1000);
        }
        let state = mvcc.state.read();
        assert!(state.history_bytes <= 10_000);
        assert!(state.keys["/hot"].older.len() < 5, "{} old versions", state.keys["/hot"].older.len());
        assert_eq!(state.history.front().map(|event| event.revision), Some(state.compacted + 1));
        drop(state);
        let told = futures::executor::block_on(slow.next());
        assert!(matches!(told, Err(StoreError::Lagged { position: 1, .. })), "{told:?}");
        put(&mvcc, "/cold", 1);
        assert_eq!(futures::executor::block_on(quiet.next()).unwrap().events.len(), 1);
    }

    #[test]
    fn nothing_remains_of_a_deleted_key_after_compaction() {
        let mvcc = Mvcc::load([], 1, 10_000);
        put(&mvcc, "/a", 1);
        put(&mvcc, "/a", 2);
        let revision = mvcc.revision() + 1;
        drop(mvcc.publish([Change { key: "/a".into(), value: None, revision }]));
        assert_eq!(mvcc.state.read().keys.len(), 1, "older revisions can still be read");
        mvcc.compact(revision).unwrap();
        let state = mvcc.state.read();
        assert_eq!((state.keys.len(), state.history.len(), state.history_bytes), (0, 0, 0));
    }

    #[test]
    fn a_catching_up_watcher_gets_its_events_in_bounded_batches() {
        let mvcc = Mvcc::load([], 1, usize::MAX);
        for _ in 0..2500 {
            put(&mvcc, "/a", 1);
        }
        let mut watch = mvcc.watch("/", 1).unwrap();
        let mut next = || futures::executor::block_on(watch.next()).unwrap();
        let sizes: Vec<_> =
            (0..3).map(|_| next()).map(|batch| (batch.events.len(), batch.revision)).collect();
        assert_eq!(sizes, [(1000, 1001), (1000, 2001), (500, 2501)]);
    }

    #[test]
    fn many_watchers_are_all_woken_with_a_runtime_without_one_and_after_its_end() {
        let all_see = |mvcc: &Mvcc| {
            let watchers: Vec<_> = (0..100)
                .map(|_| mvcc.watch("/", mvcc.revision()).unwrap())
                .map(|mut watch| std::thread::spawn(move || futures::executor::block_on(watch.next())))
                .collect();
            // They wait by then, nearly always; one that does not finds the event when it comes.
            std::thread::sleep(std::time::Duration::from_millis(50));
            put(mvcc, "/a", 1);
            for watcher in watchers {
                assert_eq!(watcher.join().unwrap().unwrap().events.len(), 1);
            }
        };
        all_see(&Mvcc::load([], 1, usize::MAX));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mvcc = runtime.block_on(async { Mvcc::load([], 1, usize::MAX) });
        all_see(&mvcc);
        drop(runtime);
        all_see(&mvcc);
    }
}
