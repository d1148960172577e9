//! `tombolo wipe`: what a stopped site or node left running on this machine.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tombolo_node::Node;

/// Remove every container of a stopped site or node
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo wipe --data-dir /var/lib/tombolo/site")]
pub struct Args {
    /// The data folder of the site or node
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Run inside this network namespace
    #[arg(long, hide = true)]
    pub netns: Option<String>,
}

pub async fn run(args: Args) -> Result<()> {
    // A site keeps its node below its own folder; a node on its own is the folder.
    let below = args.data_dir.join("node");
    let node = if below.is_dir() { below } else { args.data_dir };
    Node::destroy(&node).await.with_context(|| format!("cannot clean up {}", node.display()))
}
