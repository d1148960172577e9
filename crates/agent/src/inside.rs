//! What is inside a namespace, or of a kind that was defined at the site, and whose it is: it goes with what it is in.

use std::collections::HashSet;

use futures::{StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersion, ObjectMeta};
use kube::discovery::Scope;
use kube::{Client, Error};
use tombolo_api::names;

use crate::apply::{Applier, Refusal, built_in, gvk};
use crate::ledger::Key;
use crate::owners::Owners;

/// Requests at once.
const AT_ONCE: usize = 8;

/// A kind of the site that can be listed and deleted.
#[derive(Clone)]
pub struct Kind {
    pub resource: ApiResource,
    namespaced: bool,
}

impl Kind {
    pub fn key(&self, metadata: &ObjectMeta) -> Key {
        Key {
            api_version: self.resource.api_version.clone(),
            kind: self.resource.kind.clone(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    fn is(&self, group: &str, kind: &str) -> bool {
        self.resource.group == group && self.resource.kind == kind
    }

    /// Of no weight by itself: Endpoints go with their Service.
    fn passes(&self) -> bool {
        matches!(self.resource.kind.as_str(), "Event" | "Endpoints")
    }

    /// In all namespaces, where `namespace` is empty.
    fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        if self.namespaced && !namespace.is_empty() {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }

    pub fn is_namespace(&self) -> bool {
        self.is("", "Namespace")
    }
}

/// What is in a namespace; the greatest of all that is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    Nothing,
    /// Only what belongs to something else, and goes with it.
    Remains,
    Others,
}

pub async fn content(site: &Client, kinds: &[Kind], namespace: &str) -> Content {
    let found = each(&in_namespaces(kinds), |kind| async move {
        match kind.api(site, namespace).list_metadata(&ListParams::default()).await {
            Ok(list) => list.items.iter().map(|o| counts_as(&kind.key(&o.metadata), &o.metadata)).max(),
            Err(Error::Api(status)) if gone(status.code) => None,
            // What cannot be seen may be somebody's.
            Err(_) => Some(Content::Others),
        }
    })
    .await;
    found.into_iter().flatten().max().unwrap_or(Content::Nothing)
}

fn counts_as(key: &Key, metadata: &ObjectMeta) -> Content {
    // A hub shows pods of its sites; they go with what they were made from.
    let mirror = metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(names::MIRROR_LABEL));
    if built_in(key) || mirror || metadata.deletion_timestamp.is_some() {
        Content::Nothing
    } else if metadata.owner_references.iter().flatten().next().is_some() {
        Content::Remains
    } else {
        Content::Others
    }
}

fn in_namespaces(kinds: &[Kind]) -> Vec<Kind> {
    kinds.iter().filter(|kind| kind.namespaced && !kind.passes()).cloned().collect()
}

/// What others may have put something into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Namespace,
    Definition,
}

fn holder(key: &Key) -> Option<Holder> {
    let gvk = gvk(&key.api_version, &key.kind);
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Namespace") => Some(Holder::Namespace),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Some(Holder::Definition),
        _ => None,
    }
}

/// May others have something in it that goes with it?
pub fn may_hold(key: &Key) -> bool {
    holder(key).is_some()
}

/// Names something that would go with the object and was not made by this hub, nor by what it made.
pub async fn others_in(applier: &Applier, key: &Key) -> Result<Option<String>, Refusal> {
    let Some(holder) = holder(key) else { return Ok(None) };
    let kinds = kinds(&applier.own).await?;
    let (inside, namespace) = match holder {
        Holder::Namespace => (in_namespaces(&kinds), key.name.as_str()),
        Holder::Definition => match defined(applier, key).await? {
            Some((kind, false)) => return Ok(Some(unseen(&kind))),
            found => (found.into_iter().map(|(kind, _)| kind).collect(), ""),
        },
    };
    let found =
        each(&inside, |kind| either(applier, move |client| list(kind.clone(), client, namespace))).await;
    let mut open = Vec::new();
    for (kind, found) in inside.iter().zip(found) {
        match found {
            Ok(found) => open.extend(found),
            Err(Error::Api(status)) if gone(status.code) => {}
            // What cannot be seen may be somebody's.
            Err(Error::Api(status)) if status.code == 403 => return Ok(Some(unseen(kind))),
            Err(error) => return Err(error.into()),
        }
    }
    // What belongs to something else is whose that is.
    let mut looked_at: HashSet<String> =
        open.iter().filter_map(|(_, metadata)| metadata.uid.clone()).collect();
    while let Some((key, metadata)) = open.pop() {
        let owners = Owners::of(metadata.annotations.as_ref());
        if owners.only(&applier.hub) && !owners.adopted() {
            continue;
        }
        match counts_as(&key, &metadata) {
            Content::Nothing => {}
            Content::Remains if owners.is_empty() => {
                for owner in metadata.owner_references.into_iter().flatten() {
                    if !looked_at.insert(owner.uid.clone()) {
                        continue;
                    }
                    match owning(applier, &kinds, &owner, &key.namespace).await? {
                        Owning::Gone => {}
                        Owning::There(key, metadata) => open.push((key, metadata)),
                        Owning::Unseen => return Ok(Some(key.to_string())),
                    }
                }
            }
            Content::Remains | Content::Others => return Ok(Some(key.to_string())),
        }
    }
    Ok(None)
}

