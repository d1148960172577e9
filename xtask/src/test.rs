//! `cargo xtask test`: install what is needed, check style, run every test.

use std::path::PathBuf;

use anyhow::Result;

use crate::conformance;
use crate::deny;
use crate::fixtures::{self, Fixtures};
use crate::run::{cargo, check, in_ci, root};

#[derive(clap::Args)]
pub struct Args {
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Leave out the checks of formatting, dependencies and lints
    #[arg(long)]
    no_lint: bool,
}

pub fn fmt(check_only: bool) -> Result<()> {
    let mut command = cargo();
    command.args(["fmt", "--all"]);
    if check_only {
        command.arg("--check");
    }
    check(&mut command)
}

pub fn lint() -> Result<()> {
    let mut command = cargo();
    command.args(["clippy", "--workspace", "--all-targets", "--quiet"]);
    if in_ci() {
        command.args(["--", "-D", "warnings"]);
    }
    check(&mut command)?;
    fuzz_programs()
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The fuzz programs are a workspace of their own, which only `cargo xtask fuzz` builds.
fn fuzz_programs() -> Result<()> {
    let mut command = cargo();
    command.args(["check", "--locked", "--quiet", "--manifest-path", "fuzz/Cargo.toml"]);
    // A folder of its own, as its lock file and its profiles are.
    check(command.arg("--target-dir").arg(target().join("fuzz")))
}

pub fn run(args: &Args) -> Result<()> {
    let fixtures = fixtures::ensure_all()?;
    if !args.no_lint {
        fmt(true)?;
        deny::run()?;
        lint()?;
    }
    // The black-box tests drive the binary that users run.
    check(cargo().args(["build", "--quiet", "--workspace", "--bins"]))?;
    // What conformance tests passed once, they pass: a minute and a half for those that need no node.
    let conforms = match args.filter {
        None => conformance::run(&conformance::Args::quick(target().join("debug/tombolo"))),
        Some(_) => Ok(()),
    };
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).envs(environment(&fixtures));
    if let Some(filter) = &args.filter {
        command.arg("--").arg(filter);
    }
    check(&mut command)?;
    conforms
}

fn environment(fixtures: &Fixtures) -> impl Iterator<Item = (&'static str, &std::path::Path)> {
    fixtures.iter().map(|(name, path)| (*name, path.as_path()))
}
