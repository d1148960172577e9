//! A data folder: its files, its lock, and reading them back.
//!
//! ```text
//! LOCK              held by the process that uses the folder
//! CLOSED            written by a clean stop, removed at the next start: where the log ended
//! 0000000001.log    segments; their numbers have no gaps, the last one is being appended to
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::frame::{self, BadHeader, Entry, FORMAT, SEGMENT_HEADER, SegmentHeader};
use crate::{Key, Record, StoreError};

const RESTORE: &str = "restore a backup into another folder";

/// Everything that a folder holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) records: HashMap<Key, (Record, Place)>,
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// No revision after this one has been handed out.
    pub(crate) revision: u64,
}

/// How full a segment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) bytes: u64,
    /// The bytes of entries that are still current.
    pub(crate) live: u64,
}

/// Where the newest entry of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) size: u32,
}

/// Takes the folder for this process, for as long as the returned file is open. Creates it if it is missing.
pub(crate) fn lock(folder: &Path) -> Result<File, StoreError> {
    create_folder(folder)?;
    let path = folder.join("LOCK");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|source| error("open", &path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(error("lock", &path, source)),
    }
}

/// Creates a folder and those above it, durably: a log in a folder that a power loss takes away is no log.
fn create_folder(folder: &Path) -> Result<(), StoreError> {
    let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<_> = missing.collect();
    fs::create_dir_all(folder).map_err(|source| error("create", folder, source))?;
    for created in missing {
        match created.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent)?,
            _ => sync_folder(Path::new("."))?,
        }
    }
    Ok(())
}

pub(crate) fn segment_path(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("{id:010}.log"))
}

/// Reads the whole folder. Cuts off a torn tail; any other damage is an error and changes nothing.
pub(crate) fn read(folder: &Path) -> Result<Contents, StoreError> {
    let ids = segment_ids(folder)?;
    let closed = read_closed(folder)?;
    let mut contents = Contents::default();
    if let Some((expected, _)) = ids
        .iter()
        .zip(ids.first().copied().unwrap_or(1)..)
        .find_map(|(&id, next)| (id != next).then_some((next, id)))
    {
        let what = "this segment is missing, but a later one is there".to_owned();
        return Err(damaged(segment_path(folder, expected), 0, what));
    }
    let mut torn = None;
    for &id in &ids {
        let path = segment_path(folder, id);
        let bytes = fs::read(&path).map_err(|source| error("read", &path, source))?;
        let end = contents.replay(&path, id, &bytes)?;
        if let Err((offset, what)) = end {
            // Every segment was synced to its end before the next was begun.
            if Some(&id) != ids.last() || frame::proof_of_sync(&bytes, offset) {
                return Err(damaged(path, offset as u64, what.to_owned()));
            }
            torn = Some((path, offset as u64, bytes.len() as u64));
        }
    }
    if let Some(closed) = closed {
        closed.check(folder, &contents)?;
        contents.revision = closed.revision;
    }
    if let Some((path, offset, length)) = torn {
        tracing::info!(path = %path.display(), offset, length, "cutting off the end of an unfinished write");
        let file =
            OpenOptions::new().write(true).open(&path).map_err(|source| error("open", &path, source))?;
        file.set_len(offset)
            .and_then(|()| file.sync_all())
            .map_err(|source| error("truncate", &path, source))?;
    }
    Ok(contents)
}

/// Reads a folder that was closed cleanly, as a backup is, and changes nothing in it.
pub(crate) fn read_closed_folder(folder: &Path) -> Result<Contents, StoreError> {
    if read_closed(folder)?.is_none() {
        let what = "there is no note of a clean stop: this is not a finished backup".to_owned();
        return Err(damaged(folder.join("CLOSED"), 0, what));
    }
    read(folder)
}

impl Contents {
    /// Takes in one segment. The inner error says where and how a frame is bad.
    #[allow(clippy::type_complexity)]
    fn replay(
        &mut self,
        path: &Path,
        id: u64,
        bytes: &[u8],
    ) -> Result<Result<(), (usize, &'static str)>, StoreError> {
        let header = SegmentHeader::decode(bytes).map_err(|bad| match bad {
            BadHeader::Newer(found) => {
                StoreError::NewerFormat { path: path.to_owned(), found, known: FORMAT }
            }
            BadHeader::Damaged => damaged(path.to_owned(), 0, "the header is not readable".to_owned()),
        })?;
        if header.id != id {
            let what = format!("the header says that this is segment {}", header.id);
            return Err(damaged(path.to_owned(), 0, what));
        }
        self.revision = self.revision.max(header.reserved);
        self.segments.insert(id, Segment::default());
        let mut at = SEGMENT_HEADER;
        let end = loop {
            if at == bytes.len() {
                break Ok(());
            }
            let frame = match frame::decode(&bytes[at..]) {
                Ok(frame) => frame,
                Err(what) => break Err((at, what)),
            };
            for entry in frame::entries(frame.entries) {
                let entry = entry.map_err(|what| damaged(path.to_owned(), at as u64, what.to_owned()))?;
                self.take(id, entry);
            }
            self.revision = self.revision.max(frame.reserved);
            at += frame.size;
        };
        self.segments.entry(id).or_default().bytes = at as u64;
        Ok(end)
    }

