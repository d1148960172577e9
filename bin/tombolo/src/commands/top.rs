//! `tombolo top`: how full the sites are.

use anyhow::Result;
use kube::api::{Api, ListParams};
use tombolo_api::quantity::amount;
use tombolo_api::{Quantities, Site};

use crate::client::{Target, only_at_a_hub};
use crate::output::{Output, Table, bytes, cores};

/// Show how full each site is: what pods have asked for, of what there is
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tombolo top\n  tombolo top -o wide")]
pub struct Args {
    #[command(flatten)]
    output: Output,
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let client = target.connect().await?.client;
    let sites = Api::<Site>::all(client).list(&ListParams::default()).await;
    let sites = sites.map_err(only_at_a_hub)?.items;
    let header = [
        "SITE",
        "READY",
        "NODES",
        "CPU",
        "CPU%",
        "MEMORY",
        "MEMORY%",
        "PODS",
        "CPU TOTAL",
        "MEMORY TOTAL",
        "RTT",
    ];
    let mut table = Table::new(&header, 8);
    for site in &sites {
        let status = site.status.clone().unwrap_or_default();
        let use_of = |resource: &str| Use::of(resource, &status.used, &status.allocatable);
        let (cpu, memory, pods) = (use_of("cpu"), use_of("memory"), use_of("pods"));
        table.row(vec![
            site.metadata.name.clone().unwrap_or_default(),
            if site.is_ready() { "True".into() } else { "False".into() },
            status.nodes.map_or_else(|| "-".to_owned(), |nodes| nodes.to_string()),
            cpu.used(cores),
            cpu.percent(),
            memory.used(bytes),
            memory.percent(),
            pods.used(|n| n.to_string()),
            cpu.total(cores),
            memory.total(bytes),
            status.latency.unwrap_or_else(|| "-".into()),
        ]);
    }
    args.output.objects(&table, &sites, |site| {
        format!("site.tombolo.dev/{}", site.metadata.name.as_deref().unwrap_or(""))
    })
}

/// How much of one resource is taken; a site that told nothing has neither.
struct Use {
    used: Option<i64>,
    total: Option<i64>,
}

impl Use {
    fn of(resource: &str, used: &Quantities, total: &Quantities) -> Self {
        let read = |from: &Quantities| from.get(resource).and_then(|text| amount(resource, text));
        // A site that tells what it has and nothing of its use has no pods.
        let total = read(total);
        Self { used: read(used).or(total.map(|_| 0)), total }
    }

    fn used(&self, write: impl Fn(i64) -> String) -> String {
        self.used.map_or_else(|| "-".into(), write)
    }

    fn total(&self, write: impl Fn(i64) -> String) -> String {
        self.total.map_or_else(|| "-".into(), write)
    }

    fn percent(&self) -> String {
        match (self.used, self.total) {
            (Some(used), Some(total)) if total > 0 => format!("{}%", used * 100 / total),
            _ => "-".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_site_uses_nothing_and_a_silent_one_is_not_known() {
        let has: Quantities = [("cpu".to_owned(), "2".to_owned())].into();
        let none = Quantities::default();
        let empty = Use::of("cpu", &none, &has);
        assert_eq!((empty.used(cores), empty.percent()), ("0m".to_owned(), "0%".to_owned()));
        assert_eq!(Use::of("cpu", &none, &none).used(cores), "-");
    }
}
