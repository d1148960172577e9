//! Cleaning up after a hub: what was made for it goes, what was there before it is let go.
//!
//! Done with the agent's own rights, and where those do not reach (an agent that may only look), with the hub's. Looks
//! again until nothing is found: what the site's own controllers remove takes a moment, and so does the agent's last write.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Error};
use tombolo_api::names;

use crate::apply::{Applier, Refusal};
use crate::inside::{Content, Kind, content, each, gone, kinds, others_in};
use crate::ledger::Key;
use crate::owners::Owners;
use crate::remove::Removed;

/// How often what is under way is looked at again, and how long between.
const LOOKS: usize = 20;
const BETWEEN: Duration = Duration::from_millis(500);

/// Removes every trace of the applier's hub, `keep`: but for its objects, which are let go. Gives the number of objects
/// that could not be removed.
pub async fn clean_up(applier: &Applier, keep: bool) -> Result<usize, Error> {
    let kinds = kinds(&applier.own).await?;
    kinds.iter().for_each(|kind| applier.learn(kind.resource.clone()));
    let (spaces, mut busy): (Vec<Kind>, Vec<Kind>) = kinds.iter().cloned().partition(Kind::is_namespace);
    let mut left = 0;
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(BETWEEN).await;
        }
        let found = each(&busy, |kind| sweep(applier, kind, keep)).await;
        left = found.iter().sum();
        busy = busy.into_iter().zip(found).filter(|(_, found)| *found > 0).map(|(kind, _)| kind).collect();
        // Namespaces go last.
        if busy.is_empty() && !namespaces(applier, &kinds, &spaces, keep).await? {
            break;
        }
    }
    if left == 0 {
        left += forget_lease(applier).await?;
    }
    Ok(left)
}

/// Deletes the namespace if nothing but what every namespace has is in it, after what is about to go has gone.
pub async fn remove_if_empty(site: &Client, namespace: &str) -> Result<(), Error> {
    let kinds = kinds(site).await?;
    let applier = Applier::new(site.clone(), site.clone(), "");
    for _ in 0..LOOKS {
        match content(site, &kinds, namespace).await {
            Content::Nothing => {
                let spaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(site.clone());
                let Some(found) = spaces.get_opt(namespace).await? else { return Ok(()) };
                let key = namespace_key(namespace);
                return part(&applier, &key, found.metadata.uid).await.map(drop).or_else(|refusal| {
                    tracing::warn!(namespace, %refusal, "the namespace stays");
                    Ok(())
                });
            }
            Content::Others => return Ok(()),
            Content::Remains => tokio::time::sleep(BETWEEN).await,
        }
    }
    Ok(())
}

/// Removes or lets go this hub's objects of one kind. Gives how many were found: the next look finds none.
async fn sweep(applier: &Applier, kind: Kind, keep: bool) -> usize {
    let found = match labelled(applier, &kind).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(kind = kind.resource.kind, %error, "cannot be looked at");
            return 1;
        }
    };
    let ours = found.into_iter().filter_map(|object| {
        let owners = Owners::of(object.metadata.annotations.as_ref());
        owners.only(&applier.hub).then_some((object, owners))
    });
    let mut count = 0;
    for (object, owners) in ours {
        let key = kind.key(&object.metadata);
        count += 1;
        let done = match others_in(applier, &key).await {
            Err(refusal) => Err(refusal),
            Ok(others) if keep || owners.adopted() || others.is_some() => {
                let_go(applier, &key, &owners).await
            }
            Ok(_) => part(applier, &key, object.metadata.uid).await.map(drop),
        };
        if let Err(refusal) = done {
            tracing::warn!(object = %key, namespace = key.namespace, %refusal, "not removed");
        }
    }
    count
}

