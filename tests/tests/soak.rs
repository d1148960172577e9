//! A short run of the model-checked soak; `cargo xtask soak` makes a long one.

use std::time::Duration;

use anyhow::{Context, Result};
use tombolo_tests::soak::{crash, steady};

/// `SOAK_SEED` repeats the choices of an earlier run.
fn seed() -> Result<u64> {
    let seed = match std::env::var("SOAK_SEED") {
        Ok(text) => text.parse().with_context(|| format!("SOAK_SEED={text} is not a number"))?,
        Err(_) => u64::from(std::process::id()),
    };
    println!("soak: seed {seed}");
    Ok(seed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_clients_and_watchers_are_told_is_one_history() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let report = steady::run(dir.path(), seed()?, Duration::from_secs(15)).await?;
    println!("soak: {report:?}");
    assert!(report.changes > 100 && report.events > 100, "hardly anything happened: {report:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kills_at_any_moment() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let report = crash::run(dir.path(), seed()?, Duration::from_secs(15)).await?;
    println!("soak: {report:?}");
    assert!(report.acknowledged > 100, "hardly anything happened: {report:?}");
    Ok(())
}
