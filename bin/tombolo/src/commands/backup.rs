//! `tombolo backup` and `tombolo restore`: a copy of a hub's or site's store, and a data folder made from one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tombolo_store::{EmbeddedOptions, EmbeddedStore, Store};

/// Revisions that the restored store skips: more than can have happened since the backup, so that no client takes a new
/// revision for one that it saw before.
const SKIP: u64 = 1_000_000;

/// Copy the store of a stopped hub or site
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  systemctl stop tombolo-hub\n  tombolo backup --data-dir /var/lib/tombolo/hub /backup/hub\n  systemctl start tombolo-hub"
)]
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
    let folder = store_of(&args.data_dir);
    if !folder.is_dir() {
        bail!("{} has no embedded store", args.data_dir.display());
    }
    let store = EmbeddedStore::open(&folder, EmbeddedOptions::default())
        .with_context(|| format!("cannot open {}; stop the hub or site first", folder.display()))?;
    let revision = store.backup(&args.into).await?;
    store.close().await?;
    println!("copied everything up to revision {revision} to {}", args.into.display());
    Ok(())
}

pub fn restore(args: &RestoreArgs) -> Result<()> {
    std::fs::create_dir_all(&args.data_dir)?;
    let revision = tombolo_store::restore(&args.from, &store_of(&args.data_dir), SKIP)?;
    println!("{} goes on from revision {revision}; start it as before", args.data_dir.display());
    Ok(())
}
