//! Volumes of a pod as folders on this machine.
//!
//! What comes from objects (ConfigMap, Secret, projected, downward API) is written the way programs that watch it
//! expect: a folder of the moment behind the link `..data`, and a link per file; an update swaps one link.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, Secret, Volume,
};
use thiserror::Error;

use crate::objects::{ObjectsError, Sources};
use crate::pod::env::{NodeFacts, field_value, resource_value};

#[derive(Debug, Error)]
pub enum VolumeError {
    #[error("volume {name}: {source}")]
    Io { name: String, source: io::Error },
    #[error("MountVolume.SetUp failed for volume \"{name}\" : {source}")]
    Objects { name: String, source: ObjectsError },
    #[error("volume {0}: {1}")]
    Invalid(String, String),
    #[error(
        "volume {0}: volumes of this kind are not supported by this node; supported are emptyDir, hostPath, configMap, secret, projected, downwardAPI and persistentVolumeClaim bound to a local or hostPath volume"
    )]
    Unsupported(String),
}

/// A file of a volume made from objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub content: Vec<u8>,
    pub mode: u32,
}

pub(crate) type Files = BTreeMap<String, Payload>;

/// Where a volume is. `memory`: the runtime must mount it there first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub path: PathBuf,
    pub memory: Option<Option<u64>>,
}

/// Tokens for projected volumes, by audience and lifetime as the volume asks for them.
pub(crate) type Tokens = BTreeMap<(Option<String>, Option<i64>), String>;

/// A persistent volume's folder, by claim name.
pub(crate) type Claims = BTreeMap<String, PathBuf>;

pub(crate) struct Inputs<'a> {
    pub pod: &'a Pod,
    pub sources: &'a Sources,
    pub tokens: &'a Tokens,
    pub claims: &'a Claims,
    pub facts: &'a NodeFacts<'a>,
}

/// Makes or refreshes every volume of a pod under `root`.
pub(crate) fn set_up(root: &Path, inputs: &Inputs<'_>) -> Result<BTreeMap<String, Place>, VolumeError> {
    let mut places = BTreeMap::new();
    let spec = inputs.pod.spec.clone().unwrap_or_default();
    let group = spec.security_context.as_ref().and_then(|s| s.fs_group);
    for volume in spec.volumes.iter().flatten() {
        let place = set_up_one(root, volume, inputs, group)?;
        places.insert(volume.name.clone(), place);
    }
    Ok(places)
}

fn set_up_one(
    root: &Path,
    volume: &Volume,
    inputs: &Inputs<'_>,
    group: Option<i64>,
) -> Result<Place, VolumeError> {
    let name = volume.name.clone();
    let path = root.join(&name);
    let io = |source| VolumeError::Io { name: name.clone(), source };
    let here = |path: PathBuf| Place { path, memory: None };
    if let Some(empty) = &volume.empty_dir {
        if !path.exists() {
            make_dir(&path, 0o777).map_err(io)?;
            own(&path, group).map_err(io)?;
        }
        let memory = (empty.medium.as_deref() == Some("Memory"))
            .then(|| empty.size_limit.as_ref().and_then(crate::pod::quantity::whole).map(|n| n as u64));
        return Ok(Place { path, memory });
    }
    if let Some(host) = &volume.host_path {
        check_host_path(host).map_err(|why| VolumeError::Invalid(name.clone(), why))?;
        return Ok(here(PathBuf::from(&host.path)));
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let missing = || {
            VolumeError::Invalid(
                name.clone(),
                format!("claim {} is not bound to a volume on this node", claim.claim_name),
            )
        };
        let path = inputs.claims.get(&claim.claim_name).cloned().ok_or_else(missing)?;
        own(&path, group).map_err(io)?;
        return Ok(here(path));
    }
    let files =
        object_files(volume, inputs).map_err(|source| VolumeError::Objects { name: name.clone(), source })?;
    let Some(files) = files else { return Err(VolumeError::Unsupported(name)) };
    write_atomically(&path, &files, group).map_err(io)?;
    Ok(here(path))
}

