//! The local copy of one kind: fed by a watch and by the answers to our own writes.
//!
//! Invariants:
//! - An object never goes back: what arrives with an older resourceVersion than the cached one is ignored.
//! - The answer to a write is taken only when it is newer than everything the watch delivered; if it
//!   is not, the watch already told us about it (and perhaps about its deletion).
//! - Handlers see changes in the order in which they were applied.

use super::Object;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use parking_lot::{Mutex, RwLock};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};
use tokio::sync::watch;

/// Namespace and name of an object; the namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

type Handler<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

pub struct Cache<K> {
    state: RwLock<State<K>>,
    /// Held while a change is applied *and* handed to the handlers, which keeps their order.
    order: Mutex<()>,
    handlers: RwLock<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    owned: HashMap<Owner, BTreeSet<Key>>,
    /// The newest resourceVersion the watch has delivered.
    revision: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Owner {
    Controller(String),
    None { namespace: String },
}

impl<K: Object> Default for Cache<K> {
    fn default() -> Self {
        Self {
            state: RwLock::new(State { objects: BTreeMap::new(), owned: HashMap::new(), revision: 0 }),
            order: Mutex::new(()),
            handlers: RwLock::new(Vec::new()),
            synced: watch::Sender::new(false),
        }
    }
}

impl<K: Object> Cache<K> {
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.state.read().objects.get(key).cloned()
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    pub fn keys(&self) -> Vec<Key> {
        self.state.read().objects.keys().cloned().collect()
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        state
            .objects
            .range(Key::new(namespace, "")..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Objects whose controller is the object with this uid.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.state.read().of_owner(&Owner::Controller(uid.to_owned()))
    }

    /// Objects of a namespace that have no controller.
    pub fn without_controller(&self, namespace: &str) -> Vec<Arc<K>> {
        self.state.read().of_owner(&Owner::None { namespace: namespace.to_owned() })
    }

    /// Calls `handler(old, new)` for every change from now on. Handlers only enqueue: they must not write to a cache.
    pub fn on_change(&self, handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        self.handlers.write().push(Box::new(handler));
    }

    pub async fn synced(&self) {
        // An error means that the cache is gone, and with it whoever waits here.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Takes the answer to one of our own writes.
    pub fn offer(&self, object: K) {
        let revision = revision_of(object.meta());
        let _order = self.order.lock();
        let seen = self.state.read().revision;
        if seen != 0 && revision > seen {
            self.store(object);
        }
    }

    /// A delete was accepted: until the watch confirms it, the object counts as being deleted.
    pub fn mark_deleting(&self, key: &Key, uid: Option<&str>, now: Timestamp) {
        let _order = self.order.lock();
        let Some(object) = self.get(key) else { return };
        let same = uid.is_none() || object.meta().uid.as_deref() == uid;
        if !same || object.meta().deletion_timestamp.is_some() {
            return;
        }
        let mut changed = (*object).clone();
        changed.meta_mut().deletion_timestamp = Some(Time(now));
        let changed = Arc::new(changed);
        self.state.write().objects.insert(key.clone(), changed.clone());
        self.tell(Some(&object), Some(&changed));
    }

    /// The watch says that the object is now like this.
    pub fn apply(&self, object: K) {
        let _order = self.order.lock();
        self.seen(revision_of(object.meta()));
        self.store(object);
    }

    /// The watch says that the object is gone.
    pub fn remove(&self, object: &K) {
        let _order = self.order.lock();
        self.seen(revision_of(object.meta()));
        let key = Key::of(object.meta());
        let same = self.get(&key).is_some_and(|cached| {
            cached.meta().uid == object.meta().uid || revision_of(cached.meta()) < revision_of(object.meta())
        });
        if same {
            self.forget(&key);
        }
    }

    pub fn bookmark(&self, revision: u64) {
        let _order = self.order.lock();
        self.seen(revision);
    }

    /// A new list: what it does not contain is gone, unless it was written after the list was made.
    pub fn replace(&self, objects: Vec<K>, revision: u64) {
        let _order = self.order.lock();
        self.seen(revision);
        let listed: BTreeSet<Key> = objects.iter().map(|object| Key::of(object.meta())).collect();
        for object in objects {
            self.store(object);
        }
        let gone: Vec<Key> = {
            let state = self.state.read();
            state
                .objects
                .iter()
                .filter(|(key, object)| !listed.contains(key) && revision_of(object.meta()) <= revision)
                .map(|(key, _)| key.clone())
                .collect()
        };
        for key in gone {
            self.forget(&key);
        }
        self.synced.send_replace(true);
    }

    fn seen(&self, revision: u64) {
        let mut state = self.state.write();
        state.revision = state.revision.max(revision);
    }

    fn store(&self, mut object: K) {
        let key = Key::of(object.meta());
        let old = self.get(&key);
        if let Some(old) = &old {
            let same = old.meta().uid == object.meta().uid;
            if same && revision_of(old.meta()) >= revision_of(object.meta()) {
                return;
            }
        }
        object.meta_mut().managed_fields = None;
        let object = Arc::new(object);
        {
            let mut state = self.state.write();
            if let Some(old) = &old {
                state.unlink(&key, old.meta());
            }
            state.owned.entry(owner_of(object.meta())).or_default().insert(key.clone());
            state.objects.insert(key, object.clone());
        }
        self.tell(old.as_ref(), Some(&object));
    }

    fn forget(&self, key: &Key) {
        let old = {
            let mut state = self.state.write();
            let old = state.objects.remove(key);
            if let Some(old) = &old {
                state.unlink(key, old.meta());
            }
            old
        };
        if old.is_some() {
            self.tell(old.as_ref(), None);
        }
    }

    fn tell(&self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        for handler in self.handlers.read().iter() {
            handler(old, new);
        }
    }
}

/// How a watch feeds a cache: with JSON, so that the watch need not know the kind.
pub trait Feed: Send + Sync {
    /// Takes an object in; gives its revision.
    fn apply(&self, object: &str) -> Result<u64, serde_json::Error>;
    fn remove(&self, object: &str) -> Result<u64, serde_json::Error>;
    fn bookmark(&self, revision: u64);
    fn relist(&self) -> Box<dyn Listing + Send + '_>;
}

/// A new list on its way into a cache.
pub trait Listing {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error>;
    fn done(self: Box<Self>, revision: u64);
}

/// What tells one state of an object from another.
#[derive(serde::Deserialize)]
struct Glance<'a> {
    #[serde(borrow)]
    metadata: GlanceMeta<'a>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct GlanceMeta<'a> {
    #[serde(default, borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    uid: Cow<'a, str>,
    #[serde(default, borrow)]
    resource_version: Cow<'a, str>,
}

impl<K: Object> Feed for Cache<K> {
    fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
        // What we wrote ourselves is known from the answer; reading it again would cost more than all else here.
        let Glance { metadata } = serde_json::from_str(object)?;
        let revision = metadata.resource_version.parse().unwrap_or(0);
        let key = Key::new(metadata.namespace, metadata.name);
        let known = self.get(&key).is_some_and(|cached| {
            cached.meta().uid.as_deref() == Some(&*metadata.uid) && revision_of(cached.meta()) >= revision
        });
        if known && revision > 0 {
            self.bookmark(revision);
        } else {
            self.apply(serde_json::from_str(object)?);
        }
        Ok(revision)
    }

    fn remove(&self, object: &str) -> Result<u64, serde_json::Error> {
        let object: K = serde_json::from_str(object)?;
        self.remove(&object);
        Ok(revision_of(object.meta()))
    }

    fn bookmark(&self, revision: u64) {
        self.bookmark(revision);
    }

    fn relist(&self) -> Box<dyn Listing + Send + '_> {
        Box::new(Relist { cache: self, objects: Vec::new() })
    }
}

struct Relist<'a, K> {
    cache: &'a Cache<K>,
    objects: Vec<K>,
}

