//! The Works on disk: an agent that starts while its hub is away knows from here what it should keep right.
//!
//! One file per Work, written beside its final name and renamed. Files follow what was heard by a moment, so after a power
//! cut the last change may be missing until the hub is heard again. They may hold Secrets: only their owner reads them.
//! Status is not kept: what the hub shows is asked of the hub.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tombolo_api::{Work, WorkSpec};

/// What is kept of one Work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    name: String,
    uid: String,
    generation: i64,
    spec: WorkSpec,
}

/// Writes what it is told, in the background. Bounded by the number of Works: a name waits at most once.
pub struct Keep {
    dir: Option<PathBuf>,
    pending: Mutex<BTreeMap<String, Option<Arc<Kept>>>>,
    bell: Notify,
}

impl Keep {
    /// Without a folder nothing is kept.
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { dir, pending: Mutex::default(), bell: Notify::new() }
    }

    pub fn put(&self, work: &Work) {
        if self.dir.is_none() {
            return;
        }
        let kept = Kept {
            name: work.metadata.name.clone().unwrap_or_default(),
            uid: work.metadata.uid.clone().unwrap_or_default(),
            generation: work.metadata.generation.unwrap_or_default(),
            spec: work.spec.clone(),
        };
        self.pending.lock().insert(kept.name.clone(), Some(Arc::new(kept)));
        self.bell.notify_one();
    }

    pub fn forget(&self, work: &str) {
        if self.dir.is_some() {
            self.pending.lock().insert(work.to_owned(), None);
            self.bell.notify_one();
        }
    }

    /// Nothing that was kept counts any more.
    pub fn clear(&self) {
        self.pending.lock().clear();
        // Not there if nothing was ever kept.
        if let Some(error) = self.dir.as_ref().and_then(|dir| std::fs::remove_dir_all(dir).err())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "works of a hub that removed this site are still on disk");
        }
    }

    /// Writes until it is dropped.
    pub async fn run(&self) {
        let Some(dir) = self.dir.clone() else { return };
        loop {
            self.bell.notified().await;
            let pending = std::mem::take(&mut *self.pending.lock());
            let dir = dir.clone();
            let written = tokio::task::spawn_blocking(move || write(&dir, &pending)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "works are not kept on disk: a restart without the hub will not know them");
            }
        }
    }

    /// The Works of `hub` that an earlier run kept. What cannot be read is left out: the hub knows it.
    pub fn load(&self, hub: &str) -> Vec<Work> {
        let files = self.dir.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let kept =
            files.filter(|file| file.path().extension().is_some_and(|e| e == "json")).filter_map(|file| {
                let read = std::fs::read(file.path()).map_err(|error| error.to_string());
                match read.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).map_err(|e| e.to_string()))
                {
                    Ok(kept) => Some(kept),
                    Err(error) => {
                        tracing::warn!(file = %file.path().display(), error, "a kept work cannot be read");
                        None
                    }
                }
            });
        kept.filter(|kept| kept.spec.hub.id == hub).map(work).collect()
    }
}

fn work(kept: Kept) -> Work {
    let mut work = Work::new(&kept.name, kept.spec);
    work.metadata.uid = Some(kept.uid);
    work.metadata.generation = Some(kept.generation);
    work
}

fn write(dir: &Path, pending: &BTreeMap<String, Option<Arc<Kept>>>) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for (name, kept) in pending {
        let file = dir.join(format!("{name}.json"));
        let Some(kept) = kept else {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => continue,
            }
        };
        let partial = dir.join(format!("{name}.partial"));
        let mut to = std::fs::OpenOptions::new();
        let mut to = to.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        to.write_all(&serde_json::to_vec(kept.as_ref())?)?;
        to.sync_data()?;
        std::fs::rename(&partial, &file)?;
    }
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn a_work(name: &str, hub: &str) -> Work {
        let mut work = Work::new(name, WorkSpec { object: json!({"kind": "Secret"}), ..Default::default() });
        work.spec.hub.id = hub.into();
        work.metadata.uid = Some("u".into());
        work.metadata.generation = Some(3);
        work
    }

    /// As the first release wrote it, and as a later one may.
    #[test]
    fn what_another_release_kept_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = r#"{"name":"a","uid":"u","generation":3,"spec":{"root":{"apiVersion":"","kind":"","name":"","uid":"","generation":0},"hub":{"id":"north","epoch":0},"object":{"kind":"Secret"},"drift":"report"}}"#;
        let later = first
            .replace(r#""uid":"u""#, r#""uid":"u","heard":"monday""#)
            .replace(r#""epoch":0"#, r#""epoch":0,"mood":"good""#);
        for (file, text) in [("a.json", first), ("b.json", &later)] {
            std::fs::write(dir.path().join(file), text).expect("written");
        }
        let loaded = Keep::new(Some(dir.path().to_owned())).load("north");
        assert_eq!(loaded, [a_work("a", "north"), a_work("a", "north")]);
        let kept = Kept { name: "a".into(), uid: "u".into(), generation: 3, spec: loaded[0].spec.clone() };
        assert_eq!(serde_json::to_string(&kept).expect("JSON"), first);
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart_and_belongs_to_its_hub() {
        let dir = tempfile::tempdir().expect("a folder");
        let keep = Keep::new(Some(dir.path().join("works")));
        for work in [a_work("a", "north"), a_work("b", "north"), a_work("c", "south")] {
            keep.put(&work);
        }
        keep.forget("b");
        write(&dir.path().join("works"), &keep.pending.lock()).expect("written");
        std::fs::write(dir.path().join("works/d.json"), "{").expect("a damaged file");
        let again = Keep::new(Some(dir.path().join("works")));
        let loaded = again.load("north");
        assert_eq!(loaded.len(), 1);
        assert_eq!(loaded[0], a_work("a", "north"));
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(dir.path().join("works/a.json")).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "Secrets are nobody else's to read");
        again.clear();
        assert!(again.load("north").is_empty());
        again.clear();
    }
}
