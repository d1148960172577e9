//! `tombolo explain place`: for every site, why it was chosen or not, with numbers.

use anyhow::{Result, anyhow};
use clap::Subcommand;
use serde_json::json;

use crate::client::{Target, only_at_a_hub};
use crate::kinds;
use crate::output::{Format, Output};

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
    #[command(
        after_help = "Examples:\n  tombolo explain place deploy/web -n shop\n  tombolo explain place deploy/web -o json"
    )]
    Place {
        /// KIND/NAME, such as deploy/web; any kind that the hub has
        object: String,
        /// Namespace of the object; that of the context if left out
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}

/// What the hub takes for lost; only the wording of silent sites depends on it.
const LEASE_SECONDS: i64 = 40;

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let What::Place { object, namespace, output } = args.what;
    let hub = target.connect().await?;
    let kinds::Named { api_version, kind, name, namespaced } = kinds::find(&hub.client, &object).await?;
    let namespace =
        if namespaced { namespace.unwrap_or(hub.config.default_namespace) } else { String::new() };
    let explained =
        tombolo_fleet::explain(&hub.client, &api_version, &kind, &namespace, &name, LEASE_SECONDS).await;
    let explained = explained.map_err(|error| {
        let place = if namespaced { format!(" in namespace {namespace}") } else { String::new() };
        match error {
            kube::Error::Api(status) if status.code == 404 && status.message.contains(&name) => anyhow!(
                "there is no {kind} {name}{place}; `tombolo place -A` lists what this hub has placed, and -n names \
                 another namespace"
            ),
            error => only_at_a_hub(error),
        }
    })?;
    if output.output == Format::Name {
        explained.sites().iter().for_each(|site| println!("site.tombolo.dev/{site}"));
        return Ok(());
    }
    let mut item = explained.json();
    item["object"] = json!(object);
    output.one(&explained.to_string(), &item, &object)
}
