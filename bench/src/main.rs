//! Side-by-side benchmarks. `cargo xtask bench api` builds and runs this.

mod api;
mod contestant;
mod fan_out;
mod hub;
mod load;
mod procfs;
mod report;
mod site;
mod sites;
mod wan;

use clap::{Parser, Subcommand};
// Many sites in one process should cost what they cost in the program: its allocator.
use tombolo_memory as _;

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
    /// The hub: against direct use of a cluster, the agent's cost, a thousand sites
    Hub(hub::Args),
    /// A whole cluster on one machine: Deployments to scheduled and to running, memory, writes
    Site(site::Args),
    /// Many sites in one process, as a load on a hub
    #[command(hide = true)]
    Sites(sites::Args),
    /// Hub and site with a wide area network between them
    Wan(wan::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().scenario {
        Scenario::Api(args) => api::run(&args),
        Scenario::Hub(args) => hub::run(&args),
        Scenario::Site(args) => site::run(&args),
        Scenario::Sites(args) => sites::run(args),
        Scenario::Wan(args) => wan::run(&args),
    }
}
