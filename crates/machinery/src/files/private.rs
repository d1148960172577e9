//! Files and folders that only their owner may read.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const PRIVATE_DIR: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;

/// Makes a folder for its owner alone; one that was there before is closed to everybody else.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIR).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIR))
}

/// Replaces a file by one that only its owner may read. After a power loss it has the old or the new content, whole.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    // One left behind by a crash may have been made with another mode.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn a_private_file_replaces_a_public_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("key");
        fs::write(&file, "old").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("set");
        write_private(&file, b"new").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "new");
        assert_eq!(mode(&file), PRIVATE_FILE);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_folder_that_was_open_is_closed() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("data");
        fs::create_dir(&folder).expect("made");
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("set");
        create_private_dir(&folder).expect("closed");
        assert_eq!(mode(&folder), PRIVATE_DIR);
    }
}