    fn take(&mut self, segment: u64, entry: Entry) {
        let size = entry.size() as u32;
        let Entry { key, value, created, revision } = entry;
        let before = match value {
            Some(value) => {
                self.segments.entry(segment).or_default().live += u64::from(size);
                let record = Record { key: key.clone(), value, created, revision };
                self.records.insert(key, (record, Place { segment, size }))
            }
            None => self.records.remove(&key),
        };
        if let Some((_, place)) = before {
            self.segments.entry(place.segment).or_default().live -= u64::from(place.size);
        }
    }
}

/// Where a clean stop left the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) segment: u64,
    pub(crate) length: u64,
    pub(crate) revision: u64,
}

impl Closed {
    /// Notes a clean stop, durably.
    pub(crate) fn write(self, folder: &Path) -> Result<(), StoreError> {
        let text = format!("{} {} {}", self.segment, self.length, self.revision);
        let line = format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()));
        create(folder, "CLOSED", line.as_bytes()).map(|_| ())
    }

    /// A log that was closed cleanly ends exactly where the note says: anything else was cut or added later.
    fn check(self, folder: &Path, contents: &Contents) -> Result<(), StoreError> {
        let last = contents.segments.last_key_value();
        if last.is_some_and(|(&id, segment)| id == self.segment && segment.bytes == self.length) {
            return Ok(());
        }
        let what =
            format!("the log was closed at byte {} of this segment, but does not end there", self.length);
        let path = segment_path(folder, self.segment);
        let offset = contents.segments.get(&self.segment).map_or(0, |segment| segment.bytes);
        Err(damaged(path, offset, what))
    }

    /// Takes the note away, durably, before the first write after it.
    pub(crate) fn remove(folder: &Path) -> Result<(), StoreError> {
        let path = folder.join("CLOSED");
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(folder),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(error("remove", &path, source)),
        }
    }
}

fn read_closed(folder: &Path) -> Result<Option<Closed>, StoreError> {
    let path = folder.join("CLOSED");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(error("read", &path, source)),
    };
    let parsed = text.trim_end().rsplit_once(' ').and_then(|(text, crc)| {
        let crc = u32::from_str_radix(crc, 16).ok()?;
        let mut numbers = text.split(' ').map(str::parse::<u64>);
        let closed = Closed {
            segment: numbers.next()?.ok()?,
            length: numbers.next()?.ok()?,
            revision: numbers.next()?.ok()?,
        };
        (crc32fast::hash(text.as_bytes()) == crc).then_some(closed)
    });
    parsed.map(Some).ok_or_else(|| damaged(path, 0, "the note of a clean stop is not readable".to_owned()))
}

/// Begins a segment: complete on disk, and known to the folder, before it has its name.
pub(crate) fn create_segment(folder: &Path, header: SegmentHeader) -> Result<File, StoreError> {
    let path = segment_path(folder, header.id);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    create(folder, &name, &header.encode())
}

/// Creates a file with these bytes, durably and all or nothing, and leaves it open at its end.
fn create(folder: &Path, name: &str, bytes: &[u8]) -> Result<File, StoreError> {
    let path = folder.join(name);
    let unfinished = folder.join(format!("{name}.new"));
    let write = || {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        Ok(file)
    };
    let file = write().map_err(|source| error("create", &path, source))?;
    sync_folder(folder)?;
    Ok(file)
}

pub(crate) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| error("sync", folder, source))
}

fn segment_ids(folder: &Path) -> Result<Vec<u64>, StoreError> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(folder).map_err(|source| error("list", folder, source))? {
        let entry = entry.map_err(|source| error("list", folder, source))?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".log"));
        let id = id.and_then(|id| id.parse::<u64>().ok());
        ids.extend(id);
    }
    ids.sort_unstable();
    Ok(ids)
}

fn damaged(path: PathBuf, offset: u64, what: String) -> StoreError {
    StoreError::Damaged { path, offset, what, advice: RESTORE }
}

/// Names the file in an error, and tells a full disk from everything else.
pub(crate) fn error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
        _ => StoreError::Io { action, path, source },
    }
}
