//! `cargo xtask fuzz`: every fuzz target for a while, from the seeds in `fuzz/seeds` and what earlier runs found.
//!
//! The pinned stable toolchain suffices: without a sanitizer, what is found is panics, broken promises, time and memory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::fixtures::cache;
use crate::run::{cargo, check, root};

const CARGO_FUZZ: &str = "0.13.2";
/// An input that takes longer, or needs more, is a finding.
const SECONDS_PER_INPUT: u32 = 10;
const MEMORY_MB: u32 = 1024;

#[derive(clap::Args)]
pub struct Args {
    /// How long to run each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only this target
    target: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    match &args.target {
        Some(target) => one(&fuzzer()?, target, args.seconds),
        None => all(args.seconds),
    }
}

/// Runs every target in turn and stops at the first finding.
pub fn all(seconds: u32) -> Result<()> {
    let fuzzer = fuzzer()?;
    for target in targets()? {
        one(&fuzzer, &target, seconds)?;
    }
    Ok(())
}

fn one(fuzzer: &PathBuf, target: &str, seconds: u32) -> Result<()> {
    println!("fuzz: {target}, {seconds} s");
    let corpus = cache()?.join("fuzz").join(target);
    fs::create_dir_all(&corpus)?;
    let mut command = Command::new(fuzzer);
    command.current_dir(root()).args(["fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", target]);
    command.arg(corpus).arg(root().join("fuzz/seeds").join(target)).arg("--");
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-timeout={SECONDS_PER_INPUT}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MB}"));
    command.args(["-max_len=65536", "-print_final_stats=1", "-verbosity=0"]);
    check(&mut command).with_context(|| {
        format!("the fuzz target {target} found something; fuzz/artifacts/{target} has the input")
    })
}

/// The targets are the files.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|x| x == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// `cargo-fuzz`, installed once into the cache folder.
fn fuzzer() -> Result<PathBuf> {
    let root = cache()?.join(format!("cargo-fuzz-{CARGO_FUZZ}"));
    let program = root.join("bin/cargo-fuzz");
    if !program.exists() {
        println!("fuzz: installing cargo-fuzz {CARGO_FUZZ}");
        check(
            cargo()
                .args(["install", "cargo-fuzz", "--locked", "--quiet", "--version", CARGO_FUZZ, "--root"])
                .arg(&root),
        )?;
    }
    Ok(program)
}
