//! What happens to the files: crashes, damage, full disks, cleaning.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::disk::{BeforeSync, Disk, Faults};
use super::frame::SEGMENT_HEADER;
use super::log::Sizes;
use super::{EmbeddedOptions, EmbeddedStore, folder, restore};
use crate::Durability::{Durable, Volatile};
use crate::{Durability, Expect, Range, Record, Store, StoreError};

const NO_SPACE: i32 = 28;
const IO_ERROR: i32 = 5;

fn open(folder: &Path) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::open(folder, EmbeddedOptions::default())
}

fn open_with(folder: &Path, sizes: Sizes, disk: &Disk) -> EmbeddedStore {
    EmbeddedStore::open_on(folder, EmbeddedOptions::default(), sizes, disk.clone()).unwrap()
}

async fn put(store: &EmbeddedStore, key: &str, value: &str, durability: Durability) -> u64 {
    try_put(store, key, value, durability).await.unwrap()
}

async fn try_put(
    store: &EmbeddedStore,
    key: &str,
    value: &str,
    durability: Durability,
) -> Result<u64, StoreError> {
    store.put(key, Bytes::copy_from_slice(value.as_bytes()), Expect::Any, durability).await
}

async fn all(store: &EmbeddedStore) -> Vec<Record> {
    store.range(Range::all("")).await.unwrap().records
}

/// The folder as a crash would leave it now: the store goes on, the copy is what the disk holds. Copied again if the
/// log moved meanwhile (cleaning goes on by itself), for a disk has one state at a time.
fn crash(folder: &Path) -> TempDir {
    let sizes = || {
        let sizes =
            segments(folder).into_iter().map(|path| (fs::metadata(&path).map(|file| file.len()).ok(), path));
        sizes.collect::<Vec<_>>()
    };
    loop {
        let copy = tempfile::tempdir().unwrap();
        let before = sizes();
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let _ = fs::copy(entry.path(), copy.path().join(entry.file_name()));
        }
        if before == sizes() {
            return copy;
        }
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn everything_is_back_after_a_clean_stop_with_the_same_revision() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    put(&store, "/a", "one", Durable).await;
    put(&store, "/b", "two", Volatile).await;
    put(&store, "/a", "three", Durable).await;
    put(&store, "/c", "four", Durable).await;
    store.delete("/c", Expect::Any, Durable).await.unwrap();
    let (before, revision) = (all(&store).await, store.revision().await.unwrap());
    store.close().await.unwrap();
    drop(store);

    let store = open(folder.path()).unwrap();
    assert_eq!(all(&store).await, before);
    assert_eq!(store.revision().await.unwrap(), revision);
    let old = store.watch("/", revision - 1).await;
    assert!(
        matches!(old, Err(StoreError::Compacted { .. })),
        "history does not outlive the process: {old:?}"
    );
    assert_eq!(put(&store, "/d", "five", Durable).await, revision + 1);
}

#[tokio::test]
async fn a_crash_loses_no_durable_write_and_revisions_do_not_go_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    put(&store, "/a", "durable", Durable).await;
    put(&store, "/lease", "old", Durable).await;
    put(&store, "/lease", "new", Volatile).await;
    let last = put(&store, "/event", "lost", Volatile).await;

    let copy = crash(folder.path());
    let after = open(copy.path()).unwrap();
    let values: Vec<_> = all(&after).await.into_iter().map(|record| record.value).collect();
    assert_eq!(values, ["durable", "old"]);
    assert!(after.revision().await.unwrap() >= last, "the lost revisions were seen by someone");
    assert!(put(&after, "/b", "x", Durable).await > last);
}

