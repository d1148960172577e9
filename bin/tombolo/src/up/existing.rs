//! Existing Kubernetes clusters in the sample fleet (`tombolo up --member KUBECONFIG`): an agent beside each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::fleet::{Fleet, Member, Role};
use crate::client::Target;
use crate::commands::join::state_name;
use crate::commands::token::Ticket;

/// Patience with a cluster of somebody else when the fleet goes.
const FAREWELL: Duration = Duration::from_secs(20);

/// The member for one kubeconfig. It runs in this machine's own network, where the cluster is reached from.
pub fn member(fleet: &Fleet, number: usize, kubeconfig: &Path) -> Result<Member> {
    let kubeconfig = std::fs::canonicalize(kubeconfig)
        .with_context(|| format!("cannot read the kubeconfig {}", kubeconfig.display()))?;
    let name = format!("member-{number}");
    let args = ["agent", "--kubeconfig", &kubeconfig.to_string_lossy(), "--hub", &hub_url(fleet)?]
        .into_iter()
        .chain(["--name", &name, "--tier", "cloud"])
        .map(str::to_owned)
        .collect();
    Ok(Member { name, role: Role::Agent, tier: "cloud".into(), number: 0, pid: None, args })
}

/// The first start needs the hub's token; it is not written down.
pub fn introduce(fleet: &mut Fleet, name: &str, ticket: &Ticket) -> Result<()> {
    fleet.start(name, &[("TOMBOLO_TOKEN", &ticket.token), ("TOMBOLO_CA_HASH", &ticket.ca_hash)])
}

pub fn hub_url(fleet: &Fleet) -> Result<String> {
    Ok(format!("https://{}:6443", fleet.member("hub")?.address()))
}

/// Removes what the fleet put into the cluster; the hub is not needed for it.
pub async fn leave(fleet: &Fleet, agent: &Member) -> Result<()> {
    let kubeconfig = agent.args.iter().skip_while(|arg| *arg != "--kubeconfig").nth(1).map(PathBuf::from);
    let target = Target { kubeconfig, ..Target::default() };
    let state = state_name(&hub_url(fleet)?);
    let work = async {
        let client = target.connect().await?.client;
        anyhow::Ok(tombolo_agent::leave(&client, &state, false).await?)
    };
    let left = tokio::time::timeout(FAREWELL, work).await.context("it does not answer").flatten();
    match left.with_context(|| format!("cannot clean up the cluster of {}", agent.name))? {
        0 => Ok(()),
        left => bail!("{left} objects in the cluster of {} could not be removed; try again", agent.name),
    }
}
