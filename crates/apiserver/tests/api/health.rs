use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tombolo_apiserver::{Config, Identity, Server};
use tombolo_store::{
    Deleted, Durability, Expect, MemoryStore, Page, Range, Record, Store, StoreError, Watch,
};

use crate::client::Client;

/// A store that can be out of reach.
#[derive(Default)]
struct Remote {
    inner: MemoryStore,
    away: AtomicBool,
}

#[async_trait::async_trait]
impl Store for Remote {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.inner.get(key).await
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect, how: Durability) -> Result<u64, StoreError> {
        self.inner.put(key, value, expect, how).await
    }

    async fn delete(&self, key: &str, expect: Expect, how: Durability) -> Result<Deleted, StoreError> {
        self.inner.delete(key, expect, how).await
    }

    async fn range(&self, range: Range<'_>) -> Result<Page, StoreError> {
        self.inner.range(range).await
    }

    async fn count(&self, prefix: &str) -> Result<usize, StoreError> {
        self.inner.count(prefix).await
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        self.inner.watch(prefix, after).await
    }

    async fn revision(&self) -> Result<u64, StoreError> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("nobody answers".to_owned())),
            false => self.inner.revision().await,
        }
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn backup(&self, folder: &Path) -> Result<u64, StoreError> {
        self.inner.backup(folder).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

#[tokio::test]
async fn a_server_without_its_store_is_alive_and_not_ready() {
    let store = Arc::new(Remote::default());
    let server = Server::start(Config::new(store.clone())).await.unwrap();
    let client = Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() };
    for path in ["/livez", "/readyz", "/healthz", "/readyz/ping", "/readyz/store", "/healthz/etcd"] {
        let answer = client.get(path).await;
        assert_eq!((answer.code, answer.text.as_str()), (200, "ok"), "{path}");
    }
    let all = client.get("/readyz?verbose").await;
    assert_eq!(all.text, "[+]ping ok\n[+]store ok\n[+]shutdown ok\nreadyz check passed\n");
    assert_eq!(client.get("/readyz/nothing").await.code, 404);

    store.away.store(true, Ordering::Relaxed);
    let ready = client.get("/readyz").await;
    assert_eq!(ready.code, 500);
    assert!(
        ready.text.contains("[-]store failed: ") && ready.text.contains("nobody answers"),
        "{}",
        ready.text
    );
    assert!(ready.text.ends_with("readyz check failed\n"), "{}", ready.text);
    assert_eq!(client.get("/healthz").await.code, 500);
    for path in ["/livez", "/readyz/ping"] {
        assert_eq!(client.get(path).await.code, 200, "{path}");
    }

    store.away.store(false, Ordering::Relaxed);
    assert_eq!(client.get("/readyz").await.code, 200);
}
