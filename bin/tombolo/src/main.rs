//! One binary: hub, site, agent, node and the client for them.

mod client;
mod commands;
mod control;
mod etcd;
mod fault;
mod interrupt;
mod kinds;
mod nodes;
mod notify;
mod output;
mod registries;
mod start;
mod ties;
mod up;
mod workers;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::client::Target;
use crate::commands::{
    agent, backup, check, completion, explain, gateway, hub, image, import, join, logs, node, place,
    reference, serve, site, sites, support, token, top, wipe,
};

const HELP: &str = "\
Examples:
  tombolo up                              a whole fleet on this machine, for a first try
  tombolo sites -o wide                   the fleet at a glance
  tombolo explain place deploy/web        why each replica is where it is
  tombolo check                           what is wrong, and how to mend it

Exit codes:
  0 done   1 `check` found something wrong   2 not done, or a wrong command line   130 interrupted";

/// One Kubernetes API from cloud to edge
#[derive(Parser)]
#[command(name = "tombolo", version, arg_required_else_help = true, after_help = HELP)]
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
    Gateway(gateway::Args),
    Up(up::Args),
    Down(up::DownArgs),
    Tour(up::tour::Args),
    Lab(up::lab::Args),
    #[command(hide = true)]
    Relay(up::wan::Args),
    Explain(explain::Args),
    Token(token::Args),
    Join(join::Args),
    Leave(join::LeaveArgs),
    Sites(sites::Args),
    Place(place::Args),
    Top(top::Args),
    Logs(logs::Args),
    Import(import::Args),
    GiveBack(import::GiveBackArgs),
    Image(image::Args),
    Check(check::Args),
    Support(support::Args),
    Backup(backup::BackupArgs),
    Restore(backup::RestoreArgs),
    Wipe(wipe::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    Reference(reference::Args),
}

fn main() -> ExitCode {
    // Must come first: containers are made by a copy of this program that has one thread.
    tombolo_node::reexec::maybe_run();
    debug_assert!(tombolo_memory::is_set_up(), "the allocator was set up before the first allocation");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return fault::misused(&error, &Cli::command()),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fault::report(&error),
    }
}

async fn stay_small() {
    let mut code = tombolo_memory::Code::default();
    loop {
        tokio::time::sleep(tombolo_memory::LOOK).await;
        if let Err(error) = code.look() {
            tracing::debug!(%error, "code that is not needed stays mapped");
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    // Before any thread exists, so that all of them are inside.
    if let Some(name) = cli.command.netns() {
        tombolo_wan::enter(name)?;
    }
    // What the Kubernetes client says of a failed call, the caller says too, in words.
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| "warn,tombolo=info,kube_client::client=off".into()),
        )
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    let runtime = match cli.command {
        Command::Serve(_) | Command::Hub(_) => workers::apart()?,
        // It does little at a time; between two they would wake each other for it.
        Command::Agent(_) => workers::anywhere(1)?,
        _ => workers::anywhere(workers::WORKERS)?,
    };
    let target = cli.target;
    runtime.spawn(stay_small());
    let result = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Hub(args) => hub::run(args).await,
            Command::Node(args) => node::run(args, &target).await,
            Command::Agent(args) => agent::run(args, &target).await,
            Command::Gateway(args) => gateway::run(args, &target).await,
            Command::Up(args) => up::up(args).await,
            Command::Down(args) => up::down(args).await,
            Command::Tour(args) => up::tour::run(args).await,
            Command::Lab(args) => up::lab::run(args).await,
            Command::Relay(args) => up::wan::run(args).await,
            Command::Explain(args) => explain::run(args, &target).await,
            Command::Site(args) => site::run(args).await,
            Command::Token(args) => token::run(args, &target).await,
            Command::Join(args) => join::run(args, &target).await,
            Command::Leave(args) => join::leave(args, &target).await,
            Command::Sites(args) => sites::run(args, &target).await,
            Command::Place(args) => place::run(args, &target).await,
            Command::Top(args) => top::run(args, &target).await,
            Command::Logs(args) => logs::run(args, &target).await,
            Command::Import(args) => import::run(args, &target).await,
            Command::GiveBack(args) => import::give_back(args, &target).await,
            Command::Image(args) => image::run(args).await,
            Command::Check(args) => check::run(args, &target).await,
            Command::Support(args) => support::run(args, &target).await,
            Command::Backup(args) => backup::backup(args).await,
            Command::Restore(args) => backup::restore(&args),
            Command::Wipe(args) => wipe::run(args).await,
            Command::Completion(args) => {
                completion::run(&args, Cli::command());
                Ok(())
            }
            Command::Reference(args) => {
                reference::run(&args, Cli::command());
                Ok(())
            }
        }
    });
    if result.is_err() {
        // The process ends with what went wrong; tasks that are torn apart now would only complain about each other.
        std::mem::forget(runtime);
    }
    result
}

impl Command {
    /// The network namespace a server was told to run in.
    fn netns(&self) -> Option<&str> {
        match self {
            Self::Serve(args) => args.start.netns.as_deref(),
            Self::Site(args) => args.start.netns.as_deref(),
            Self::Hub(args) => args.start.netns.as_deref(),
            Self::Node(args) => args.netns.as_deref(),
            Self::Gateway(args) => args.netns.as_deref(),
            // What was in a namespace that is gone went with it; what ran outside is still to be removed.
            Self::Wipe(args) => {
                args.netns.as_deref().filter(|name| tombolo_wan::Namespace::of_another(name).path().exists())
            }
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
