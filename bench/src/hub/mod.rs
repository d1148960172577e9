//! `bench hub`: what a hub costs over using a cluster directly, what the agent costs, and a thousand sites.

mod agent;
mod fleet;
mod place;
mod through;

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tombolo_testkit::{Tombolo, cargo_binary};

use crate::report::write_figures;

#[derive(clap::Args)]
pub struct Args {
    /// Parts to run
    #[arg(long, value_delimiter = ',', default_value = "place,through,agent,fleet")]
    only: Vec<String>,
    /// Deployments through the hub and directly
    #[arg(long, default_value_t = 100)]
    deployments: usize,
    /// How often each side runs
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long the idle agent is watched, in seconds
    #[arg(long, default_value_t = 300)]
    idle_seconds: u64,
    /// Pods that the agent reports
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Sites on tunnels of their own
    #[arg(long, default_value_t = 1000)]
    sites: usize,
    /// Deployments that go to every site
    #[arg(long, default_value_t = 10)]
    works: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut figures = Vec::new();
    for part in &args.only {
        println!("hub: {part}");
        figures.extend(match part.as_str() {
            "place" => place::measure(),
            "through" => runtime.block_on(through::measure(args.deployments, args.rounds))?,
            "agent" => runtime.block_on(agent::measure(args.idle_seconds, args.pods))?,
            "fleet" => runtime.block_on(fleet::measure(args.sites, args.works))?,
            other => bail!("no part {other:?}; there are place, through, agent and fleet"),
        });
    }
    let note = "Everything runs on one machine and shares its cores: the hub, the clusters or sites below it, and the load. \
                Upstream is Kubernetes 1.36 with etcd 3.6 and lifted client limits. Memory is resident memory of the process.";
    write_figures("hub", note, &figures)
}

/// A hub on a free loopback port.
fn start_hub(dir: &Path, args: &[&str]) -> Result<Tombolo> {
    Tombolo::start("hub", dir, &[&["--listen", "127.0.0.1:0"], args].concat())
}

/// The words after `tombolo join` that a new token gives: address, `--token`, T, `--ca-hash`, H.
fn ticket(hub: &Tombolo) -> Result<Vec<String>> {
    let mut line = Command::new(cargo_binary("tombolo"));
    let output =
        line.arg("--kubeconfig").arg(&hub.kubeconfig).args(["token", "create", "--ttl", "2h"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("tombolo token create: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text.split_whitespace().skip(2).map(str::to_owned).collect())
}

/// The value after a word of a ticket.
fn after<'a>(ticket: &'a [String], word: &str) -> Result<&'a str> {
    let found = ticket.iter().skip_while(|w| *w != word).nth(1);
    found.map(String::as_str).ok_or_else(|| anyhow::anyhow!("`token create` printed no {word}"))
}

async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}
