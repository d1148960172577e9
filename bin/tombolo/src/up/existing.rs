//! Existing Kubernetes clusters in the sample fleet (`tombolo up --member KUBECONFIG`): an agent beside each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use tombolo_api::names;

use super::fleet::{Fleet, Guest, Member, Role};
use crate::client::Target;
use crate::commands::join::state_name;
use crate::commands::token::Ticket;

/// Patience with a cluster of somebody else, when the fleet comes and when it goes.
const PATIENCE: Duration = Duration::from_secs(20);
/// What somebody who uses our namespace too would have in it, and what every namespace has.
const SIGNS_OF_OTHERS: &[(&str, &str, &str)] = &[
    ("", "v1", "Secret"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "ServiceAccount"),
    ("apps", "v1", "Deployment"),
];
const IN_EVERY_NAMESPACE: &[&str] = &["kube-root-ca.crt", "default"];

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
    Ok(Member { name, role: Role::Agent, tier: "cloud".into(), number: 0, pid: None, args, guest: None })
}

/// Asks each cluster, before anything is made, whether it answers and has our namespace already.
pub async fn look(fleet: &mut Fleet) -> Result<()> {
    for agent in fleet.members.iter_mut().filter(|member| member.role == Role::Agent) {
        let found = tokio::time::timeout(PATIENCE, has_namespace(agent)).await;
        let found = found.context("it does not answer, or is not done with deleting our namespace").flatten();
        let found = found.with_context(|| format!("cannot use the cluster of {}", kubeconfig(agent)))?;
        agent.guest = Some(Guest { had_namespace: found, hub: String::new() });
    }
    Ok(())
}

/// One that an earlier fleet left is waited for, until it is gone: nothing can be made in it.
async fn has_namespace(agent: &Member) -> Result<bool> {
    let namespaces: Api<Namespace> = Api::all(connect(agent).await?);
    loop {
        match namespaces.get_opt(names::SYSTEM_NAMESPACE).await? {
            None => return Ok(false),
            Some(found) if found.metadata.deletion_timestamp.is_none() => return Ok(true),
            Some(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// The first start needs the hub's token; it is not written down.
pub fn introduce(fleet: &mut Fleet, name: &str, ticket: &Ticket) -> Result<()> {
    fleet.start(name, &[("TOMBOLO_TOKEN", &ticket.token), ("TOMBOLO_CA_HASH", &ticket.ca_hash)])
}

/// By which name the objects of a hub's making are known.
pub async fn hub_identity(hub: &kube::Client) -> Result<String> {
    let settings: Api<ConfigMap> = Api::namespaced(hub.clone(), "kube-system");
    let data = settings.get(names::HUB_CONFIG).await?.data.unwrap_or_default();
    data.get("id").cloned().context("the hub does not say who it is")
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
        match tombolo_agent::leave(&client, &state, false).await? {
            0 => remove_namespace(&client, agent).await,
            left => bail!("{left} objects could not be removed"),
        }
    };
    tokio::time::timeout(PATIENCE, work).await.context("it does not answer").flatten()
}

/// The namespace goes if it came with us and nobody else uses it by now.
async fn remove_namespace(client: &kube::Client, agent: &Member) -> Result<()> {
    if agent.guest.as_ref().is_none_or(|guest| guest.had_namespace) {
        return Ok(());
    }
    for (group, version, kind) in SIGNS_OF_OTHERS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), names::SYSTEM_NAMESPACE, &resource);
        let there = api.list_metadata(&ListParams::default()).await?.items;
        let is_usual = |name: &str| IN_EVERY_NAMESPACE.contains(&name);
        if there.iter().any(|o| o.metadata.name.as_deref().is_none_or(|name| !is_usual(name))) {
            return Ok(());
        }
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.delete(names::SYSTEM_NAMESPACE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}

/// What stays in a cluster that could not be cleaned up, and how its owner removes it. The fleet goes all the same: a
/// cluster that is gone for good must not keep it.
pub fn farewell(fleet: &Fleet, agent: &Member, error: &anyhow::Error) -> String {
    let file = kubeconfig(agent);
    let guest = agent.guest.clone().unwrap_or_default();
    // Without a name of the hub nothing is known to be its own: other hubs' objects have the label too.
    let remove = match names::hub_label(&guest.hub).as_str() {
        "" => String::new(),
        label => format!(
            "\n  kubectl --kubeconfig {file} api-resources --verbs=list,delete -o name | \
             xargs -n 1 kubectl --kubeconfig {file} delete -A --ignore-not-found -l {}={label}",
            names::HUB_LABEL
        ),
    };
    let state = hub_url(fleet).map(|url| state_name(&url)).unwrap_or_default();
    let namespace = names::SYSTEM_NAMESPACE;
    let last = if guest.had_namespace {
        format!("delete secret {state} -n {namespace} --ignore-not-found")
    } else {
        format!("delete namespace {namespace} --ignore-not-found --wait=false")
    };
    format!(
        "warning: the cluster of {} is not cleaned up: {}.\nWhat was placed there stays, and so do the fleet's \
         credentials in namespace {namespace}.\nNext, when it answers again:{remove}\n  kubectl --kubeconfig {file} {last}",
        agent.name,
        crate::fault::words(error)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(had_namespace: bool, hub: &str) -> String {
        let mut fleet = Fleet::new(Path::new("/nowhere"));
        fleet.members.push(Member { name: "hub".into(), number: 10, ..Member::default() });
        let agent = Member {
            name: "member-1".into(),
            args: ["agent", "--kubeconfig", "/home/me/config"].map(str::to_owned).to_vec(),
            guest: Some(Guest { had_namespace, hub: hub.into() }),
            ..Member::default()
        };
        farewell(&fleet, &agent, &anyhow::anyhow!("it does not answer"))
    }

    #[test]
    fn a_cluster_that_cannot_be_cleaned_up_is_left_with_words_that_clean_it_up() {
        let said = guest(false, "0123-4567");
        for part in ["member-1", "it does not answer", "/home/me/config", "tombolo.dev/hub=01234567"] {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
        assert!(said.contains("delete namespace tombolo-system"), "{said}");
    }

    #[test]
    fn what_was_there_before_the_fleet_is_not_named_for_removal() {
        let said = guest(true, "");
        assert!(!said.contains("delete namespace") && !said.contains("tombolo.dev/hub"), "{said}");
        assert!(said.contains("delete secret hub-"), "{said}");
    }
}
