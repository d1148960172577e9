//! `tombolo explain place`: for every site, why it was chosen or not, with numbers.

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::client::Target;
use crate::kinds;

/// Say why things are where they are
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo explain place deploy/web")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Why an object runs at the sites it runs at
    #[command(after_help = "Example:\n  tombolo explain place deploy/web -n shop")]
    Place {
        /// KIND/NAME, such as deploy/web
        object: String,
        /// Namespace of the object; that of the context if left out
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
    },
}

/// What the hub takes for lost; only the wording of silent sites depends on it.
const LEASE_SECONDS: i64 = 40;

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let What::Place { object, namespace } = args.what;
    let (kind, name) = kinds::parse(&object)?;
    let hub = target.connect().await?;
    let namespace = namespace.unwrap_or(hub.config.default_namespace);
    let (client, version, kind) = (hub.client, kind.api_version, kind.name);
    let text = tombolo_fleet::explain(&client, version, kind, &namespace, name, LEASE_SECONDS)
        .await
        .with_context(|| format!("cannot explain {kind} {name} in namespace {namespace}"))?;
    print!("{text}");
    Ok(())
}
