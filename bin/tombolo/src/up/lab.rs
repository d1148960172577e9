//! `tombolo lab`: what can go wrong, on purpose, with the fleet of `tombolo up`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fleet::{Fleet, Member, Role};
use super::{DATA_DIR, network, wan};

/// Cut links and kill members of the fleet of `tombolo up`, and bring them back
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo lab cut edge-1\n  tombolo lab mend edge-1\n  tombolo lab kill cloud\n  tombolo lab start cloud"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    /// Where the fleet's data lives
    #[arg(long, global = true, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

#[derive(Subcommand)]
enum Action {
    /// Pull the network cable of a member
    #[command(after_help = "Example:\n  tombolo lab cut edge-1")]
    Cut {
        /// Name of the member, such as edge-1
        member: String,
    },
    /// Put the network cable of a member back
    #[command(after_help = "Example:\n  tombolo lab mend edge-1")]
    Mend {
        /// Name of the member, such as edge-1
        member: String,
    },
    /// Kill the process of a member with SIGKILL; its containers go on
    #[command(after_help = "Example:\n  tombolo lab kill hub")]
    Kill {
        /// Name of the member, such as hub
        member: String,
    },
    /// Start the process of a member again, as `up` had started it
    #[command(after_help = "Example:\n  tombolo lab start hub")]
    Start {
        /// Name of the member, such as hub
        member: String,
    },
    /// Fetch a path of the sample application from inside a member's network, which works when it is cut off too
    #[command(after_help = "Example:\n  tombolo lab fetch edge-1")]
    Fetch {
        /// Name of the site, such as edge-1
        member: String,
    },
}

pub async fn run(args: Args) -> Result<()> {
    let mut fleet = load(&args.data_dir)?;
    match args.action {
        Action::Cut { member } => {
            set_link(&fleet, &member, false).await?;
            println!("{member} is cut off");
        }
        Action::Mend { member } => {
            set_link(&fleet, &member, true).await?;
            println!("{member} is connected");
        }
        Action::Kill { member } => {
            fleet.stop(fleet.member(&member)?, false).await;
            println!("{member} is dead");
        }
        Action::Start { member } => {
            let known = fleet.member(&member)?.clone();
            if fleet.runs(&known) {
                bail!("{member} runs already, as process {}", known.pid.unwrap_or_default());
            }
            fleet.start(&member, &[])?;
            fleet.ready(&member, Duration::from_secs(60)).await?;
            println!("{member} runs");
        }
        Action::Fetch { member } => print!("{}", fetch_inside(fleet.member(&member)?)?),
    }
    Ok(())
}

/// The fleet that must be there.
pub fn load(dir: &std::path::Path) -> Result<Fleet> {
    Fleet::load(dir)?.with_context(|| {
        format!("there is no sample fleet in {}; start one with `tombolo up`", dir.display())
    })
}

pub async fn set_link(fleet: &Fleet, name: &str, up: bool) -> Result<()> {
    let member = fleet.member(name)?;
    if !matches!(member.role, Role::Hub | Role::Site) {
        bail!("{name} has no cable of its own here; cut a site or the hub");
    }
    let Some(wan) = fleet.wan() else { return network::set_cable(member.number, up).await };
    let path = wan::cuts_file(&fleet.folder(wan));
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let mut cuts: Vec<_> = old.lines().filter(|line| *line != name).collect();
    if !up {
        cuts.push(name);
    }
    std::fs::write(&path, cuts.join("\n")).with_context(|| format!("cannot write {}", path.display()))?;
    let pid =
        wan.pid.filter(|_| fleet.runs(wan)).context("the emulated network is dead; `tombolo up` again")?;
    kill(Pid::from_raw(pid), Signal::SIGHUP).context("cannot tell the emulated network")
}

/// The sample page as somebody beside the site sees it.
pub fn fetch_inside(member: &Member) -> Result<String> {
    let address = (member.address(), super::NODE_PORT).into();
    let namespace = tombolo_wan::Namespace::of_another(&network::namespace(&member.name));
    namespace.run(move || super::fetch(address))?
}
