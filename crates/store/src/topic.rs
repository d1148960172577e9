//! Watching: one topic per watched prefix, read by position.
//!
//! A topic holds the part of the history that concerns its prefix, shared by all its watchers; a watcher is a
//! position in it. Writing an event costs one push per topic that it concerns, however many watch it, and a
//! watcher of a quiet prefix neither wakes up nor falls behind when others are busy.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures::Stream;
use parking_lot::Mutex;
use slab::Slab;

use crate::record::Events;
use crate::{Batch, Event, StoreError};

/// A watcher takes at most so many events at once, so that one that catches up does not starve the others.
const BATCH_LIMIT: usize = 1000;

/// The watchers of one prefix.
#[derive(Debug)]
pub(crate) struct Topic {
    log: Mutex<TopicLog>,
}

#[derive(Debug)]
struct TopicLog {
    events: VecDeque<Arc<Event>>,
    /// The revision of the newest event of this prefix that is no longer held.
    floor: u64,
    closed: bool,
    waiting: Waiting,
}

/// Those who have read everything. A watcher keeps its place until all are woken.
#[derive(Debug, Default)]
struct Waiting {
    wakers: Slab<Waker>,
    /// How often all were woken: places of an earlier round are void.
    round: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    round: u64,
    index: usize,
}

impl Waiting {
    fn enter(&mut self, place: Option<Place>, waker: &Waker) -> Place {
        match place.filter(|place| place.round == self.round) {
            Some(place) => {
                self.wakers[place.index].clone_from(waker);
                place
            }
            None => Place { round: self.round, index: self.wakers.insert(waker.clone()) },
        }
    }

    fn leave(&mut self, place: Option<Place>) {
        if let Some(place) = place.filter(|place| place.round == self.round) {
            self.wakers.remove(place.index);
        }
    }

    fn drain_into(&mut self, woken: &mut Vec<Waker>) {
        self.round += 1;
        woken.extend(self.wakers.drain());
    }
}

impl Topic {
    fn new(events: VecDeque<Arc<Event>>, floor: u64) -> Self {
        Topic { log: Mutex::new(TopicLog { events, floor, closed: false, waiting: Waiting::default() }) }
    }
}

/// All topics, found by prefix.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    by_prefix: HashMap<Box<str>, Weak<Topic>>,
    /// How many topics have a prefix of this length: the only lengths worth looking up.
    lengths: BTreeMap<usize, usize>,
}

impl Topics {
    /// A new watcher of `prefix` from `after` on. `history` is asked for the events that a new topic starts with;
    /// events at or before `compacted` are not in it any more.
    pub(crate) fn subscribe<'a>(
        &mut self,
        prefix: &str,
        after: u64,
        compacted: u64,
        history: impl Iterator<Item = &'a Arc<Event>>,
        published: Arc<AtomicU64>,
    ) -> Watch {
        let live = self.by_prefix.get(prefix).and_then(Weak::upgrade);
        let topic = live.unwrap_or_else(|| {
            let events = history.filter(|event| event.key.starts_with(prefix)).cloned().collect();
            let topic = Arc::new(Topic::new(events, compacted));
            if self.by_prefix.insert(prefix.into(), Arc::downgrade(&topic)).is_none() {
                *self.lengths.entry(prefix.len()).or_default() += 1;
            }
            topic
        });
        Watch { topic, place: None, position: after, published, ended: false }
    }

    /// Hands an event to the topics it concerns and returns who must be woken, through `woken`.
    pub(crate) fn push(&mut self, event: &Arc<Event>, woken: &mut Vec<Waker>) {
        let mut gone = Vec::new();
        for &length in self.lengths.keys() {
            let Some(prefix) = event.key.get(..length) else { continue };
            let Some(topic) = self.by_prefix.get(prefix) else { continue };
            match topic.upgrade() {
                Some(topic) => {
                    let mut log = topic.log.lock();
                    log.events.push_back(event.clone());
                    log.waiting.drain_into(woken);
                }
                None => gone.push(length),
            }
        }
        for length in gone {
            self.by_prefix.remove(&event.key[..length]);
            self.forget_length(length);
        }
    }

    /// Drops events at or before `compacted`, and topics that nobody watches.
    pub(crate) fn compact(&mut self, compacted: u64, woken: &mut Vec<Waker>) {
        let mut gone = Vec::new();
        self.by_prefix.retain(|prefix, topic| {
            let Some(topic) = topic.upgrade() else {
                gone.push(prefix.len());
                return false;
            };
            let mut log = topic.log.lock();
            while log.events.front().is_some_and(|event| event.revision <= compacted) {
                log.floor = log.events.pop_front().map_or(log.floor, |event| event.revision);
            }
            log.waiting.drain_into(woken);
            true
        });
        for length in gone {
            self.forget_length(length);
        }
    }

    /// Tells every watcher that is not yet at `revision` that it missed something.
    pub(crate) fn skip_to(&mut self, revision: u64, woken: &mut Vec<Waker>) {
        for topic in self.by_prefix.values().filter_map(Weak::upgrade) {
            let mut log = topic.log.lock();
            log.events.clear();
            log.floor = revision;
            log.waiting.drain_into(woken);
        }
    }

    /// Ends all watches.
    pub(crate) fn close(&mut self, woken: &mut Vec<Waker>) {
        for topic in self.by_prefix.values().filter_map(Weak::upgrade) {
            let mut log = topic.log.lock();
            log.closed = true;
            log.waiting.drain_into(woken);
        }
    }

    fn forget_length(&mut self, length: usize) {
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }
}

