//! `tombolo check`: what is wrong with a machine, a site or a fleet, and how to mend it.

mod cluster;
mod fleet;
mod machine;
mod site;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use crate::client::Target;
use crate::fault::{Unwell, words};
use crate::output::{Format, Output, Table, emphasis};

/// Tell what is wrong with this machine, a site or a fleet, and how to mend it
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo check\n  tombolo check machine --data-dir /var/lib/tombolo/site\n  tombolo check fleet -o json\n\nExits with 1 if something is wrong."
)]
pub struct Args {
    /// What to look at; the machine and the cluster of the kubeconfig, if there is one, when left out
    #[arg(value_enum)]
    areas: Vec<Area>,
    /// The folder whose disk is looked at
    #[arg(long, default_value = "/var/lib/tombolo", value_name = "DIR")]
    data_dir: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// What this machine lets Tombolo do
    Machine,
    /// The cluster of the kubeconfig, be it a site, a hub or any other
    Site,
    /// The sites, placements and works of the hub of the kubeconfig
    Fleet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    Warning,
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub area: Area,
    pub what: &'static str,
    pub state: State,
    pub found: String,
    /// What to do about it; empty when it is fine.
    pub mend: String,
}

impl Finding {
    pub fn ok(area: Area, what: &'static str, found: impl Into<String>) -> Self {
        Self { area, what, state: State::Ok, found: found.into(), mend: String::new() }
    }

    pub fn warning(
        area: Area,
        what: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { area, what, state: State::Warning, found: found.into(), mend: mend.into() }
    }

    pub fn wrong(area: Area, what: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { area, what, state: State::Wrong, found: found.into(), mend: mend.into() }
    }
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let findings = look(&args.areas, &args.data_dir, target).await;
    let mut table = Table::new(&["AREA", "WHAT", "STATE", "FOUND"], 4);
    for finding in &findings {
        let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        table.row(vec![
            word(&finding.area),
            finding.what.into(),
            word(&finding.state),
            finding.found.clone(),
        ]);
    }
    args.output.rows(&table, &findings, |finding| finding.what.to_owned())?;
    let bad: Vec<_> = findings.iter().filter(|f| f.state != State::Ok).collect();
    if matches!(args.output.output, Format::Table | Format::Wide) {
        if bad.is_empty() {
            println!("\nNothing is wrong.");
        } else {
            println!("\n{}\n", emphasis("How to mend it"));
            bad.iter().for_each(|finding| println!("  {}: {}", finding.what, finding.mend));
        }
    }
    if bad.iter().any(|finding| finding.state == State::Wrong) { Err(Unwell.into()) } else { Ok(()) }
}

/// Also what `tombolo support` packs.
pub async fn look(areas: &[Area], data_dir: &std::path::Path, target: &Target) -> Vec<Finding> {
    let wants = |area| areas.is_empty() || areas.contains(&area);
    let mut findings = Vec::new();
    if wants(Area::Machine) {
        findings.extend(machine::look(data_dir));
    }
    if !wants(Area::Site) && !wants(Area::Fleet) {
        return findings;
    }
    let connected = match target.connect().await {
        Ok(connected) => connected,
        // Nobody asked about a cluster, and there is none: a machine before its first use.
        Err(_) if areas.is_empty() && target.is_default() => return findings,
        Err(error) => {
            let mend = "give --kubeconfig, or set KUBECONFIG";
            findings.push(Finding::wrong(Area::Site, "kubeconfig", words(&error), mend));
            return findings;
        }
    };
    if wants(Area::Site) {
        findings.extend(site::look(&connected).await);
    }
    if findings.iter().any(|finding| finding.what == site::ANSWERS && finding.state == State::Wrong) {
        return findings;
    }
    if wants(Area::Fleet) {
        findings.extend(fleet::look(&connected, !areas.is_empty()).await);
    }
    findings
}
