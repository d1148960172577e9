//! `cargo xtask bench SCENARIO`: builds both sides in release mode and runs the scenario.

use anyhow::Result;

use crate::fixtures;
use crate::run::{cargo, check};

#[derive(clap::Args)]
pub struct Args {
    /// The scenario (`api`, `hub`, `site`, `wan`) and its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    scenario: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let found = fixtures::ensure_all()?;
    check(cargo().args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "tombolo",
        "--package",
        "tombolo-bench",
    ]))?;
    check(
        cargo()
            .args(["run", "--release", "--quiet", "--package", "tombolo-bench", "--"])
            .args(&args.scenario)
            .envs(found),
    )
}
