//! `tombolo agent`: ties an existing Kubernetes cluster to a hub.

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tombolo_agent::{ActingAs, AgentConfig};

use super::join::{Description, DescriptionArgs, state_name};
use crate::client::Target;

/// Tie an existing Kubernetes cluster to a hub
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo agent --kubeconfig member.kubeconfig --hub https://hub:6443 --token abcdef.0123456789abcdef --ca-hash sha256:… --name frankfurt --tier cloud\n  tombolo agent --hub https://hub:6443      (inside the cluster, after the first join)"
)]
pub struct Args {
    /// The hub's address
    #[arg(long)]
    hub: String,
    /// Join token, as printed by `tombolo token create` at the hub; needed for the first join only
    #[arg(long, env = "TOMBOLO_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Hash of the hub's CA, as printed with the token; needed for the first join only
    #[arg(long, env = "TOMBOLO_CA_HASH")]
    ca_hash: Option<String>,
    /// Act in the cluster as this user, whose rights the cluster's owner decides; as the agent itself if left out
    #[arg(long, value_name = "USER")]
    act_as: Option<String>,
    /// Groups of that user
    #[arg(long, value_delimiter = ',', requires = "act_as", value_name = "GROUP")]
    act_as_groups: Vec<String>,
    #[command(flatten)]
    description: DescriptionArgs,
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    if !args.hub.starts_with("https://") {
        bail!("{:?} is no hub address; it looks like https://host:6443", args.hub);
    }
    let site = target.connect().await?.client;
    let version = site.apiserver_version().await.context("the cluster's API does not answer")?;
    let description = Description::try_from(args.description)?;
    let stop = CancellationToken::new();
    let config = AgentConfig {
        site,
        site_dial: None,
        acting_as: args.act_as.map(|user| ActingAs { user, groups: args.act_as_groups }),
        ca_hash: args.ca_hash,
        token: args.token,
        name: description.name.clone(),
        spec: description.spec,
        labels: description.labels,
        state: state_name(&args.hub),
        hub_url: args.hub.clone(),
        hub_identity: None,
        shutdown: stop.clone(),
    };
    println!("tombolo agent ties {} (Kubernetes {}) to {}", description.name, version.git_version, args.hub);
    let ending = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        ending.cancel();
    });
    tombolo_agent::run(config).await.context("the tie to the hub ended")
}
