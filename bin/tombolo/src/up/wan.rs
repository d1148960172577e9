//! The emulated wide area network of `tombolo up --wan`: a process that carries every packet between the members.
//!
//! Its links to this machine are perfect, so that only what crosses the fleet is slow. Which members are cut off is in a
//! file that it reads again on SIGHUP.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tombolo_wan::{Link, Namespace, Relay};

use super::network;

/// Where this machine itself is plugged in.
pub const DEVICE: &str = "tombolo-up-wan";

/// Carry packets between network namespaces, late and with losses (started by `tombolo up --wan`)
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo up --wan 100ms,1%")]
pub struct Args {
    /// Folder for the list of cut members and the sign of readiness
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// One-way delay and loss, such as 100ms,1%
    #[arg(long)]
    link: Link,
    /// The members, as NAME=NUMBER
    #[arg(long = "host", value_name = "NAME=NUMBER", value_parser = host)]
    hosts: Vec<(String, u8)>,
}

fn host(text: &str) -> Result<(String, u8), String> {
    let (name, number) = text.split_once('=').ok_or("write NAME=NUMBER")?;
    Ok((name.to_owned(), number.parse().map_err(|_| format!("{number:?} is no number up to 255"))?))
}

/// Where the names of cut members are, one per line.
pub fn cuts_file(dir: &Path) -> PathBuf {
    dir.join("cuts")
}

pub async fn run(args: Args) -> Result<()> {
    let relay = Relay::start(args.link, 1);
    let machine = network::address(1);
    relay.plug_here(DEVICE, machine)?;
    for (name, number) in &args.hosts {
        let namespace = Namespace::of_another(&network::namespace(name));
        relay.plug(&namespace, network::address(*number))?;
        relay.set(machine, network::address(*number), Link::default());
    }
    let mut again = signal(SignalKind::hangup())?;
    let mut end = signal(SignalKind::terminate())?;
    fs::write(args.data_dir.join("ready"), "").context("cannot write the sign of readiness")?;
    loop {
        let cuts = fs::read_to_string(cuts_file(&args.data_dir)).unwrap_or_default();
        let is_cut = |name: &String| cuts.lines().any(|line| line == name);
        // The mended first: mending one would also mend its link to one that is still cut.
        for wanted in [false, true] {
            for (_, number) in args.hosts.iter().filter(|(name, _)| is_cut(name) == wanted) {
                relay.cut(network::address(*number), wanted);
            }
        }
        tokio::select! {
            _ = again.recv() => {}
            _ = end.recv() => return Ok(()),
        }
    }
}