impl<K: Object> Listing for Relist<'_, K> {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error> {
        self.objects.push(serde_json::from_str(object)?);
        Ok(())
    }

    fn done(self: Box<Self>, revision: u64) {
        self.cache.replace(self.objects, revision);
    }
}

impl<K> State<K> {
    fn of_owner(&self, owner: &Owner) -> Vec<Arc<K>> {
        let keys = self.owned.get(owner).into_iter().flatten();
        keys.filter_map(|key| self.objects.get(key).cloned()).collect()
    }

    fn unlink(&mut self, key: &Key, meta: &ObjectMeta) {
        let owner = owner_of(meta);
        if let Some(keys) = self.owned.get_mut(&owner) {
            keys.remove(key);
            if keys.is_empty() {
                self.owned.remove(&owner);
            }
        }
    }
}

fn owner_of(meta: &ObjectMeta) -> Owner {
    match crate::meta::controller_of(meta) {
        Some(owner) => Owner::Controller(owner.uid.clone()),
        None => Owner::None { namespace: meta.namespace.clone().unwrap_or_default() },
    }
}

/// Resource versions of one server are numbers that grow; anything else counts as oldest.
pub fn revision_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn pod(name: &str, revision: u64) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("n".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(format!("uid-{name}"));
        pod.metadata.resource_version = Some(revision.to_string());
        pod
    }

    #[test]
    fn an_answer_newer_than_the_watch_is_taken_and_one_the_watch_passed_is_not() {
        let cache = Cache::<Pod>::default();
        cache.replace(vec![], 10);
        cache.offer(pod("new", 11));
        assert!(cache.get(&Key::new("n", "new")).is_some());
        cache.bookmark(20);
        cache.offer(pod("seen-and-deleted-already", 15));
        assert!(cache.get(&Key::new("n", "seen-and-deleted-already")).is_none());
    }

    #[test]
    fn a_relist_keeps_what_was_written_after_it_and_drops_the_rest() {
        let cache = Cache::<Pod>::default();
        cache.replace(vec![pod("a", 1), pod("b", 2)], 10);
        cache.offer(pod("late", 15));
        cache.replace(vec![pod("a", 1)], 12);
        let names: Vec<_> = cache.keys().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["a", "late"]);
    }

    #[test]
    fn the_watch_repeating_our_own_write_wakes_nobody() {
        let cache = Cache::<Pod>::default();
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        cache.on_change(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        cache.replace(vec![], 10);
        cache.offer(pod("a", 11));
        cache.apply(pod("a", 11));
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_older_state_of_the_same_object_is_not_even_read() {
        let cache = Cache::<Pod>::default();
        cache.replace(vec![], 10);
        cache.offer(pod("a", 12));
        let feed: &dyn Feed = &cache;
        // It is no pod at all beyond its metadata.
        let text =
            r#"{"metadata":{"namespace":"n","name":"a","uid":"uid-a","resourceVersion":"12"},"spec":7}"#;
        assert_eq!(feed.apply(text).unwrap(), 12);
        assert!(feed.apply(&text.replace("12", "13")).is_err(), "news are read");
        cache.offer(pod("b", 12));
        assert!(cache.get(&Key::new("n", "b")).is_none(), "the watch passed it");
    }

    #[test]
    fn an_accepted_delete_counts_at_once_and_only_for_the_same_object() {
        let cache = Cache::<Pod>::default();
        cache.replace(vec![pod("a", 1)], 10);
        let key = Key::new("n", "a");
        cache.mark_deleting(&key, Some("someone-else"), Timestamp::UNIX_EPOCH);
        assert!(cache.get(&key).unwrap().metadata.deletion_timestamp.is_none());
        cache.mark_deleting(&key, Some("uid-a"), Timestamp::UNIX_EPOCH);
        assert!(cache.get(&key).unwrap().metadata.deletion_timestamp.is_some());
    }
}
