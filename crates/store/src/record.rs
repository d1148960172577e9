//! What goes in and what comes out: records, events, ranges.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::Key;

/// One version of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub value: Bytes,
    /// The revision of the put that brought the key into being (after its last delete, if any).
    pub created: u64,
    /// The revision of the put that wrote this value.
    pub revision: u64,
}

/// The condition under which a write happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Write whatever is there.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists and was last written at this revision.
    Revision(u64),
}

impl Expect {
    /// Whether the condition holds for a key that was last written at `current` (`None`: does not exist).
    pub fn holds(self, current: Option<u64>) -> bool {
        match self {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::Revision(revision) => current == Some(revision),
        }
    }
}

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On disk: survives a crash of the process and of the machine.
    Durable,
    /// In memory, written lazily: a crash may bring back an older value, or none. Costs no sync.
    /// On etcd there is no difference: every write is durable.
    Volatile,
}

/// The outcome of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// The revision of the delete itself.
    pub revision: u64,
    /// The record as it was.
    pub last: Record,
}

/// The point in time that a range shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum At {
    /// Now: never older than a write that any replica has acknowledged.
    #[default]
    Latest,
    /// Whatever this replica has at hand. The same as `Latest` on an engine with one process.
    Cached,
    /// Now, and [`crate::StoreError::Future`] if the store has not reached this revision.
    AtLeast(u64),
    /// Exactly this revision: `Compacted` if it is forgotten, `Future` if it has not happened.
    Exact(u64),
}

/// Which records to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Range<'a> {
    /// Only keys that begin with this.
    pub prefix: &'a str,
    /// Only keys that sort strictly after this one: the last key of the page before. The prefix still holds.
    pub after: Option<&'a str>,
    /// At most so many records; 0 is all.
    pub limit: usize,
    pub at: At,
}

impl<'a> Range<'a> {
    /// Everything under a prefix, now.
    pub fn all(prefix: &'a str) -> Self {
        Range { prefix, ..Range::default() }
    }
}

/// A part of a range, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub records: Vec<Record>,
    /// The revision that all records are from: the store's revision, or the one asked for with [`At::Exact`].
    pub revision: u64,
    /// How many records of the range come after the last one returned.
    pub remaining: usize,
}

impl Page {
    /// Whether the range goes on after this page.
    pub fn more(&self) -> bool {
        self.remaining > 0
    }
}

/// One change, shared by all watchers that see it.
#[derive(Debug)]
pub struct Event {
    /// The revision of the put or delete.
    pub revision: u64,
    pub key: Key,
    /// The new value; `None` when the key was deleted.
    pub value: Option<Bytes>,
    /// The value before; `None` when the key did not exist.
    pub previous: Option<Bytes>,
    /// The revision at which the key came into being; equal to `revision` for a creation.
    pub created: u64,
    rendered: OnceLock<Bytes>,
}

impl Event {
    pub(crate) fn new(
        key: Key,
        value: Option<Bytes>,
        previous: Option<Bytes>,
        created: u64,
        revision: u64,
    ) -> Self {
        Event { revision, key, value, previous, created, rendered: OnceLock::new() }
    }

    /// Whether this put brought the key into being.
    pub fn is_creation(&self) -> bool {
        self.value.is_some() && self.previous.is_none()
    }

    pub fn is_deletion(&self) -> bool {
        self.value.is_none()
    }

    /// A form of this event that is made once and shared by all its watchers. There is one slot: use it for the
    /// form that most watchers want, and always the same one.
    pub fn rendered(&self, render: impl FnOnce(&Event) -> Bytes) -> &Bytes {
        self.rendered.get_or_init(|| render(self))
    }
}

/// Nearly always one.
pub(crate) type Events = SmallVec<[Arc<Event>; 1]>;

/// What a watcher gets at a time.
#[derive(Clone, Debug)]
pub struct Batch {
    /// In revision order; never empty.
    pub events: Events,
    /// The watcher has now seen everything up to this revision.
    pub revision: u64,
}
