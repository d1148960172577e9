//! Reads images from a tar file: an OCI layout or what `docker save` writes.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::reference::Reference;
use super::store::{Image, ImageConfig, Store, StoreError, at};

#[derive(Debug, Error)]
pub enum ImportError {
    #[error("read {0}: {1}")]
    Read(String, io::Error),
    #[error("{0} is neither an OCI layout nor a docker archive: it has no index.json and no manifest.json")]
    NotAnImage(String),
    #[error("{0} in the archive is damaged: {1}")]
    Parse(String, serde_json::Error),
    #[error("the archive names no image for {0}")]
    Platform(&'static str),
    #[error("the image in the archive has no name; give one with --name")]
    Nameless,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Reference(#[from] super::ReferenceError),
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default, rename = "mediaType")]
    media_type: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The configuration blob of an image.
#[derive(Deserialize)]
pub(super) struct ConfigBlob {
    #[serde(default)]
    pub config: ImageConfig,
    pub rootfs: RootFs,
}

#[derive(Deserialize)]
pub(super) struct RootFs {
    pub diff_ids: Vec<String>,
}

/// This machine's architecture as images call it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Store {
    /// Adds every image of a tar file. `name` overrides the names written in it.
    pub fn import(&self, file: &Path, name: Option<&str>) -> Result<Vec<(Image, Vec<String>)>, ImportError> {
        let scratch = self.scratch("import")?;
        let outcome = self.import_into(file, name, &scratch);
        let _ = fs::remove_dir_all(&scratch);
        outcome
    }

    fn import_into(
        &self,
        file: &Path,
        name: Option<&str>,
        scratch: &Path,
    ) -> Result<Vec<(Image, Vec<String>)>, ImportError> {
        let shown = file.display().to_string();
        let archive = File::open(file).map_err(|e| ImportError::Read(shown.clone(), e))?;
        tar::Archive::new(archive).unpack(scratch).map_err(|e| ImportError::Read(shown.clone(), e))?;
        let wanted = name.map(str::parse::<Reference>).transpose()?;
        if scratch.join("manifest.json").is_file() {
            return self.import_docker(scratch, wanted);
        }
        if !scratch.join("index.json").is_file() {
            return Err(ImportError::NotAnImage(shown));
        }
        let index: Index = parse(&scratch.join("index.json"))?;
        let mut images = Vec::new();
        for descriptor in &index.manifests {
            let manifest = resolve(scratch, descriptor)?;
            let config_path = blob(scratch, &manifest.config.digest);
            let layers: Vec<_> = manifest.layers.iter().map(|layer| blob(scratch, &layer.digest)).collect();
            let names = match &wanted {
                Some(name) => vec![name.clone()],
                None => named(descriptor)?,
            };
            images.push(self.import_one(&config_path, &layers, names)?);
        }
        Ok(images)
    }

    fn import_docker(
        &self,
        scratch: &Path,
        wanted: Option<Reference>,
    ) -> Result<Vec<(Image, Vec<String>)>, ImportError> {
        let manifests: Vec<DockerManifest> = parse(&scratch.join("manifest.json"))?;
        let mut images = Vec::new();
        for manifest in manifests {
            let names = match (&wanted, manifest.repo_tags) {
                (Some(name), _) => vec![name.clone()],
                (None, Some(tags)) => tags.iter().map(|tag| tag.parse()).collect::<Result<_, _>>()?,
                (None, None) => return Err(ImportError::Nameless),
            };
            let layers: Vec<_> = manifest.layers.iter().map(|layer| scratch.join(layer)).collect();
            images.push(self.import_one(&scratch.join(manifest.config), &layers, names)?);
        }
        Ok(images)
    }

    fn import_one(
        &self,
        config: &Path,
        layers: &[std::path::PathBuf],
        names: Vec<Reference>,
    ) -> Result<(Image, Vec<String>), ImportError> {
        let bytes = fs::read(config).map_err(at(config))?;
        let described: ConfigBlob = serde_json::from_slice(&bytes)
            .map_err(|error| ImportError::Parse("the image configuration".into(), error))?;
        let mut image = Image {
            id: format!("sha256:{:x}", Sha256::digest(&bytes)),
            layers: Vec::new(),
            config: described.config,
            size: 0,
            digests: Vec::new(),
        };
        for (path, diff_id) in layers.iter().zip(&described.rootfs.diff_ids) {
            let source = File::open(path).map_err(at(path))?;
            let (layer, size) = self.add_layer(source, diff_id.trim_start_matches("sha256:"))?;
            image.size += size;
            image.layers.push(layer);
        }
        let shown = names.iter().map(ToString::to_string).collect();
        Ok((self.add_image(image, &names)?, shown))
    }
}

fn blob(scratch: &Path, digest: &str) -> std::path::PathBuf {
    scratch.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ImportError> {
    let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bytes = fs::read(path).map_err(|error| ImportError::Read(shown.clone(), error))?;
    serde_json::from_slice(&bytes).map_err(|error| ImportError::Parse(shown, error))
}

/// Follows an index to the manifest of this machine's architecture.
fn resolve(scratch: &Path, descriptor: &Descriptor) -> Result<Manifest, ImportError> {
    if !descriptor.media_type.contains("index") && !descriptor.media_type.contains("manifest.list") {
        return parse(&blob(scratch, &descriptor.digest));
    }
    let index: Index = parse(&blob(scratch, &descriptor.digest))?;
    let fits = |d: &&Descriptor| {
        d.platform.as_ref().is_some_and(|p| p.os == "linux" && p.architecture == architecture())
    };
    let chosen = index.manifests.iter().find(fits).ok_or(ImportError::Platform(architecture()))?;
    parse(&blob(scratch, &chosen.digest))
}

fn named(descriptor: &Descriptor) -> Result<Vec<Reference>, ImportError> {
    let written = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    let name =
        written.iter().find_map(|key| descriptor.annotations.get(*key)).ok_or(ImportError::Nameless)?;
    Ok(vec![name.parse()?])
}
