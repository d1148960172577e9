//! `cargo xtask soak`: the soak of `tests/tests/soak.rs`, for as long as one likes.

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use tombolo_tests::soak::{crash, steady};

#[derive(Parser)]
struct Args {
    /// How long in all; a quarter of it goes to kills and restarts
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Decides what the clients ask for
    #[arg(long)]
    seed: Option<u64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let length = Duration::from_secs_f64(args.minutes * 60.0);
    println!("soak: seed {seed}, {length:?}");
    let dir = tempfile::tempdir()?;
    println!("soak: {:#?}", steady::run(&dir.path().join("steady"), seed, length * 3 / 4).await?);
    println!("soak: {:#?}", crash::run(&dir.path().join("crash"), seed, length / 4).await?);
    Ok(())
}
