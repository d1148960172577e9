//! Files that are whole whenever they are read: a process may be killed, and the power may go, at any moment.
//!
//! Small machines have disks that wear out, so not everything is worth a sync:
//!
//! - [`replace`]: what a start without the API needs. The node's name and its part of the pod network, keys, the table of
//!   images, and of each pod the object, its ConfigMaps and Secrets, tokens and claims. Written when they change, which is seldom;
//!   of the pod's status only what a start needs counts as a change. Services change more often, and are written every few
//!   seconds at most: a table that is a little old still leads to the pods, which keep their addresses.
//! - [`replace_until_reboot`]: what describes processes. It dies with them.
//!
//! What cannot be read is as good as not there: images are fetched again, pods and services are asked for, keys are made anew.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// After a power cut there is the old file or the new one, and once this returned, the new one.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write_beside(path, content, mode, File::sync_all)?;
    sync_parent(path)
}

/// The same, unless the file says so already. True if it was written.
pub(crate) fn replace_if_changed(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    replace(path, content, mode).map(|()| true)
}

/// Whoever reads it sees the old file or the new one; after a power cut it may be empty.
pub(crate) fn replace_until_reboot(path: &Path, content: &[u8]) -> io::Result<()> {
    write_beside(path, content, 0o644, |_| Ok(()))
}

/// Gives a folder its final name once everything in it is on the disk.
pub(crate) fn settle(folder: &Path, target: &Path) -> io::Result<()> {
    nix::unistd::syncfs(File::open(folder)?)?;
    fs::rename(folder, target)?;
    sync_parent(target)
}

fn write_beside(
    path: &Path,
    content: &[u8],
    mode: u32,
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let write = || {
        // Never through what somebody left there: its mode would stay.
        let _ = fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        sync(&file)?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| {
        // On a full disk every byte counts.
        let _ = fs::remove_file(&new);
    })
}

/// A rename is on the disk when its folder is.
fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_with_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("table.json");
        fs::write(dir.path().join("table.json.new"), "left by somebody who was killed").expect("leftover");
        replace(&path, b"one", 0o600).expect("written");
        assert!(replace_if_changed(&path, b"two", 0o600).expect("written"));
        assert!(!replace_if_changed(&path, b"two", 0o600).expect("left alone"));
        assert_eq!(fs::read(&path).expect("file"), b"two");
        assert_eq!(fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
        replace_until_reboot(&path, b"three").expect("written");
        assert_eq!(fs::read(&path).expect("file"), b"three");
        assert_eq!(fs::read_dir(dir.path()).expect("folder").count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("taken");
        fs::create_dir_all(path.join("by a folder")).expect("folder");
        replace(&path, b"one", 0o600).expect_err("a folder is there");
        assert_eq!(fs::read_dir(dir.path()).expect("folder").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_folder_gets_its_name_with_all_that_is_in_it() {
        let dir = tempfile::tempdir().expect("folder");
        let (from, to) = (dir.path().join("scratch"), dir.path().join("layer"));
        fs::create_dir(&from).expect("folder");
        fs::write(from.join("file"), "content").expect("file");
        settle(&from, &to).expect("settled");
        assert_eq!(fs::read(to.join("file")).expect("file"), b"content");
        assert!(!from.exists());
    }
}
