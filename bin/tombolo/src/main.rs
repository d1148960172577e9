//! One binary: hub, site, agent, node and the client for them.

mod client;
mod commands;
mod nodes;
mod output;
mod start;
mod ties;
mod up;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::client::Target;
use crate::commands::{
    agent, backup, completion, explain, hub, image, join, node, place, serve, site, sites, token, wipe,
};

/// One Kubernetes API from cloud to edge
#[derive(Parser)]
#[command(name = "tombolo", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Site(site::Args),
    Hub(hub::Args),
    Agent(agent::Args),
    Node(node::Args),
    Up(up::Args),
    Down(up::DownArgs),
    Explain(explain::Args),
    Token(token::Args),
    Join(join::Args),
    Leave(join::LeaveArgs),
    Sites(sites::Args),
    Place(place::Args),
    Image(image::Args),
    Backup(backup::BackupArgs),
    Restore(backup::RestoreArgs),
    #[command(hide = true)]
    Wipe(wipe::Args),
    Completion(completion::Args),
}

fn main() -> ExitCode {
    // Must come first: containers are made by a copy of this program that has one thread.
    tombolo_node::reexec::maybe_run();
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tombolo: {}", output::words(&error));
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    // Before any thread exists, so that all of them are inside.
    if let Some(name) = cli.command.netns() {
        tombolo_wan::enter(name)?;
    }
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                // A join checks the hub's certificate by its hash; the library below warns that it does not.
                .unwrap_or_else(|_| "warn,kube_client::client::tls=error,tombolo=info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let target = cli.target;
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Hub(args) => hub::run(args).await,
            Command::Node(args) => node::run(args, &target).await,
            Command::Agent(args) => agent::run(args, &target).await,
            Command::Up(args) => up::up(args).await,
            Command::Down(args) => up::down(args).await,
            Command::Explain(args) => explain::run(args, &target).await,
            Command::Site(args) => site::run(args).await,
            Command::Token(args) => token::run(args, &target).await,
            Command::Join(args) => join::run(args, &target).await,
            Command::Leave(args) => join::leave(args, &target).await,
            Command::Sites(args) => sites::run(args, &target).await,
            Command::Place(args) => place::run(args, &target).await,
            Command::Image(args) => image::run(args).await,
            Command::Backup(args) => backup::backup(args).await,
            Command::Restore(args) => backup::restore(&args),
            Command::Wipe(args) => wipe::run(args).await,
            Command::Completion(args) => {
                completion::run(&args, Cli::command());
                Ok(())
            }
        }
    })
}

impl Command {
    /// The network namespace a server was told to run in.
    fn netns(&self) -> Option<&str> {
        match self {
            Self::Serve(args) => args.start.netns.as_deref(),
            Self::Site(args) => args.start.netns.as_deref(),
            Self::Hub(args) => args.start.netns.as_deref(),
            Self::Node(args) => args.netns.as_deref(),
            Self::Wipe(args) => args.netns.as_deref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
