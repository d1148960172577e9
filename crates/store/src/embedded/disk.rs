//! The three calls that can fail for reasons outside of the program, in one place so that tests can make them fail.

use std::fs::File;
use std::io::{self, Write};

#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    #[cfg(test)]
    pub(crate) faults: std::sync::Arc<parking_lot::Mutex<Faults>>,
}

/// What goes wrong, by `errno`.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Half of the bytes are written, then the call fails.
    pub(crate) write: Option<i32>,
    pub(crate) sync: Option<i32>,
    pub(crate) truncate: Option<i32>,
}

#[cfg(test)]
fn fail(fault: Option<i32>) -> io::Result<()> {
    fault.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

impl Disk {
    pub(crate) fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if let Some(errno) = self.faults.lock().write {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(io::Error::from_raw_os_error(errno));
        }
        file.write_all(bytes)
    }

    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        fail(self.faults.lock().sync)?;
        file.sync_data()
    }

    pub(crate) fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        #[cfg(test)]
        fail(self.faults.lock().truncate)?;
        file.set_len(length)?;
        file.sync_all()
    }
}
