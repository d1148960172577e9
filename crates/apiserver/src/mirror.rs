//! Small in-memory indexes of what the server itself consults on requests: access rules, definitions, namespaces.
//!
//! A mirror has no task of its own. Before a request reads it, it takes over the changes that the store
//! has published since the last read, so a client always sees its own writes in effect; between requests
//! it costs nothing.

use futures::FutureExt;
use parking_lot::RwLock;
use tombolo_store::{Range, Store, StoreError, Watch};

/// An index over the records of some kinds.
pub trait Index: Send + Sync {
    /// A record of the n-th source was written.
    fn put(&mut self, source: usize, key: &str, value: &[u8], revision: u64);
    fn remove(&mut self, source: usize, key: &str);
    /// Everything known of a source is void; it is read again from the start.
    fn clear(&mut self, source: usize);
}

struct Source {
    prefix: String,
    watch: Option<Watch>,
}

pub struct Mirror<T> {
    sources: tokio::sync::Mutex<Vec<Source>>,
    state: RwLock<T>,
}

impl<T: Index> Mirror<T> {
    pub fn new(state: T, prefixes: impl IntoIterator<Item = String>) -> Self {
        let sources = prefixes.into_iter().map(|prefix| Source { prefix, watch: None }).collect();
        Self { sources: tokio::sync::Mutex::new(sources), state: RwLock::new(state) }
    }

    /// The index as of the newest published change.
    pub async fn fresh(&self, store: &dyn Store) -> Result<parking_lot::RwLockReadGuard<'_, T>, StoreError> {
        self.refresh(store).await?;
        Ok(self.state.read())
    }

    async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut sources = self.sources.lock().await;
        for (number, source) in sources.iter_mut().enumerate() {
            loop {
                let Some(watch) = source.watch.as_mut() else {
                    let page = store.range(Range::all(&source.prefix)).await?;
                    source.watch = Some(store.watch(&source.prefix, page.revision).await?);
                    let mut state = self.state.write();
                    state.clear(number);
                    for record in &page.records {
                        state.put(number, &record.key, &record.value, record.revision);
                    }
                    continue;
                };
                match watch.next().now_or_never() {
                    None => break,
                    Some(Ok(batch)) => {
                        let mut state = self.state.write();
                        for event in &batch.events {
                            match &event.value {
                                Some(value) => state.put(number, &event.key, value, event.revision),
                                None => state.remove(number, &event.key),
                            }
                        }
                    }
                    Some(Err(StoreError::Lagged { .. } | StoreError::Compacted { .. })) => {
                        source.watch = None
                    }
                    Some(Err(error)) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