/// The files of a volume made from objects; `None` for another kind of volume.
fn object_files(volume: &Volume, inputs: &Inputs<'_>) -> Result<Option<Files>, ObjectsError> {
    let mut files = Files::new();
    if let Some(source) = &volume.config_map {
        let mode = source.default_mode.unwrap_or(0o644) as u32;
        from_config_map(&mut files, inputs, &source.name, source.items.as_deref(), mode, source.optional)?;
    } else if let Some(source) = &volume.secret {
        let mode = source.default_mode.unwrap_or(0o644) as u32;
        let name = source.secret_name.clone().unwrap_or_default();
        from_secret(&mut files, inputs, &name, source.items.as_deref(), mode, source.optional)?;
    } else if let Some(source) = &volume.downward_api {
        let mode = source.default_mode.unwrap_or(0o644) as u32;
        from_downward(&mut files, inputs, source.items.as_deref(), mode)?;
    } else if let Some(projected) = &volume.projected {
        let mode = projected.default_mode.unwrap_or(0o644) as u32;
        for source in projected.sources.iter().flatten() {
            if let Some(map) = &source.config_map {
                from_config_map(&mut files, inputs, &map.name, map.items.as_deref(), mode, map.optional)?;
            }
            if let Some(secret) = &source.secret {
                from_secret(
                    &mut files,
                    inputs,
                    &secret.name,
                    secret.items.as_deref(),
                    mode,
                    secret.optional,
                )?;
            }
            if let Some(downward) = &source.downward_api {
                from_downward(&mut files, inputs, downward.items.as_deref(), mode)?;
            }
            if let Some(token) = &source.service_account_token {
                let key = (token.audience.clone(), token.expiration_seconds);
                let missing =
                    || ObjectsError::Missing { kind: "service account token", name: token.path.clone() };
                let content = inputs.tokens.get(&key).ok_or_else(missing)?.clone().into_bytes();
                files.insert(token.path.clone(), Payload { content, mode: 0o644 });
            }
            if source.cluster_trust_bundle.is_some() || source.pod_certificate.is_some() {
                return Err(ObjectsError::Field(
                    "clusterTrustBundle and podCertificate projections are not supported".into(),
                ));
            }
        }
    } else {
        return Ok(None);
    }
    match files.keys().find(|path| !safe(path)) {
        Some(path) => Err(ObjectsError::Field(format!("file path {path:?} leaves the volume"))),
        None => Ok(Some(files)),
    }
}

fn safe(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)))
        && !path.starts_with("..")
}

fn from_config_map(
    files: &mut Files,
    inputs: &Inputs<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: Option<bool>,
) -> Result<(), ObjectsError> {
    let Some(map) = inputs.sources.config_map(name) else {
        return missing("configmap", name, optional);
    };
    select(files, &config_map_entries(map), items, mode, optional, "configmap", name)
}

fn config_map_entries(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    text.chain(binary).collect()
}

fn from_secret(
    files: &mut Files,
    inputs: &Inputs<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: Option<bool>,
) -> Result<(), ObjectsError> {
    let Some(secret) = inputs.sources.secret(name) else {
        return missing("secret", name, optional);
    };
    select(files, &secret_entries(secret), items, mode, optional, "secret", name)
}

fn secret_entries(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()
}

fn missing(kind: &'static str, name: &str, optional: Option<bool>) -> Result<(), ObjectsError> {
    if optional == Some(true) { Ok(()) } else { Err(ObjectsError::Missing { kind, name: name.to_owned() }) }
}

fn select(
    files: &mut Files,
    entries: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: Option<bool>,
    kind: &'static str,
    name: &str,
) -> Result<(), ObjectsError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        files.extend(
            entries.iter().map(|(key, content)| (key.clone(), Payload { content: content.clone(), mode })),
        );
        return Ok(());
    };
    for item in items {
        match entries.get(&item.key) {
            Some(content) => {
                let mode = item.mode.map_or(mode, |m| m as u32);
                files.insert(item.path.clone(), Payload { content: content.clone(), mode });
            }
            None if optional == Some(true) => {}
            None => {
                return Err(ObjectsError::MissingKey { kind, name: name.to_owned(), key: item.key.clone() });
            }
        }
    }
    Ok(())
}

fn from_downward(
    files: &mut Files,
    inputs: &Inputs<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: u32,
) -> Result<(), ObjectsError> {
    for item in items.into_iter().flatten() {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(inputs.pod, field, inputs.facts)?,
            (_, Some(field)) => resource_value(inputs.pod, None, field, inputs.facts)?,
            _ => String::new(),
        };
        let mode = item.mode.map_or(mode, |m| m as u32);
        files.insert(item.path.clone(), Payload { content: value.into_bytes(), mode });
    }
    Ok(())
}

/// Replaces the files of a volume in one step. Does nothing when they are already right.
fn write_atomically(volume: &Path, files: &Files, group: Option<i64>) -> io::Result<()> {
    if !volume.exists() {
        make_dir(volume, 0o777)?;
    }
    if current(volume).as_ref() == Some(files) {
        // Whoever wrote them may have been killed before the links were made.
        return link_files(volume, files);
    }
    let stamp = format!("..{}", uuid::Uuid::new_v4().simple());
    let folder = volume.join(&stamp);
    make_dir(&folder, 0o755)?;
    for (path, payload) in files {
        let file = folder.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&file, &payload.content)?;
        let mode = if group.is_some() { payload.mode | 0o440 } else { payload.mode };
        fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
        if let Some(group) = group {
            chown(&file, None, Some(group as u32))?;
        }
    }
    let old = fs::read_link(volume.join("..data")).ok();
    let link = volume.join("..data_tmp");
    let _ = fs::remove_file(&link);
    symlink(&stamp, &link)?;
    fs::rename(&link, volume.join("..data"))?;
    link_files(volume, files)?;
    if let Some(old) = old {
        let _ = fs::remove_dir_all(volume.join(old));
    }
    Ok(())
}