/// The folder as a power cut would leave it: of each file only what was synced.
fn power_cut(folder: &Path, synced: &HashMap<u64, u64>) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (metadata, target) = (entry.metadata().unwrap(), copy.path().join(entry.file_name()));
        fs::copy(entry.path(), &target).unwrap();
        if let Some(length) = synced.get(&metadata.ino()) {
            fs::OpenOptions::new().write(true).open(&target).unwrap().set_len(*length).unwrap();
        }
    }
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_at_any_moment_loses_no_acknowledged_write() {
    const CUTS: usize = 60;
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    // Small enough to be cleaned meanwhile: what is moved must be safe before it is gone where it was.
    let sizes = Sizes { segment: 8 << 10, floor: 16 << 10, step: 4 << 10 };
    let store = Arc::new(open_with(folder.path(), sizes, &disk));
    let acknowledged: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let cuts: Arc<Mutex<Vec<(BTreeMap<String, u64>, TempDir)>>> = Arc::default();
    let (path, acks, taken) = (folder.path().to_owned(), acknowledged.clone(), cuts.clone());
    let mut moments = 0;
    disk.faults.lock().before_sync = Some(BeforeSync(Box::new(move |synced| {
        moments += 1;
        if moments % 5 == 0 && taken.lock().len() < CUTS {
            let acks = acks.lock().clone();
            taken.lock().push((acks, power_cut(&path, synced)));
        }
    })));
    let writers = (0..8).map(|writer| {
        let (store, acknowledged) = (store.clone(), acknowledged.clone());
        tokio::spawn(async move {
            for n in 0..100u64 {
                let key = format!("/registry/{writer}/{}", n % 7);
                let revision = put(&store, &key, &"x".repeat(200), Durable).await;
                acknowledged.lock().insert(key, revision);
            }
        })
    });
    join_all(writers).await.into_iter().for_each(|done| done.unwrap());
    let cuts = std::mem::take(&mut *cuts.lock());
    assert!(cuts.len() > 10, "only {} cuts", cuts.len());
    for (acknowledged, folder) in cuts {
        let store = open(folder.path()).unwrap();
        let found: BTreeMap<String, u64> =
            all(&store).await.into_iter().map(|record| (record.key.to_string(), record.revision)).collect();
        for (key, revision) in &acknowledged {
            assert!(found.get(key).is_some_and(|found| found >= revision), "{key} at {revision}: {found:?}");
        }
        let newest = acknowledged.values().max().copied().unwrap_or(0);
        assert!(store.revision().await.unwrap() >= newest);
    }
}

/// Counts the syncs of a disk from now on.
fn count_syncs(disk: &Disk) -> Arc<AtomicUsize> {
    let syncs: Arc<AtomicUsize> = Arc::default();
    let counter = syncs.clone();
    disk.faults.lock().before_sync = Some(BeforeSync(Box::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    })));
    syncs
}

#[tokio::test]
async fn writers_that_come_during_a_sync_share_the_next_one() {
    const WRITERS: usize = 100;
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let store = open_with(folder.path(), Sizes::default(), &disk);
    let (in_sync, mut began) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    // Every sync is told, and the first is held up until all others have queued.
    disk.faults.lock().before_sync = Some(BeforeSync(Box::new(move |_| {
        let _ = in_sync.send(());
        // Nobody holds up the later ones: their sender is gone.
        let _ = held.recv();
    })));
    let mut first = std::pin::pin!(put(&store, "/first", "x", Durable));
    assert!(futures::poll!(&mut first).is_pending());
    began.recv().await.unwrap();
    let keys: Vec<_> = (0..WRITERS).map(|n| format!("/registry/{n}")).collect();
    let mut others = std::pin::pin!(join_all(keys.iter().map(|key| put(&store, key, "x", Durable))));
    assert!(futures::poll!(&mut others).is_pending());
    drop(go_on);
    first.await;
    others.await;
    began.close();
    let mut later = 0;
    while began.recv().await.is_some() {
        later += 1;
    }
    assert_eq!(later, 1, "{WRITERS} writers waited for one sync each, or for none");
    assert_eq!(all(&open(crash(folder.path()).path()).unwrap()).await.len(), WRITERS + 1);
}

#[tokio::test]
async fn volatile_writes_cost_no_sync_even_when_they_are_flushed() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let options = EmbeddedOptions { flush_interval: Duration::from_millis(1), ..Default::default() };
    let store = EmbeddedStore::open_on(folder.path(), options, Sizes::default(), disk.clone()).unwrap();
    let syncs = count_syncs(&disk);
    // Reserves the revisions that the others use, and shows that the count can rise.
    put(&store, "/a", "durable", Durable).await;
    assert_eq!(syncs.load(Ordering::SeqCst), 1);
    let length = || fs::metadata(&segments(folder.path())[0]).unwrap().len();
    let before = length();
    for round in 0..1000 {
        put(&store, "/lease", &round.to_string(), Volatile).await;
    }
    while length() == before {
        tokio::task::yield_now().await;
    }
    // Queued behind a flush that is still under way.
    store.delete("/a", Expect::Any, Durable).await.unwrap();
    assert_eq!(syncs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn volatile_writes_alone_write_nothing_until_they_are_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { flush_interval: Duration::from_secs(3600), ..Default::default() };
    let store = EmbeddedStore::open(folder.path(), options).unwrap();
    put(&store, "/a", "durable", Durable).await;
    let length = || fs::metadata(&segments(folder.path())[0]).unwrap().len();
    let before = length();
    for round in 0..1000 {
        put(&store, "/lease", &round.to_string(), Volatile).await;
    }
    assert_eq!(length(), before);
    store.close().await.unwrap();
    assert!(length() > before && length() < before + 200, "only the last of them was written");
}

