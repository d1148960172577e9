//! Unpacks a layer tar into a folder that overlayfs can use.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use sha2::{Digest, Sha256};
use tar::Archive;

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// Unpacks into `target` and returns the digest of the uncompressed bytes and how many there were.
pub(super) fn unpack(source: impl Read, target: &Path) -> io::Result<(String, u64)> {
    fs::create_dir_all(target)?;
    fs::set_permissions(target, fs::Permissions::from_mode(0o755))?;
    let mut hashed = Hashed { source: decompressed(source)?, digest: Sha256::new(), bytes: 0 };
    let mut archive = Archive::new(&mut hashed);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(true);
    archive.set_preserve_mtime(true);
    archive.set_unpack_xattrs(true);
    archive.set_overwrite(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        if !plain(&path) {
            return Err(io::Error::other(format!("layer entry {path:?} leaves the image")));
        }
        match path.file_name().and_then(|name| name.to_str()) {
            Some(OPAQUE) => opaque(&parent_in(target, &path)?)?,
            Some(name) if name.starts_with(WHITEOUT) => {
                let hidden = parent_in(target, &path)?.join(&name[WHITEOUT.len()..]);
                let _ = fs::remove_file(&hidden);
                mknod(&hidden, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0))?;
            }
            _ => {
                // Refuses to write through a link that leads out of the target.
                entry.unpack_in(target).map_err(with_cause)?;
            }
        }
    }
    // The digest covers the padding after the last entry too.
    io::copy(&mut hashed, &mut io::sink())?;
    Ok((format!("{:x}", hashed.digest.finalize()), hashed.bytes))
}

/// The archive library names the file and hides why; a user needs both.
fn with_cause(error: io::Error) -> io::Error {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    io::Error::new(error.kind(), text)
}

fn plain(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir | Component::RootDir))
}

fn parent_in(target: &Path, path: &Path) -> io::Result<PathBuf> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let parent = target.join(parent.strip_prefix("/").unwrap_or(parent));
    fs::create_dir_all(&parent)?;
    if !parent.canonicalize()?.starts_with(target.canonicalize()?) {
        return Err(io::Error::other(format!("layer entry {path:?} leaves the image")));
    }
    Ok(parent)
}

fn opaque(dir: &Path) -> io::Result<()> {
    xattr::set(dir, "trusted.overlay.opaque", b"y")
}

fn decompressed<'a>(mut source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut magic = [0u8; 4];
    let mut have = 0;
    while have < magic.len() {
        match source.read(&mut magic[have..])? {
            0 => break,
            count => have += count,
        }
    }
    let source = io::Cursor::new(magic).take(have as u64).chain(source);
    match magic {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::read::MultiGzDecoder::new(source))),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            Err(io::Error::other("zstd layers are not supported: push the image with gzip layers"))
        }
        _ => Ok(Box::new(source)),
    }
}

struct Hashed<R> {
    source: R,
    digest: Sha256,
    bytes: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.digest.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}
