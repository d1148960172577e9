//! A fresh store of each engine.

use std::sync::Arc;

use tempfile::TempDir;
use tombolo_store::{EmbeddedOptions, EmbeddedStore, MemoryStore, Store};

/// A store, and what must outlive it.
pub struct Engine {
    pub store: Arc<dyn Store>,
    _behind: Option<Box<dyn Send>>,
}

pub async fn memory() -> Option<Engine> {
    Some(Engine { store: Arc::new(MemoryStore::new()), _behind: None })
}

pub async fn embedded() -> Option<Engine> {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), EmbeddedOptions::default()).unwrap();
    Some(Engine { store: Arc::new(store), _behind: Some(Box::new(folder)) })
}

pub async fn etcd() -> Option<Engine> {
    None
}
