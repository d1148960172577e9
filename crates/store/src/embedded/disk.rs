//! The three calls that can fail for reasons outside of the program, in one place so that tests can make them fail, and can tell
//! what a power cut would leave.

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
    /// Of each file that was written to, by inode, the length that is certainly on the disk.
    pub(crate) synced: std::collections::HashMap<u64, u64>,
    /// Called when the bytes of a write are about to become safe.
    pub(crate) before_sync: Option<BeforeSync>,
}

#[cfg(test)]
pub(crate) struct BeforeSync(pub(crate) Box<dyn FnMut(&std::collections::HashMap<u64, u64>) + Send>);

#[cfg(test)]
impl std::fmt::Debug for BeforeSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BeforeSync")
    }
}

#[cfg(test)]
impl Faults {
    fn note_write(&mut self, file: &File) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let metadata = file.metadata()?;
        self.synced.entry(metadata.ino()).or_insert(metadata.len());
        Ok(())
    }

    fn note_sync(&mut self, file: &File) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let metadata = file.metadata()?;
        if let Some(BeforeSync(call)) = &mut self.before_sync {
            call(&self.synced);
        }
        self.synced.insert(metadata.ino(), metadata.len());
        Ok(())
    }
}

#[cfg(test)]
fn fail(fault: Option<i32>) -> io::Result<()> {
    fault.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

impl Disk {
    pub(crate) fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        self.faults.lock().note_write(file)?;
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
        #[cfg(test)]
        self.faults.lock().note_sync(file)?;
        file.sync_data()
    }

    pub(crate) fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        #[cfg(test)]
        fail(self.faults.lock().truncate)?;
        file.set_len(length)?;
        file.sync_all()
    }
}
