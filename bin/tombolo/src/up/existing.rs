//! Existing Kubernetes clusters in the sample fleet (`tombolo up --member KUBECONFIG`): an agent beside each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use tombolo_api::names;

use super::fleet::{Fleet, Member, Role};
use super::show::program;
use crate::client::Target;
use crate::commands::join::state_name;
use crate::commands::token::Ticket;

/// Patience with a cluster of somebody else, when the fleet comes and when it goes.
const PATIENCE: Duration = Duration::from_secs(20);

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
    Ok(Member { name, role: Role::Agent, tier: "cloud".into(), args, ..Member::default() })
}

/// Asks each cluster, before anything is made, whether it answers and is done with an earlier fleet.
pub async fn look(fleet: &Fleet) -> Result<()> {
    for agent in fleet.with_role(Role::Agent) {
        let free = tokio::time::timeout(PATIENCE, until_free(agent)).await;
        free.with_context(|| {
            format!("it does not answer, or does not finish deleting namespace {}", names::SYSTEM_NAMESPACE)
        })
        .flatten()
        .with_context(|| format!("cannot use the cluster of {}", kubeconfig(agent)))?;
    }
    Ok(())
}

/// Nothing can be made in a namespace that is going.
async fn until_free(agent: &Member) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(connect(agent).await?);
    let is_going = |found: Namespace| found.metadata.deletion_timestamp.is_some();
    while namespaces.get_opt(names::SYSTEM_NAMESPACE).await?.is_some_and(is_going) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// The first start needs the hub's token; it is not written down.
pub fn introduce(fleet: &mut Fleet, name: &str, ticket: &Ticket) -> Result<()> {
    fleet.start(name, &[("TOMBOLO_TOKEN", &ticket.token), ("TOMBOLO_CA_HASH", &ticket.ca_hash)])
}

pub fn hub_url(fleet: &Fleet) -> Result<String> {
    Ok(format!("https://{}:6443", fleet.member("hub")?.address()))
}

/// The kubeconfig that the agent was started with.
fn kubeconfig(agent: &Member) -> &str {
    agent.args.iter().skip_while(|arg| *arg != "--kubeconfig").nth(1).map_or("", String::as_str)
}

async fn connect(agent: &Member) -> Result<kube::Client> {
    let target = Target { kubeconfig: Some(PathBuf::from(kubeconfig(agent))), ..Target::default() };
    Ok(target.connect().await?.client)
}

/// Removes what the fleet put into the cluster; the hub is not needed for it.
pub async fn leave(fleet: &Fleet, agent: &Member) -> Result<()> {
    let state = state_name(&hub_url(fleet)?);
    let work = async {
        let client = connect(agent).await?;
        anyhow::Ok(tombolo_agent::leave(&client, &state, false).await?)
    };
    match tokio::time::timeout(PATIENCE, work).await.context("it does not answer").flatten()? {
        0 => Ok(()),
        left => bail!("{left} objects could not be removed"),
    }
}

/// What stays in a cluster that could not be cleaned up, and how its owner removes it. The fleet goes all the same: a
/// cluster that is gone for good must not keep it.
pub fn farewell(fleet: &Fleet, agent: &Member, error: &anyhow::Error) -> String {
    let (file, url) = (kubeconfig(agent), hub_url(fleet).unwrap_or_default());
    format!(
        "warning: the cluster of {} is not cleaned up: {}.\n\
         What was placed there stays, and so does the fleet's Secret {} in namespace {}.\n\
         Next, when it answers again:\n  {} --kubeconfig {file} leave {url}",
        agent.name,
        crate::fault::words(error),
        state_name(&url),
        names::SYSTEM_NAMESPACE,
        program(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_cannot_be_cleaned_up_is_left_with_the_words_that_clean_it_up() {
        let mut fleet = Fleet::new(Path::new("/nowhere"));
        fleet.members.push(Member { name: "hub".into(), number: 10, ..Member::default() });
        let args = ["agent", "--kubeconfig", "/home/me/config"].map(str::to_owned).to_vec();
        let agent = Member { name: "member-1".into(), args, ..Member::default() };
        let said = farewell(&fleet, &agent, &anyhow::anyhow!("it does not answer"));
        let next = "--kubeconfig /home/me/config leave https://198.19.77.10:6443";
        for part in ["member-1", "it does not answer", "Secret hub-", "tombolo-system", next] {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
    }
}
