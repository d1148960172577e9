//! A folder that others can write into, handled without following where their links lead.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};

/// An open folder. Every path given to it is relative and is resolved by the kernel beneath the folder (`openat2` with
/// `RESOLVE_BENEATH`); what would lead out of it is an error.
///
/// # Guarantees
/// - Reading follows links only while they stay beneath the folder.
/// - Writing and removing follow no link at all: a link is replaced or removed itself.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

const READ_RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const WRITE_RESOLVE: ResolveFlags = READ_RESOLVE.union(ResolveFlags::NO_SYMLINKS);

impl Folder {
    /// Opens a folder whose own path is trusted.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: fs::open(path, flags, Mode::empty())? })
    }

    /// Opens a folder beneath this one; no part of the path may be a link.
    pub fn open_folder(&self, path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: fs::openat2(&self.fd, path, flags, Mode::empty(), WRITE_RESOLVE)? })
    }

    /// Opens for reading, following links that stay beneath.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(fs::openat2(&self.fd, path, flags, Mode::empty(), READ_RESOLVE)?))
    }

    /// A handle on whatever is at this path, for mounting it by `/proc/self/fd`; links that stay beneath are followed.
    pub fn open_path(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Ok(fs::openat2(&self.fd, path, flags, Mode::empty(), READ_RESOLVE)?)
    }

    /// Reads a whole file of at most `limit` bytes.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.open_file(path)?.take(limit + 1).read_to_end(&mut content)?;
        if content.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes")));
        }
        Ok(content)
    }

    /// Makes a new file; one that is there, or a link, is an error.
    pub fn create_file(&self, path: &Path, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(fs::openat2(&self.fd, path, flags, Mode::RUSR | Mode::WUSR, WRITE_RESOLVE)?);
        // Not subject to the umask.
        fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file)
    }

    /// Makes a new file with this content.
    pub fn write_new(&self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        self.create_file(path, mode)?.write_all(content)
    }

    /// Makes one folder; its parent must be there.
    pub fn create_folder(&self, path: &Path, mode: u32) -> io::Result<Self> {
        let (parent, name) = self.parent_of(path)?;
        fs::mkdirat(parent.as_fd(), name, Mode::RWXU)?;
        let made = parent.open_folder(Path::new(name))?;
        fs::fchmod(&made.fd, Mode::from_raw_mode(mode))?;
        Ok(made)
    }

    /// Makes a folder and what is missing above it. What is there must be folders, not links.
    pub fn create_folders(&self, path: &Path, mode: u32) -> io::Result<Self> {
        let mut at = Self { fd: self.fd.try_clone()? };
        for name in names(path)? {
            let name = Path::new(name);
            at = match at.open_folder(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => at.create_folder(name, mode)?,
                found => found?,
            };
        }
        Ok(at)
    }

    /// A link with this text; where it leads is the business of who follows it.
    pub fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        Ok(fs::symlinkat(target, parent.as_fd(), name)?)
    }

    /// The text of a link.
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let (parent, name) = self.parent_of(path)?;
        let text = fs::readlinkat(parent.as_fd(), name, Vec::new())?;
        Ok(OsString::from_vec(text.into_bytes()).into())
    }

    /// Renames within the folder, over what is there.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_parent, from), (to_parent, to)) = (self.parent_of(from)?, self.parent_of(to)?);
        Ok(fs::renameat(from_parent.as_fd(), from, to_parent.as_fd(), to)?)
    }

    /// The names directly in this folder.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Removes a file, a link, or a folder with all that is in it; what is not there is removed already. Links are
    /// removed, never followed.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        match fs::unlinkat(parent.as_fd(), name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = parent.open_folder(Path::new(name))?;
        for below in folder.names()? {
            folder.remove(Path::new(&below))?;
        }
        Ok(fs::unlinkat(parent.as_fd(), name, AtFlags::REMOVEDIR)?)
    }

    /// Whether a folder, and not a link to one, is at this path.
    pub fn is_folder(&self, path: &Path) -> io::Result<bool> {
        let (parent, name) = self.parent_of(path)?;
        match fs::statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The folder that holds the last name of a path, reached without following a link.
    fn parent_of<'p>(&self, path: &'p Path) -> io::Result<(Self, &'p OsStr)> {
        let mut names = names(path)?;
        let last = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = match names.is_empty() {
            true => Self { fd: self.fd.try_clone()? },
            false => self.open_folder(&names.iter().collect::<PathBuf>())?,
        };
        Ok((parent, last))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The names of a relative path that goes nowhere but down.
fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    path.components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(name) => Ok(name),
            _ => {
                let text = format!("{} leads out of its folder", path.display());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_folders() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(dir.path().join("inner/below")).expect("made");
        std::fs::create_dir(dir.path().join("outside")).expect("made");
        std::fs::write(dir.path().join("outside/file"), "precious").expect("written");
        let folder = Folder::open(&dir.path().join("inner")).expect("opened");
        (dir, folder)
    }

    fn link(dir: &tempfile::TempDir, to: &str, at: &str) {
        std::os::unix::fs::symlink(to, dir.path().join(at)).expect("linked");
    }

    fn precious(dir: &tempfile::TempDir) {
        let file = dir.path().join("outside/file");
        assert_eq!(std::fs::read_to_string(file).expect("it is still there"), "precious");
        assert_eq!(std::fs::read_dir(dir.path().join("outside")).expect("listed").count(), 1);
    }

    #[test]
    fn a_link_that_leads_out_is_not_read() {
        let (dir, folder) = two_folders();
        let absolute = dir.path().join("outside").display().to_string();
        for (at, to) in [("up", "../outside"), ("abs", absolute.as_str())] {
            link(&dir, to, &format!("inner/{at}"));
            assert!(folder.open_file(Path::new(at).join("file").as_path()).is_err(), "{to}");
            assert!(folder.open_path(Path::new(at)).is_err(), "{to}");
        }
        assert!(folder.open_file(Path::new("../outside/file")).is_err());
        assert!(folder.open_file(&dir.path().join("outside/file")).is_err());
    }

    #[test]
    fn a_link_that_stays_beneath_is_read() {
        let (dir, folder) = two_folders();
        std::fs::write(dir.path().join("inner/below/file"), "own").expect("written");
        link(&dir, "below", "inner/data");
        assert_eq!(folder.read(Path::new("data/file"), 10).expect("read"), b"own");
        assert!(folder.read(Path::new("data/file"), 2).is_err(), "longer than allowed");
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let (dir, folder) = two_folders();
        link(&dir, "../outside", "inner/data");
        link(&dir, "../outside/new", "inner/new");
        assert!(folder.write_new(Path::new("data/new"), 0o644, b"x").is_err());
        assert!(folder.write_new(Path::new("new"), 0o644, b"x").is_err());
        assert!(folder.create_folder(Path::new("data/new"), 0o755).is_err());
        assert!(folder.create_folders(Path::new("data/a/b"), 0o755).is_err());
        assert!(folder.rename(Path::new("below"), Path::new("data/below")).is_err());
        assert!(folder.symlink(Path::new("/"), Path::new("data/link")).is_err());
        precious(&dir);
    }

    #[test]
    fn removing_removes_the_link_and_not_its_target() {
        let (dir, folder) = two_folders();
        link(&dir, "../outside", "inner/data");
        link(&dir, "../../outside", "inner/below/data");
        folder.remove(Path::new("data")).expect("removed");
        folder.remove(Path::new("below")).expect("removed");
        folder.remove(Path::new("never-there")).expect("nothing to do");
        assert!(folder.remove(Path::new("../outside")).is_err());
        assert!(folder.names().expect("listed").is_empty());
        precious(&dir);
    }

    #[test]
    fn what_is_made_has_the_mode_that_was_asked_for() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, folder) = two_folders();
        folder.create_folders(Path::new("a/b"), 0o750).expect("made");
        folder.write_new(Path::new("a/b/file"), 0o440, b"x").expect("written");
        let mode = |path: &str| {
            std::fs::metadata(dir.path().join(path)).expect("there").permissions().mode() & 0o777
        };
        assert_eq!((mode("inner/a/b"), mode("inner/a/b/file")), (0o750, 0o440));
        assert!(folder.write_new(Path::new("a/b/file"), 0o440, b"x").is_err(), "it is there already");
    }
}