#[tokio::test]
async fn volatile_writes_are_flushed_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { flush_interval: Duration::from_millis(10), ..Default::default() };
    let store = EmbeddedStore::open(folder.path(), options).unwrap();
    put(&store, "/lease", "kept", Volatile).await;
    put(&store, "/event", "kept", Durable).await;
    store.delete("/event", Expect::Any, Volatile).await.unwrap();
    loop {
        let copy = crash(folder.path());
        let records = all(&open(copy.path()).unwrap()).await;
        if records.len() == 1 && &*records[0].key == "/lease" {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn revisions_reserved_for_volatile_writes_never_run_out() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let mut last = 0;
    for _ in 0..250_000 {
        last = put(&store, "/lease", "x", Volatile).await;
    }
    let after = open(crash(folder.path()).path()).unwrap().revision().await.unwrap();
    assert!(after >= last, "{after} is before {last}");
}

#[tokio::test]
async fn a_write_that_was_cut_short_is_dropped_and_all_before_it_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    put(&store, "/a", "one", Durable).await;
    let one = fs::metadata(&segments(folder.path())[0]).unwrap().len();
    put(&store, "/b", "two", Durable).await;
    let two = fs::metadata(&segments(folder.path())[0]).unwrap().len();
    for length in one + 1..two {
        let copy = crash(folder.path());
        let segment = &segments(copy.path())[0];
        fs::OpenOptions::new().write(true).open(segment).unwrap().set_len(length).unwrap();
        let after = open(copy.path()).unwrap();
        let keys: Vec<_> = all(&after).await.into_iter().map(|record| record.key).collect();
        assert_eq!(keys, ["/a".into()]);
        put(&after, "/c", "three", Durable).await;
        drop(after);
        assert_eq!(all(&open(copy.path()).unwrap()).await.len(), 2);
    }
}

#[tokio::test]
async fn damage_to_acknowledged_data_is_an_error_that_names_the_place_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    for name in 0..5 {
        put(&store, &format!("/{name}"), "value", Durable).await;
    }
    let length = fs::metadata(&segments(folder.path())[0]).unwrap().len() as usize;
    let last = length - (length - SEGMENT_HEADER) / 5;
    for place in (0..last).step_by(7) {
        let copy = crash(folder.path());
        let segment = segments(copy.path()).remove(0);
        let mut bytes = fs::read(&segment).unwrap();
        bytes[place] ^= 0x40;
        fs::write(&segment, &bytes).unwrap();
        match open(copy.path()) {
            Err(StoreError::Damaged { path, offset, .. }) => {
                assert_eq!(path, segment);
                assert!(offset as usize <= place);
            }
            Err(StoreError::NewerFormat { .. }) => assert!((8..12).contains(&place)),
            other => panic!("byte {place}: {other:?}"),
        }
        assert_eq!(fs::read(&segment).unwrap(), bytes, "nothing was changed");
    }
}

#[tokio::test]
async fn a_cleanly_closed_log_that_was_cut_or_lost_a_segment_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes { segment: 4000, ..Sizes::default() };
    let store = open_with(folder.path(), sizes, &Disk::default());
    for name in 0..100 {
        put(&store, &format!("/{name}"), &"x".repeat(100), Durable).await;
    }
    drop(store);
    let count = segments(folder.path()).len();
    assert!(count >= 3, "{count} segments");

    let cut = crash(folder.path());
    let last = segments(cut.path()).pop().unwrap();
    let length = fs::metadata(&last).unwrap().len();
    fs::OpenOptions::new().write(true).open(&last).unwrap().set_len(length - 1).unwrap();
    assert!(matches!(open(cut.path()), Err(StoreError::Damaged { path, .. }) if path == last));
    assert_eq!(fs::metadata(&last).unwrap().len(), length - 1, "nothing was changed");

    for lost in 1..count {
        let copy = crash(folder.path());
        fs::remove_file(&segments(copy.path())[lost]).unwrap();
        let opened = open(copy.path());
        assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{opened:?}");
    }
}

#[tokio::test]
async fn a_folder_from_a_newer_version_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    let segment = segments(folder.path()).remove(0);
    let mut bytes = fs::read(&segment).unwrap();
    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    bytes.extend_from_slice(b"what only the newer version understands");
    fs::write(&segment, &bytes).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    assert_eq!(fs::read(&segment).unwrap(), bytes);
}

