//! Side-by-side benchmarks. `cargo xtask bench api` builds and runs this.

mod api;
mod contestant;
mod load;
mod procfs;
mod report;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "bench", about = "Compare Tombolo with upstream Kubernetes, side by side in one run")]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// The API server alone: start, memory, creates, lists, watches
    Api(api::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().scenario {
        Scenario::Api(args) => api::run(&args),
    }
}
