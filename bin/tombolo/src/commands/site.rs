//! `tombolo site`: a small cluster in one process.

use anyhow::Result;
use tokio_util::sync::CancellationToken;
use tombolo_apiserver::{Cidr, Server};
use tombolo_workload::{Ca, Options};

use crate::{start, ties};

/// Run a site: a small cluster in one process, with a node in it if asked
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo site --data-dir /var/lib/tombolo/site --name harbour --node")]
pub struct Args {
    #[command(flatten)]
    pub start: start::ServerArgs,
    /// The site's name, and its node's
    #[arg(long, default_value_t = super::join::host_name())]
    name: String,
    /// Run containers on this machine too (needs root)
    #[arg(long)]
    node: bool,
    /// Addresses of pods
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    pod_cidr: Cidr,
    /// Addresses of services
    #[arg(long, default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Cidr,
}

pub async fn run(args: Args) -> Result<()> {
    let mut config = start::configure(&args.start).await?;
    config.service_cidr = args.service_cidr;
    let server = Server::start(config).await?;
    let stop = CancellationToken::new();
    let controllers = start::client(&server, "system:tombolo:controllers");
    let ca = server.ca();
    let options = Options {
        signer: Some(Ca { cert_pem: ca.certificate.clone(), key_pem: ca.key.clone() }),
        root_ca: Some(ca.certificate.clone()),
        volume_dir: args.start.data_dir.join("volumes").display().to_string(),
        ..Options::site(stop.clone())
    };
    tokio::spawn(tombolo_workload::run(controllers, options));
    let site = start::client(&server, "system:tombolo:site");
    tokio::spawn(ties::run(site, server.clone(), None, stop.clone()));
    let address = start::listen(&server, &args.start).await?;
    start::say_ready("site", address, &args.start);
    start::run_until_asked(&server, stop).await
}
