//! `tombolo backup` and `tombolo restore`: a copy of a hub's or site's store, and a data folder made from one.

use std::path::{Path, PathBuf};

use crate::control;
use anyhow::{Context, Result, bail};
use tombolo_store::{EmbeddedOptions, EmbeddedStore, Store};

/// Revisions that the restored store skips: more than can have happened since the backup, so that no client takes a new
/// revision for one that it saw before.
const SKIP: u64 = 1_000_000;

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
    // The serving process writes the copy, and it may stand in another folder than we do.
    let into = std::path::absolute(&args.into)?;
    let revision = match control::backup(&args.data_dir, &into).await? {
        Some(revision) => revision,
        None => of_stopped(&args.data_dir, &into).await?,
    };
    println!("copied everything up to revision {revision} to {}", into.display());
    Ok(())
}

async fn of_stopped(data_dir: &Path, into: &Path) -> Result<u64> {
    let folder = store_of(data_dir);
    if !folder.is_dir() {
        bail!("{} has no embedded store, and nothing serves from it", data_dir.display());
    }
    let store = EmbeddedStore::open(&folder, EmbeddedOptions::default())
        .with_context(|| format!("cannot open {}", folder.display()))?;
    let revision = store.backup(into).await?;
    store.close().await?;
    Ok(revision)
}

pub fn restore(args: &RestoreArgs) -> Result<()> {
    std::fs::create_dir_all(&args.data_dir)?;
    let revision = tombolo_store::restore(&args.from, &store_of(&args.data_dir), SKIP)?;
    println!("{} goes on from revision {revision}; start it as before", args.data_dir.display());
    let mark = args.data_dir.join(super::hub::RESTORED);
    std::fs::write(&mark, "made from a backup; a hub removes this file by itself\n")
        .with_context(|| format!("cannot write {}", mark.display()))
}