/// A watcher: a stream of [`Batch`]es that ends after its first error.
#[derive(Debug)]
pub struct Watch {
    topic: Arc<Topic>,
    /// Where it waits, if it does.
    place: Option<Place>,
    /// Everything up to this revision has been delivered.
    position: u64,
    published: Arc<AtomicU64>,
    ended: bool,
}

impl Watch {
    /// The revision up to which this watcher has seen everything that concerns it. Moves on with the store even
    /// when nothing under the prefix changes: this is what a bookmark says.
    pub fn progress(&mut self) -> u64 {
        let published = self.published.load(Ordering::Acquire);
        let log = self.topic.log.lock();
        if self.position >= log.floor && log.next(self.position) == log.events.len() {
            self.position = self.position.max(published);
        }
        self.position
    }

    /// The next batch, or an error that says that there will be no more.
    pub async fn next(&mut self) -> Result<Batch, StoreError> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// The same, for who waits for other things too.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Batch, StoreError>> {
        // Read before the log is locked: every event up to here is then certainly in it.
        let published = self.published.load(Ordering::Acquire);
        let mut log = self.topic.log.lock();
        if self.position < log.floor {
            return Poll::Ready(Err(StoreError::Lagged { position: self.position, compacted: log.floor }));
        }
        let start = log.next(self.position);
        let end = log.events.len().min(start + BATCH_LIMIT);
        if start < end {
            let events: Events = log.events.range(start..end).cloned().collect();
            let last = events.last().map_or(self.position, |event| event.revision);
            self.position = if end == log.events.len() { last.max(published) } else { last };
            return Poll::Ready(Ok(Batch { events, revision: self.position }));
        }
        if log.closed {
            return Poll::Ready(Err(StoreError::Closed));
        }
        self.position = self.position.max(published);
        self.place = Some(log.waiting.enter(self.place, context.waker()));
        Poll::Pending
    }
}

impl TopicLog {
    /// The index of the first event after a revision.
    fn next(&self, position: u64) -> usize {
        self.events.partition_point(|event| event.revision <= position)
    }
}

impl Stream for Watch {
    type Item = Result<Batch, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.poll(context).map(|item| {
            self.ended = item.is_err();
            Some(item)
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.topic.log.lock().waiting.leave(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn watcher() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), count.into())
    }

    fn wake(waiting: &mut Waiting) {
        let mut woken = Vec::new();
        waiting.drain_into(&mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn a_watcher_that_asks_again_is_woken_once_and_by_its_last_word() {
        let mut waiting = Waiting::default();
        let ((earlier, first), (later, second)) = (watcher(), watcher());
        let place = waiting.enter(None, &first);
        let place = waiting.enter(Some(place), &second);
        wake(&mut waiting);
        assert_eq!((earlier.0.load(Ordering::Relaxed), later.0.load(Ordering::Relaxed)), (0, 1));
        waiting.enter(Some(place), &second);
        wake(&mut waiting);
        assert_eq!(later.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn who_leaves_takes_nobody_elses_place() {
        let mut waiting = Waiting::default();
        let ((gone, first), (there, second)) = (watcher(), watcher());
        let old = waiting.enter(None, &first);
        wake(&mut waiting);
        let place = waiting.enter(None, &second);
        waiting.leave(Some(old));
        wake(&mut waiting);
        assert_eq!((gone.0.load(Ordering::Relaxed), there.0.load(Ordering::Relaxed)), (1, 1));
        waiting.leave(Some(place));
        let place = waiting.enter(None, &second);
        waiting.leave(Some(place));
        wake(&mut waiting);
        assert_eq!(there.0.load(Ordering::Relaxed), 1);
        assert!(waiting.wakers.is_empty());
    }
}
