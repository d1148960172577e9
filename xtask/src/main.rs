//! Developer commands. `cargo xtask test` is what people and CI run.

mod bench;
mod conformance;
mod deny;
mod docs;
mod fixtures;
mod fuzz;
mod run;
mod soak;
mod test;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of Tombolo")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format the code
    Fmt {
        /// Only report what is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Clippy on everything; warnings are errors in CI
    Lint,
    /// Check licences, bans and sources of all dependencies against deny.toml
    Deny,
    /// Install what the tests need and run all of them
    Test(test::Args),
    /// Build the real Kubernetes, etcd and Helm binaries that tests compare with
    Fixtures,
    /// Compare with upstream Kubernetes, side by side in one run, and record the numbers in bench/
    Bench(bench::Args),
    /// Run Kubernetes' own conformance tests against a site and write docs/conformance.md
    Conformance(conformance::Args),
    /// Make the book's reference from the program and render the book; or check that the reference is current
    Docs(docs::Args),
    /// Run the model-checked soak: random clients and watchers, kills and restarts
    Soak(soak::Args),
    /// Fuzz the decoders of bytes from outside
    Fuzz(fuzz::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Fmt { check } => test::fmt(check),
        Command::Lint => test::lint(),
        Command::Deny => deny::run(),
        Command::Test(args) => test::run(&args),
        Command::Fixtures => fixtures::ensure_all().map(drop),
        Command::Bench(args) => bench::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
    }
}
