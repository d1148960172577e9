//! Ranges, points in time, paging, compaction.

use std::sync::Arc;

use tombolo_store::{At, EmbeddedOptions, EmbeddedStore, Page, Range, Store, StoreError};

use crate::writes::{create, remove, replace};

type Shared = Arc<dyn Store>;

fn keys(page: &Page) -> Vec<&str> {
    page.records.iter().map(|record| &*record.key).collect()
}

async fn all(store: &Shared, prefix: &str) -> Page {
    store.range(Range::all(prefix)).await.unwrap()
}

async fn at(store: &Shared, prefix: &str, revision: u64) -> Result<Page, StoreError> {
    store.range(Range { at: At::Exact(revision), ..Range::all(prefix) }).await
}

pub async fn a_missing_key_reads_as_nothing(store: Shared) {
    assert_eq!(store.get("/pods/a/x").await.unwrap(), None);
}

pub async fn a_range_is_ordered_and_stays_within_its_prefix(store: Shared) {
    for key in ["/pods/b/x", "/pods/a/y", "/pods/ab/x", "/pod", "/pods/a/x", "/podsa", "/services/a/x"] {
        create(&store, key, key).await;
    }
    assert_eq!(keys(&all(&store, "/pods/").await), ["/pods/a/x", "/pods/a/y", "/pods/ab/x", "/pods/b/x"]);
    let page = all(&store, "/pods/a/").await;
    assert_eq!(keys(&page), ["/pods/a/x", "/pods/a/y"]);
    assert!(page.records.iter().all(|record| record.value == record.key.as_bytes()));
    assert_eq!(keys(&all(&store, "/zebras/").await), [""; 0]);
    assert_eq!(all(&store, "").await.records.len(), 7);
}

pub async fn an_empty_range_still_names_the_current_revision(store: Shared) {
    assert_eq!(all(&store, "/pods/").await.revision, store.revision().await.unwrap());
    let revision = create(&store, "/services/a", "x").await;
    let page = all(&store, "/pods/").await;
    assert_eq!((page.records.len(), page.revision, page.more()), (0, revision, false));
}

pub async fn pages_of_one_revision_show_one_point_in_time(store: Shared) {
    for name in 0..10 {
        create(&store, &format!("/pods/a/{name}"), "before").await;
    }
    let first = store.range(Range { limit: 4, ..Range::all("/pods/") }).await.unwrap();
    assert_eq!(keys(&first), ["/pods/a/0", "/pods/a/1", "/pods/a/2", "/pods/a/3"]);

    remove(&store, "/pods/a/5").await;
    replace(&store, "/pods/a/6", "after").await;
    create(&store, "/pods/a/44", "after").await;

    let mut seen = first.records.clone();
    let mut page = first.clone();
    while page.more() {
        let after = page.records.last().map(|record| record.key.clone()).unwrap();
        let next = Range { after: Some(&after), limit: 4, at: At::Exact(first.revision), prefix: "/pods/" };
        page = store.range(next).await.unwrap();
        assert_eq!(page.revision, first.revision);
        seen.extend(page.records.clone());
    }
    let names: Vec<_> = seen.iter().map(|record| record.key.to_string()).collect();
    assert_eq!(names, (0..10).map(|name| format!("/pods/a/{name}")).collect::<Vec<_>>());
    assert!(seen.iter().all(|record| record.value == "before"));
}

pub async fn a_page_says_how_many_records_remain(store: Shared) {
    for name in 0..5 {
        create(&store, &format!("/pods/a/{name}"), "x").await;
    }
    remove(&store, "/pods/a/4").await;
    create(&store, "/pods2/a", "x").await;
    for (limit, remaining) in [(1, 3), (3, 1), (4, 0), (9, 0), (0, 0)] {
        let page = store.range(Range { limit, ..Range::all("/pods/") }).await.unwrap();
        assert_eq!((page.remaining, page.more()), (remaining, remaining > 0), "limit {limit}");
    }
}

pub async fn a_continuation_starts_after_its_key_even_if_that_is_gone(store: Shared) {
    for name in ["a", "b", "c", "d"] {
        create(&store, &format!("/pods/{name}"), "x").await;
    }
    remove(&store, "/pods/b").await;
    let from = |after| Range { after: Some(after), ..Range::all("/pods/") };
    assert_eq!(keys(&store.range(from("/pods/b")).await.unwrap()), ["/pods/c", "/pods/d"]);
    assert_eq!(keys(&store.range(from("/pods/c")).await.unwrap()), ["/pods/d"]);
    assert_eq!(keys(&store.range(from("/pods/d")).await.unwrap()), [""; 0]);
    assert_eq!(keys(&store.range(from("/a")).await.unwrap()), ["/pods/a", "/pods/c", "/pods/d"]);
    assert_eq!(keys(&store.range(from("/zebras")).await.unwrap()), [""; 0]);
}

