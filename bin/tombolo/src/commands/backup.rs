//! `tombolo backup` and `tombolo restore`: a copy of a hub's or site's store, and a data folder made from one.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tombolo_api::names::RESTORED_SKIP;
use tombolo_store::{EmbeddedOptions, EmbeddedStore, Store};

use crate::{control, start};

/// Copy the store of a hub or site, while it serves or while it is stopped
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo backup --data-dir /var/lib/tombolo/hub /backup/hub-monday")]
pub struct BackupArgs {
    /// The data folder of the hub or site
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// A new folder for the copy
    into: PathBuf,
}

/// Make a data folder from a backup
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo restore /backup/hub --data-dir /var/lib/tombolo/hub")]
pub struct RestoreArgs {
    /// The folder that `tombolo backup` wrote
    from: PathBuf,
    /// The data folder to make; it must have no store yet
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

fn store_of(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

pub async fn backup(args: BackupArgs) -> Result<()> {
    let BackupArgs { data_dir, into } = &args;
    if fs::read_dir(into).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is not empty; name a new folder for the copy", into.display());
    }
    let revision = match control::copy(data_dir).await? {
        Some(copy) => {
            take(&copy.folder, into).with_context(|| format!("cannot write {}", into.display()))?;
            copy.revision
        }
        None => of_stopped(data_dir, into).await?,
    };
    println!("copied everything up to revision {revision} to {}", into.display());
    Ok(())
}

/// Copies the files of a folder, to stay when the power goes.
fn take(from: &Path, into: &Path) -> Result<()> {
    start::private_folder(into)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let file = into.join(entry.file_name());
        fs::copy(entry.path(), &file)?;
        File::open(&file)?.sync_all()?;
    }
    Ok(File::open(into)?.sync_all()?)
}

async fn of_stopped(data_dir: &Path, into: &Path) -> Result<u64> {
    let folder = store_of(data_dir);
    if !folder.is_dir() {
        bail!("{} has no embedded store, and nothing serves from it", data_dir.display());
    }
    let store = EmbeddedStore::open(&folder, EmbeddedOptions::default())
        .with_context(|| format!("cannot open {}", folder.display()))?;
    start::private_folder(into).with_context(|| format!("cannot create {}", into.display()))?;
    let revision = store.backup(into).await?;
    store.close().await?;
    give_to_owner_of(data_dir, &folder)?;
    Ok(revision)
}

pub fn restore(args: &RestoreArgs) -> Result<()> {
    start::private_folder(&args.data_dir)
        .with_context(|| format!("cannot create the folder {}", args.data_dir.display()))?;
    let store = store_of(&args.data_dir);
    // Of two that are made from the same backup, the later one is ahead by as much as any other.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Twice the skip for each second: what was written after one restore must not hide the next one.
    let least = now.as_secs().saturating_mul(2 * RESTORED_SKIP);
    let revision = tombolo_store::restore(&args.from, &store, RESTORED_SKIP, least)?;
    give_to_owner_of(&args.data_dir, &store)?;
    println!("{} goes on from revision {revision}; start it as before", args.data_dir.display());
    let mark = args.data_dir.join(super::hub::RESTORED);
    std::fs::write(&mark, "made from a backup; a hub removes this file by itself\n")
        .with_context(|| format!("cannot write {}", mark.display()))
}

/// root types the command, and the process may run as somebody else: what was opened or made for it must be its own.
fn give_to_owner_of(data_dir: &Path, store: &Path) -> Result<()> {
    let owner = fs::metadata(data_dir)?;
    let files = fs::read_dir(store)?.map(|entry| entry.map(|entry| entry.path()));
    for path in std::iter::once(Ok(store.to_owned())).chain(files) {
        let path = path?;
        let is = fs::metadata(&path)?;
        if (is.uid(), is.gid()) != (owner.uid(), owner.gid()) {
            chown(&path, Some(owner.uid()), Some(owner.gid()))
                .with_context(|| format!("cannot give {} to the owner of its folder", path.display()))?;
        }
    }
    Ok(())
}
