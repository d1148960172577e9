//! `cargo xtask fuzz`: every fuzz target for a while, from the seeds in `fuzz/seeds` and what earlier runs found.
//!
//! The pinned stable toolchain suffices: without a sanitizer, what is found is panics, broken promises, time and memory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::fixtures::{cache, of_crate};
use crate::run::{check, root};

const CARGO_FUZZ: &str = "0.13.2";
/// An input that takes longer, or needs more, is a finding.
const SECONDS_PER_INPUT: u32 = 10;
const MEMORY_MB: u32 = 1024;

#[derive(clap::Args)]
pub struct Args {
    /// How long to run each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Instead, try so many inputs of each target, the same ones every time
    #[arg(long, value_name = "N")]
    inputs: Option<u32>,
    /// Only this target
    target: Option<String>,
}

/// How much to try.
#[derive(Clone, Copy)]
enum Budget {
    /// For so long, going on from what earlier runs found.
    Seconds(u32),
    /// So many inputs, from the seeds alone and always the same ones: a check that tells the same every time.
    Inputs(u32),
}

pub fn run(args: &Args) -> Result<()> {
    let budget = args.inputs.map_or(Budget::Seconds(args.seconds), Budget::Inputs);
    match &args.target {
        Some(target) => one(&of_crate("cargo-fuzz", CARGO_FUZZ, &[])?, target, budget),
        None => all(budget),
    }
}

/// Runs every target in turn and stops at the first finding.
fn all(budget: Budget) -> Result<()> {
    let fuzzer = of_crate("cargo-fuzz", CARGO_FUZZ, &[])?;
    for target in targets()? {
        one(&fuzzer, &target, budget)?;
    }
    Ok(())
}

fn one(fuzzer: &PathBuf, target: &str, budget: Budget) -> Result<()> {
    let (corpus, limits) = match budget {
        Budget::Seconds(seconds) => {
            println!("fuzz: {target}, {seconds} s");
            (cache()?.join("fuzz").join(target), vec![format!("-max_total_time={seconds}")])
        }
        Budget::Inputs(inputs) => {
            println!("fuzz: {target}, {inputs} inputs");
            let scratch = cache()?.join("fuzz-check").join(target);
            // What an earlier check kept would make this one different.
            let _ = fs::remove_dir_all(&scratch);
            (scratch, vec![format!("-runs={inputs}"), "-seed=1".to_owned()])
        }
    };
    fs::create_dir_all(&corpus)?;
    let mut command = Command::new(fuzzer);
    command.current_dir(root()).args(["fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", target]);
    command.arg(corpus).arg(root().join("fuzz/seeds").join(target)).arg("--");
    command.args(limits);
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
