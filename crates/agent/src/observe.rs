//! Watches at the site: objects that were applied, pods, nodes. They feed the ledger and the capacity, and ask for a
//! Work to be applied again when someone changed or deleted what it made.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tombolo_api::{PodSummary, Site, WorkSpec, names};

use crate::apply::{Applier, Sight, calm, gvk};
use crate::capacity::{Capacity, Node};
use crate::keep::Keep;
use crate::ledger::{Key, Ledger, Root, Selects, Version, keys};
use crate::owners::{Owner, Owners};
use crate::pods::{self, Pod};
use crate::todo::Todo;

/// Everything the loops share.
pub struct Shared {
    pub ledger: Arc<Mutex<Ledger>>,
    pub capacity: Mutex<Capacity>,
    pub todo: Todo,
    /// A status changed.
    pub report: Notify,
    /// Nodes, pods or sites changed.
    pub site: Notify,
    /// The ledger's.
    pub recount: Arc<Notify>,
    /// Sites of the hub that this cluster is, once all are known; `None` before.
    pub below: Mutex<Option<Vec<Site>>>,
    pub applier: Applier,
    pub keep: Keep,
    pub closing: CancellationToken,
    /// Objects of this hub by key: what was last seen, to tell drift from our own doing.
    seen: Mutex<HashMap<Key, Sight>>,
    /// What our own applying made of them.
    made: Mutex<HashMap<Key, Version>>,
    watched: Mutex<HashMap<(String, String), bool>>,
    last_drift: Mutex<HashMap<String, Instant>>,
}

impl Shared {
    pub fn new(applier: Applier, keep: Keep, closing: CancellationToken) -> Arc<Self> {
        let ledger = Ledger::default();
        let recount = ledger.recount.clone();
        Arc::new(Self {
            ledger: Arc::new(Mutex::new(ledger)),
            capacity: Mutex::default(),
            todo: Todo::default(),
            report: Notify::new(),
            site: Notify::new(),
            recount,
            below: Mutex::new(Some(Vec::new())),
            applier,
            keep,
            closing,
            seen: Mutex::default(),
            made: Mutex::default(),
            watched: Mutex::default(),
            last_drift: Mutex::default(),
        })
    }

    /// Starts watching the kinds that a Work names and that are not watched yet: as root with status, or only for being
    /// there.
    pub fn watch_kinds(self: &Arc<Self>, spec: &WorkSpec) {
        let mut watched = self.watched.lock();
        for (key, root) in keys(spec).zip(std::iter::once(true).chain(std::iter::repeat(false))) {
            let Key { api_version, kind, .. } = key;
            let id = (api_version.clone(), kind.clone());
            // A kind first seen as a dependency is watched anew, with status, once it is a root.
            if watched.get(&id).is_some_and(|with_status| *with_status || !root) {
                continue;
            }
            watched.insert(id, root);
            let shared = self.clone();
            tokio::spawn(async move {
                let closing = shared.closing.clone();
                tokio::select! {
                    () = shared.watch_kind(api_version, kind, root) => {}
                    () = closing.cancelled() => {}
                }
            });
        }
    }

    async fn watch_kind(self: Arc<Self>, api_version: String, kind: String, root: bool) {
        let probe = Key {
            api_version: api_version.clone(),
            kind: kind.clone(),
            namespace: String::new(),
            name: String::new(),
        };
        // A custom kind's plural may differ from the guess.
        if api_version.contains('.') {
            self.applier.look_up(&probe).await;
        }
        let resource = self.applier.resource(&api_version, &kind);
        let client = self.applier.own.clone();
        let selector = format!("{}={}", names::HUB_LABEL, names::hub_label(&self.applier.hub));
        let config = watcher::Config::default().labels(&selector).page_size(100).disable_bookmarks();
        let id = (api_version, kind);
        if root {
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            let stream = watch(api, config).default_backoff();
            self.follow(
                stream.map_ok(|e| {
                    map_event(e, |o: DynamicObject| {
                        let root = Root {
                            generation: o.metadata.generation.unwrap_or_default(),
                            status: o.data.get("status").cloned(),
                            selects: Selects::of(&o.namespace().unwrap_or_default(), &o.data),
                        };
                        (o.metadata, Some(root))
                    })
                }),
                &id,
            )
            .await;
        } else {
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
            let stream = watch(api, config).default_backoff();
            self.follow(
                stream.map_ok(|e| map_event(e, |o: PartialObjectMeta<DynamicObject>| (o.metadata, None))),
                &id,
            )
            .await;
        }
    }

