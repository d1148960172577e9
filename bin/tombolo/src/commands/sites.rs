//! `tombolo sites`: the fleet at a glance, and admitting or removing a site.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tombolo_api::{Site, names};
use tombolo_fleet::register;

use crate::client::{Target, only_at_a_hub};
use crate::output::{Output, Table, quantity};
use crate::up::progress::{Line, ticking};

/// How long a command waits for the hub to let go of a site.
const PATIENCE: Duration = Duration::from_secs(10);

/// Show the sites tied to this hub, approve one that waits, or remove one
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo sites -o wide\n  tombolo sites approve harbour\n  tombolo sites revoke harbour\n  tombolo sites remove harbour"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum Action {
    /// Show the sites, as `tombolo sites` alone does
    #[command(after_help = "Example:\n  tombolo sites list -o wide")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Let a site in whose certificate request waits for a person
    #[command(after_help = "Example:\n  tombolo sites approve harbour")]
    Approve {
        /// Name of the site
        name: String,
    },
    /// Make a site's certificates useless; it may join again with a new token
    #[command(after_help = "Example:\n  tombolo sites revoke harbour")]
    Revoke {
        /// Name of the site
        name: String,
    },
    /// Untie a site; it need not be reachable
    #[command(after_help = "Example:\n  tombolo sites remove harbour --keep")]
    Remove {
        /// Name of the site
        name: String,
        /// Leave the workloads at the site, no longer managed
        #[arg(long)]
        keep: bool,
    },
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let client = target.connect().await?.client;
    match args.action {
        None => list(client, args.output).await,
        Some(Action::List { output }) => list(client, output).await,
        Some(Action::Approve { name }) => approve(client, &name).await,
        Some(Action::Revoke { name }) => revoke(client, &name).await,
        Some(Action::Remove { name, keep }) => remove(client, &name, keep).await,
    }
}

async fn list(client: kube::Client, output: Output) -> Result<()> {
    let sites: Api<Site> = Api::all(client);
    let sites = sites.list(&ListParams::default()).await.map_err(only_at_a_hub)?.items;
    output.objects(&table(&sites), &sites, |site| {
        format!("site.tombolo.dev/{}", site.metadata.name.as_deref().unwrap_or(""))
    })
}

/// Also what `tombolo up` prints.
pub fn table(sites: &[Site]) -> Table {
    let mut table = Table::new(
        &["NAME", "READY", "TIER", "NODES", "CPU FREE", "MEMORY FREE", "RTT", "REGION", "VERSION", "REASON"],
        7,
    );
    for site in sites {
        let status = site.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|c| c.r#type == "Ready");
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let free = |resource: &str| {
            let shapes: Vec<_> = status
                .shapes
                .iter()
                .filter_map(|s| Some(format!("{}x{}", s.count, quantity(resource, s.free.get(resource)?))))
                .collect();
            if shapes.is_empty() { "-".to_owned() } else { shapes.join(" ") }
        };
        table.row(vec![
            text(site.metadata.name.clone()),
            ready.map_or_else(|| "Unknown".to_owned(), |c| c.status.clone()),
            format!("{:?}", site.spec.tier).to_lowercase(),
            status.nodes.map_or_else(|| "-".to_owned(), |nodes| nodes.to_string()),
            free("cpu"),
            free("memory"),
            text(status.latency.clone()),
            text(site.spec.location.region.clone()),
            text(status.version.clone()),
            ready.map_or_else(String::new, |c| c.message.clone()),
        ]);
    }
    table
}

async fn approve(client: kube::Client, name: &str) -> Result<()> {
    let Some(request) = register::waiting(&client, name).await? else {
        bail!("no site {name} waits for approval; `kubectl get csr` lists all requests");
    };
    register::approve_request(&client, &request, "`tombolo sites approve`")
        .await
        .with_context(|| format!("cannot approve {request}"))?;
    println!("site {name} approved ({request})");
    Ok(())
}

async fn revoke(client: kube::Client, name: &str) -> Result<()> {
    register::revoke(&client, name).await.map_err(|error| missing_site(error, name))?;
    println!(
        "the certificates of site {name} are useless now; it runs on, and may join again with a new token"
    );
    Ok(())
}

/// That a site is not there is said, with what to do; other faults are not taken for it.
pub fn missing_site(error: kube::Error, name: &str) -> anyhow::Error {
    let is_missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
    let error = anyhow::Error::from(error);
    if is_missing {
        error.context(format!("no site {name}; `tombolo sites` lists them"))
    } else {
        error.context(format!("cannot change site {name}"))
    }
}

async fn remove(client: kube::Client, name: &str, keep: bool) -> Result<()> {
    let sites: Api<Site> = Api::all(client);
    if keep {
        let mark = json!({"metadata": {"annotations": {names::ON_REMOVE_ANNOTATION: "keep"}}});
        sites
            .patch(name, &PatchParams::default(), &Patch::Merge(mark))
            .await
            .map_err(|error| missing_site(error, name))?;
    }
    sites.delete(name, &DeleteParams::default()).await.map_err(|error| missing_site(error, name))?;
    let line = Line::new(format!("removing site {name}"));
    let left = match ticking(&line, gone(&sites, name)).await? {
        true => "removed",
        false => "is being removed",
    };
    let keeps =
        if keep { "what runs there stays" } else { "it cleans up by itself if it is ever heard again" };
    println!("site {name} {left}; its replicas are placed elsewhere, and {keeps}");
    Ok(())
}

/// Waits a moment until the hub has let go of a site.
async fn gone(sites: &Api<Site>, name: &str) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while sites.get_opt(name).await?.is_some() {
        if Instant::now() > deadline {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(true)
}
