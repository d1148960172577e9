//! Namespace deletion: pods first, then everything else, then the namespace itself.
//!
//! The order matters: a pod must be able to shut down while the ConfigMaps, Secrets and policies that it lives by
//! still exist.

use crate::{
    catalog::{Served, discover},
    meta::now_time,
    shell::{ActError, Controller, Enqueue, Json, Key, Object, Reconciled, Resource, Shell, Watch, World},
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use serde::Deserialize;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Kinds deleted at the same time.
const TOGETHER: usize = 16;
const SOONEST: Duration = Duration::from_millis(50);
const LATEST: Duration = Duration::from_secs(5);

/// What is left in a namespace after a round of deletes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remains {
    /// Objects left, by `plural.group`.
    pub kinds: BTreeMap<String, usize>,
    /// Objects left, by finalizer.
    pub finalizers: BTreeMap<String, usize>,
    pub failures: Vec<String>,
    pub discovery_failure: Option<String>,
}

impl Remains {
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.failures.is_empty() && self.discovery_failure.is_none()
    }

    fn merge(&mut self, other: Remains) {
        for (kind, count) in other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
        for (finalizer, count) in other.finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
        self.failures.extend(other.failures);
    }
}

/// The five conditions that tell how a deletion stands.
pub fn conditions(remains: &Remains, old: &[NamespaceCondition], now: Timestamp) -> Vec<NamespaceCondition> {
    let instances = |counts: &BTreeMap<String, usize>, what: &str| {
        let parts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} has {count} {what}")).collect();
        parts.join(", ")
    };
    let discovery = remains.discovery_failure.as_ref();
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            discovery.map(|error| ("DiscoveryFailed", format!("Discovery failed for some groups: {error}"))),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            (!remains.failures.is_empty()).then(|| {
                let text = format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    remains.failures.len(),
                    remains.failures.join(", ")
                );
                ("ContentDeletionFailed", text)
            }),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            (!remains.kinds.is_empty()).then(|| {
                let text = format!(
                    "Some resources are remaining: {}",
                    instances(&remains.kinds, "resource instances")
                );
                ("SomeResourcesRemain", text)
            }),
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            (!remains.finalizers.is_empty()).then(|| {
                let text = format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    instances(&remains.finalizers, "resource instances").replace(" has ", " in ")
                );
                ("SomeFinalizersRemain", text)
            }),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ];
    rows.into_iter()
        .map(|(kind, problem, fine)| {
            let status = if problem.is_some() { "True" } else { "False" };
            let (reason, message) = problem.unwrap_or((fine.0, fine.1.to_owned()));
            let before = old.iter().find(|condition| condition.type_ == kind && condition.status == status);
            let since = before.and_then(|condition| condition.last_transition_time.clone());
            NamespaceCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: since.or_else(|| Some(now_time(now))),
            }
        })
        .collect()
}

pub struct Namespaces;

impl Namespaces {
    async fn delete(namespace: &Namespace, shell: &Shell) -> Reconciled {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let held = namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten());
        if !held.clone().any(|finalizer| finalizer == "kubernetes") {
            return Ok(None);
        }
        let mut remains = match discover(&shell.client).await {
            Ok(served) => empty(shell, &name, served).await,
            Err(error) => Remains { discovery_failure: Some(error.to_string()), ..Remains::default() },
        };
        remains.failures.sort();
        let old = namespace.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let new = conditions(&remains, &old, shell.now());
        let path = |subresource| Namespace::RESOURCE.path("", &name, subresource);
        if remains.is_empty() {
            let rest: Vec<_> = held.filter(|finalizer| *finalizer != "kubernetes").cloned().collect();
            let mut finalized = namespace.clone();
            finalized.spec.get_or_insert_default().finalizers = Some(rest);
            let body = Json::of(&finalized).0;
            return match shell.send("PUT", &path("finalize"), "application/json", body).await {
                Ok(_) => Ok(None),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            };
        }
        if new != old {
            let body = Json::of(&json!({"status": {"conditions": new}})).0;
            let answer = shell.send("PATCH", &path("status"), "application/merge-patch+json", body).await?;
            shell.world.offer(&Namespace::RESOURCE, &answer);
        }
        let since = namespace.metadata.deletion_timestamp.as_ref().map_or(shell.now(), |time| time.0);
        let age = Duration::try_from(shell.now().duration_since(since)).unwrap_or_default();
        Ok(Some((age / 8).clamp(SOONEST, LATEST)))
    }
}

/// One round: deletes pods, or when there are none, everything else.
async fn empty(shell: &Shell, namespace: &str, served: Vec<Served>) -> Remains {
    let in_namespace = |kind: &Served| {
        kind.namespaced
            && kind.list
            && kind.delete
            && !(kind.resource.group == "events.k8s.io" && kind.resource.plural == "events")
    };
    let (pods, others): (Vec<_>, Vec<_>) = served
        .into_iter()
        .filter(in_namespace)
        .partition(|kind| kind.resource.group.is_empty() && kind.resource.plural == "pods");
    let mut remains = Remains::default();
    for kinds in [pods, others] {
        let rounds =
            stream::iter(kinds).map(|kind| empty_kind(shell, namespace, kind)).buffer_unordered(TOGETHER);
        let found: Vec<Remains> = rounds.collect().await;
        found.into_iter().for_each(|one| remains.merge(one));
        if !remains.is_empty() {
            break;
        }
    }
    remains
}

