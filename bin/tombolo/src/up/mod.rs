//! `tombolo up` and `tombolo down`: a whole fleet on this machine, for a first try.

mod existing;
mod fleet;
pub mod lab;
mod make;
mod memory;
mod network;
mod progress;
mod show;
pub mod tour;
pub mod wan;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tombolo_wan::Link;

use crate::client::{Connected, Target};
use crate::interrupt::{Interrupt, Interrupted};
use fleet::{Fleet, Member};

/// Where the sample fleet lives.
pub const DATA_DIR: &str = "/var/lib/tombolo/up";
const NODE_PORT: u16 = 30080;

/// Start a hub, a cloud site and edge sites on this machine, with a sample application
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo up\n  tombolo up --sites 4 --wan 100ms,1%\n  tombolo up --member ~/.kube/config\n  tombolo down"
)]
pub struct Args {
    /// How many edge sites
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=50))]
    sites: u8,
    /// A wide area network between the members: one-way delay and loss, such as 100ms,1%
    #[arg(long, value_name = "DELAY,LOSS")]
    wan: Option<Link>,
    /// Kubeconfig of an existing Kubernetes cluster to tie to the hub; may be given several times
    #[arg(long = "member", value_name = "KUBECONFIG")]
    members: Vec<PathBuf>,
    /// Where the fleet's data lives
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Remove everything `up` made
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo down")]
pub struct DownArgs {
    /// Where the fleet's data lives
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

pub async fn down(args: DownArgs) -> Result<()> {
    need_root("tombolo down")?;
    let dir = std::path::absolute(&args.data_dir)?;
    match Fleet::load(&dir)? {
        Some(fleet) => {
            fleet.remove().await?;
            println!("The sample fleet is gone.");
        }
        None => {
            if let Some(other) = network::owner().filter(|other| *other != dir)
                && Fleet::load(&other)?.is_some()
            {
                bail!(
                    "there is no sample fleet in {}, but one in {}.\nNext: `tombolo down --data-dir {}`",
                    dir.display(),
                    other.display(),
                    other.display()
                );
            }
            network::remove_leftovers().await?;
            println!("There is no sample fleet in {}.", dir.display());
        }
    }
    Ok(())
}

pub async fn up(mut args: Args) -> Result<()> {
    need_root("tombolo up")?;
    args.data_dir = std::path::absolute(&args.data_dir)?;
    // Before anything is made, so that no signal finds us unprepared.
    let mut interrupt = Interrupt::listen()?;
    if let Some(mut fleet) = Fleet::load(&args.data_dir)? {
        let there = fleet.hosts().all(|member| network::exists(&member.name)) && !fleet.members.is_empty();
        if there && network::is_of(&args.data_dir) {
            return find(&mut fleet).await;
        }
        println!("Found the rest of an earlier fleet; removing it first.");
        fleet.remove().await?;
    }
    if network::in_use() {
        let other = network::owner().unwrap_or_else(|| DATA_DIR.into());
        bail!(
            "another sample fleet is up on this machine, in {}.\n\
             Next: end it with `tombolo down --data-dir {}`",
            other.display(),
            other.display()
        );
    }
    if std::fs::read_dir(&args.data_dir).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!(
            "the folder {} is not empty, and nothing in it says that it is a sample fleet's.\n\
             Next: give another with --data-dir",
            args.data_dir.display()
        );
    }
    let started = Instant::now();
    let mut fleet = Fleet::new(&args.data_dir);
    let outcome = tokio::select! {
        made = make::make(&mut fleet, &args) => made,
        () = interrupt.caught() => Err(Interrupted.into()),
    };
    if let Err(error) = outcome {
        eprintln!("\nRemoving what was started so far.");
        fleet.remove().await.context("while cleaning up; `tombolo down` tries again")?;
        return Err(error);
    }
    let memory = memory::of(&fleet);
    println!(
        "\nReady after {:.1} s. The whole fleet takes {memory} MB of memory.\n",
        started.elapsed().as_secs_f32()
    );
    show::show(&fleet).await
}

/// A second `up`: the fleet is there, and members that died are started again.
async fn find(fleet: &mut Fleet) -> Result<()> {
    let dead: Vec<_> =
        fleet.members.iter().filter(|m| !fleet.runs(m)).map(|member| member.name.clone()).collect();
    for name in &dead {
        fleet.start(name, &[])?;
        fleet.ready(name, make::PATIENCE).await?;
    }
    if dead.is_empty() {
        println!("The fleet is up already; `tombolo down` removes it.\n");
    } else {
        println!("The fleet is there already; {} was dead and runs again.\n", dead.join(", "));
    }
    show::show(fleet).await
}

/// What cannot work without root is said before anything is touched.
pub fn need_root(command: &str) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "`{command}` needs root. Without it this machine does not let it:\n  \
         - make network namespaces, a bridge and cables, one network per site\n  \
         - mount the file systems of containers (overlayfs)\n  \
         - limit and count containers (cgroups)\n  \
         - set up Service addresses (nftables)\n\
         A hub, and a site without `--node`, run as any user.\n\
         Next: run it again as root, for example `sudo $(which tombolo) {}`; `tombolo check` looks at the rest.",
        command.trim_start_matches("tombolo ")
    );
}

async fn connect(fleet: &Fleet, member: &Member) -> Result<Connected> {
    Target { kubeconfig: Some(fleet.kubeconfig(member)), context: None }.connect().await
}

/// The sample page at an address, or why there is none yet.
fn fetch(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(1000))
        .with_context(|| format!("http://{address}/ does not answer"))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(b"GET /text HTTP/1.1\r\nHost: hello\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => bail!("{address} answered {answer:?}"),
    }
}