/// Makes the names a container sees lead to the files in use, and removes other names.
fn link_files(volume: &Path, files: &Files) -> io::Result<()> {
    let tops: std::collections::BTreeSet<&str> =
        files.keys().map(|p| p.split('/').next().unwrap_or(p)).collect();
    for top in &tops {
        let link = volume.join(top);
        if link.symlink_metadata().is_err() {
            symlink(Path::new("..data").join(top), link)?;
        }
    }
    for entry in fs::read_dir(volume)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !tops.contains(name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// What a volume holds now (without modes changed by a group).
fn current(volume: &Path) -> Option<Files> {
    fn walk(base: &Path, dir: &Path, files: &mut Files) -> io::Result<()> {
        for entry in fs::read_dir(dir)?.flatten() {
            if entry.file_type()?.is_dir() {
                walk(base, &entry.path(), files)?;
            } else {
                let path = entry
                    .path()
                    .strip_prefix(base)
                    .map(|p| p.to_string_lossy().into_owned())
                    .unwrap_or_default();
                let mode = entry.metadata()?.permissions().mode() & 0o7777;
                files.insert(path, Payload { content: fs::read(entry.path())?, mode });
            }
        }
        Ok(())
    }
    let folder = volume.join(fs::read_link(volume.join("..data")).ok()?);
    let mut files = Files::new();
    walk(&folder, &folder, &mut files).ok()?;
    Some(files)
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Gives a volume to the pod's group: new files inherit it.
fn own(path: &Path, group: Option<i64>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    chown(path, None, Some(group as u32))?;
    let mode = fs::metadata(path)?.permissions().mode() | 0o2770;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn check_host_path(host: &HostPathVolumeSource) -> Result<(), String> {
    let path = Path::new(&host.path);
    let kind = host.type_.as_deref().unwrap_or("");
    let make = |outcome: io::Result<()>| outcome.map_err(|error| format!("{}: {error}", host.path));
    let is = |good: bool| {
        if good { Ok(()) } else { Err(format!("hostPath type check failed: {} is not a {kind}", host.path)) }
    };
    use std::os::unix::fs::FileTypeExt;
    let file_type = fs::metadata(path).ok().map(|m| m.file_type());
    match kind {
        "" => {
            if file_type.is_none() {
                make(fs::create_dir_all(path))
            } else {
                Ok(())
            }
        }
        "DirectoryOrCreate" if file_type.is_none() => make(fs::create_dir_all(path)),
        "FileOrCreate" if file_type.is_none() => make(fs::write(path, b"")),
        "Directory" | "DirectoryOrCreate" => is(file_type.is_some_and(|t| t.is_dir())),
        "File" | "FileOrCreate" => is(file_type.is_some_and(|t| t.is_file())),
        "Socket" => is(file_type.is_some_and(|t| t.is_socket())),
        "CharDevice" => is(file_type.is_some_and(|t| t.is_char_device())),
        "BlockDevice" => is(file_type.is_some_and(|t| t.is_block_device())),
        other => Err(format!("unknown hostPath type {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, &str)]) -> Files {
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), Payload { content: v.as_bytes().to_vec(), mode: 0o644 }))
            .collect()
    }

    #[test]
    fn an_update_swaps_all_files_at_once_and_removes_old_ones() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let volume = dir.path().join("v");
        write_atomically(&volume, &files(&[("a", "1"), ("sub/b", "2")]), None).expect("write");
        assert_eq!(fs::read_to_string(volume.join("sub/b")).expect("b"), "2");
        let before = fs::read_link(volume.join("..data")).expect("link");
        write_atomically(&volume, &files(&[("a", "1"), ("sub/b", "2")]), None).expect("write");
        assert_eq!(
            fs::read_link(volume.join("..data")).expect("link"),
            before,
            "nothing changed, nothing moved"
        );
        fs::remove_file(volume.join("a")).expect("a link that was never made");
        write_atomically(&volume, &files(&[("a", "1"), ("sub/b", "2")]), None).expect("write");
        assert_eq!(fs::read_to_string(volume.join("a")).expect("a"), "1");
        write_atomically(&volume, &files(&[("a", "new")]), None).expect("write");
        assert_eq!(fs::read_to_string(volume.join("a")).expect("a"), "new");
        assert!(!volume.join("sub").exists());
        assert!(!volume.join(before).exists());
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        for path in ["", "../x", "/etc/passwd", "a/../../b", "..data"] {
            assert!(!safe(path), "{path:?}");
        }
        assert!(safe("a/b") && safe("a..b"));
    }
}