async fn empty_kind(shell: &Shell, namespace: &str, kind: Served) -> Remains {
    let mut remains = Remains::default();
    let outcome = async {
        let found = list(shell, &kind.resource, namespace).await?;
        if found.is_empty() {
            return Ok(found);
        }
        let options = Json::of(
            &json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}),
        );
        if kind.delete_collection {
            let path = kind.resource.path(namespace, "", "");
            shell.send("DELETE", &path, "application/json", options.0).await?;
        } else {
            for meta in found.iter().filter(|meta| meta.deletion_timestamp.is_none()) {
                let path = kind.resource.path(namespace, &meta.name, "");
                match shell.send("DELETE", &path, "application/json", options.0.clone()).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
        }
        list(shell, &kind.resource, namespace).await
    };
    let label = format!("{}.{}", kind.resource.plural, kind.resource.group);
    match outcome.await {
        Ok(left) => {
            for meta in &left {
                for finalizer in meta.finalizers.iter().flatten() {
                    *remains.finalizers.entry(finalizer.clone()).or_default() += 1;
                }
            }
            if !left.is_empty() {
                remains.kinds.insert(label, left.len());
            }
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => remains.failures.push(format!("{label}: {}", error.reason())),
    }
    remains
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    name: String,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<String>,
}

async fn list(shell: &Shell, resource: &Resource, namespace: &str) -> Result<Vec<Found>, ActError> {
    #[derive(Deserialize)]
    struct Item {
        metadata: Found,
    }
    #[derive(Deserialize)]
    struct Items {
        // An empty list of metadata comes as null.
        items: Option<Vec<Item>>,
    }
    let path = resource.path(namespace, "", "");
    let answer = shell.list_metadata(&path).await?;
    let items: Items = serde_json::from_str(&answer)
        .map_err(|error| ActError::Refused(format!("GET {path}: answer not understood: {error}")))?;
    Ok(items.items.into_iter().flatten().map(|item| item.metadata).collect())
}

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Namespaces]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        world.namespaces.on_change(move |_, new| {
            if let Some(namespace) = new
                && namespace.metadata.deletion_timestamp.is_some()
            {
                enqueue.add(Key::of(&namespace.metadata));
            }
        });
    }

    fn reconcile<'a>(&'a self, key: &'a Key, shell: &'a Shell) -> Option<BoxFuture<'a, Reconciled>> {
        let namespace = shell.world.namespaces.get(key);
        Some(
            async move {
                match namespace {
                    Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => {
                        Self::delete(&namespace, shell).await
                    }
                    _ => Ok(None),
                }
            }
            .boxed(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn conditions_name_what_is_left_and_keep_their_time_while_nothing_changes() {
        let mut remains = Remains::default();
        remains.kinds.insert("pods.".into(), 2);
        let first = conditions(&remains, &[], Timestamp::UNIX_EPOCH);
        let content = first.iter().find(|c| c.type_ == "NamespaceContentRemaining").unwrap();
        assert_eq!(content.status, "True");
        assert_eq!(
            content.message.as_deref(),
            Some("Some resources are remaining: pods. has 2 resource instances")
        );
        let later = Timestamp::from_second(100).unwrap();
        assert_eq!(conditions(&remains, &first, later), first);
    }

    fn remains() -> impl Strategy<Value = Remains> {
        let counts = || prop::collection::btree_map("[a-c]", 1..5usize, 0..3);
        let texts = prop::collection::vec("[a-c]", 0..3);
        (counts(), counts(), texts, prop::option::of("[a-c]")).prop_map(
            |(kinds, finalizers, failures, discovery_failure)| Remains {
                kinds,
                finalizers,
                failures,
                discovery_failure,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_deletion_tells_the_same_until_something_changes_and_nothing_is_left_only_when_nothing_is(
            first in remains(), second in remains(),
        ) {
            let at = |second| Timestamp::from_second(second).unwrap();
            let old = conditions(&first, &[], at(10));
            let new = conditions(&second, &old, at(20));
            prop_assert_eq!(&conditions(&second, &new, at(30)), &new, "the second round writes again");
            let troubled = new.iter().any(|c| c.status == "True" && c.type_ != "NamespaceFinalizersRemaining");
            prop_assert_eq!(troubled, !second.is_empty());
            for (before, after) in old.iter().zip(&new) {
                let since = after.last_transition_time.as_ref().unwrap().0;
                prop_assert_eq!(since, if before.status == after.status { at(10) } else { at(20) });
            }
        }
    }
}