#[tokio::test]
async fn a_folder_in_use_is_refused_until_it_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    put(&store, "/a", "one", Durable).await;
    drop(store);
    assert_eq!(all(&open(folder.path()).unwrap()).await.len(), 1);
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_reads_and_works_again_with_room() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = open_with(folder.path(), Sizes::default(), &disk);
    put(&store, "/a", "before", Durable).await;
    disk.faults.lock().write = Some(NO_SPACE);
    let writes = join_all((0..10).map(|name| try_put(&store, ["/a", "/b"][name % 2], "lost", Durable))).await;
    for write in writes {
        assert!(matches!(write, Err(StoreError::Full { .. })), "{write:?}");
    }
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, "before");
    assert_eq!(store.get("/b").await.unwrap(), None);
    put(&store, "/lease", "volatile", Volatile).await;

    disk.faults.lock().write = None;
    put(&store, "/b", "after", Durable).await;
    let copy = crash(folder.path());
    let values: Vec<_> =
        all(&open(copy.path()).unwrap()).await.into_iter().map(|record| record.value).collect();
    assert_eq!(values, ["before", "after"]);
}

#[tokio::test]
async fn a_failed_sync_takes_the_writes_back_even_if_the_repair_fails_first() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = open_with(folder.path(), Sizes::default(), &disk);
    put(&store, "/a", "before", Durable).await;
    *disk.faults.lock() =
        Faults { write: None, sync: Some(IO_ERROR), truncate: Some(IO_ERROR), ..Faults::default() };
    let refused = try_put(&store, "/a", "lost", Durable).await;
    assert!(matches!(refused, Err(StoreError::Io { action: "sync", .. })), "{refused:?}");
    let refused = try_put(&store, "/a", "lost", Durable).await;
    assert!(matches!(refused, Err(StoreError::Io { action: "repair", .. })), "{refused:?}");
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, "before");

    *disk.faults.lock() = Default::default();
    put(&store, "/b", "after", Durable).await;
    let values: Vec<_> = all(&open(crash(folder.path()).path()).unwrap())
        .await
        .into_iter()
        .map(|record| record.value)
        .collect();
    assert_eq!(values, ["before", "after"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleaning_keeps_the_log_small_and_loses_nothing_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes { segment: 4 << 10, floor: 16 << 10, step: 1 << 10 };
    let store = Arc::new(open_with(folder.path(), sizes, &Disk::default()));
    for name in 0..40 {
        put(&store, &format!("/cold/{name}"), "rarely written", Durable).await;
    }
    for round in 0..400 {
        let writes = (0..4).map(|task| {
            let store = store.clone();
            async move {
                let key = format!("/hot/{task}/{}", round % 10);
                match round % 7 {
                    6 => drop(store.delete(&key, Expect::Any, Durable).await),
                    5 => drop(put(&store, &key, "volatile", Volatile).await),
                    _ => drop(put(&store, &key, &"x".repeat(50), Durable).await),
                }
            }
        });
        join_all(writes).await;
        if round % 20 == 0 {
            // No write is under way, so what is on disk is what readers see, volatile ones apart.
            let durable = |records: Vec<Record>| {
                records.into_iter().filter(|record| record.value != "volatile").collect::<Vec<_>>()
            };
            let seen: Vec<_> = durable(all(&store).await);
            let copy = crash(folder.path());
            let back: Vec<_> = durable(all(&open(copy.path()).unwrap()).await);
            for record in &seen {
                assert!(back.contains(record), "round {round} lost {record:?}");
            }
        }
    }
    store.close().await.unwrap();
    let bytes: u64 = segments(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes < 40 << 10, "{bytes} bytes in the log");
    assert!(segments(folder.path())[0].file_name().unwrap() != "0000000001.log");
    let before = all(&store).await;
    drop(store);
    assert_eq!(all(&open(folder.path()).unwrap()).await, before);
}

#[tokio::test]
async fn a_backup_restores_with_its_revision_moved_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("live")).unwrap();
    for name in 0..50 {
        put(&store, &format!("/{name}"), "x", if name % 2 == 0 { Durable } else { Volatile }).await;
    }
    let copy = folder.path().join("copy");
    let revision = store.backup(&copy).await.unwrap();
    let before = all(&store).await;
    put(&store, "/after", "x", Durable).await;

    let restored = folder.path().join("restored");
    assert_eq!(restore(&copy, &restored, 1000, 0).unwrap(), revision + 1000);
    let again = restore(&copy, &restored, 1000, 0);
    assert!(matches!(again, Err(StoreError::NotEmpty { .. })), "{again:?}");
    let live = restore(&folder.path().join("live"), &folder.path().join("no"), 0, 0);
    assert!(matches!(live, Err(StoreError::Damaged { .. })), "a live folder is no backup: {live:?}");
    let restored = open(&restored).unwrap();
    assert_eq!(all(&restored).await, before);
    assert_eq!(restored.revision().await.unwrap(), revision + 1000);
    assert!(put(&restored, "/new", "x", Durable).await > revision + 1000);
}

#[test]
fn an_unreadable_folder_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = open(&file.join("data")).unwrap_err();
    assert!(error.to_string().contains("file/data"), "{error}");
    assert!(folder::read(&folder.path().join("missing")).is_err());
}
