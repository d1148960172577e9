//! The table of images and the layers they use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::reference::{Reference, ReferenceError};
use crate::disk;

/// How to run an image, as its author wrote it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    pub user: Option<String>,
    pub env: Option<Vec<String>>,
    pub entrypoint: Option<Vec<String>>,
    pub cmd: Option<Vec<String>>,
    pub working_dir: Option<String>,
    pub stop_signal: Option<String>,
    pub volumes: Option<BTreeMap<String, serde_json::Value>>,
    pub labels: Option<BTreeMap<String, String>>,
}

/// One image: `id` is the digest of its configuration (`sha256:…`), `layers` are folder names, lowest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Image {
    pub id: String,
    pub layers: Vec<String>,
    pub config: ImageConfig,
    /// Bytes of all layers, unpacked.
    pub size: u64,
    /// `repository@digest` names under which a registry served it.
    #[serde(default)]
    pub digests: Vec<String>,
}

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("image store {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("image table {0}: {1}")]
    Table(PathBuf, serde_json::Error),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("image {0} is not here; import it with `tombolo image import FILE.tar`")]
    Unknown(String),
    #[error("layer is damaged: its content has digest {found}, the image says {expected}")]
    Digest { expected: String, found: String },
}

#[derive(Default, Serialize, Deserialize)]
struct Table {
    images: BTreeMap<String, Image>,
    /// Normalized reference -> image id.
    references: BTreeMap<String, String>,
}

impl Table {
    fn load(root: &Path) -> Result<Table, StoreError> {
        let path = root.join("images.json");
        let mut table: Table = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| StoreError::Table(path, error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Table::default(),
            Err(error) => return Err(at(&path)(error)),
        };
        // A layer may be gone (a user freed the disk by hand): such an image is not here.
        table.images.retain(|_, image| image.layers.iter().all(|l| root.join("layers").join(l).is_dir()));
        let Table { images, references } = &mut table;
        references.retain(|_, id| images.contains_key(id));
        Ok(table)
    }
}

/// The table, and of which file it is.
struct Known {
    table: Table,
    stamp: Option<Stamp>,
}

/// Inode, time and size of a file: another one when somebody has replaced it.
type Stamp = (u64, i64, i64, u64);

/// What interrupted imports left is older than any import takes.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// The images of one machine. Cheap to share behind an `Arc`; every call may touch the disk. Several processes may have one:
/// a node that pulls and removes images, and `tombolo image import`.
pub struct Store {
    root: PathBuf,
    known: Mutex<Known>,
}

impl Store {
    pub fn open(root: impl Into<PathBuf>) -> Result<Store, StoreError> {
        let root = root.into();
        fs::create_dir_all(root.join("layers")).map_err(at(&root))?;
        let table = match Table::load(&root) {
            // A node that does not start helps nobody; what it needs can be fetched again.
            Err(StoreError::Table(path, error)) => {
                tracing::warn!(table = %path.display(), %error, "the table of images cannot be read; they are fetched again");
                Table::default()
            }
            other => other?,
        };
        // Looked at again before it is used for the first time.
        Ok(Store { root, known: Mutex::new(Known { table, stamp: None }) })
    }

