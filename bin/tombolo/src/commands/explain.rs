//! `tombolo explain place`: for every site, why it was chosen or not, with numbers.

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;

use crate::client::Target;
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
    let text =
        tombolo_fleet::explain(&hub.client, &api_version, &kind, &namespace, &name, LEASE_SECONDS).await;
    let text = text.with_context(|| {
        let next =
            "is this a hub? `tombolo place -A` lists what it has placed, and -n names another namespace";
        format!("cannot explain {kind} {name} in namespace {namespace}; {next}")
    })?;
    let explained = Explained::read(&object, &text);
    if output.output == Format::Name {
        explained.sites.iter().for_each(|row| println!("site.tombolo.dev/{}", row.name()));
        return Ok(());
    }
    output.one(&text, &explained, &object)
}

/// The table as programs read it.
#[derive(Serialize, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Explained<'a> {
    object: &'a str,
    /// Namespace and name of the Placement that it follows; none when it is not placed.
    placement: Option<&'a str>,
    sites: Vec<Row<'a>>,
    /// How many replicas have a place, and what was not met; or why the object is not placed.
    summary: String,
}

#[derive(Serialize, Debug, PartialEq)]
struct Row<'a> {
    site: &'a str,
    replicas: u32,
    /// How many it has now, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<u32>,
    fits: Option<u32>,
    preference: Option<u32>,
    score: Option<u32>,
    why: &'a str,
}

impl<'a> Explained<'a> {
    /// The hub's words have columns under their headings, and three spaces between them.
    fn read(object: &'a str, text: &'a str) -> Self {
        let placement = text.lines().find_map(|line| line.strip_prefix("placed by Placement "));
        let mut lines = text.lines().skip_while(|line| !line.starts_with("SITE ")).skip(1);
        let sites: Vec<_> = lines.by_ref().map_while(Row::read).collect();
        let rest: Vec<_> = if placement.is_some() { lines.collect() } else { text.lines().collect() };
        Self { object, placement, sites, summary: rest.join("\n").trim().to_owned() }
    }
}

impl<'a> Row<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut rest = line;
        let mut cell = || {
            let (first, after) = rest.split_once("   ").unwrap_or((rest, ""));
            rest = after.trim_start();
            first.trim()
        };
        let (site, replicas) = (cell(), cell());
        let (now, was) = replicas.split_once(" (was ").unwrap_or((replicas, ""));
        Some(Self {
            site,
            replicas: now.parse().ok()?,
            was: was.trim_end_matches(')').parse().ok(),
            fits: cell().parse().ok(),
            preference: cell().parse().ok(),
            score: cell().parse().ok(),
            why: rest,
        })
    }

    /// The site, without the part of it that is meant.
    fn name(&self) -> &str {
        self.site.split('/').next().unwrap_or(self.site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_the_same_as_people() {
        let text = "\
placed by Placement default/edge-first

SITE        REPLICAS    FITS   PREFERENCE   SCORE   WHY
cloud       1 (was 0)   100    2            100     chosen
edge/n1     4           4      1            83      chosen, now full
far         0           -      -            -       jurisdiction not known, allowed EU

5 of 5 replicas placed: cloud 1, edge/n1 4.
Spread by zone: on 1, wanted at least 2.
";
        let explained = Explained::read("deploy/web", text);
        let row = |site, replicas, was, numbers: [Option<u32>; 3], why| {
            let [fits, preference, score] = numbers;
            Row { site, replicas, was, fits, preference, score, why }
        };
        assert_eq!(explained.placement, Some("default/edge-first"));
        assert_eq!(
            explained.sites,
            [
                row("cloud", 1, Some(0), [Some(100), Some(2), Some(100)], "chosen"),
                row("edge/n1", 4, None, [Some(4), Some(1), Some(83)], "chosen, now full"),
                row("far", 0, None, [None; 3], "jurisdiction not known, allowed EU"),
            ]
        );
        assert_eq!(explained.sites[1].name(), "edge");
        assert!(explained.summary.starts_with("5 of 5") && explained.summary.ends_with("least 2."));
    }

    #[test]
    fn an_object_without_a_place_says_why() {
        let explained = Explained::read("cm/a", "v1/ConfigMap default/a is not placed: nothing selects it\n");
        assert!(explained.placement.is_none() && explained.sites.is_empty());
        assert!(explained.summary.contains("nothing selects it"));
    }
}
