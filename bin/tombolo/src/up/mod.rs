//! `tombolo up` and `tombolo down`: a whole fleet on this machine, for a first try.

mod fleet;
pub mod network;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{Api, ListParams};
use tombolo_api::{Site, SiteSpec, Tier};

use crate::client::Target;
use crate::commands::{apply, join, sites, token};
use crate::output::emphasis;
pub use fleet::{Fleet, Member};

/// Where the sample fleet lives.
pub const DATA_DIR: &str = "/var/lib/tombolo/up";
const SAMPLE: &str = include_str!("../../../../examples/hello.yaml");
const NODE_PORT: u16 = 30080;
const LEASE_SECONDS: &str = "10";
const PATIENCE: Duration = Duration::from_secs(60);

/// Start a hub, a cloud site and edge sites on this machine, with a sample application
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tombolo up\n  tombolo up --sites 4\n  tombolo down")]
pub struct Args {
    /// How many edge sites
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=50))]
    sites: u8,
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
    match Fleet::load(&args.data_dir)? {
        Some(fleet) => {
            fleet.remove().await?;
            println!("The sample fleet is gone.");
        }
        None => {
            network::remove_all().await?;
            println!("There is no sample fleet in {}.", args.data_dir.display());
        }
    }
    Ok(())
}

pub async fn up(args: Args) -> Result<()> {
    preflight()?;
    if let Some(fleet) = Fleet::load(&args.data_dir)? {
        if fleet.members.iter().all(|member| fleet.runs(member)) {
            println!("The fleet is up already; `tombolo down` removes it.\n");
            return show(&fleet).await;
        }
        println!("Found the rest of an earlier fleet; removing it first.");
        fleet.remove().await?;
    }
    if network::in_use() {
        bail!(
            "another sample fleet is up on this machine, in another folder than {}.\n\
             Next: end it with `tombolo down --data-dir ITS-FOLDER`; plain `tombolo down` removes leftovers.",
            args.data_dir.display()
        );
    }
    let started = Instant::now();
    let mut fleet = Fleet::new(&args.data_dir);
    let outcome = tokio::select! {
        made = make(&mut fleet, &args) => made,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    if let Err(error) = outcome {
        eprintln!("\nRemoving what was started so far.");
        fleet.remove().await.context("while cleaning up")?;
        return Err(error);
    }
    println!("\nReady after {:.1} s.\n", started.elapsed().as_secs_f32());
    show(&fleet).await
}

/// What cannot work without root is said before anything is made.
fn preflight() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "`tombolo up` makes network namespaces, mounts and cgroups for real containers, and that needs root.\n\
             Next: run it again as root, for example `sudo $(which tombolo) up`."
        );
    }
    Ok(())
}

