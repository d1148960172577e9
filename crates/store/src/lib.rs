//! A revisioned, ordered key-value store with watch: what a Kubernetes API server stands on.
//!
//! # Data model
//!
//! ```text
//!   key  ──>  versions: (value bytes, created at, revision), newest last; older ones live until compaction
//!   one global revision; every put and every delete takes the next one, so a revision names one change
//!   history: the events after the compacted revision, in revision order; watchers read it by position
//! ```
//!
//! Keys are `/`-separated UTF-8 paths ordered by bytes; values are opaque. All three engines keep the
//! current state in memory (the watch cache every API server has anyway) and differ in what stands behind it:
//!
//! | engine | behind the memory | for |
//! |---|---|---|
//! | [`MemoryStore`] | nothing | tests, throw-away servers |
//! | [`EmbeddedStore`] | an append-only log in a folder | the default: one process |
//! | [`EtcdStore`] | an etcd cluster | several replicas of one API server |
//!
//! # Invariants
//!
//! 1. A durable write that was acknowledged survives `kill -9` and power loss.
//! 2. Nothing is visible to a reader or a watcher before it is as durable as it asked to be.
//! 3. Revisions never go back, not even when volatile writes are lost in a crash. They may have gaps.
//! 4. A watcher sees every change under its prefix after its start exactly once, in revision order, or gets an
//!    error that tells it to list again. No watcher can slow a writer: there is no per-watcher queue at all,
//!    watchers read the shared history, and one that falls out of it is told [`StoreError::Lagged`].
//! 5. A range is a snapshot: all its records are from the one revision it names.
//! 6. A write that failed did not happen, with two exceptions in which nobody can know: [`StoreError::Unavailable`] (it
//!    may have happened), and [`StoreError::Io`] if the machine crashes before the disk recovers.
//!
//! # How a caller uses it
//!
//! List, then watch from the revision of the list; on [`StoreError::Compacted`] or [`StoreError::Lagged`] list
//! again. Read, decide, [`Store::put`] with [`Expect::Revision`]; on [`StoreError::Conflict`] decide again from
//! the record that the error carries. Call [`Store::compact`] on a schedule with what a [`CompactionSchedule`] says.

mod compaction;
mod embedded;
mod error;
mod etcd;
mod memory;
mod mvcc;
mod record;
mod topic;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use crate::compaction::CompactionSchedule;
pub use crate::embedded::{EmbeddedOptions, EmbeddedStore, restore};
pub use crate::error::StoreError;
pub use crate::etcd::{EtcdOptions, EtcdStore, EtcdTls};
pub use crate::memory::MemoryStore;
pub use crate::record::{At, Batch, Deleted, Durability, Event, Expect, Page, Range, Record};
pub use crate::topic::Watch;

/// The one face of all engines. Object-safe: share it as `Arc<dyn Store>`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest record of a key. Never older than a write that any replica has acknowledged.
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError>;

    /// Writes a value if `expect` holds and returns the revision of the write, once it is as durable as asked
    /// and visible to readers. [`StoreError::Conflict`] carries what is there instead.
    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        durability: Durability,
    ) -> Result<u64, StoreError>;

    /// Deletes a key if `expect` holds. A missing key is always a [`StoreError::Conflict`] with `current: None`.
    /// `durability` is the class of the key's kind: deleting what is volatile costs no sync either.
    async fn delete(&self, key: &str, expect: Expect, durability: Durability) -> Result<Deleted, StoreError>;

    /// The records under a prefix in key order, as of one revision. See [`Range`].
    async fn range(&self, range: Range<'_>) -> Result<Page, StoreError>;

    /// How many keys are under a prefix now. Cheaper than a range, for quotas and metrics.
    async fn count(&self, prefix: &str) -> Result<usize, StoreError>;

    /// All changes under a prefix with a revision greater than `after`, which is usually [`Page::revision`].
    /// `after` may lie in the future: nothing is delivered until it has passed.
    /// [`StoreError::Compacted`] when the history no longer reaches back to `after`.
    async fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError>;

    /// The current revision. Never older than a write that any replica has acknowledged.
    async fn revision(&self) -> Result<u64, StoreError>;

    /// Forgets history before `revision`: what is current at it stays readable, older versions do not.
    /// Compacting at an already compacted revision does nothing; one in the future is [`StoreError::Future`].
    async fn compact(&self, revision: u64) -> Result<(), StoreError>;

    /// Writes a consistent copy of the live store into a new or empty folder and returns its revision.
    /// The copy is a data folder of the embedded engine, whichever engine made it.
    async fn backup(&self, folder: &Path) -> Result<u64, StoreError>;

    /// Writes what is still only in memory, ends all watches with [`StoreError::Closed`] and refuses further
    /// writes. A store that is dropped without it loses at most volatile writes.
    async fn close(&self) -> Result<(), StoreError>;
}

/// A key, shared by the records and events that name it.
pub type Key = Arc<str>;
