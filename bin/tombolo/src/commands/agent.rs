//! `tombolo agent`: ties an existing Kubernetes cluster to a hub.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tombolo_agent::AgentConfig;

use super::join::{Description, DescriptionArgs, state_name, tie_name};
use super::limits::{self, LimitArgs};
use super::manifest;
use crate::client::Target;

/// Tie an existing Kubernetes cluster to a hub
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  tombolo agent --kubeconfig member.kubeconfig --hub https://hub:6443 --token abcdef.0123456789abcdef --ca-hash sha256:… --name frankfurt --tier cloud\n  tombolo agent --hub https://hub:6443      (inside the cluster, after the first join)"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// The hub's address
    #[arg(long, required = true, value_name = "URL")]
    hub: Option<String>,
    /// Join token, as printed by `tombolo token create` at the hub; needed for the first join only
    #[arg(long, env = "TOMBOLO_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Hash of the hub's CA, as printed with the token; needed for the first join only
    #[arg(long, env = "TOMBOLO_CA_HASH", value_name = "sha256:HEX")]
    ca_hash: Option<String>,
    /// Folder that keeps what the hub wants here: an agent that starts while the hub is away still corrects drift
    #[arg(long, env = "TOMBOLO_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    description: DescriptionArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(clap::Subcommand)]
enum Action {
    Manifest(manifest::Args),
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    if let Some(Action::Manifest(args)) = args.action {
        return manifest::print(args);
    }
    let hub = args.hub.context("say which hub with --hub")?;
    if !hub.starts_with("https://") {
        bail!("{hub:?} is no hub address; it looks like https://host:6443");
    }
    let site = target.connect().await?.client;
    let version = site.apiserver_version().await.context("the cluster's API does not answer")?;
    let description = Description::try_from(args.description)?;
    let tie = tie_name(&hub);
    let acting_as = args.limits.acting_as(&tie);
    if !args.limits.are_the_owner_s() {
        let user = acting_as.as_ref().map_or("", |acting| acting.user.as_str());
        let limits = args.limits.objects(&tie, user)?;
        limits::apply(&site, &tie, &limits).await?;
        limits::prune(&site, &tie, &limits).await.context("cannot take back what was allowed earlier")?;
    }
    let stop = CancellationToken::new();
    let config = AgentConfig {
        site,
        site_dial: None,
        acting_as,
        ca_hash: args.ca_hash,
        token: args.token,
        name: description.name.clone(),
        spec: description.spec,
        labels: description.labels,
        state: state_name(&hub),
        keep: args.state_dir.map(|dir| dir.join(state_name(&hub))),
        hub_url: hub.clone(),
        hub_identity: None,
        shutdown: stop.clone(),
    };
    println!("tombolo agent ties {} (Kubernetes {}) to {}", description.name, version.git_version, hub);
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
