//! `tombolo gateway`: the way back to nodes of a real Kubernetes that are behind NAT.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::Result;

use crate::client::Target;
use crate::interrupt::Interrupt;
use crate::nodes::{Gateway, GatewayOptions};

/// Lead a real Kubernetes to its `tombolo node`s behind NAT
#[derive(clap::Args)]
#[command(
    long_about = "Lead a real Kubernetes to its `tombolo node`s behind NAT

Nodes dial the gateway and keep the connection; the API server reaches each of them at a port of the gateway, for logs,
exec, port-forward and metrics. Run it where the API server can reach it, with a kubeconfig that may write to kube-public.
Nodes joined with `tombolo node --kubeconfig` find it by themselves.",
    after_help = "Example:\n  tombolo gateway --kubeconfig admin.conf --data-dir /var/lib/tombolo/gateway --listen 10.0.0.5:8443"
)]
pub struct Args {
    /// Folder for the gateway's certificate
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Where nodes dial
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// What nodes dial, if not the address it listens on
    #[arg(long, value_name = "HOST:PORT")]
    url: Option<String>,
    /// Where the API server reaches the gateway, if not at the address it listens on
    #[arg(long, value_name = "ADDR")]
    address: Option<IpAddr>,
    /// Ports that stand for nodes, one for each
    #[arg(long, value_name = "FIRST-LAST", default_value = "20250-21249", value_parser = ports)]
    ports: RangeInclusive<u16>,
    /// Run inside this network namespace
    #[arg(long, hide = true)]
    pub netns: Option<String>,
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let bad = || format!("{text} is no range of ports such as 20250-21249");
    let (first, last) = text.split_once('-').ok_or_else(bad)?;
    let range = first.parse().map_err(|_| bad())?..=last.parse().map_err(|_| bad())?;
    if range.is_empty() { Err(bad()) } else { Ok(range) }
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let address = args.address.unwrap_or(args.listen.ip());
    anyhow::ensure!(
        !address.is_unspecified(),
        "say with --address where the API server reaches this machine: {address} is no address to dial"
    );
    let kubernetes = target.connect().await?.client;
    let url = args.url.unwrap_or_else(|| SocketAddr::new(address, args.listen.port()).to_string());
    let options = GatewayOptions { listen: args.listen, url };
    let gateway = Gateway::new(address, args.ports);
    let mut interrupt = Interrupt::listen()?;
    tokio::select! {
        ended = gateway.run(kubernetes, &args.data_dir, options) => ended,
        () = interrupt.caught() => Ok(()),
    }
}
