//! Copies of a live store, and stores from such copies.

use std::fs;
use std::io;
use std::path::Path;

use super::disk::Disk;
use super::folder;
use super::frame::Entry;
use super::log::{Log, Sizes};
use crate::{Page, Record, StoreError};

/// A frame of a copy holds about so much.
const FRAME_BYTES: usize = 1 << 20;

/// Writes a snapshot into a new or empty folder, off the async threads, and returns its revision.
pub(crate) async fn backup(snapshot: Page, folder: &Path) -> Result<u64, StoreError> {
    let folder = folder.to_owned();
    let revision = snapshot.revision;
    let copy = tokio::task::spawn_blocking(move || write(&folder, snapshot.records, revision));
    copy.await.unwrap_or(Err(StoreError::Closed))?;
    Ok(revision)
}

/// Makes a data folder from a backup, which is only read. Returns the revision of the new store: `skip` after that of
/// the backup, and `least` at least. Skip more than could have happened since the backup was made (a million is cheap), so
/// that no client that knew the lost store takes a revision of the new one for one it has already seen; `least` does the
/// same for one that was restored from the same backup before.
pub fn restore(backup: &Path, into: &Path, skip: u64, least: u64) -> Result<u64, StoreError> {
    let contents = folder::read_closed_folder(backup)?;
    let revision = contents.revision.saturating_add(skip).max(least);
    write(into, contents.records.into_values().map(|(record, _)| record), revision)?;
    Ok(revision)
}

fn write(folder: &Path, records: impl IntoIterator<Item = Record>, revision: u64) -> Result<(), StoreError> {
    require_empty(folder)?;
    let (mut log, ..) = Log::open(folder, Sizes::default(), Disk::default())?;
    let mut entries = Vec::new();
    let mut size = 0;
    for Record { key, value, created, revision } in records {
        let entry = Entry { key, value: Some(value), created, revision };
        size += entry.size();
        entries.push(entry);
        if size >= FRAME_BYTES {
            log.append(&entries, 0)?;
            (entries, size) = (Vec::new(), 0);
        }
    }
    log.append(&entries, revision)?;
    log.close(revision)
}

fn require_empty(folder: &Path) -> Result<(), StoreError> {
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(StoreError::NotEmpty { path: folder.to_owned() }),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(folder::error("list", folder, source)),
    }
}
