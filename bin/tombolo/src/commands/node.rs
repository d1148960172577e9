//! `tombolo node`: a light node for an existing control plane, a Tombolo site's or a real Kubernetes'.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tombolo_net::Subnet;
use tombolo_node::{Listen, Node, NodeConfig, RuntimeChoice};

use super::site::{KUBELET_PORT, runtime};
use crate::client::Target;

/// Run a light node that joins an existing control plane
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tombolo node --data-dir /var/lib/tombolo/node --kubeconfig node.kubeconfig --name camera-7"
)]
pub struct Args {
    /// Folder for everything this node keeps
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The node's name
    #[arg(long, default_value_t = super::join::host_name())]
    name: String,
    /// What makes the containers: embedded, or cri=SOCKET
    #[arg(long, default_value = "embedded", value_parser = runtime, value_name = "RUNTIME")]
    runtime: RuntimeChoice,
    /// Addresses of this node's pods; waits for the cluster to assign some if left out
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Option<Subnet>,
    /// The address that the control plane reaches this node at; found out if left out
    #[arg(long, value_name = "ADDR")]
    address: Option<IpAddr>,
    /// Leave services to another proxy
    #[arg(long)]
    no_service_proxy: bool,
    /// Run inside this network namespace
    #[arg(long, hide = true)]
    pub netns: Option<String>,
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let connected = target.connect().await?;
    let stop = CancellationToken::new();
    let mut config = NodeConfig::new(connected.client, &args.name, &args.data_dir);
    config.runtime = args.runtime;
    config.pod_cidr = args.pod_cidr;
    config.addresses = args.address.into_iter().collect();
    config.service_proxy = !args.no_service_proxy;
    // Without the cluster's CA nobody could be told from a stranger on this port, so it stays closed.
    let ca = connected.config.root_cert.as_ref().map(|all| {
        let blocks: Vec<_> = all.iter().map(|der| pem::Pem::new("CERTIFICATE", der.clone())).collect();
        pem::encode_many(&blocks)
    });
    config.listen = ca.map(|ca| Listen {
        address: SocketAddr::new(args.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), KUBELET_PORT),
        client_ca: Some(ca),
    });
    config.shutdown = stop.clone();
    let node = Node::start(config).await.context("the node cannot run here")?;
    println!("tombolo node {} runs; its containers outlive this process", args.name);
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.cancel();
    node.stopped().await;
    Ok(())
}