    async fn follow(
        &self,
        stream: impl futures::Stream<Item = Result<Event<Observed>, watcher::Error>>,
        id: &(String, String),
    ) {
        let mut stream = Box::pin(stream);
        let mut listed: HashSet<Key> = HashSet::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    if let Some(key) = self.present(id, object) {
                        listed.insert(key);
                    }
                }
                Ok(Event::InitDone) => {
                    let lost: Vec<Key> = self
                        .seen
                        .lock()
                        .keys()
                        .filter(|k| k.api_version == id.0 && k.kind == id.1 && !listed.contains(*k))
                        .cloned()
                        .collect();
                    lost.iter().for_each(|key| self.absent(key));
                }
                Ok(Event::Apply(object)) => drop(self.present(id, object)),
                Ok(Event::Delete(object)) => self.absent(&key_of(id, &object.0)),
                Err(error) => tracing::debug!(kind = id.1, %error, "watch at the site interrupted"),
            }
        }
    }

    fn present(&self, id: &(String, String), (metadata, root): Observed) -> Option<Key> {
        let key = key_of(id, &metadata);
        let now = self.applier.sight(&metadata);
        let before = self.seen.lock().insert(key.clone(), now.clone());
        if let Some(root) = root
            && self.ledger.lock().see_object(&key, &now.owners, root)
        {
            self.report.notify_one();
        }
        let changed = before
            .is_some_and(|before| before.owners != now.owners || !before.version.is_intent_of(&now.version));
        if changed {
            self.drifted(&key);
        }
        self.let_go(&key, &now.owners);
        Some(key)
    }

    fn absent(&self, key: &Key) {
        self.seen.lock().remove(key);
        self.made.lock().remove(key);
        let mut ledger = self.ledger.lock();
        if ledger.miss_object(key) {
            self.report.notify_one();
        }
        let works = ledger.works_with(key);
        drop(ledger);
        for work in works {
            self.todo.add(&work);
        }
        // Another Work may have waited for the name.
        self.todo.hurry();
    }

    /// Applies again what may have been changed here; applying what is right already changes nothing.
    fn drifted(&self, key: &Key) {
        let now = Instant::now();
        for work in self.ledger.lock().works_with(key) {
            let last = self.last_drift.lock().insert(work.clone(), now);
            match calm(last, now) {
                Some(at) => self.todo.later(&work, at),
                None => self.todo.add(&work),
            }
        }
    }

    /// What was last seen of an object of this hub.
    pub fn sight(&self, key: &Key) -> Option<Sight> {
        self.seen.lock().get(key).cloned()
    }

    /// Is something here that `spec` names and `owner` made?
    pub fn sees_any(&self, owner: &Owner, spec: &WorkSpec) -> bool {
        let seen = self.seen.lock();
        keys(spec).any(|key| seen.get(&key).is_some_and(|seen| seen.owners.has(owner)))
    }

    pub fn made(&self, made: Vec<(Key, Version)>) {
        self.made.lock().extend(made);
    }

    /// Is all that the Work names as it was last applied? What we change ourselves comes back as news, too.
    pub fn untouched(&self, owner: &Owner, spec: &WorkSpec) -> bool {
        let (seen, made) = (self.seen.lock(), self.made.lock());
        let same = |key: Key| match (seen.get(&key), made.get(&key)) {
            (Some(seen), Some(made)) => made.is_intent_of(&seen.version) && seen.owners.has(owner),
            _ => false,
        };
        keys(spec).all(same)
    }

    /// A Work that is recorded on the object but names it no more gives it up.
    fn let_go(&self, key: &Key, owners: &Owners) {
        let ledger = self.ledger.lock();
        let stale = |owner: &&Owner| ledger.alive(owner) && !ledger.works_with(key).contains(&owner.work);
        for owner in owners.iter().filter(stale) {
            self.todo.add(&owner.work);
        }
    }

    /// Objects that `owner` recorded and that `spec` does not name.
    pub fn surplus(&self, owner: &Owner) -> Vec<Key> {
        let ledger = self.ledger.lock();
        let Some(entry) = ledger.get(&owner.work) else { return Vec::new() };
        let named: HashSet<Key> =
            std::iter::once(&entry.spec.object).chain(&entry.spec.with).filter_map(Key::of).collect();
        self.seen
            .lock()
            .iter()
            .filter(|(key, seen)| seen.owners.has(owner) && !named.contains(*key))
            .map(|(k, _)| k.clone())
            .collect()
    }

    /// What came from this hub and no Work speaks of: `Kind/namespace/name`.
    pub fn orphans(&self) -> Vec<String> {
        let ledger = self.ledger.lock();
        let orphan =
            |seen: &Sight| seen.owners.iter().all(|o| ledger.get(&o.work).is_none_or(|e| e.uid != o.uid));
        let mut all: Vec<String> = self
            .seen
            .lock()
            .iter()
            .filter(|(_, seen)| !seen.owners.is_empty() && orphan(seen))
            .map(|(k, _)| format!("{}/{}/{}", k.kind, k.namespace, k.name))
            .collect();
        all.sort();
        all.truncate(100);
        all
    }

    pub async fn watch_pods(self: Arc<Self>, client: Client) {
        loop {
            tokio::select! {
                () = self.follow_pods(client.clone()) => {}
                () = self.recount.notified() => {}
            }
        }
    }

    fn work_of(&self, pod: &Pod) -> Option<String> {
        self.ledger.lock().work_of_pod(&pod.namespace().unwrap_or_default(), pod.labels())
    }

    async fn follow_pods(&self, client: Client) {
        let resource = ApiResource::from_gvk(&gvk("v1", "Pod"));
        let api: Api<Pod> = Api::all_with(client, &resource);
        let config = watcher::Config::default().page_size(200).disable_bookmarks();
        let mut stream = Box::pin(watch(api, config).default_backoff());
        let mut listed: BTreeMap<String, BTreeMap<String, PodSummary>> = BTreeMap::new();
        let mut uids: HashSet<String> = HashSet::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => {
                    listed.clear();
                    uids.clear();
                }
                Ok(Event::InitApply(pod)) => {
                    uids.insert(pod.uid().unwrap_or_default());
                    self.capacity.lock().put_pod(&pod);
                    if let Some(work) = self.work_of(&pod) {
                        listed.entry(work).or_default().insert(pod.name_any(), pods::summary(&pod));
                    }
                }
                Ok(Event::InitDone) => {
                    let uids = std::mem::take(&mut uids);
                    self.capacity.lock().retain_pods(|uid| uids.contains(uid));
                    self.ledger.lock().see_pods(std::mem::take(&mut listed));
                    self.site.notify_one();
                    self.report.notify_one();
                    self.todo.hurry();
                }
                Ok(Event::Apply(pod)) => self.see_pod(&pod, true),
                Ok(Event::Delete(pod)) => self.see_pod(&pod, false),
                Err(error) => tracing::debug!(%error, "watch of pods interrupted"),
            }
        }
    }

    fn see_pod(&self, pod: &Pod, there: bool) {
        if let Some(work) = self.work_of(pod) {
            let mut ledger = self.ledger.lock();
            ledger.see_pod(&work, &pod.name_any(), there.then(|| pods::summary(pod)));
            let leaving = ledger.get(&work).is_some_and(|e| e.spec.tombstone.is_some());
            drop(ledger);
            self.report.notify_one();
            if leaving && !there {
                self.todo.add(&work);
            }
        }
        let mut capacity = self.capacity.lock();
        let changed =
            if there { capacity.put_pod(pod) } else { capacity.drop_pod(&pod.uid().unwrap_or_default()) };
        drop(capacity);
        if changed {
            self.site.notify_one();
        }
    }

    pub async fn watch_nodes(self: Arc<Self>, client: Client) {
        let resource = ApiResource::from_gvk(&gvk("v1", "Node"));
        let api: Api<Node> = Api::all_with(client, &resource);
        let config = watcher::Config::default().page_size(100).disable_bookmarks();
        let mut stream = Box::pin(watch(api, config).default_backoff());
        let mut listed: HashSet<String> = HashSet::new();
        while let Some(event) = stream.next().await {
            let changed = match event {
                Ok(Event::Init) => {
                    listed.clear();
                    false
                }
                Ok(Event::InitApply(node)) => {
                    listed.insert(node.name_any());
                    self.capacity.lock().put_node(&node);
                    false
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    self.capacity.lock().retain_nodes(|name| listed.contains(name));
                    true
                }
                Ok(Event::Apply(node)) => self.capacity.lock().put_node(&node),
                Ok(Event::Delete(node)) => self.capacity.lock().drop_node(&node.name_any()),
                Err(error) => {
                    tracing::debug!(%error, "watch of nodes interrupted");
                    false
                }
            };
            if changed {
                self.site.notify_one();
            }
        }
    }

    /// The sites of the hub that this site is.
    pub async fn watch_sites_below(self: Arc<Self>, client: Client) {
        let api: Api<Site> = Api::all(client);
        let mut stream = Box::pin(watch(api, watcher::Config::default()).default_backoff());
        let mut below = Below::default();
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    if let Some(sites) = below.see(event) {
                        *self.below.lock() = Some(sites);
                        self.site.notify_one();
                    }
                }
                Err(error) => tracing::debug!(%error, "watch of sites below interrupted"),
            }
        }
    }
}

