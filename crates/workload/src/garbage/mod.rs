//! Garbage collection: what nobody owns any longer goes, in the order and manner that was asked for.
//!
//! Covers every kind the server serves, custom resources included. Kinds that other controllers follow anyway
//! feed the graph from their caches; all others are watched as metadata only.
//!
//! Keys in the queue are uids.

mod graph;
mod monitor;
#[cfg(test)]
mod tests;

pub use graph::{Existence, Graph, Identity, Owners, Verdict};

use crate::{
    catalog::{Served, discover},
    shell::{ActError, Controller, Enqueue, Key, Reconciled, Resource, Shell, Watch, World},
};
use futures::{FutureExt, future::BoxFuture};
use graph::{FOREGROUND, ORPHAN};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// How often the list of served kinds is read even when no CustomResourceDefinition changed (aggregated APIs).
const REDISCOVER: Duration = Duration::from_secs(120);
/// A new CustomResourceDefinition is served a moment after it is written.
const SETTLE: Duration = Duration::from_millis(300);
/// How long to wait while kinds are listed for the first time.
const NOT_READY: Duration = Duration::from_millis(100);

/// The graph with the queue it feeds.
#[derive(Default)]
pub struct Collector {
    graph: Mutex<Graph>,
    enqueue: OnceLock<Enqueue>,
    served: Mutex<Vec<Served>>,
    /// Kinds whose caches feed the graph.
    fed: OnceLock<Vec<Resource>>,
    rediscover: Notify,
    /// Every kind was listed once; before that the absence of dependents proves nothing.
    ready: AtomicBool,
}

impl Collector {
    fn observe(&self, resource: &Resource, meta: &ObjectMeta) {
        let look = self.graph.lock().observe(resource, meta);
        self.look_at(look);
        self.mind_definitions(resource);
    }

    fn forget(&self, resource: &Resource, meta: &ObjectMeta) {
        let look = self.graph.lock().forget(meta.uid.as_deref().unwrap_or_default());
        self.look_at(look);
        self.mind_definitions(resource);
    }

    fn keep_only(&self, resource: &Resource, present: &HashSet<String>) {
        let gone: Vec<_> =
            self.graph.lock().of_kind(resource).into_iter().filter(|uid| !present.contains(uid)).collect();
        for uid in gone {
            let look = self.graph.lock().forget(&uid);
            self.look_at(look);
        }
    }

    fn look_at(&self, uids: Vec<String>) {
        if let Some(enqueue) = self.enqueue.get() {
            uids.into_iter().for_each(|uid| enqueue.add(Key::new("", uid)));
        }
    }

