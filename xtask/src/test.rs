//! `cargo xtask test`: install what is needed, check style, run every test.

use anyhow::Result;

use crate::deny;
use crate::fixtures::{self, Fixtures};
use crate::run::{cargo, check, in_ci};

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
    check(&mut command)
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
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).envs(environment(&fixtures));
    if let Some(filter) = &args.filter {
        command.arg("--").arg(filter);
    }
    check(&mut command)
}

fn environment(fixtures: &Fixtures) -> impl Iterator<Item = (&'static str, &std::path::Path)> {
    fixtures.iter().map(|(name, path)| (*name, path.as_path()))
}
