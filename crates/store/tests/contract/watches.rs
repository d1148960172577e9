//! Watching.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use tombolo_store::Durability::Durable;
use tombolo_store::{Event, Expect, Range, Store, StoreError, Watch};

use crate::writes::{create, remove, replace};

type Shared = Arc<dyn Store>;

/// The next `count` events. A test that waits for more than come hangs; the limit turns that into a failure.
async fn next(watch: &mut Watch, count: usize) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while events.len() < count {
        let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let batch = batch.unwrap_or_else(|_| panic!("{} of {count} events came", events.len())).unwrap();
        assert!(!batch.events.is_empty());
        assert!(batch.revision >= batch.events.last().unwrap().revision);
        events.extend(batch.events);
    }
    assert_eq!(events.len(), count, "more events than expected");
    events
}

fn text(value: &Option<bytes::Bytes>) -> Option<&str> {
    value.as_deref().map(|value| std::str::from_utf8(value).unwrap())
}

pub async fn a_watcher_sees_creation_update_and_deletion_with_the_values_before(store: Shared) {
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/pods/", start).await.unwrap();
    let created = create(&store, "/pods/a", "one").await;
    let updated = replace(&store, "/pods/a", "two").await;
    let deleted = remove(&store, "/pods/a").await;
    let again = create(&store, "/pods/a", "three").await;
    let events = next(&mut watch, 4).await;
    let seen: Vec<_> = events
        .iter()
        .map(|event| {
            let kind = (event.is_creation(), event.is_deletion());
            (event.revision, text(&event.previous), text(&event.value), kind, event.created)
        })
        .collect();
    let expected = [
        (created, None, Some("one"), (true, false), created),
        (updated, Some("one"), Some("two"), (false, false), created),
        (deleted, Some("two"), None, (false, true), created),
        (again, None, Some("three"), (true, false), again),
    ];
    assert_eq!(seen, expected);
    assert!(events.iter().all(|event| &*event.key == "/pods/a"));
}

pub async fn a_watcher_from_a_list_sees_only_what_came_after(store: Shared) {
    create(&store, "/pods/a", "one").await;
    let list = store.range(Range::all("/pods/")).await.unwrap();
    let mut watch = store.watch("/pods/", list.revision).await.unwrap();
    let created = create(&store, "/pods/b", "two").await;
    let events = next(&mut watch, 1).await;
    assert_eq!((events[0].revision, &*events[0].key), (created, "/pods/b"));
    assert!(watch.next().now_or_never().is_none(), "nothing else happened");
}

pub async fn a_watcher_from_an_older_revision_catches_up_without_a_gap(store: Shared) {
    let start = create(&store, "/pods/a", "0").await;
    // A topic that already exists and one that does not must both reach back.
    let _early = store.watch("/pods/", store.revision().await.unwrap()).await.unwrap();
    let mut revisions = Vec::new();
    for round in 1..=5 {
        revisions.push(replace(&store, "/pods/a", &round.to_string()).await);
    }
    for prefix in ["/pods/", "/pods/a"] {
        let mut watch = store.watch(prefix, start).await.unwrap();
        revisions.push(replace(&store, "/pods/a", "last").await);
        let seen: Vec<_> =
            next(&mut watch, revisions.len()).await.iter().map(|event| event.revision).collect();
        assert_eq!(seen, revisions);
    }
}

pub async fn a_watcher_sees_only_its_prefix(store: Shared) {
    let start = store.revision().await.unwrap();
    let mut pods = store.watch("/pods/a/", start).await.unwrap();
    let mut everything = store.watch("", start).await.unwrap();
    let mut one = store.watch("/pods/a/x", start).await.unwrap();
    for key in ["/pods/b/x", "/pods/a", "/pods/ab", "/pods/a/x", "/podsé/a", "/pods/a/é"] {
        create(&store, key, "x").await;
    }
    let keys = |events: Vec<Arc<Event>>| events.iter().map(|event| event.key.to_string()).collect::<Vec<_>>();
    assert_eq!(keys(next(&mut pods, 2).await), ["/pods/a/x", "/pods/a/é"]);
    assert_eq!(keys(next(&mut one, 1).await), ["/pods/a/x"]);
    assert_eq!(next(&mut everything, 6).await.len(), 6);
}

pub async fn a_watcher_from_a_compacted_revision_is_refused(store: Shared) {
    let first = create(&store, "/pods/a", "one").await;
    let second = replace(&store, "/pods/a", "two").await;
    let third = replace(&store, "/pods/a", "three").await;
    store.compact(second).await.unwrap();
    let refused = store.watch("/pods/", first).await;
    assert!(
        matches!(refused, Err(StoreError::Compacted { requested, .. }) if requested == first),
        "{refused:?}"
    );
    let mut watch = store.watch("/pods/", second).await.unwrap();
    assert_eq!(next(&mut watch, 1).await[0].revision, third);
}

