//! The log on disk: appends frames, syncs, and keeps itself small.
//!
//! Cleaning goes round like the hand of a clock: what is still current in the oldest segment is appended again, then
//! the segment is removed. Because the oldest always goes first, a delete never needs to be kept for the sake of an
//! older segment, and the cost is bounded: a log of at most twice its live data rewrites each byte about once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::folder::{self, Closed, Contents, Place, Segment};
use super::frame::{self, Entry, SEGMENT_HEADER, SegmentHeader};
use crate::{Key, Record, StoreError};

/// Sizes, changed only by tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// A segment is full at this size.
    pub(crate) segment: u64,
    /// Below this size the log is never cleaned.
    pub(crate) floor: u64,
    /// How many bytes are moved at a time, so that cleaning delays no write for long.
    pub(crate) step: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { segment: 8 << 20, floor: 24 << 20, step: 256 << 10 }
    }
}

/// A buffer larger than this is not kept for the next frame.
const BUFFER_KEPT: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Log {
    folder: PathBuf,
    sizes: Sizes,
    disk: Disk,
    /// The segment being appended to.
    id: u64,
    file: File,
    /// The end of what was written without an error, and of what is known to be on disk.
    written: u64,
    synced: u64,
    /// Set while the file may hold bytes after `written` that must go before anything is appended.
    untidy: bool,
    segments: BTreeMap<u64, Segment>,
    places: HashMap<Key, Place>,
    /// The keys of the oldest segment that have yet to be moved, while it is being cleaned.
    moving: Option<VecDeque<Key>>,
    /// The revision up to which revisions may be handed out, as it is on disk.
    reserved: u64,
    buffer: Vec<u8>,
    _lock: File,
}

