//! `tombolo tour`: three things that go wrong in the fleet of `tombolo up`, and what becomes of them.
//!
//! Every step shows the commands it runs, then what changed, and puts things back, also when it fails or is interrupted.

mod steps;
mod view;

use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use futures::future::LocalBoxFuture;

use super::fleet::Fleet;
use super::progress::{say, warn};
use super::{DATA_DIR, connect, lab, need_root, show};
use crate::interrupt::{Interrupt, Interrupted};
use crate::output::emphasis;

/// See with the fleet of `tombolo up` what happens when links, sites and room fail
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tombolo tour\n  tombolo tour --yes")]
pub struct Args {
    /// Do not wait for Enter before each step
    #[arg(short, long)]
    yes: bool,
    /// Where the fleet's data lives
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

/// One step: what is done, and how it is undone, whatever had been done so far.
struct Step {
    title: &'static str,
    about: &'static str,
    act: for<'a> fn(&'a Stage) -> LocalBoxFuture<'a, Result<()>>,
    undo: for<'a> fn(&'a Stage) -> LocalBoxFuture<'a, Result<()>>,
}

/// What the steps play on.
pub(super) struct Stage {
    fleet: Fleet,
    hub: kube::Client,
    program: String,
    dir_flag: String,
}

pub async fn run(args: Args) -> Result<()> {
    need_root("tombolo tour")?;
    let mut interrupt = Interrupt::listen()?;
    let fleet = lab::load(&std::path::absolute(&args.data_dir)?)?;
    if let Some(dead) = fleet.members.iter().find(|member| !fleet.runs(member)) {
        bail!("{} does not run; `tombolo up` starts it again", dead.name);
    }
    if !args.yes && !std::io::stdin().is_terminal() {
        bail!("the tour waits for Enter before each step, and there is no terminal; add --yes");
    }
    let stage = Stage {
        hub: connect(&fleet, fleet.member("hub")?).await?.client,
        program: show::program(),
        dir_flag: show::data_dir_flag(fleet.dir()),
        fleet,
    };
    tokio::select! {
        settled = stage.settled() => settled
            .context("the sample application must be up for the tour; `tombolo place hello` shows it")?,
        () = interrupt.caught() => return Err(Interrupted("nothing was changed").into()),
    }
    for (number, step) in steps::ALL.iter().enumerate() {
        say(&format!("{}\n{}\n", emphasis(&format!("{}. {}", number + 1, step.title)), step.about));
        if !args.yes && !enter(&mut interrupt).await? {
            say("The rest is left out.");
            return Ok(());
        }
        let outcome = tokio::select! {
            outcome = (step.act)(&stage) => outcome,
            () = interrupt.caught() => Err(Interrupted("everything was put back").into()),
        };
        if outcome.is_err() {
            warn("\nPutting things back.");
        }
        (step.undo)(&stage)
            .await
            .context("cannot put things back; `tombolo down` removes the whole fleet")?;
        outcome?;
    }
    let down = emphasis(&format!("`{} down{}`", stage.program, stage.dir_flag));
    say(&format!("That was the tour. Everything is as it was; {down} removes the fleet."));
    Ok(())
}

/// Whether to go on: Enter does, anything else does not.
async fn enter(interrupt: &mut Interrupt) -> Result<bool> {
    print!("Enter goes on, q ends: ");
    std::io::stdout().flush()?;
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|read| (read, line))
    });
    let (read, line) = tokio::select! {
        line = line => line.context("cannot read from the terminal")??,
        // The thread that reads cannot be ended; the process can, and nothing is to be put back here.
        () = interrupt.caught() => { say(""); std::process::exit(130) }
    };
    say("");
    Ok(read > 0 && line.trim().is_empty())
}

impl Stage {
    /// Shows a command of this program, runs it, and shows what it printed.
    fn run(&self, line: &str) -> Result<()> {
        let line =
            if line.starts_with("lab ") { format!("{line}{}", self.dir_flag) } else { line.to_owned() };
        say(&format!("  {}", emphasis(&format!("$ {} {line}", self.program))));
        let output = Command::new(std::env::current_exe()?)
            .args(line.split_whitespace())
            .env("KUBECONFIG", self.fleet.kubeconfig(self.fleet.member("hub")?))
            // A group of its own: Ctrl-C in the terminal reaches the tour, which then puts things back.
            .process_group(0)
            .output()?;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        text.lines().for_each(|line| say(&format!("  {line}")));
        say("");
        if !output.status.success() {
            bail!("`tombolo {line}` failed");
        }
        Ok(())
    }

    fn say(&self, text: &str) {
        say(&format!("{text}\n"));
    }
}