/// The sites of the hub that is watched.
#[derive(Default)]
struct Below(BTreeMap<String, Site>);

impl Below {
    /// All of them, unless a list is under way: half of it offers less than there is, and the hub above would take its replicas
    /// away.
    fn see(&mut self, event: Event<Site>) -> Option<Vec<Site>> {
        let listing = matches!(event, Event::Init | Event::InitApply(_));
        match event {
            Event::Init => self.0.clear(),
            Event::InitApply(site) | Event::Apply(site) => drop(self.0.insert(site.name_any(), site)),
            Event::Delete(site) => drop(self.0.remove(&site.name_any())),
            Event::InitDone => {}
        }
        (!listing).then(|| self.0.values().cloned().collect())
    }
}

/// Metadata and, for roots, what is reported of them.
type Observed = (kube::core::ObjectMeta, Option<Root>);

fn map_event<A, B>(event: Event<A>, f: impl Fn(A) -> B) -> Event<B> {
    match event {
        Event::Apply(a) => Event::Apply(f(a)),
        Event::Delete(a) => Event::Delete(f(a)),
        Event::Init => Event::Init,
        Event::InitApply(a) => Event::InitApply(f(a)),
        Event::InitDone => Event::InitDone,
    }
}

fn key_of((api_version, kind): &(String, String), metadata: &kube::core::ObjectMeta) -> Key {
    Key {
        api_version: api_version.clone(),
        kind: kind.clone(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_below_are_offered_only_when_all_are_listed() {
        let site = |name: &str| Site::new(name, Default::default());
        let mut below = Below::default();
        let mut see = |event| below.see(event).map(|all| all.iter().map(Site::name_any).collect::<Vec<_>>());
        let mut list = |first, second| {
            assert_eq!(see(Event::Init), None);
            assert_eq!(see(Event::InitApply(site(first))), None);
            assert_eq!(see(Event::InitApply(site(second))), None);
            see(Event::InitDone)
        };
        assert_eq!(list("a", "b"), Some(vec!["a".into(), "b".into()]));
        assert_eq!(list("b", "c"), Some(vec!["b".into(), "c".into()]), "again, after the watch broke");
        assert_eq!(see(Event::Delete(site("b"))), Some(vec!["c".into()]));
        assert_eq!(see(Event::Apply(site("a"))), Some(vec!["a".into(), "c".into()]));
    }
}
