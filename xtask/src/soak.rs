//! `cargo xtask soak`: the model-checked soak, as long as one likes, on a release build.

use anyhow::Result;

use crate::run::{cargo, check};

#[derive(clap::Args)]
pub struct Args {
    /// How long in all; a quarter of it goes to kills and restarts
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Repeats the choices of an earlier run
    #[arg(long)]
    seed: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    check(cargo().args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "tombolo",
        "--package",
        "tombolo-tests",
        "--bins",
    ]))?;
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "tombolo-tests", "--bin", "soak", "--"]);
    command.args(["--minutes", &args.minutes.to_string()]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    check(&mut command)
}
