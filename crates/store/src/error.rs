//! What can go wrong, in words for the person who has to act on it.

use std::io;
use std::path::PathBuf;

use crate::Record;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The expectation of a write did not hold; nothing was written.
    #[error("key {key} is not as expected: {}", describe(current))]
    Conflict {
        key: String,
        /// What is there; `None` when the key does not exist.
        current: Option<Record>,
    },

    /// The history no longer reaches back so far. List again.
    #[error("revision {requested} has been compacted; the oldest one kept is {compacted}")]
    Compacted { requested: u64, compacted: u64 },

    /// The revision has not happened yet.
    #[error("revision {requested} is in the future; the current one is {current}")]
    Future { requested: u64, current: u64 },

    /// The watcher was too slow and missed events. List again.
    #[error("the watcher is at revision {position}, but the history now begins after {compacted}")]
    Lagged { position: u64, compacted: u64 },

    /// The store was closed.
    #[error("the store is closed")]
    Closed,

    /// There is no room on disk. Reads go on; writes work again as soon as there is room.
    #[error("no space left for {path}: the write was refused; free some space, nothing else is needed")]
    Full { path: PathBuf },

    /// Reading or writing a file failed.
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    /// The folder belongs to another running process.
    #[error("the data folder {path} is in use by another process; stop it, or use another folder")]
    Locked { path: PathBuf },

    /// The folder was written by a newer version of this program.
    #[error("{path} has format {found}, but this program knows only up to {known}; use the newer version")]
    NewerFormat { path: PathBuf, found: u32, known: u32 },

    /// Acknowledged data cannot be read back. Nothing was changed.
    #[error("{path} is damaged at byte {offset}: {what}. Nothing was changed; {advice}")]
    Damaged { path: PathBuf, offset: u64, what: String, advice: &'static str },

    /// A backup goes only into an empty or new folder.
    #[error("the folder {path} is not empty; give a new or empty one")]
    NotEmpty { path: PathBuf },

    /// A key or value is too large to be stored.
    #[error("{what} of {size} bytes is over the limit of {limit}")]
    TooLarge { what: &'static str, size: usize, limit: usize },

    /// The engine behind the store does not answer, or answered with an error. A write may have happened.
    #[error("the store behind is unavailable: {0}")]
    Unavailable(String),
}

fn describe(current: &Option<Record>) -> String {
    match current {
        Some(record) => format!("it was last written at revision {}", record.revision),
        None => "it does not exist".to_owned(),
    }
}
