//! `tombolo place`: what runs where, one line per object and site.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use tombolo_api::{Site, Work, names};

use crate::client::{Target, only_at_a_hub};
use crate::output::{Format, Output, Table};

/// Show which object runs at which site
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo place\n  tombolo place -A -o wide\n  tombolo place web -n shop\n\nREADY with a question mark: the site is not heard, and this is what it said last."
)]
pub struct Args {
    /// Only objects with this name
    name: Option<String>,
    /// Only objects of this namespace; that of the context if left out
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    output: Output,
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let hub = target.connect().await?;
    let (client, namespace) = (hub.client, args.namespace.unwrap_or(hub.config.default_namespace));
    let sites: Api<Site> = Api::all(client.clone());
    let silent: BTreeMap<String, String> =
        sites.list(&ListParams::default()).await.map_err(only_at_a_hub)?.iter().filter_map(silence).collect();
    let works: Api<Work> = Api::all(client);
    let mut works = works.list(&ListParams::default()).await?.items;
    works.retain(|work| args.name.as_ref().is_none_or(|name| &work.spec.root.name == name));
    // What is in no namespace is in everybody's sight.
    let is_there = |of: &str| args.all_namespaces || of.is_empty() || of == namespace;
    works.retain(|work| is_there(&work.spec.root.namespace));
    if works.is_empty() && matches!(args.output.output, Format::Table | Format::Wide) {
        let place =
            if args.all_namespaces { "any namespace".into() } else { format!("namespace {namespace}") };
        eprintln!(
            "Nothing{} is placed in {place}. `tombolo place -A` shows all there is; `tombolo explain place KIND/NAME` says why something is not.",
            args.name.map(|name| format!(" with the name {name}")).unwrap_or_default()
        );
        return Ok(());
    }
    works.sort_by(|a, b| (&a.spec.root, &a.metadata.namespace).cmp(&(&b.spec.root, &b.metadata.namespace)));
    let mut table =
        Table::new(&["OBJECT", "NAMESPACE", "SITE", "REPLICAS", "READY", "APPLIED", "DRIFT", "MESSAGE"], 6);
    for work in &works {
        let status = work.status.clone().unwrap_or_default();
        let site = work.metadata.namespace.as_deref().and_then(names::site_of_namespace).unwrap_or("-");
        let applied = work.condition("Applied");
        let ready = status.pods.values().filter(|pod| pod.ready).count();
        // What a silent site last said is not what is.
        let ready = match silent.get(site) {
            Some(_) => format!("{ready}?"),
            None => ready.to_string(),
        };
        table.row(vec![
            format!("{}/{}", work.spec.root.kind.to_lowercase(), work.spec.root.name),
            work.spec.root.namespace.clone(),
            site.to_owned(),
            work.spec.replicas.map_or_else(|| "-".into(), |n| n.to_string()),
            if work.spec.replicas.is_some() { ready } else { "-".into() },
            match silent.get(site) {
                Some(since) => format!("Unknown: {since}"),
                None => applied.map_or_else(|| "Waiting".to_owned(), |c| c.status.clone()),
            },
            status.drift.len().to_string(),
            applied.map_or_else(String::new, |c| c.message.clone()),
        ]);
    }
    args.output.objects(&table, &works, |work| {
        let at = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", at(&work.metadata.namespace), at(&work.metadata.name))
    })
}

/// A site that is not heard, and since when.
fn silence(site: &Site) -> Option<(String, String)> {
    let status = site.status.as_ref()?;
    let ready = status.conditions.iter().find(|c| c.r#type == "Ready").filter(|c| c.status != "True")?;
    let said = ready.message.split(';').next().unwrap_or_default();
    Some((site.name_any(), said.to_owned()))
}