fn unseen(kind: &Kind) -> String {
    format!("{} that cannot be seen", kind.resource.plural)
}

async fn list(kind: Kind, client: Client, namespace: &str) -> Result<Vec<(Key, ObjectMeta)>, Error> {
    let found = kind.api(&client, namespace).list_metadata(&ListParams::default()).await?;
    Ok(found.items.into_iter().map(|object| (kind.key(&object.metadata), object.metadata)).collect())
}

enum Owning {
    There(Key, ObjectMeta),
    /// What it had goes in a moment.
    Gone,
    Unseen,
}

async fn owning(
    applier: &Applier,
    kinds: &[Kind],
    owner: &OwnerReference,
    namespace: &str,
) -> Result<Owning, Refusal> {
    let gvk = gvk(&owner.api_version, &owner.kind);
    let Some(kind) = kinds.iter().find(|kind| kind.is(&gvk.group, &gvk.kind)) else {
        return Ok(Owning::Unseen);
    };
    let get = |client: Client| {
        let api = kind.api(&client, namespace);
        async move { api.get_metadata_opt(&owner.name).await }
    };
    match either(applier, get).await {
        Ok(Some(found)) if found.metadata.uid.as_ref() == Some(&owner.uid) => {
            Ok(Owning::There(kind.key(&found.metadata), found.metadata))
        }
        Ok(_) => Ok(Owning::Gone),
        Err(Error::Api(status)) if gone(status.code) => Ok(Owning::Gone),
        Err(Error::Api(status)) if status.code == 403 => Ok(Owning::Unseen),
        Err(error) => Err(error.into()),
    }
}

/// The kind that a definition defines, and whether a version of it is served: what is stored of others can be neither seen
/// nor ruled out.
async fn defined(applier: &Applier, key: &Key) -> Result<Option<(Kind, bool)>, Refusal> {
    let get = |client: Client| {
        let api: Api<CustomResourceDefinition> = Api::all(client);
        async move { api.get_opt(&key.name).await }
    };
    let Some(found) = either(applier, get).await? else { return Ok(None) };
    let (spec, names) = (&found.spec, &found.spec.names);
    let served = spec.versions.iter().find(|version| version.served);
    let version = GroupVersion::gv(&spec.group, served.map_or("", |version| &version.name));
    let resource = ApiResource {
        api_version: version.api_version(),
        group: version.group,
        version: version.version,
        kind: names.kind.clone(),
        plural: names.plural.clone(),
    };
    Ok(Some((Kind { resource, namespaced: spec.scope == "Namespaced" }, served.is_some())))
}

/// Asks with the agent's own rights; where these end, with those the hub has.
async fn either<T, Fut>(applier: &Applier, ask: impl Fn(Client) -> Fut) -> Result<T, Error>
where
    Fut: Future<Output = Result<T, Error>>,
{
    match ask(applier.own.clone()).await {
        Err(Error::Api(status)) if status.code == 403 => ask(applier.acting.clone()).await,
        other => other,
    }
}

/// The kind is not there (any more), or cannot be listed.
pub fn gone(code: u16) -> bool {
    matches!(code, 404 | 405)
}

/// Every kind of the site that can be listed and deleted, but for those of an API that does not answer. Each in the version
/// that its group prefers, if it is in that one.
pub async fn kinds(site: &Client) -> Result<Vec<Kind>, Error> {
    let mut versions = vec![GroupVersion::gv("", "v1")];
    for group in site.list_api_groups().await?.groups {
        let all = group.preferred_version.iter().chain(&group.versions);
        versions.extend(all.filter_map(|version| version.group_version.parse::<GroupVersion>().ok()));
    }
    let mut seen = HashSet::new();
    versions.retain(|version| seen.insert(version.api_version()));
    let mut kinds: Vec<Kind> = Vec::new();
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
            let known = kinds.iter().any(|kind| kind.is(&resource.group, &resource.kind));
            if !known && able.supports_operation("delete") && able.supports_operation("list") {
                kinds.push(Kind { resource, namespaced: able.scope == Scope::Namespaced });
            }
        }
    }
    Ok(kinds)
}

pub async fn each<T, F, Fut>(kinds: &[Kind], work: F) -> Vec<T>
where
    F: Fn(Kind) -> Fut,
    Fut: Future<Output = T>,
{
    stream::iter(kinds.to_vec()).map(work).buffered(AT_ONCE).collect().await
}

#[cfg(test)]
#[path = "inside_tests.rs"]
pub mod tests;
