//! `tombolo up` and `tombolo down`: a whole fleet on this machine, for a first try.

mod existing;
mod fleet;
pub mod lab;
mod make;
mod memory;
mod network;
pub mod progress;
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
use fleet::{Fleet, Member, Shape};
use progress::{say, warn};

/// Where the sample fleet lives.
pub const DATA_DIR: &str = "/var/lib/tombolo/up";
const NODE_PORT: u16 = 30080;
const EDGES: u8 = 2;

/// Start a hub, a cloud site and edge sites on this machine, with a sample application
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo up\n  tombolo up --sites 4 --wan 100ms,1%\n  tombolo up --member ~/.kube/config\n  tombolo down"
)]
pub struct Args {
    /// How many edge sites, 1 to 50; 2 if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=50))]
    sites: Option<u8>,
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
            say("The sample fleet is gone.");
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
            args.agree_with(&fleet)?;
            return tokio::select! {
                found = find(&mut fleet) => found,
                () = interrupt.caught() => Err(Interrupted("the fleet stays; `tombolo down` removes it").into()),
            };
        }
        say("Found the rest of an earlier fleet; removing it first.");
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
    let mut fleet = Fleet::new(&args.data_dir);
    let outcome = tokio::select! {
        made = start(&mut fleet, &args) => made,
        () = interrupt.caught() => Err(Interrupted("everything was put back").into()),
    };
    if let Err(error) = outcome {
        warn("\nRemoving what was started so far.");
        fleet.remove().await.context("while cleaning up; `tombolo down` tries again")?;
        return Err(error);
    }
    Ok(())
}

/// The first `up`, until it has shown everything.
async fn start(fleet: &mut Fleet, args: &Args) -> Result<()> {
    let started = Instant::now();
    make::make(fleet, args).await?;
    let seconds = started.elapsed().as_secs_f32();
    let memory = memory::of(fleet);
    say(&format!("\nReady after {seconds:.1} s. The whole fleet takes {memory} MB of memory.\n"));
    show::show(fleet).await
}

impl Args {
    /// The fleet that these flags make.
    fn shape(&self) -> Shape {
        // One that cannot be found now may have been there when the fleet was made.
        let found = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        Shape {
            sites: self.sites.unwrap_or(EDGES),
            wan: self.wan.map(|link| link.to_string()),
            members: self.members.iter().map(found).collect(),
        }
    }

    /// A fleet that is there is not made into another one; who asks for that is told so.
    fn agree_with(&self, fleet: &Fleet) -> Result<()> {
        let differences = self.differences(&fleet.shape);
        if differences.is_empty() {
            return Ok(());
        }
        let dir = show::data_dir_flag(&self.data_dir);
        bail!(
            "the sample fleet in {} is another one than you ask for: {}.\n\
             Next: `tombolo down{dir}`, then the same `tombolo up` again; or `tombolo up{dir}` to see the one that is there",
            self.data_dir.display(),
            differences.join("; "),
        );
    }

    /// In which points a fleet is not what the flags ask for. What no flag says anything about may be as it is.
    fn differences(&self, there: &Shape) -> Vec<String> {
        let asked = self.shape();
        let paths =
            |all: &[PathBuf]| all.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        let points = [
            (
                self.sites.is_some() && asked.sites != there.sites,
                format!("it has {} edge sites, not {}", there.sites, asked.sites),
            ),
            (
                asked.wan.is_some() && asked.wan != there.wan,
                match &there.wan {
                    Some(link) => {
                        format!("its --wan is {link}, not {}", asked.wan.as_deref().unwrap_or_default())
                    }
                    None => "it has no --wan".into(),
                },
            ),
            (
                !asked.members.is_empty() && asked.members != there.members,
                match paths(&there.members).as_str() {
                    "" => "it has no --member".into(),
                    others => format!("its --member is {others}"),
                },
            ),
        ];
        points.into_iter().filter(|(differs, _)| *differs).map(|(_, words)| words).collect()
    }
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
        say("The fleet is up already; `tombolo down` removes it.\n");
    } else {
        say(&format!("The fleet is there already; {} was dead and runs again.\n", dead.join(", ")));
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Up {
        #[command(flatten)]
        args: Args,
    }

    fn differences(line: &[&str], there: &Shape) -> Vec<String> {
        let words = std::iter::once(&"up").chain(line);
        Up::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).args.differences(there)
    }

    #[test]
    fn a_second_up_finds_any_fleet_unless_a_flag_says_otherwise() {
        let plain = Shape { sites: 2, ..Shape::default() };
        let far = Shape { sites: 5, wan: Some("100ms,1%".into()), members: vec!["/nowhere/config".into()] };
        for (line, there) in [
            (&[][..], &plain),
            (&[], &far),
            (&["--sites", "2"], &plain),
            (&["--sites", "5", "--wan", "100ms,1%", "--member", "/nowhere/config"], &far),
        ] {
            assert!(differences(line, there).is_empty(), "{line:?} and {there:?}");
        }
        let all = differences(&["--sites", "3", "--wan", "1ms", "--member", "/a"], &plain);
        assert_eq!(all, ["it has 2 edge sites, not 3", "it has no --wan", "it has no --member"]);
        let all = differences(&["--wan", "50ms", "--member", "/a"], &far);
        assert_eq!(all, ["its --wan is 100ms,1%, not 50ms,0%", "its --member is /nowhere/config"]);
    }
}