async fn make(fleet: &mut Fleet, args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.data_dir)
        .with_context(|| format!("cannot create {}", args.data_dir.display()))?;
    fleet.members.push(Member { name: "hub".into(), tier: "hub".into(), number: 10, pid: None });
    fleet.members.push(Member { name: "cloud".into(), tier: "cloud".into(), number: 11, pid: None });
    for edge in 1..=args.sites {
        fleet.members.push(Member {
            name: format!("edge-{edge}"),
            tier: "edge".into(),
            number: 11 + edge,
            pid: None,
        });
    }
    fleet.save()?;

    let step = Step::start("network");
    network::create_bridge().await?;
    for member in &fleet.members {
        network::create_host(&member.name, member.number).await?;
    }
    step.done(&format!("{} namespaces on one bridge", fleet.members.len()));

    let step = Step::start("processes");
    let names: Vec<_> = fleet.members.iter().map(|m| m.name.clone()).collect();
    for name in &names {
        match name.as_str() {
            // A short lease, so that a first try sees a failover within seconds.
            "hub" => fleet.start(name, "hub", &["--lease-seconds", LEASE_SECONDS])?,
            _ => fleet.start(name, "site", &["--name", name, "--node"])?,
        }
    }
    for name in &names {
        fleet.ready(name, PATIENCE).await?;
    }
    step.done(&format!("a hub and {} sites answer", names.len() - 1));

    let step = Step::start("joining");
    let hub = connect(fleet, fleet.member("hub")?).await?;
    for member in fleet.sites() {
        let ticket = token::create(
            &hub,
            &token::Terms { ttl: Duration::from_secs(600), uses: Some(1), needs_approval: false },
        )
        .await?;
        let site = connect(fleet, member).await?;
        join::tie(&site.client, &ticket, &describe(member)).await?;
    }
    let sites: Api<Site> = Api::all(hub.client.clone());
    until("all sites to be ready", || async {
        let list = sites.list(&ListParams::default()).await?.items;
        let ready = list.iter().filter(|site| site.is_ready()).count();
        if ready == names.len() - 1 {
            Ok(())
        } else {
            bail!("{ready} of {} sites are ready", names.len() - 1)
        }
    })
    .await?;
    step.done("every site is tied to the hub");

    let step = Step::start("application");
    apply::manifest(&hub.client, SAMPLE).await?;
    for member in fleet.sites() {
        let address = SocketAddr::from((member.address(), NODE_PORT));
        until(&format!("the sample application at {}", member.name), || async move { fetch(address) })
            .await?;
    }
    step.done("it answers at every site");
    Ok(())
}

fn describe(member: &Member) -> join::Description {
    let tier = if member.tier == "cloud" { Tier::Cloud } else { Tier::Edge };
    let spec = SiteSpec { tier, ..Default::default() };
    join::Description { name: member.name.clone(), spec, labels: Default::default() }
}

async fn connect(fleet: &Fleet, member: &Member) -> Result<crate::client::Connected> {
    Target { kubeconfig: Some(fleet.kubeconfig(member)), context: None }.connect().await
}

async fn show(fleet: &Fleet) -> Result<()> {
    let hub = fleet.member("hub")?;
    let client = connect(fleet, hub).await?.client;
    let list = Api::<Site>::all(client).list(&ListParams::default()).await?.items;
    print!("{}", sites::table(&list).render(false));
    println!();
    for member in fleet.sites() {
        println!("  {:<10} http://{}:{NODE_PORT}/", member.name, member.address());
    }
    let program = std::env::current_exe().unwrap_or_else(|_| Path::new("tombolo").to_owned());
    println!("\nThe hub is an ordinary Kubernetes API:\n");
    println!("  {}\n", emphasis(&format!("export KUBECONFIG={}", fleet.kubeconfig(hub).display())));
    println!("Five things to try:\n");
    let program = program.display();
    for (line, why) in [
        ("kubectl get pods -o wide".to_owned(), "the pods of all sites; the NODE is the site"),
        ("kubectl scale deploy/hello --replicas=9".to_owned(), "and watch them spread"),
        ("kubectl logs deploy/hello".to_owned(), "through the tunnel, from whichever site has it"),
        (format!("{program} explain place deploy/hello"), "why each replica is where it is"),
        (format!("{program} down"), "remove all of it"),
    ] {
        println!("  {line}\n      {why}");
    }
    Ok(())
}

/// The page of one site, or why there is none yet.
fn fetch(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(300))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET /text HTTP/1.1\r\nHost: hello\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { bail!("{address} answered {answer:?}") }
}

async fn until<F, Fut>(what: &str, mut condition: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match condition().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {PATIENCE:?} for {what}")));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// One line of progress: what is under way, then what came of it and how long it took.
struct Step {
    name: &'static str,
    started: Instant,
}

impl Step {
    fn start(name: &'static str) -> Self {
        print!("{name:<12} …");
        let _ = std::io::stdout().flush();
        Self { name, started: Instant::now() }
    }

    fn done(self, result: &str) {
        println!("\r{:<12} {result} ({:.1} s)", self.name, self.started.elapsed().as_secs_f32());
    }
}
