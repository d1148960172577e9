//! Cleaning up after a hub: what was made for it goes, what was there before it is let go.
//!
//! Done with the agent's own rights, and where those do not reach (an agent that may only look), with the hub's. Looks
//! again until nothing is found: what the site's own controllers remove takes a moment, and so does the agent's last write.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersion, PartialObjectMeta};
use kube::discovery::Scope;
use kube::{Client, Error};
use tombolo_api::names;

use crate::apply::{Applier, Refusal, Removed, built_in};
use crate::ledger::Key;
use crate::owners::Owners;

/// How often what is under way is looked at again, and how long between.
const LOOKS: usize = 20;
const BETWEEN: Duration = Duration::from_millis(500);
/// Requests at once.
const AT_ONCE: usize = 8;

/// A kind of the site that can be listed and deleted.
#[derive(Clone)]
struct Kind {
    resource: ApiResource,
    namespaced: bool,
}

impl Kind {
    fn key(&self, metadata: &kube::core::ObjectMeta) -> Key {
        Key {
            api_version: self.resource.api_version.clone(),
            kind: self.resource.kind.clone(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Of no weight by itself: Endpoints go with their Service.
    fn passes(&self) -> bool {
        matches!(self.resource.kind.as_str(), "Event" | "Endpoints")
    }

    fn is_namespace(&self) -> bool {
        self.resource.group.is_empty() && self.resource.kind == "Namespace"
    }
}

/// What is in a namespace; the greatest of all that is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Nothing,
    /// Only what belongs to something else, and goes with it.
    Remains,
    Others,
}

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
        let done = if keep || owners.adopted() {
            let_go(applier, &key, &owners).await
        } else {
            part(applier, &key, object.metadata.uid).await.map(drop)
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

async fn content(site: &Client, kinds: &[Kind], namespace: &str) -> Content {
    let inside: Vec<Kind> = kinds.iter().filter(|kind| kind.namespaced && !kind.passes()).cloned().collect();
    let found = each(&inside, |kind| async move {
        let api: Api<DynamicObject> = Api::namespaced_with(site.clone(), namespace, &kind.resource);
        match api.list_metadata(&ListParams::default()).await {
            Ok(list) => list.items.iter().map(|o| counts_as(&kind.key(&o.metadata), &o.metadata)).max(),
            Err(Error::Api(status)) if gone(status.code) => None,
            // What cannot be seen may be somebody's.
            Err(_) => Some(Content::Others),
        }
    })
    .await;
    found.into_iter().flatten().max().unwrap_or(Content::Nothing)
}

fn counts_as(key: &Key, metadata: &kube::core::ObjectMeta) -> Content {
    if built_in(key) || metadata.deletion_timestamp.is_some() {
        Content::Nothing
    } else if metadata.owner_references.iter().flatten().next().is_some() {
        Content::Remains
    } else {
        Content::Others
    }
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

/// The kind is not there (any more), or cannot be listed.
fn gone(code: u16) -> bool {
    matches!(code, 404 | 405)
}

/// Every kind of the site that can be listed and deleted, but for those of an API that does not answer.
async fn kinds(site: &Client) -> Result<Vec<Kind>, Error> {
    let mut versions = vec![GroupVersion::gv("", "v1")];
    for group in site.list_api_groups().await?.groups {
        let version = group.preferred_version.or_else(|| group.versions.first().cloned());
        versions.extend(version.and_then(|version| version.group_version.parse().ok()));
    }
    let mut kinds = Vec::new();
    for version in versions {
        let group = match kube::discovery::pinned_group(site, &version).await {
            Ok(group) => group,
            Err(error) if version.group.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(api = version.api_version(), %error, "an API of the site does not answer; skipped");
                continue;
            }
        };
        for (resource, able) in group.recommended_resources() {
            if able.supports_operation("delete") && able.supports_operation("list") {
                kinds.push(Kind { resource, namespaced: able.scope == Scope::Namespaced });
            }
        }
    }
    Ok(kinds)
}

async fn each<T, F, Fut>(kinds: &[Kind], work: F) -> Vec<T>
where
    F: Fn(Kind) -> Fut,
    Fut: Future<Output = T>,
{
    stream::iter(kinds.to_vec()).map(work).buffered(AT_ONCE).collect().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn content_of(kind: &str, metadata: serde_json::Value) -> Content {
        let metadata: kube::core::ObjectMeta = serde_json::from_value(metadata).expect("metadata");
        let key = Key {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: metadata.name.clone().unwrap_or_default(),
        };
        counts_as(&key, &metadata)
    }

    #[test]
    fn a_namespace_is_empty_when_nothing_of_anybody_s_own_is_in_it() {
        assert_eq!(content_of("ServiceAccount", json!({"name": "default"})), Content::Nothing);
        assert_eq!(content_of("ConfigMap", json!({"name": "kube-root-ca.crt"})), Content::Nothing);
        assert_eq!(content_of("ConfigMap", json!({"name": "mine"})), Content::Others);
        let leaving = json!({"name": "web-1", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(content_of("Pod", leaving), Content::Nothing);
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1"});
        assert_eq!(
            content_of("ReplicaSet", json!({"name": "web-1", "ownerReferences": [owner]})),
            Content::Remains
        );
    }
}