    /// The table as it is now.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().expect("no panic while the table is held");
        let stamp = stamp(&self.root);
        if known.stamp != stamp
            && let Ok(table) = Table::load(&self.root)
        {
            *known = Known { table, stamp };
        }
        known
    }

    /// Changes the table that is on disk, one process at a time.
    fn change<T>(&self, how: impl FnOnce(&mut Table) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let path = self.root.join("lock");
        let turn = fs::File::create(&path).map_err(at(&path))?;
        turn.lock().map_err(at(&path))?;
        let mut known = self.known();
        let outcome = how(&mut known.table).and_then(|outcome| self.save(&known.table).map(|()| outcome));
        // What was not saved is not so.
        known.stamp = if outcome.is_ok() { stamp(&self.root) } else { None };
        outcome
    }

    pub(super) fn scratch(&self, name: &str) -> Result<PathBuf, StoreError> {
        let path = self.root.join("tmp").join(format!("{name}-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(&path).map_err(at(&path))?;
        Ok(path)
    }

    fn layer_path(&self, name: &str) -> PathBuf {
        self.root.join("layers").join(name)
    }

    /// The folders of an image for overlayfs, topmost first.
    pub fn layers(&self, image: &Image) -> Vec<PathBuf> {
        image.layers.iter().rev().map(|name| self.layer_path(name)).collect()
    }

    /// The size of a layer that is here, as far as an image says it.
    pub(super) fn layer_size(&self, name: &str) -> Option<u64> {
        if !self.layer_path(name).is_dir() {
            return None;
        }
        let known = self.known();
        let user = known.table.images.values().find(|image| image.layers.iter().any(|layer| layer == name));
        // An image of one layer knows its size; otherwise the sum is only known as a whole.
        Some(user.filter(|image| image.layers.len() == 1).map_or(0, |image| image.size))
    }

    /// Unpacks one layer unless it is here already. `expected` is its digest without the prefix.
    /// Returns its folder name and its size.
    pub(super) fn add_layer(&self, source: impl Read, expected: &str) -> Result<(String, u64), StoreError> {
        let target = self.layer_path(expected);
        if target.is_dir() {
            return Ok((expected.to_owned(), 0));
        }
        let scratch = self.scratch("layer")?;
        let unpacked = super::layer::unpack(source, &scratch.join("fs")).map_err(at(&scratch));
        let outcome = unpacked.and_then(|(found, size)| {
            if found != expected {
                return Err(StoreError::Digest { expected: expected.to_owned(), found });
            }
            match disk::settle(&scratch.join("fs"), &target) {
                Ok(()) => Ok((found, size)),
                Err(_) if target.is_dir() => Ok((found, size)),
                Err(error) => Err(at(&target)(error)),
            }
        });
        let _ = fs::remove_dir_all(&scratch);
        outcome
    }

    pub(super) fn add_image(&self, image: Image, names: &[Reference]) -> Result<Image, StoreError> {
        self.change(|table| {
            let entry = table.images.entry(image.id.clone()).or_insert_with(|| image.clone());
            for digest in &image.digests {
                if !entry.digests.contains(digest) {
                    entry.digests.push(digest.clone());
                }
            }
            let entry = entry.clone();
            for name in names {
                table.references.insert(name.to_string(), image.id.clone());
            }
            Ok(entry)
        })
    }

    fn save(&self, table: &Table) -> Result<(), StoreError> {
        let path = self.root.join("images.json");
        let bytes = serde_json::to_vec(table).map_err(|error| StoreError::Table(path.clone(), error))?;
        // The same images again, as at every start, cost the disk nothing.
        disk::replace_if_changed(&path, &bytes, 0o644).map(drop).map_err(at(&path))
    }

    /// Makes an image from files in memory: one layer with these paths (mode, content) in it.
    /// The same files under the same name cost nothing the second time.
    pub fn add_builtin(
        &self,
        name: &str,
        files: &[(&str, u32, &[u8])],
        config: ImageConfig,
    ) -> Result<Image, StoreError> {
        let mut digest = Sha256::new();
        for (path, mode, content) in files {
            digest.update(format!("{path}\0{mode:o}\0{}\0", content.len()));
            digest.update(content);
        }
        let layer = format!("{:x}", digest.finalize());
        let target = self.layer_path(&layer);
        if !target.is_dir() {
            let scratch = self.scratch("builtin")?;
            for (path, mode, content) in files {
                let path = scratch.join("fs").join(path.trim_start_matches('/'));
                write_file(&path, *mode, content).map_err(at(&path))?;
            }
            open_folders(&scratch.join("fs")).map_err(at(&scratch))?;
            disk::settle(&scratch.join("fs"), &target).map_err(at(&target))?;
            let _ = fs::remove_dir_all(&scratch);
        }
        let size = files.iter().map(|(_, _, content)| content.len() as u64).sum();
        let described =
            serde_json::to_vec(&(&layer, &config)).map_err(|e| StoreError::Table(self.root.clone(), e))?;
        let id = format!("sha256:{:x}", Sha256::digest(described));
        let image = Image { id, layers: vec![layer], config, size, digests: Vec::new() };
        self.add_image(image, &[name.parse()?])
    }

    /// Finds an image by reference, by id or by `repository@digest`.
    pub fn get(&self, name: &str) -> Option<Image> {
        if let Some(image) = self.find(name) {
            return Some(image);
        }
        // A layer that was lost may have come back, which the table does not show.
        self.known.lock().expect("no panic while the table is held").stamp = None;
        self.find(name)
    }

    /// None also for an image one of whose layers is gone: it must be fetched again.
    fn find(&self, name: &str) -> Option<Image> {
        self.named(name).filter(|image| image.layers.iter().all(|layer| self.layer_path(layer).is_dir()))
    }

    fn named(&self, name: &str) -> Option<Image> {
        let table = &self.known().table;
        if let Some(image) = table.images.get(name) {
            return Some(image.clone());
        }
        let reference: Reference = name.parse().ok()?;
        let by_name = table.references.get(&reference.to_string());
        if let Some(image) = by_name.and_then(|id| table.images.get(id)) {
            return Some(image.clone());
        }
        let digest = reference.digest?;
        let wanted = format!("{}/{}@{digest}", reference.registry, reference.repository);
        table.images.values().find(|image| image.id == digest || image.digests.contains(&wanted)).cloned()
    }

    /// Every image with the names it has.
    pub fn list(&self) -> Vec<(Image, Vec<String>)> {
        let table = &self.known().table;
        let names =
            |id: &str| table.references.iter().filter(|(_, i)| *i == id).map(|(n, _)| n.clone()).collect();
        table.images.values().map(|image| (image.clone(), names(&image.id))).collect()
    }

    /// Forgets a name, and the image with its layers when it was the last one.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.change(|table| {
            let reference = name.parse::<Reference>().map(|r| r.to_string()).unwrap_or_default();
            let by_name = table.references.remove(&reference);
            let id = match by_name {
                Some(id) if table.references.values().any(|other| *other == id) => return Ok(()),
                Some(id) => id,
                None if table.images.contains_key(name) => name.to_owned(),
                None => return Err(StoreError::Unknown(name.to_owned())),
            };
            table.references.retain(|_, other| *other != id);
            let removed = table.images.remove(&id).map(|image| image.layers).unwrap_or_default();
            self.save(table)?;
            self.sweep(table, &removed)
        })
    }

    /// Deletes those of these layers that no image uses, and what interrupted imports left. Others may just have been unpacked
    /// for an image that somebody is about to add.
    fn sweep(&self, table: &Table, removed: &[String]) -> Result<(), StoreError> {
        let used: BTreeSet<&String> = table.images.values().flat_map(|image| &image.layers).collect();
        let layers = self.root.join("layers");
        for entry in fs::read_dir(&layers).map_err(at(&layers))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let gone = || removed.contains(&name) || entry.metadata().is_ok_and(|data| is_abandoned(&data));
            if !used.contains(&name) && gone() {
                fs::remove_dir_all(entry.path()).map_err(at(&entry.path()))?;
            }
        }
        Ok(())
    }
}

