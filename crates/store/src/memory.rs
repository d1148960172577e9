//! The engine with nothing behind it.

use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::mvcc::{Change, HISTORY_BYTES, Mvcc};
use crate::{Deleted, Durability, Expect, Page, Range, Record, Store, StoreError, Watch};

/// Keeps everything in memory and loses it at the end of the process.
#[derive(Debug)]
pub struct MemoryStore {
    mvcc: Mvcc,
    /// Held from the check of an expectation until the change is visible.
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    closed: bool,
}

impl MemoryStore {
    pub fn new() -> Self {
        // Kubernetes reserves resource version 0 for "any", so the first write must not be 1 after an empty
        // list at 0: an empty store is at revision 1, like etcd.
        MemoryStore { mvcc: Mvcc::load([], 1, HISTORY_BYTES), writer: Mutex::new(Writer { closed: false }) }
    }

    fn write(
        &self,
        key: &str,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<(u64, Option<Record>), StoreError> {
        let writer = self.writer.lock();
        if writer.closed {
            return Err(StoreError::Closed);
        }
        let current = self.mvcc.get(key);
        let revision = current.as_ref().map(|record| record.revision);
        if !expect.holds(revision) || (value.is_none() && current.is_none()) {
            return Err(StoreError::Conflict { key: key.to_owned(), current });
        }
        let name = current.as_ref().map_or_else(|| key.into(), |record| record.key.clone());
        let revision = self.mvcc.revision() + 1;
        let woken = self.mvcc.publish([Change { key: name, value, revision }]);
        drop(writer);
        drop(woken);
        Ok((revision, current))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        Ok(self.mvcc.get(key))
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect, _: Durability) -> Result<u64, StoreError> {
        self.write(key, Some(value), expect).map(|(revision, _)| revision)
    }

    async fn delete(&self, key: &str, expect: Expect, _: Durability) -> Result<Deleted, StoreError> {
        match self.write(key, None, expect)? {
            (revision, Some(last)) => Ok(Deleted { revision, last }),
            (_, None) => Err(StoreError::Conflict { key: key.to_owned(), current: None }),
        }
    }

    async fn range(&self, range: Range<'_>) -> Result<Page, StoreError> {
        self.mvcc.range(range)
    }

    async fn count(&self, prefix: &str) -> Result<usize, StoreError> {
        Ok(self.mvcc.count(prefix))
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        self.mvcc.watch(prefix, after)
    }

    async fn revision(&self) -> Result<u64, StoreError> {
        Ok(self.mvcc.revision())
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.mvcc.compact(revision)
    }

    async fn backup(&self, folder: &Path) -> Result<u64, StoreError> {
        crate::embedded::backup(self.mvcc.range(Range::all(""))?, folder).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.writer.lock().closed = true;
        self.mvcc.close();
        Ok(())
    }
}
