//! `bench sites`: many sites in one process, as a load on a hub. Each has the real agent and a real tunnel; only what is
//! behind the agent, the site's own cluster, is an API in memory.
//!
//! It is driven over its standard input and output, one line each: `applied MARK` answers how many Deployments all sites
//! have applied with that mark, `valued VALUE` how many with that value, `tied` how many agents have joined; `save` writes
//! down all that the sites have.

mod api;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;
use tombolo_agent::AgentConfig;
use tombolo_api::{SiteSpec, Tier};

pub use api::MARK;
use api::{Objects, SiteApi};

#[derive(clap::Args)]
pub struct Args {
    /// The hub's address
    #[arg(long)]
    hub: String,
    #[arg(long)]
    token: String,
    #[arg(long)]
    ca_hash: String,
    #[arg(long)]
    count: usize,
    /// Where what the sites have is kept over a restart
    #[arg(long)]
    state: PathBuf,
}

const SECRETS: &str = "/api/v1/secrets";

pub fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(live(args))
}

async fn live(args: Args) -> Result<()> {
    let mut kept: BTreeMap<String, Objects> = match std::fs::read(&args.state) {
        Ok(text) => serde_json::from_slice(&text).context("the kept state is damaged")?,
        Err(_) => BTreeMap::new(),
    };
    let stop = CancellationToken::new();
    let mut sites = BTreeMap::new();
    for n in 0..args.count {
        let name = format!("s{n:04}");
        let api = SiteApi::new();
        api.restore(kept.remove(&name).unwrap_or_default());
        let config = AgentConfig {
            site: api.client(),
            site_dial: None,
            acting_as: None,
            hub_url: args.hub.clone(),
            ca_hash: Some(args.ca_hash.clone()),
            token: Some(args.token.clone()),
            name: name.clone(),
            spec: SiteSpec { tier: Tier::Edge, ..Default::default() },
            labels: BTreeMap::new(),
            state: "bench".into(),
            keep: None,
            hub_identity: None,
            shutdown: stop.clone(),
        };
        tokio::spawn(async move {
            if let Err(error) = tombolo_agent::run(config).await {
                eprintln!("an agent ended: {error}");
            }
        });
        sites.insert(name, api);
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("applied", mark) => println!("{}", sites.values().map(|s| s.marked(mark)).sum::<usize>()),
            ("valued", value) => println!("{}", sites.values().map(|s| s.valued(value)).sum::<usize>()),
            ("tied", _) => println!("{}", sites.values().filter(|s| s.has_any(SECRETS)).count()),
            ("save", _) => {
                let all: BTreeMap<_, _> = sites.iter().map(|(name, s)| (name, s.dump())).collect();
                std::fs::write(&args.state, serde_json::to_vec(&all)?)?;
                println!("saved");
            }
            _ => println!("unknown"),
        }
    }
    Ok(())
}