/// Removes namespaces that were made for the hub and have nothing in them. Says whether one of them will soon be empty.
async fn namespaces(applier: &Applier, kinds: &[Kind], spaces: &[Kind], keep: bool) -> Result<bool, Error> {
    let mut soon = false;
    for kind in spaces {
        for space in labelled(applier, kind).await? {
            let owners = Owners::of(space.metadata.annotations.as_ref());
            let ours = owners.is_empty() || owners.only(&applier.hub);
            if !ours || space.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let key = kind.key(&space.metadata);
            let done = match content(&applier.own, kinds, &key.name).await {
                _ if keep || owners.adopted() => let_go(applier, &key, &owners).await,
                Content::Nothing => part(applier, &key, space.metadata.uid).await.map(drop),
                Content::Others => let_go(applier, &key, &owners).await,
                Content::Remains => {
                    soon = true;
                    Ok(())
                }
            };
            if let Err(refusal) = done {
                tracing::warn!(namespace = key.name, %refusal, "the namespace stays");
            }
        }
    }
    Ok(soon)
}

/// With the agent's own rights; where these end, with those the hub has.
async fn part(applier: &Applier, key: &Key, uid: Option<String>) -> Result<Removed, Refusal> {
    match applier.delete(&applier.own, key, uid.clone()).await {
        Err(Refusal::Site(status)) if status.code == 403 => applier.delete(&applier.acting, key, uid).await,
        other => other,
    }
}

async fn let_go(applier: &Applier, key: &Key, owners: &Owners) -> Result<(), Refusal> {
    match applier.release(&applier.own, key, owners.iter(), true, None).await {
        Err(Refusal::Site(status)) if status.code == 403 => {
            applier.release(&applier.acting, key, owners.iter(), true, None).await
        }
        other => other,
    }
}

/// The lease of workloads that may run at most once: of no use to anybody without the hub.
async fn forget_lease(applier: &Applier) -> Result<usize, Error> {
    let api: Api<Lease> = Api::namespaced(applier.own.clone(), names::SYSTEM_NAMESPACE);
    let name = lease_name(&applier.hub);
    let found = match api.get_opt(&name).await {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(0),
        // Who may not see it has not made it.
        Err(Error::Api(status)) if status.code == 403 => return Ok(0),
        Err(error) => return Err(error),
    };
    let key = Key {
        api_version: "coordination.k8s.io/v1".into(),
        kind: "Lease".into(),
        namespace: names::SYSTEM_NAMESPACE.into(),
        name,
    };
    match part(applier, &key, found.metadata.uid).await {
        Ok(_) => Ok(0),
        Err(refusal) => {
            tracing::warn!(lease = key.name, %refusal, "not removed");
            Ok(1)
        }
    }
}

/// Where an agent says how fresh its tie to the hub is.
pub fn lease_name(hub: &str) -> String {
    format!("hub-{}", names::hub_label(hub))
}

fn namespace_key(name: &str) -> Key {
    Key {
        api_version: "v1".into(),
        kind: "Namespace".into(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

async fn labelled(applier: &Applier, kind: &Kind) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let selector = format!("{}={}", names::HUB_LABEL, names::hub_label(&applier.hub));
    let api: Api<DynamicObject> = Api::all_with(applier.own.clone(), &kind.resource);
    match api.list_metadata(&ListParams::default().labels(&selector)).await {
        Ok(list) => Ok(list.items),
        Err(Error::Api(status)) if gone(status.code) || status.code == 403 => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::tests::{Pretend, definition, object};

    #[tokio::test]
    async fn a_definition_of_which_others_have_resources_stays_when_the_hub_goes() {
        let swept = |inside: &[serde_json::Value]| {
            let ships = definition("Ship", true);
            let site = Pretend::new(&[&[ships][..], inside].concat());
            async move {
                let all = kinds(&site.applier().own).await.expect("kinds");
                let definitions = all.into_iter().find(|k| k.resource.kind == "CustomResourceDefinition");
                sweep(&site.applier(), definitions.expect("definitions"), false).await;
                site.done().join(", ")
            }
        };
        assert_eq!(swept(&[]).await, "DELETE CustomResourceDefinition/ships.sea.example.com");
        let theirs = object("Ship", "theirs");
        assert_eq!(swept(&[theirs]).await, "PATCH CustomResourceDefinition/ships.sea.example.com");
    }
}
