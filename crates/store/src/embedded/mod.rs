//! The engine on disk: the state in memory, and a log of our own behind it. For one process and one folder.
//!
//! What is in the folder says [`folder`], what is in a file [`frame`], how the log is kept small [`log`], how writers
//! share a sync [`commit`]. Why not an existing engine: `docs/decisions/0001-embedded-store.md`.

mod backup;
mod commit;
mod disk;
mod folder;
mod frame;
mod log;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) use self::backup::backup;
pub use self::backup::restore;
use self::commit::Commit;
use self::disk::Disk;
use self::log::{Log, Sizes};
use crate::mvcc::{HISTORY_BYTES, Mvcc};
use crate::{Deleted, Durability, Expect, Page, Range, Record, Store, StoreError, Watch};

/// How an embedded store behaves.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedOptions {
    /// Volatile writes reach the disk at most this long after they were made.
    pub flush_interval: Duration,
    /// The history of changes is cut when it holds more than this.
    pub history_bytes: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        EmbeddedOptions { flush_interval: Duration::from_secs(300), history_bytes: HISTORY_BYTES }
    }
}

/// The default store: in memory, with a log in a folder behind it.
#[derive(Debug)]
pub struct EmbeddedStore {
    commit: Arc<Commit>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// How the log was closed, once it was.
    closed: watch::Receiver<Option<Result<(), String>>>,
}

impl EmbeddedStore {
    /// Opens the store in a folder, which is created if it is missing. Reads all of it: takes a while when large.
    pub fn open(folder: &Path, options: EmbeddedOptions) -> Result<Self, StoreError> {
        Self::open_on(folder, options, Sizes::default(), Disk::default())
    }

    fn open_on(
        folder: &Path,
        options: EmbeddedOptions,
        sizes: Sizes,
        disk: Disk,
    ) -> Result<Self, StoreError> {
        let (log, records, revision) = Log::open(folder, sizes, disk)?;
        let mvcc = Mvcc::load(records, revision, options.history_bytes);
        let commit = Arc::new(Commit::new(mvcc, log.reserved(), options.flush_interval));
        let (closing, closed) = watch::channel(None);
        let shared = commit.clone();
        let run = move || {
            let outcome = commit::run(&shared, log);
            if let Err(error) = &outcome {
                tracing::warn!(%error, "the store was not closed cleanly");
            }
            shared.mvcc.close();
            closing.send_replace(Some(outcome.map_err(|error| error.to_string())));
        };
        let thread = std::thread::Builder::new().name("store-log".to_owned()).spawn(run);
        let thread = thread.map_err(|source| folder::error("start the log thread for", folder, source))?;
        Ok(EmbeddedStore { commit, thread: Mutex::new(Some(thread)), closed })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.commit.stop();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the store's log thread panicked");
        }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        Ok(self.commit.mvcc.get(key))
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        durability: Durability,
    ) -> Result<u64, StoreError> {
        check_size("a key", key.len(), frame::MAX_KEY)?;
        check_size("a value", value.len(), frame::MAX_VALUE)?;
        let (revision, _) = self.commit.write(key, Some(value), expect, durability).await?;
        Ok(revision)
    }

    async fn delete(&self, key: &str, expect: Expect, durability: Durability) -> Result<Deleted, StoreError> {
        match self.commit.write(key, None, expect, durability).await? {
            (revision, Some(last)) => Ok(Deleted { revision, last }),
            (_, None) => Err(StoreError::Conflict { key: key.to_owned(), current: None }),
        }
    }

    async fn range(&self, range: Range<'_>) -> Result<Page, StoreError> {
        self.commit.mvcc.range(range)
    }

    async fn count(&self, prefix: &str) -> Result<usize, StoreError> {
        Ok(self.commit.mvcc.count(prefix))
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        self.commit.mvcc.watch(prefix, after)
    }

    async fn revision(&self) -> Result<u64, StoreError> {
        Ok(self.commit.mvcc.revision())
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.commit.mvcc.compact(revision)
    }

    async fn backup(&self, folder: &Path) -> Result<u64, StoreError> {
        backup(self.commit.mvcc.range(Range::all(""))?, folder).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.commit.stop();
        let mut closed = self.closed.clone();
        let outcome = closed.wait_for(Option::is_some).await;
        match outcome.ok().and_then(|outcome| outcome.clone()) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(StoreError::Unavailable(error)),
            None => Err(StoreError::Closed),
        }
    }
}

fn check_size(what: &'static str, size: usize, limit: usize) -> Result<(), StoreError> {
    if size > limit { Err(StoreError::TooLarge { what, size, limit }) } else { Ok(()) }
}
