//! The table of images and the layers they use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

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

/// The images of one machine. Cheap to share behind an `Arc`; every call may touch the disk.
pub struct Store {
    root: PathBuf,
    table: Mutex<Table>,
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
        Ok(Store { root, table: Mutex::new(table) })
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
        let table = self.table.lock().expect("no panic while the table is held");
        let user = table.images.values().find(|image| image.layers.iter().any(|layer| layer == name));
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
        let mut table = self.table.lock().expect("no panic while the table is held");
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
        self.save(&table)?;
        Ok(entry)
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
    ///
    /// What is not known is looked for on disk once more: `tombolo image import` may have added it meanwhile.
    pub fn get(&self, name: &str) -> Option<Image> {
        if let Some(image) = self.find(name) {
            return Some(image);
        }
        let fresh = Table::load(&self.root).ok()?;
        *self.table.lock().expect("no panic while the table is held") = fresh;
        self.find(name)
    }

    /// None also for an image one of whose layers is gone: it must be fetched again.
    fn find(&self, name: &str) -> Option<Image> {
        self.named(name).filter(|image| image.layers.iter().all(|layer| self.layer_path(layer).is_dir()))
    }

    fn named(&self, name: &str) -> Option<Image> {
        let table = self.table.lock().expect("no panic while the table is held");
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
        let table = self.table.lock().expect("no panic while the table is held");
        let names =
            |id: &str| table.references.iter().filter(|(_, i)| *i == id).map(|(n, _)| n.clone()).collect();
        table.images.values().map(|image| (image.clone(), names(&image.id))).collect()
    }

    /// Forgets a name, and the image with its layers when it was the last one.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let mut table = self.table.lock().expect("no panic while the table is held");
        let reference = name.parse::<Reference>().map(|r| r.to_string()).unwrap_or_default();
        let by_name = table.references.remove(&reference);
        let id = match by_name {
            Some(id) if table.references.values().any(|other| *other == id) => return self.save(&table),
            Some(id) => id,
            None if table.images.contains_key(name) => name.to_owned(),
            None => return Err(StoreError::Unknown(name.to_owned())),
        };
        table.references.retain(|_, other| *other != id);
        table.images.remove(&id);
        self.save(&table)?;
        self.sweep(&table)
    }

    /// Deletes layers no image uses, and what interrupted imports left.
    fn sweep(&self, table: &Table) -> Result<(), StoreError> {
        let used: BTreeSet<&String> = table.images.values().flat_map(|image| &image.layers).collect();
        let layers = self.root.join("layers");
        for entry in fs::read_dir(&layers).map_err(at(&layers))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !used.contains(&name) {
                fs::remove_dir_all(entry.path()).map_err(at(&entry.path()))?;
            }
        }
        Ok(())
    }
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
