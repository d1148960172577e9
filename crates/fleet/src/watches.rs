//! Watches at the hub's API that feed the index.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Notify, watch as signal};
use tombolo_api::names;

use crate::index::{Index, WorkId};
use crate::kept::{Mirror, work_of_mirror};
use crate::kinds;
use crate::object::{Key, text};

/// The index with its bell.
pub struct Known {
    pub index: Mutex<Index>,
    pub changed: Notify,
    /// Kinds whose first list is complete: only their absence means absence.
    pub synced: signal::Sender<HashSet<(String, String)>>,
    /// Mirrors that the hub itself is deleting.
    pub own_deletes: Mutex<HashSet<String>>,
    /// Mirrors that somebody else deleted: site, namespace, pod.
    pub wished_away: Mutex<Vec<(String, String, String)>>,
    /// Where the kinds that are followed are served, by apiVersion and kind.
    served: Mutex<HashMap<(String, String), ApiResource>>,
}

impl Known {
    pub fn new(index: Index) -> Arc<Self> {
        Arc::new(Self {
            index: Mutex::new(index),
            changed: Notify::new(),
            synced: signal::Sender::new(HashSet::new()),
            own_deletes: Mutex::default(),
            wished_away: Mutex::default(),
            served: Mutex::default(),
        })
    }

    /// The objects that `key` is one of.
    pub fn objects(&self, client: &Client, key: &Key) -> Api<DynamicObject> {
        let served = self.served.lock().get(&(key.api_version.clone(), key.kind.clone())).cloned();
        let resource = served.unwrap_or_else(|| kinds::guess(&key.api_version, &key.kind));
        kinds::objects(client, &resource, &key.namespace)
    }

    pub fn is_synced(&self, key: &Key) -> bool {
        self.synced.borrow().contains(&(key.api_version.clone(), key.kind.clone()))
    }

    pub async fn wait_synced(&self, kinds: &[(String, String)]) {
        let mut synced = self.synced.subscribe();
        // The sender lives as long as `self`.
        let _ = synced.wait_for(|done| kinds.iter().all(|k| done.contains(k))).await;
    }

    fn synced(&self, kind: (&str, &str)) {
        self.synced.send_modify(|done| {
            done.insert((kind.0.to_owned(), kind.1.to_owned()));
        });
        self.changed.notify_one();
    }

