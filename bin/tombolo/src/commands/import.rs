//! `tombolo import` and `tombolo give-back`: what runs at a site already comes under the hub, or leaves it, without a restart.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tombolo_api::{Placement, Site, Work, names};
use tombolo_fleet::object::Key;

use super::sites::missing_site;
use crate::client::Target;
use crate::kinds;

const PATIENCE: Duration = Duration::from_secs(40);

/// Take in an object that runs at a site, without a restart
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo import deploy/web --site harbour -n shop")]
pub struct Args {
    /// KIND/NAME, such as deploy/web
    object: String,
    /// The site where it runs
    #[arg(long)]
    site: String,
    /// Its namespace; that of the context if left out
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// Let go of an object: it stays at its sites, as it is, and the hub forgets it
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo give-back deploy/web -n shop")]
pub struct GiveBackArgs {
    /// KIND/NAME, such as deploy/web
    object: String,
    /// Its namespace; that of the context if left out
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

async fn object_key(hub: &kube::Client, object: &str, namespace: &str) -> Result<Key> {
    let named = kinds::find(hub, object).await?;
    let namespace = if named.namespaced { namespace } else { "" };
    Ok(Key::new(&named.api_version, &named.kind, namespace, &named.name))
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let hub = target.connect().await?;
    let namespace = args.namespace.unwrap_or(hub.config.default_namespace);
    let key = object_key(&hub.client, &args.object, &namespace).await?;
    let sites: Api<Site> = Api::all(hub.client);
    // The hub does it, through the site's own tunnel.
    let asked = [&key.api_version, &key.kind, &key.namespace, &key.name].map(String::as_str).join("|");
    let notes = json!({names::IMPORT_ANNOTATION: asked, names::IMPORTED_ANNOTATION: null});
    let patch = Patch::Merge(json!({"metadata": {"annotations": notes}}));
    sites
        .patch(&args.site, &PatchParams::default(), &patch)
        .await
        .map_err(|error| missing_site(error, &args.site))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let site = sites.get(&args.site).await?;
        let done = site.annotations().get(names::IMPORTED_ANNOTATION).and_then(|t| t.strip_prefix(&asked));
        match done.map(|outcome| outcome.trim_start_matches('|')) {
            Some("") => break,
            Some(why) => bail!("{} of site {} was not imported: {why}", args.object, args.site),
            None if Instant::now() > deadline => bail!(
                "the hub did not do it within {} s; its log tells why. Next: `tombolo check fleet`, then the same again",
                PATIENCE.as_secs()
            ),
            None => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    let there = if key.namespace.is_empty() { String::new() } else { format!(" -n {}", key.namespace) };
    println!(
        "{} of site {} is the hub's now; `tombolo place {}{there}` shows it",
        args.object, args.site, key.name
    );
    Ok(())
}

pub async fn give_back(args: GiveBackArgs, target: &Target) -> Result<()> {
    let hub = target.connect().await?;
    let namespace = args.namespace.unwrap_or(hub.config.default_namespace);
    let key = object_key(&hub.client, &args.object, &namespace).await?;
    let hub = hub.client;
    tombolo_fleet::give_back(&hub, &key).await.with_context(|| {
        let next = "`tombolo place -A` lists what this hub has placed";
        format!("cannot give back {} of namespace {namespace}; {next}", args.object)
    })?;
    let works: Api<Work> = Api::all(hub.clone());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let of_it = |w: &&Work| Key::of_root(&w.spec.root) == key;
        let left: Vec<String> = works
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .filter(of_it)
            .filter_map(|w| names::site_of_namespace(w.metadata.namespace.as_deref()?).map(str::to_owned))
            .collect();
        if left.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            bail!("{} did not let go of it yet; it is given back when heard again", left.join(", "));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tombolo_fleet::forget(&hub, &key)
        .await
        .context("it is given back, but the hub's copy was not deleted")?;
    let placements: Api<Placement> = Api::namespaced(hub, key.home());
    let name = tombolo_fleet::import_placement(&key);
    if placements.get_opt(&name).await?.is_some() {
        placements.delete(&name, &DeleteParams::default()).await?;
    }
    println!("{} is given back: it runs on where it is, and the hub no longer knows it", args.object);
    Ok(())
}
