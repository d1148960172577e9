//! Creating, updating and deleting under expectations.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use tombolo_store::Durability::{Durable, Volatile};
use tombolo_store::{Expect, Record, Store, StoreError};

type Shared = Arc<dyn Store>;

/// What a conflict carries; anything else is a failure of the test.
#[track_caller]
pub fn conflict<T: std::fmt::Debug>(result: Result<T, StoreError>) -> Option<Record> {
    match result {
        Err(StoreError::Conflict { current, .. }) => current,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

pub async fn create(store: &Shared, key: &str, value: &str) -> u64 {
    let value = Bytes::copy_from_slice(value.as_bytes());
    store.put(key, value, Expect::Absent, Durable).await.unwrap()
}

pub async fn replace(store: &Shared, key: &str, value: &str) -> u64 {
    let value = Bytes::copy_from_slice(value.as_bytes());
    store.put(key, value, Expect::Any, Durable).await.unwrap()
}

pub async fn remove(store: &Shared, key: &str) -> u64 {
    store.delete(key, Expect::Any, Durable).await.unwrap().revision
}

fn record(key: &str, value: &'static str, created: u64, revision: u64) -> Record {
    Record { key: key.into(), value: Bytes::from_static(value.as_bytes()), created, revision }
}

pub async fn a_created_key_reads_back_with_its_revision(store: Shared) {
    let revision = create(&store, "/pods/a/x", "one").await;
    let read = store.get("/pods/a/x").await.unwrap();
    assert_eq!(read, Some(record("/pods/a/x", "one", revision, revision)));
    assert!(store.revision().await.unwrap() >= revision);
}

pub async fn creating_a_key_that_exists_is_a_conflict_that_carries_it(store: Shared) {
    let revision = create(&store, "/pods/a/x", "one").await;
    let again = store.put("/pods/a/x", "two".into(), Expect::Absent, Durable).await;
    assert_eq!(conflict(again), Some(record("/pods/a/x", "one", revision, revision)));
}

pub async fn an_update_keeps_the_creation_and_moves_the_revision(store: Shared) {
    let created = create(&store, "/pods/a/x", "one").await;
    let updated = store.put("/pods/a/x", "two".into(), Expect::Revision(created), Durable).await.unwrap();
    assert!(updated > created);
    let read = store.get("/pods/a/x").await.unwrap();
    assert_eq!(read, Some(record("/pods/a/x", "two", created, updated)));
}

pub async fn an_update_of_an_older_revision_is_a_conflict_that_carries_the_newer(store: Shared) {
    let created = create(&store, "/pods/a/x", "one").await;
    let updated = replace(&store, "/pods/a/x", "two").await;
    let stale = store.put("/pods/a/x", "three".into(), Expect::Revision(created), Durable).await;
    assert_eq!(conflict(stale), Some(record("/pods/a/x", "two", created, updated)));
    let read = store.get("/pods/a/x").await.unwrap();
    assert_eq!(read, Some(record("/pods/a/x", "two", created, updated)));
}

pub async fn an_update_of_a_missing_key_is_a_conflict_with_nothing(store: Shared) {
    let created = create(&store, "/pods/a/x", "one").await;
    remove(&store, "/pods/a/x").await;
    let gone = store.put("/pods/a/x", "two".into(), Expect::Revision(created), Durable).await;
    assert_eq!(conflict(gone), None);
    assert_eq!(store.get("/pods/a/x").await.unwrap(), None);
}

pub async fn a_write_that_expects_anything_creates_and_replaces(store: Shared) {
    let created = replace(&store, "/pods/a/x", "one").await;
    let replaced = replace(&store, "/pods/a/x", "two").await;
    let read = store.get("/pods/a/x").await.unwrap();
    assert_eq!(read, Some(record("/pods/a/x", "two", created, replaced)));
}

pub async fn a_delete_has_its_own_revision_and_returns_the_last_record(store: Shared) {
    let created = create(&store, "/pods/a/x", "one").await;
    let updated = replace(&store, "/pods/a/x", "two").await;
    let deleted = store.delete("/pods/a/x", Expect::Revision(updated), Durable).await.unwrap();
    assert!(deleted.revision > updated);
    assert_eq!(deleted.last, record("/pods/a/x", "two", created, updated));
    assert_eq!(store.get("/pods/a/x").await.unwrap(), None);
}

pub async fn a_delete_of_another_revision_or_a_missing_key_is_a_conflict(store: Shared) {
    let created = create(&store, "/pods/a/x", "one").await;
    let updated = replace(&store, "/pods/a/x", "two").await;
    let stale = store.delete("/pods/a/x", Expect::Revision(created), Durable).await;
    assert_eq!(conflict(stale), Some(record("/pods/a/x", "two", created, updated)));
    assert_eq!(conflict(store.delete("/pods/a/y", Expect::Any, Durable).await), None);
    assert_eq!(conflict(store.delete("/pods/a/y", Expect::Revision(created), Durable).await), None);
    assert_eq!(store.get("/pods/a/x").await.unwrap().unwrap().revision, updated);
}

pub async fn a_key_created_again_is_a_new_creation(store: Shared) {
    create(&store, "/pods/a/x", "one").await;
    let deleted = remove(&store, "/pods/a/x").await;
    let created = create(&store, "/pods/a/x", "two").await;
    assert!(created > deleted);
    let read = store.get("/pods/a/x").await.unwrap();
    assert_eq!(read, Some(record("/pods/a/x", "two", created, created)));
}

pub async fn every_write_has_a_greater_revision_than_the_one_before(store: Shared) {
    let mut last = store.revision().await.unwrap();
    assert!(last >= 1, "an empty store is past 0, which Kubernetes reads as \"any\"");
    for round in 0..20 {
        let key = format!("/pods/a/{}", round % 3);
        let revision = match round % 4 {
            3 => remove(&store, &key).await,
            _ => replace(&store, &key, "value").await,
        };
        assert!(revision > last, "{revision} after {last}");
        assert_eq!(store.revision().await.unwrap(), revision);
        last = revision;
    }
}

pub async fn concurrent_updates_of_one_key_lose_none(store: Shared) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 20;
    create(&store, "/counter", "0").await;
    let tasks = (0..TASKS).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let mut current = store.get("/counter").await.unwrap().unwrap();
                loop {
                    let count: usize = std::str::from_utf8(&current.value).unwrap().parse().unwrap();
                    let next = Bytes::from((count + 1).to_string());
                    match store.put("/counter", next, Expect::Revision(current.revision), Durable).await {
                        Ok(_) => break,
                        conflicting => current = conflict(conflicting).unwrap(),
                    }
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let total = store.get("/counter").await.unwrap().unwrap();
    assert_eq!(total.value, (TASKS * ROUNDS).to_string());
}

pub async fn only_one_of_many_concurrent_creations_succeeds(store: Shared) {
    for round in 0..10 {
        let key = format!("/pods/a/{round}");
        let attempts = (0..8).map(|attempt| {
            let (store, key) = (store.clone(), key.clone());
            let value = Bytes::from(format!("attempt {attempt}"));
            tokio::spawn(async move { store.put(&key, value, Expect::Absent, Durable).await })
        });
        let outcomes: Vec<_> = join_all(attempts).await.into_iter().map(Result::unwrap).collect();
        let winner = store.get(&key).await.unwrap().unwrap();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        for lost in outcomes.into_iter().filter(Result::is_err) {
            assert_eq!(conflict(lost), Some(winner.clone()));
        }
    }
}

pub async fn volatile_writes_are_seen_at_once_and_in_order(store: Shared) {
    let mut last = 0;
    for round in 0..50 {
        let durability = if round % 3 == 0 { Durable } else { Volatile };
        let value = Bytes::from(round.to_string());
        let revision = store.put("/leases/a", value.clone(), Expect::Any, durability).await.unwrap();
        assert!(revision > last);
        let read = store.get("/leases/a").await.unwrap().unwrap();
        assert_eq!((read.value, read.revision), (value, revision));
        last = revision;
    }
    store.delete("/leases/a", Expect::Revision(last), Volatile).await.unwrap();
    assert_eq!(store.get("/leases/a").await.unwrap(), None);
}

pub async fn values_may_be_empty_large_and_not_text(store: Shared) {
    let large = Bytes::from((0..1_000_000u32).map(|byte| (byte * 31) as u8).collect::<Vec<_>>());
    for (key, value) in [("/a", Bytes::new()), ("/b", Bytes::from_static(b"\xff\0\xfe")), ("/c", large)] {
        store.put(key, value.clone(), Expect::Absent, Durable).await.unwrap();
        assert_eq!(store.get(key).await.unwrap().unwrap().value, value);
    }
}