    /// Follows one of our own kinds: `put` and `drop` change the index, which knows an object by its `id`; what a new list
    /// lacks is dropped.
    pub async fn follow<K, Id>(
        self: Arc<Self>,
        api: Api<K>,
        kind: &'static str,
        config: watcher::Config,
        put: fn(&mut Index, K),
        id: fn(&K) -> Id,
        drop: fn(&mut Index, &Id),
    ) where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
        Id: Hash + Eq + Send,
    {
        let mut events = Box::pin(watch(api, config).default_backoff());
        let mut held: HashSet<Id> = HashSet::new();
        let mut listed: HashSet<Id> = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(mut object)) => {
                    forget_managers(&mut object);
                    listed.insert(id(&object));
                    put(&mut self.index.lock(), object);
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    for gone in held.difference(&listed) {
                        drop(&mut self.index.lock(), gone);
                    }
                    held = listed;
                    self.synced((names::GROUP, kind));
                }
                Ok(Event::Apply(mut object)) => {
                    forget_managers(&mut object);
                    held.insert(id(&object));
                    put(&mut self.index.lock(), object);
                }
                Ok(Event::Delete(object)) => {
                    let id = id(&object);
                    held.remove(&id);
                    drop(&mut self.index.lock(), &id);
                }
                Err(error) => tracing::debug!(kind, %error, "watch interrupted"),
            }
            self.changed.notify_one();
        }
    }

    /// Follows objects of any kind as JSON.
    pub async fn follow_objects(self: Arc<Self>, client: Client, api_version: String, kind: String) {
        let resource = self.resource(&client, &api_version, &kind).await;
        let api = kinds::objects(&client, &resource, "");
        let mut config = watcher::Config::default().page_size(500);
        if kind == "Pod" {
            config = config.labels(&format!("!{}", names::MIRROR_LABEL));
        }
        let mut events = Box::pin(watch(api, config).default_backoff());
        let mut listed: HashSet<Key> = HashSet::new();
        let key = |o: &DynamicObject| {
            Key::new(&api_version, &kind, &o.namespace().unwrap_or_default(), &o.name_any())
        };
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(key(&object));
                    self.index
                        .lock()
                        .put_object(key(&object), Arc::new(as_json(object, &api_version, &kind)));
                }
                Ok(Event::InitDone) => {
                    let mut index = self.index.lock();
                    let stale =
                        |k: &&Key| k.api_version == api_version && k.kind == kind && !listed.contains(*k);
                    let gone: Vec<Key> = index.objects.keys().filter(stale).cloned().collect();
                    gone.iter().for_each(|k| index.drop_object(k));
                    drop(index);
                    self.synced((&api_version, &kind));
                    // What was looked at before all was known was put off.
                    self.index.lock().mark_kind(&api_version, &kind);
                    self.changed.notify_one();
                }
                Ok(Event::Apply(object)) => {
                    self.index
                        .lock()
                        .put_object(key(&object), Arc::new(as_json(object, &api_version, &kind)));
                }
                Ok(Event::Delete(object)) => self.index.lock().drop_object(&key(&object)),
                Err(error) => tracing::debug!(kind, %error, "watch interrupted"),
            }
            self.changed.notify_one();
        }
    }

    /// Waits until the hub serves a kind, and remembers where.
    async fn resource(&self, client: &Client, api_version: &str, kind: &str) -> ApiResource {
        loop {
            match kinds::resource(client, api_version, kind).await {
                Ok(resource) => {
                    self.served.lock().insert((api_version.to_owned(), kind.to_owned()), resource.clone());
                    return resource;
                }
                Err(error) => {
                    tracing::debug!(kind, %error, "a placement names a kind that the hub does not serve yet")
                }
            }
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        }
    }

    pub async fn follow_mirrors(self: Arc<Self>, client: Client) {
        let api = kinds::objects(&client, &kinds::guess("v1", "Pod"), "");
        let config = watcher::Config::default().labels(names::MIRROR_LABEL).page_size(500);
        let mut events = Box::pin(watch(api, config).default_backoff());
        let mut held: HashMap<String, (WorkId, Arc<Mirror>)> = HashMap::new();
        let mut listed: HashSet<String> = HashSet::new();
        let id = |o: &DynamicObject| format!("{}/{}", o.namespace().unwrap_or_default(), o.name_any());
        let put = |held: &mut HashMap<_, _>, name: String, pod: DynamicObject| {
            let pod = as_json(pod, "v1", "Pod");
            let Some(work) = work_of_mirror(&pod) else { return };
            let pod = Arc::new(Mirror::new(&pod));
            self.index.lock().put_mirror(&work, pod.clone());
            held.insert(name, (work, pod));
        };
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => {
                    listed.insert(id(&pod));
                    put(&mut held, id(&pod), pod);
                }
                Ok(Event::InitDone) => {
                    held.retain(|name, (work, pod)| {
                        let there = listed.contains(name);
                        if !there {
                            self.index.lock().drop_mirror(work, &pod.name);
                        }
                        there
                    });
                    self.synced((names::GROUP, "Mirror"));
                }
                Ok(Event::Apply(pod)) => put(&mut held, id(&pod), pod),
                Ok(Event::Delete(pod)) => {
                    let name = id(&pod);
                    held.remove(&name);
                    let pod = as_json(pod, "v1", "Pod");
                    if !self.own_deletes.lock().remove(&name)
                        && let Some(route) = crate::mirror::PodRoute::of(&pod)
                    {
                        self.wished_away.lock().push((route.site, route.namespace, route.pod));
                    }
                    if let Some(work) = work_of_mirror(&pod) {
                        self.index.lock().drop_mirror(&work, text(&pod, "/metadata/name"));
                    }
                }
                Err(error) => tracing::debug!(%error, "watch of mirrored pods interrupted"),
            }
            self.changed.notify_one();
        }
    }
}

/// Who wrote which field is dead weight here, and for a Work with many pods heavier than the rest.
pub fn forget_managers(object: &mut impl Resource) {
    object.meta_mut().managed_fields = None;
}

pub fn as_json(object: DynamicObject, api_version: &str, kind: &str) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = api_version.into();
    value["kind"] = kind.into();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        // Who chose a Service's node ports is needed to render it; for the rest it is dead weight.
        if kind != "Service" {
            metadata.remove("managedFields");
        }
    }
    value
}