fn stamp(root: &Path) -> Option<Stamp> {
    let data = fs::metadata(root.join("images.json")).ok()?;
    Some((data.ino(), data.ctime(), data.ctime_nsec(), data.size()))
}

fn is_abandoned(data: &fs::Metadata) -> bool {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(data.ctime().max(0).unsigned_abs());
    changed.elapsed().is_ok_and(|age| age > ABANDONED)
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    move |source| StoreError::Io { path: path.to_owned(), source }
}

fn write_file(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Folders are made under the process's umask; in an image everybody may look into them.
fn open_folders(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(store: &Store, name: &str, content: &[u8]) -> Image {
        store.add_builtin(name, &[("file", 0o644, content)], ImageConfig::default()).expect("added")
    }

    #[test]
    fn what_another_process_adds_is_seen_and_kept() {
        let dir = tempfile::tempdir().expect("folder");
        let open = || Store::open(dir.path()).expect("store");
        let (node, import) = (open(), open());
        let old = add(&node, "app:1", b"old");
        let new = add(&import, "app:1", b"new");
        assert_ne!(old.id, new.id);
        assert_eq!(node.get("app:1").expect("here").id, new.id, "the name means the new one at once");
        add(&import, "more:1", b"more");
        add(&node, "own:1", b"own");
        let known = |store: &Store| store.list().into_iter().flat_map(|(_, names)| names).count();
        assert_eq!((known(&node), known(&import), known(&open())), (3, 3, 3));
    }

    #[test]
    fn removing_an_image_leaves_what_another_process_has_just_unpacked() {
        let dir = tempfile::tempdir().expect("folder");
        let store = Store::open(dir.path()).expect("store");
        let (gone, stays) = (add(&store, "gone:1", b"gone"), add(&store, "stays:1", b"stays"));
        let unpacked = store.layer_path("unpacked");
        fs::create_dir(&unpacked).expect("a layer without an image");
        store.remove("gone:1").expect("removed");
        assert!(!store.layer_path(&gone.layers[0]).exists());
        assert!(store.layer_path(&stays.layers[0]).exists() && unpacked.exists());
        assert!(store.remove("gone:1").is_err());
        assert!(store.get("stays:1").is_some(), "what failed changed nothing");
    }
}