    fn mind_definitions(&self, resource: &Resource) {
        if matches!(resource.plural.as_ref(), "customresourcedefinitions" | "apiservices") {
            self.rediscover.notify_one();
        }
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Keeps one metadata watch per kind that needs it.
    async fn monitor(self: Arc<Self>, shell: Shell, shutdown: CancellationToken) {
        let mut running: BTreeMap<Resource, CancellationToken> = BTreeMap::new();
        loop {
            match discover(&shell.client).await {
                Ok(served) => {
                    *self.served.lock() = served.clone();
                    let wanted: Vec<Resource> = served
                        .into_iter()
                        .filter(|kind| {
                            kind.list && kind.watch && kind.delete && kind.resource.plural != "events"
                        })
                        .map(|kind| kind.resource)
                        .filter(|resource| !self.fed.get().is_some_and(|fed| fed.contains(resource)))
                        .collect();
                    running.retain(|resource, stop| {
                        let stays = wanted.contains(resource);
                        if !stays {
                            stop.cancel();
                            self.keep_only(resource, &HashSet::new());
                        }
                        stays
                    });
                    let mut first_lists = Vec::new();
                    for resource in wanted {
                        if running.contains_key(&resource) {
                            continue;
                        }
                        let stop = shutdown.child_token();
                        running.insert(resource.clone(), stop.clone());
                        let listed = watch::Sender::new(false);
                        first_lists.push(listed.subscribe());
                        tokio::spawn(monitor::follow(
                            shell.client.clone(),
                            resource,
                            self.clone(),
                            listed,
                            stop,
                        ));
                    }
                    for mut listed in first_lists {
                        let _ = listed.wait_for(|listed| *listed).await;
                    }
                    self.ready.store(true, Ordering::Release);
                }
                // A server that ends answers nobody, and that is no news.
                Err(_) if shutdown.is_cancelled() => return,
                Err(error) => tracing::warn!(%error, "cannot read the list of served kinds; trying again"),
            }
            let failed = self.served.lock().is_empty();
            tokio::select! {
                () = self.rediscover.notified() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(if failed { SETTLE } else { REDISCOVER }) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn resource_of(&self, api_version: &str, kind: &str) -> Option<(Resource, bool)> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let served = self.served.lock();
        let of = |s: &&Served| s.resource.group == group && s.resource.kind == kind;
        let found =
            served.iter().filter(of).find(|s| s.resource.version == version).or(served.iter().find(of))?;
        // The owner's own version is asked for: it may be served beside the preferred one.
        let resource = Resource { version: version.to_owned().into(), ..found.resource.clone() };
        Some((resource, found.namespaced))
    }

    async fn look(&self, uid: &str, shell: &Shell) -> Result<(), ActError> {
        let Some(object) = self.graph.lock().get(uid).cloned() else { return Ok(()) };
        if object.orphaning {
            return self.orphan(uid, &object.identity, shell).await;
        }
        if object.foreground {
            return self.finish_foreground(uid, &object.identity, shell).await;
        }
        if object.deleting || object.owners.is_empty() {
            return Ok(());
        }
        let Some(live) =
            self.live(&object.identity, shell).await?.filter(|live| live.uid.as_deref() == Some(uid))
        else {
            let look = self.graph.lock().forget(uid);
            self.look_at(look);
            return Ok(());
        };
        let references = live.owner_references.clone().unwrap_or_default();
        let unknown: Vec<_> =
            references.iter().filter(|r| !self.graph.lock().is_certain(&r.uid)).cloned().collect();
        let mut looked_up = BTreeMap::new();
        for reference in unknown {
            let existence = self.existence(&reference, &object.identity.namespace, shell).await?;
            looked_up.insert(reference.uid.clone(), existence);
        }
        let verdict = {
            let graph = self.graph.lock();
            let ask = |r: &OwnerReference| looked_up.get(&r.uid).copied().unwrap_or(Existence::Solid);
            let owners = graph.owners(&references, ask);
            graph.judge(uid, &owners)
        };
        self.carry_out(verdict, &object.identity, &live, shell).await
    }

    async fn carry_out(
        &self,
        verdict: Verdict,
        identity: &Identity,
        live: &Live,
        shell: &Shell,
    ) -> Result<(), ActError> {
        let Identity { resource, namespace, name } = identity;
        let path = resource.path(namespace, name, "");
        match verdict {
            Verdict::Keep => Ok(()),
            Verdict::Unlink(gone) => {
                let references: Vec<_> = (live.owner_references.iter().flatten())
                    .filter(|reference| !gone.contains(&reference.uid))
                    .collect();
                let body = json!({"metadata": {
                    "uid": live.uid, "resourceVersion": live.resource_version, "ownerReferences": references,
                }});
                ignore_gone(shell.patch_metadata(&path, &body).await)
            }
            // The change comes back as one of its references, and the object is looked at again.
            Verdict::Unblock => {
                let mut references = live.owner_references.clone().unwrap_or_default();
                references.iter_mut().for_each(|reference| reference.block_owner_deletion = Some(false));
                let body = json!({"metadata": {
                    "uid": live.uid, "resourceVersion": live.resource_version, "ownerReferences": references,
                }});
                ignore_gone(shell.patch_metadata(&path, &body).await)
            }
            Verdict::Delete { propagation } => {
                // The resourceVersion makes sure that nobody gave the object a new owner in between.
                let has = |finalizer: &str| live.finalizers.iter().flatten().any(|f| f == finalizer);
                let propagation = match propagation {
                    "Background" if has(ORPHAN) => "Orphan",
                    "Background" if has(FOREGROUND) => "Foreground",
                    other => other,
                };
                let options = json!({
                    "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation,
                    "preconditions": {"uid": live.uid, "resourceVersion": live.resource_version},
                });
                let body = options.to_string().into_bytes();
                ignore_gone(shell.send("DELETE", &path, "application/json", body).await)
            }
        }
    }

    /// Cuts every dependent loose, then lets the owner go.
    async fn orphan(&self, uid: &str, identity: &Identity, shell: &Shell) -> Result<(), ActError> {
        let dependents: Vec<_> = {
            let graph = self.graph.lock();
            graph
                .dependents(uid)
                .iter()
                .filter_map(|uid| graph.get(uid).map(|o| (uid.clone(), o.clone())))
                .collect()
        };
        for (dependent, object) in dependents {
            let Identity { resource, namespace, name } = &object.identity;
            let Some(live) = self.live(&object.identity, shell).await? else { continue };
            if live.uid.as_deref() != Some(&dependent)
                || !live.owner_references.iter().flatten().any(|r| r.uid == uid)
            {
                continue;
            }
            let rest: Vec<_> = live.owner_references.iter().flatten().filter(|r| r.uid != uid).collect();
            let body = json!({"metadata": {
                "uid": live.uid, "resourceVersion": live.resource_version, "ownerReferences": rest,
            }});
            ignore_gone(shell.patch_metadata(&resource.path(namespace, name, ""), &body).await)?;
        }
        self.remove_finalizer(identity, ORPHAN, shell).await
    }

    /// Deletes the dependents of an owner that waits for them, or lets it go when none blocks it any more.
    async fn finish_foreground(&self, uid: &str, identity: &Identity, shell: &Shell) -> Result<(), ActError> {
        let (blocking, rest) = {
            let graph = self.graph.lock();
            let waiting = |uid: &String| graph.get(uid).is_some_and(|object| !object.deleting);
            let blocking = graph.blocking(uid);
            let rest: Vec<_> = blocking.iter().filter(|uid| waiting(uid)).cloned().collect();
            (blocking, rest)
        };
        if blocking.is_empty() {
            return self.remove_finalizer(identity, FOREGROUND, shell).await;
        }
        self.look_at(rest);
        Ok(())
    }

    async fn remove_finalizer(
        &self,
        identity: &Identity,
        finalizer: &str,
        shell: &Shell,
    ) -> Result<(), ActError> {
        let Some(live) = self.live(identity, shell).await? else { return Ok(()) };
        let before = live.finalizers.clone().unwrap_or_default();
        let rest: Vec<_> = before.iter().filter(|f| *f != finalizer).collect();
        if rest.len() == before.len() {
            return Ok(());
        }
        let body = json!({"metadata": {
            "uid": live.uid, "resourceVersion": live.resource_version, "finalizers": rest,
        }});
        let path = identity.resource.path(&identity.namespace, &identity.name, "");
        ignore_gone(shell.patch_metadata(&path, &body).await)
    }

    async fn live(&self, identity: &Identity, shell: &Shell) -> Result<Option<Live>, ActError> {
        let found: Option<Partial> =
            shell.get_metadata(&identity.resource, &identity.namespace, &identity.name).await?;
        Ok(found.map(|found| found.metadata))
    }

    async fn existence(
        &self,
        reference: &OwnerReference,
        namespace: &str,
        shell: &Shell,
    ) -> Result<Existence, ActError> {
        // A kind that is not served may come back; its objects are not known to be gone.
        let Some((resource, namespaced)) = self.resource_of(&reference.api_version, &reference.kind) else {
            return Ok(Existence::Solid);
        };
        if namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot have a namespaced owner: nothing can be looked up, nothing is deleted.
            return Ok(Existence::Solid);
        }
        let namespace = if namespaced { namespace } else { "" };
        let identity = Identity { resource, namespace: namespace.to_owned(), name: reference.name.clone() };
        Ok(match self.live(&identity, shell).await? {
            Some(live) if live.uid.as_deref() == Some(&reference.uid) => {
                let foreground = live.finalizers.iter().flatten().any(|f| f == FOREGROUND);
                if live.deletion_timestamp.is_some() && foreground {
                    Existence::Waiting
                } else {
                    Existence::Solid
                }
            }
            _ => Existence::Gone,
        })
    }
}

#[derive(Deserialize)]
struct Partial {
    metadata: Live,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Live {
    uid: Option<String>,
    resource_version: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<String>,
}

fn ignore_gone(outcome: Result<String, ActError>) -> Result<(), ActError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The controller around the collector.
#[derive(Default)]
pub struct Garbage {
    collector: Arc<Collector>,
}

impl Controller for Garbage {
    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    fn watches(&self) -> &'static [Watch] {
        &[]
    }

    fn wire(&self, _world: &Arc<World>, enqueue: Enqueue) {
        let _ = self.collector.enqueue.set(enqueue);
    }

    fn feed(&self, world: &Arc<World>, followed: &[Watch]) {
        let collector = self.collector.clone();
        let fed = world.on_any_change(followed, move |resource, meta, exists| {
            if exists {
                collector.observe(resource, meta);
            } else {
                collector.forget(resource, meta);
            }
        });
        let _ = self.collector.fed.set(fed);
    }

    fn reconcile<'a>(&'a self, key: &'a Key, shell: &'a Shell) -> Option<BoxFuture<'a, Reconciled>> {
        if !self.collector.is_ready() {
            return Some(async { Ok(Some(NOT_READY)) }.boxed());
        }
        Some(async move { self.collector.look(&key.name, shell).await.map(|()| None) }.boxed())
    }

    fn background(
        self: Arc<Self>,
        shell: Shell,
        shutdown: CancellationToken,
    ) -> Option<BoxFuture<'static, ()>> {
        Some(self.collector.clone().monitor(shell, shutdown).boxed())
    }
}
