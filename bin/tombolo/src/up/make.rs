//! Making the fleet, step by step.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tombolo_api::{Placement, Site, SiteSpec, Tier};

use super::fleet::{Fleet, Member, Role};
use super::progress::{Line, Step, until};
use super::{Args, NODE_PORT, connect, existing, fetch, network};
use crate::client::Connected;
use crate::commands::{apply, join, token};

const SAMPLE: &str = include_str!("../../../../examples/hello.yaml");
/// The Placement in it.
const SAMPLE_PLACEMENT: &str = "everywhere";
/// A short lease, so that a first try sees a failover within seconds.
const LEASE_SECONDS: &str = "10";
pub const PATIENCE: Duration = Duration::from_secs(60);

pub async fn make(fleet: &mut Fleet, args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.data_dir)
        .with_context(|| format!("cannot create {}", args.data_dir.display()))?;
    plan(fleet, args)?;
    existing::look(fleet).await?;
    fleet.save()?;
    network::claim(&args.data_dir)?;
    wire(fleet, args).await?;

    let step = Step::start("processes");
    let names: Vec<_> = fleet.hosts().map(|m| m.name.clone()).collect();
    for name in &names {
        fleet.start(name, &[])?;
    }
    for name in &names {
        fleet.ready(name, PATIENCE).await?;
    }
    step.done(&format!("a hub and {} sites answer", names.len() - 1));

    let step = Step::start("joining");
    let hub = connect(fleet, fleet.member("hub")?).await?;
    join_all(fleet, &hub, &step.line).await?;
    step.done("every site is tied to the hub");

    let step = Step::start("application");
    apply::manifest(&hub.client, SAMPLE).await?;
    keep_off_existing(fleet, &hub).await?;
    for (done, member) in fleet.sites().enumerate() {
        step.line.tell(&format!("{done} of {} sites", fleet.sites().count()));
        let address = SocketAddr::from((member.address(), NODE_PORT));
        let what = format!("the sample application at {}", member.name);
        until(&step.line, &what, PATIENCE, || async move { fetch(address) }).await?;
    }
    step.done("it answers at every site");
    Ok(())
}

/// Who there will be, and with which command lines.
fn plan(fleet: &mut Fleet, args: &Args) -> Result<()> {
    let host = |name: String, role: Role, tier: &str, number: u8| {
        let mut line: Vec<String> = match role {
            Role::Hub => vec!["hub".into(), "--lease-seconds".into(), LEASE_SECONDS.into()],
            _ => vec!["site".into(), "--name".into(), name.clone(), "--node".into()],
        };
        let data = args.data_dir.join(&name).to_string_lossy().into_owned();
        line.extend(["--data-dir".into(), data]);
        line.extend(["--listen".into(), format!("{}:6443", network::address(number))]);
        line.extend(["--netns".into(), network::namespace(&name)]);
        Member { name, role, tier: tier.into(), number, args: line, ..Member::default() }
    };
    let shape = args.shape();
    fleet.members.push(host("hub".into(), Role::Hub, "hub", network::FIRST));
    fleet.members.push(host("cloud".into(), Role::Site, "cloud", network::FIRST + 1));
    for edge in 1..=shape.sites {
        fleet.members.push(host(format!("edge-{edge}"), Role::Site, "edge", network::FIRST + 1 + edge));
    }
    if let Some(link) = args.wan {
        let data = args.data_dir.join("wan").to_string_lossy().into_owned();
        let mut line = vec!["relay".into(), "--data-dir".into(), data, "--link".into(), link.to_string()];
        for member in fleet.hosts() {
            line.extend(["--host".into(), format!("{}={}", member.name, member.number)]);
        }
        let name = "wan".into();
        fleet.members.push(Member { name, role: Role::Wan, number: 1, args: line, ..Member::default() });
    }
    for (index, kubeconfig) in args.members.iter().enumerate() {
        fleet.members.push(existing::member(fleet, index + 1, kubeconfig)?);
    }
    fleet.shape = shape;
    Ok(())
}

/// The networks: cables to one bridge, or the emulated wide area network.
async fn wire(fleet: &mut Fleet, args: &Args) -> Result<()> {
    let step = Step::start("network");
    let count = fleet.hosts().count();
    match args.wan {
        None => {
            network::create_bridge().await?;
            for member in fleet.hosts() {
                network::create_host(&member.name, member.number).await?;
            }
            step.done(&format!("{count} namespaces on one bridge"));
        }
        Some(link) => {
            for member in fleet.hosts() {
                network::create_empty(&member.name)?;
            }
            fleet.start("wan", &[])?;
            fleet.ready("wan", PATIENCE).await?;
            step.done(&format!("{count} namespaces, {link} one way between any two"));
        }
    }
    Ok(())
}

async fn join_all(fleet: &mut Fleet, hub: &Connected, line: &Line) -> Result<()> {
    let terms = token::Terms { ttl: Duration::from_secs(600), uses: Some(1), needs_approval: false };
    for member in fleet.sites() {
        let ticket = token::create(hub, &terms).await?;
        let site = connect(fleet, member).await?;
        join::tie(&site.client, &ticket, &describe(member), None).await?;
    }
    let agents: Vec<_> = fleet.with_role(Role::Agent).map(|m| m.name.clone()).collect();
    for name in &agents {
        let ticket = token::create(hub, &terms).await?;
        existing::introduce(fleet, name, &ticket)?;
    }
    let wanted = fleet.sites().count() + agents.len();
    let sites: Api<Site> = Api::all(hub.client.clone());
    let fleet = &*fleet;
    until(line, "all sites to be ready", PATIENCE, || async {
        if let Some(dead) = fleet.members.iter().find(|m| m.pid.is_some() && !fleet.runs(m)) {
            let log = fleet.folder(dead).join("log");
            bail!("{} ended; {} tells why", dead.name, log.display());
        }
        let list = sites.list(&ListParams::default()).await?.items;
        let ready = list.iter().filter(|site| site.is_ready()).count();
        if ready < wanted { bail!("{ready} of {wanted} sites are ready") } else { Ok(()) }
    })
    .await
}

/// The sample's image is in our own nodes only, so it is not offered to clusters that have others.
async fn keep_off_existing(fleet: &Fleet, hub: &Connected) -> Result<()> {
    let others: Vec<_> = fleet.with_role(Role::Agent).map(|m| m.name.as_str()).collect();
    if others.is_empty() {
        return Ok(());
    }
    let placements: Api<Placement> = Api::namespaced(hub.client.clone(), "default");
    let change = json!({"spec": {"sites": {"exclude": others}}});
    placements.patch(SAMPLE_PLACEMENT, &PatchParams::default(), &Patch::Merge(change)).await?;
    Ok(())
}

fn describe(member: &Member) -> join::Description {
    let tier = if member.tier == "cloud" { Tier::Cloud } else { Tier::Edge };
    let spec = SiteSpec { tier, ..Default::default() };
    join::Description { name: member.name.clone(), spec, labels: Default::default() }
}