pub async fn a_range_at_an_older_revision_shows_what_was_there_then(store: Shared) {
    let before = store.revision().await.unwrap();
    let created = create(&store, "/pods/a", "one").await;
    let updated = replace(&store, "/pods/a", "two").await;
    let deleted = remove(&store, "/pods/a").await;
    let again = create(&store, "/pods/a", "three").await;
    for (revision, expected) in [
        (before, None),
        (created, Some(("one", created, created))),
        (updated, Some(("two", created, updated))),
        (deleted, None),
        (again, Some(("three", again, again))),
    ] {
        let page = at(&store, "/pods/", revision).await.unwrap();
        assert_eq!(page.revision, revision);
        let seen = page
            .records
            .first()
            .map(|record| (std::str::from_utf8(&record.value).unwrap(), record.created, record.revision));
        assert_eq!(seen, expected, "at {revision}");
    }
}

pub async fn a_range_at_a_revision_to_come_is_refused(store: Shared) {
    let now = create(&store, "/pods/a", "one").await;
    for at in [At::Exact(now + 1), At::AtLeast(now + 1)] {
        let refused = store.range(Range { at, ..Range::all("/pods/") }).await;
        assert!(
            matches!(refused, Err(StoreError::Future { requested, current }) if requested == now + 1 && current == now),
            "{refused:?}"
        );
    }
    let page = store.range(Range { at: At::AtLeast(now), ..Range::all("/pods/") }).await.unwrap();
    assert_eq!(keys(&page), ["/pods/a"]);
}

pub async fn a_compacted_revision_is_refused_and_the_current_state_stays(store: Shared) {
    let created = create(&store, "/pods/a", "one").await;
    create(&store, "/pods/b", "kept").await;
    let updated = replace(&store, "/pods/a", "two").await;
    create(&store, "/pods/c", "gone").await;
    let deleted = remove(&store, "/pods/c").await;
    let last = replace(&store, "/pods/a", "three").await;

    store.compact(deleted).await.unwrap();
    for forgotten in [created, updated] {
        let refused = at(&store, "/pods/", forgotten).await;
        assert!(
            matches!(refused, Err(StoreError::Compacted { requested, .. }) if requested == forgotten),
            "{refused:?}"
        );
    }
    let values = |page: Page| page.records.iter().map(|record| record.value.clone()).collect::<Vec<_>>();
    assert_eq!(values(at(&store, "/pods/", deleted).await.unwrap()), ["two", "kept"]);
    assert_eq!(values(at(&store, "/pods/", last).await.unwrap()), ["three", "kept"]);
    assert_eq!(values(all(&store, "/pods/").await), ["three", "kept"]);
}

pub async fn compaction_at_a_past_or_future_revision_is_harmless(store: Shared) {
    let first = create(&store, "/pods/a", "one").await;
    let second = replace(&store, "/pods/a", "two").await;
    store.compact(second).await.unwrap();
    store.compact(first).await.unwrap();
    store.compact(second).await.unwrap();
    let refused = store.compact(second + 1000).await;
    assert!(matches!(refused, Err(StoreError::Future { .. })), "{refused:?}");
    assert_eq!(all(&store, "/pods/").await.records[0].value, "two");
}

pub async fn a_count_counts_what_exists(store: Shared) {
    for key in ["/pods/a", "/pods/b", "/pods/c", "/services/a"] {
        create(&store, key, "x").await;
    }
    remove(&store, "/pods/b").await;
    assert_eq!(store.count("/pods/").await.unwrap(), 2);
    assert_eq!(store.count("").await.unwrap(), 3);
    assert_eq!(store.count("/zebras/").await.unwrap(), 0);
}

pub async fn a_backup_opens_as_an_embedded_store(store: Shared) {
    for name in 0..20 {
        create(&store, &format!("/pods/{name:02}"), "x").await;
    }
    replace(&store, "/pods/03", "updated").await;
    remove(&store, "/pods/07").await;
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("copy");
    let revision = store.backup(&into).await.unwrap();
    let live = all(&store, "").await;
    assert_eq!(revision, live.revision);

    let again = store.backup(&into).await;
    assert!(matches!(again, Err(StoreError::NotEmpty { .. })), "{again:?}");
    let copy = EmbeddedStore::open(&into, EmbeddedOptions::default()).unwrap();
    assert_eq!(copy.range(Range::all("")).await.unwrap(), live);
}
