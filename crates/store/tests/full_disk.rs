//! A disk that really is full: a small file system in memory. Needs the right to mount; the same is proved with
//! injected faults, without any rights, beside the embedded engine.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use tombolo_store::Durability::Durable;
use tombolo_store::{EmbeddedOptions, EmbeddedStore, Expect, Range, Store, StoreError};

/// A file system of a few hundred kilobytes that goes away with the test.
struct SmallDisk {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::create_dir(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(&path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallDisk { path, _folder: folder }),
            refused => {
                eprintln!("SKIPPED, no real full disk was tested: mounting needs root: {refused:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, EmbeddedOptions::default()).unwrap()
}

#[tokio::test]
async fn a_store_on_a_full_disk_refuses_writes_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount() else { return };
    let ballast = disk.path.join("ballast");
    std::fs::write(&ballast, vec![0; 200 << 10]).unwrap();
    let data = disk.path.join("data");
    let store = open(&data);
    let value = Bytes::from(vec![7; 10 << 10]);
    let mut written = 0;
    let refused = loop {
        match store.put(&format!("/{written:03}"), value.clone(), Expect::Absent, Durable).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, StoreError::Full { path } if path.starts_with(&data)), "{refused}");
    assert!(written > 10, "only {written} values fit");
    assert_eq!(store.range(Range::all("")).await.unwrap().records.len(), written);

    std::fs::remove_file(&ballast).unwrap();
    store.put("/after", value.clone(), Expect::Absent, Durable).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(&data);
    assert_eq!(store.range(Range::all("")).await.unwrap().records.len(), written + 1);
}