impl Log {
    /// Opens a folder and returns what is in it, with the revision it is at.
    pub(crate) fn open(path: &Path, sizes: Sizes, disk: Disk) -> Result<(Log, Vec<Record>, u64), StoreError> {
        let lock = folder::lock(path)?;
        let Contents { records, mut segments, revision } = folder::read(path)?;
        // An empty store is at revision 1, like etcd: Kubernetes gives 0 a meaning of its own.
        let revision = revision.max(1);
        Closed::remove(path)?;
        let (id, file, written) = match segments.last_key_value() {
            Some((&id, segment)) => {
                let segment_path = folder::segment_path(path, id);
                let file = OpenOptions::new().append(true).open(&segment_path);
                (id, file.map_err(|source| folder::error("open", &segment_path, source))?, segment.bytes)
            }
            None => {
                let header = SegmentHeader { id: 1, reserved: revision };
                segments.insert(1, Segment { bytes: SEGMENT_HEADER as u64, live: 0 });
                folder::create_segment(path, header)?;
                let segment_path = folder::segment_path(path, 1);
                let file = OpenOptions::new().append(true).open(&segment_path);
                let file = file.map_err(|source| folder::error("open", &segment_path, source))?;
                (1, file, SEGMENT_HEADER as u64)
            }
        };
        // What a killed process wrote may still be only in the page cache.
        file.sync_data().map_err(|source| folder::error("sync", path, source))?;
        let mut places = HashMap::with_capacity(records.len());
        let records = records.into_iter().map(|(key, (record, place))| {
            places.insert(key, place);
            record
        });
        let records = records.collect();
        let log = Log {
            folder: path.to_owned(),
            sizes,
            disk,
            id,
            file,
            written,
            synced: written,
            untidy: false,
            segments,
            places,
            moving: None,
            reserved: revision,
            buffer: Vec::new(),
            _lock: lock,
        };
        Ok((log, records, revision))
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Whether the disk holds some state of this key.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Appends entries as one frame, and reserves revisions up to `reserved`, which only counts once synced.
    /// Returns the segment it went to. After an error nothing of it remains.
    pub(crate) fn append(&mut self, entries: &[Entry], reserved: u64) -> Result<u64, StoreError> {
        self.tidy()?;
        if self.written >= self.sizes.segment {
            self.begin_segment()?;
        }
        frame::encode(&mut self.buffer, entries, self.synced, reserved);
        self.untidy = true;
        let written = self.disk.write(&mut self.file, &self.buffer);
        written.map_err(|source| self.failed("write", source))?;
        self.untidy = false;
        self.written += self.buffer.len() as u64;
        self.segment(self.id).bytes = self.written;
        if self.buffer.capacity() > BUFFER_KEPT {
            self.buffer = Vec::new();
        }
        Ok(self.id)
    }

    /// Makes everything appended durable.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        if self.synced == self.written {
            return Ok(());
        }
        let synced = self.disk.sync(&self.file);
        synced.map_err(|source| {
            // After a failed sync nobody knows what is on disk beyond the last one that succeeded.
            self.written = self.synced;
            self.untidy = true;
            self.failed("sync", source)
        })?;
        self.synced = self.written;
        Ok(())
    }

    /// Counts revisions as reserved, once that is synced.
    pub(crate) fn reserve(&mut self, reserved: u64) {
        self.reserved = self.reserved.max(reserved);
    }

    /// Takes note of what was appended to a segment, once it will not be taken back: from here on the older states
    /// of these keys are garbage.
    pub(crate) fn settle(&mut self, entries: &[Entry], id: u64) {
        for entry in entries {
            let size = entry.size() as u32;
            let before = if entry.value.is_some() {
                self.segment(id).live += u64::from(size);
                self.places.insert(entry.key.clone(), Place { segment: id, size })
            } else {
                self.places.remove(&entry.key)
            };
            if let Some(place) = before {
                self.segment(place.segment).live -= u64::from(place.size);
            }
        }
    }

    /// The next keys whose records must be appended again, in the course of cleaning. Empty: nothing to do.
    pub(crate) fn keys_to_move(&mut self) -> Vec<Key> {
        let Some(oldest) = self.oldest_to_clean() else { return Vec::new() };
        let places = &self.places;
        let here = |key: &Key| places.get(key).is_some_and(|place| place.segment == oldest);
        let queue =
            self.moving.get_or_insert_with(|| places.keys().filter(|key| here(key)).cloned().collect());
        let mut bytes = 0;
        let mut keys = Vec::new();
        while bytes < self.sizes.step {
            let Some(key) = queue.pop_front() else { break };
            if let Some(place) = places.get(&key).filter(|place| place.segment == oldest) {
                bytes += u64::from(place.size);
                keys.push(key);
            }
        }
        keys
    }

    /// Forgets the place of a key that is gone from memory: its old entry needs no successor.
    pub(crate) fn abandon(&mut self, key: &str) {
        if let Some(place) = self.places.remove(key) {
            self.segment(place.segment).live -= u64::from(place.size);
        }
    }

    /// Whether the oldest segment could be removed: cleaning moved all of it. Its successors must be synced first.
    pub(crate) fn has_moved_all(&self) -> bool {
        let done = self.moving.as_ref().is_some_and(VecDeque::is_empty);
        done && self
            .segments
            .first_key_value()
            .is_some_and(|(&id, segment)| id != self.id && segment.live == 0)
    }

    /// Gives up on moving, after an error; it begins anew later.
    pub(crate) fn stop_moving(&mut self) {
        self.moving = None;
    }

    /// Removes the oldest segment, if [`Log::has_moved_all`] of it and that is synced.
    pub(crate) fn remove_moved(&mut self) -> Result<(), StoreError> {
        if !self.has_moved_all() || self.synced != self.written {
            return Ok(());
        }
        self.moving = None;
        let Some(oldest) = self.segments.first_key_value().map(|(&id, _)| id) else { return Ok(()) };
        let path = folder::segment_path(&self.folder, oldest);
        fs::remove_file(&path).map_err(|source| folder::error("remove", &path, source))?;
        self.segments.remove(&oldest);
        folder::sync_folder(&self.folder)
    }

    /// Ends the log cleanly at a revision.
    pub(crate) fn close(&mut self, revision: u64) -> Result<(), StoreError> {
        self.tidy()?;
        self.sync()?;
        Closed { segment: self.id, length: self.written, revision }.write(&self.folder)
    }

    /// The oldest segment, if the log has grown so much that it should go.
    fn oldest_to_clean(&self) -> Option<u64> {
        let (&oldest, _) = self.segments.first_key_value().filter(|&(&id, _)| id != self.id)?;
        let (bytes, live) = self
            .segments
            .values()
            .fold((0, 0), |(bytes, live), segment| (bytes + segment.bytes, live + segment.live));
        (self.moving.is_some() || bytes > self.sizes.floor.max(2 * live + self.sizes.segment))
            .then_some(oldest)
    }

    fn begin_segment(&mut self) -> Result<(), StoreError> {
        self.sync()?;
        let id = self.id + 1;
        let header = SegmentHeader { id, reserved: self.reserved };
        folder::create_segment(&self.folder, header)?;
        let path = folder::segment_path(&self.folder, id);
        let file = OpenOptions::new().append(true).open(&path);
        self.file = file.map_err(|source| folder::error("open", &path, source))?;
        self.id = id;
        self.written = SEGMENT_HEADER as u64;
        self.synced = self.written;
        self.segments.insert(id, Segment { bytes: self.written, live: 0 });
        Ok(())
    }

    /// Cuts off what a failed write or sync left behind.
    fn tidy(&mut self) -> Result<(), StoreError> {
        if !self.untidy {
            return Ok(());
        }
        let cut = self.disk.truncate(&self.file, self.written);
        cut.map_err(|source| folder::error("repair", &folder::segment_path(&self.folder, self.id), source))?;
        self.untidy = false;
        Ok(())
    }

    fn failed(&mut self, action: &'static str, source: std::io::Error) -> StoreError {
        let path = folder::segment_path(&self.folder, self.id);
        tracing::warn!(path = %path.display(), error = %source, "cannot {action} the store's log");
        if let Err(error) = self.tidy() {
            tracing::warn!(%error, "the end of the log will be cut off before the next write");
        }
        folder::error(action, &path, source)
    }

    fn segment(&mut self, id: u64) -> &mut Segment {
        self.segments.entry(id).or_default()
    }
}
