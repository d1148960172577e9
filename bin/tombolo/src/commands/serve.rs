//! `tombolo serve`: the Kubernetes API server alone.

use anyhow::Result;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tombolo_apiserver::Server;

use crate::start;

/// Run just the Kubernetes API server
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo serve --data-dir /var/lib/tombolo/api --listen 127.0.0.1:6443")]
pub struct Args {
    #[command(flatten)]
    pub start: start::ServerArgs,
}

pub async fn run(args: Args) -> Result<()> {
    let config = start::configure(&args.start).await?;
    let server = Server::start(config).await?;
    // Nothing here waits for a network to come up: an address that is not this machine's is a mistake.
    let opened = TcpListener::bind(args.start.listen).await;
    let address = start::listen_on(&server, &args.start, opened).await?;
    start::ready(&server, "serves", address, &args.start)?;
    start::run_until_asked(&server, CancellationToken::new()).await
}