pub async fn a_watcher_that_falls_out_of_the_history_is_told(store: Shared) {
    let start = create(&store, "/pods/a", "one").await;
    let mut slow = store.watch("/pods/", start).await.unwrap();
    replace(&store, "/pods/a", "two").await;
    let last = replace(&store, "/pods/a", "three").await;
    // It must be there before it can be forgotten: on etcd it comes through the watch.
    assert_eq!(store.revision().await.unwrap(), last);
    store.compact(last).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(20), slow.next()).await.unwrap();
    assert!(matches!(told, Err(StoreError::Lagged { .. })), "{told:?}");
}

pub async fn a_quiet_watcher_survives_compaction_of_what_others_wrote(store: Shared) {
    let start = store.revision().await.unwrap();
    let mut quiet = store.watch("/services/", start).await.unwrap();
    for round in 0..10 {
        replace(&store, "/pods/a", &round.to_string()).await;
    }
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let created = create(&store, "/services/a", "x").await;
    assert_eq!(next(&mut quiet, 1).await[0].revision, created);
}

pub async fn a_watcher_from_a_revision_to_come_waits_for_it(store: Shared) {
    let now = create(&store, "/pods/a", "0").await;
    let mut watch = store.watch("/pods/", now + 2).await.unwrap();
    for round in 1..=3 {
        replace(&store, "/pods/a", &round.to_string()).await;
    }
    assert_eq!(text(&next(&mut watch, 1).await[0].value), Some("3"));
}

pub async fn progress_moves_on_when_nothing_under_the_prefix_changes(store: Shared) {
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/pods/", start).await.unwrap();
    assert_eq!(watch.progress(), start);
    let elsewhere = create(&store, "/services/a", "x").await;
    assert_eq!(watch.progress(), elsewhere);
    let here = create(&store, "/pods/a", "x").await;
    assert!(watch.progress() < here, "an event that was not delivered is not behind us");
    next(&mut watch, 1).await;
    assert_eq!(watch.progress(), here);
}

pub async fn many_watchers_share_each_event(store: Shared) {
    let start = store.revision().await.unwrap();
    let mut watches = Vec::new();
    for _ in 0..100 {
        watches.push(store.watch("/pods/", start).await.unwrap());
    }
    create(&store, "/pods/a", "one").await;
    let first = next(&mut watches[0], 1).await.remove(0);
    assert_eq!(first.rendered(|event| event.value.clone().unwrap()), "one");
    for watch in &mut watches[1..] {
        let event = next(watch, 1).await.remove(0);
        assert!(Arc::ptr_eq(&event, &first));
        assert_eq!(event.rendered(|_| panic!("rendered twice")), "one");
    }
}

pub async fn every_watcher_sees_every_concurrent_write_once_and_in_order(store: Shared) {
    const TASKS: usize = 4;
    const WRITES: usize = 25;
    let start = store.revision().await.unwrap();
    let watchers: Vec<_> = join_all((0..4).map(|_| store.watch("/pods/", start))).await;
    let watchers = watchers.into_iter().map(|watch| {
        let mut watch = watch.unwrap();
        tokio::spawn(async move { next(&mut watch, TASKS * WRITES).await })
    });
    let watchers: Vec<_> = watchers.collect();
    let writers = (0..TASKS).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut revisions = Vec::new();
            for write in 0..WRITES {
                let key = format!("/pods/{task}/{}", write % 5);
                let write = store.put(&key, "x".into(), Expect::Any, Durable).await.unwrap();
                revisions.push(write);
            }
            revisions
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut written: Vec<u64> = join_all(writers).await.into_iter().flat_map(Result::unwrap).collect();
    written.sort_unstable();
    for watcher in watchers {
        let seen: Vec<_> = watcher.await.unwrap().iter().map(|event| event.revision).collect();
        assert_eq!(seen, written);
    }
}

pub async fn closing_the_store_ends_watches_and_refuses_writes(store: Shared) {
    let start = create(&store, "/pods/a", "one").await;
    let mut watch = store.watch("/pods/", start).await.unwrap();
    let last = create(&store, "/pods/b", "two").await;
    store.close().await.unwrap();
    assert_eq!(next(&mut watch, 1).await[0].revision, last, "what was written before is still delivered");
    let ended = watch.next().await;
    assert!(matches!(ended, Err(StoreError::Closed)), "{ended:?}");
    let refused = store.put("/pods/c", "three".into(), Expect::Any, Durable).await;
    assert!(matches!(refused, Err(StoreError::Closed)), "{refused:?}");
    store.close().await.unwrap();
}
