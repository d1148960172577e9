//! What the hub knows, as a plain synchronous struct fed by watches.
//!
//! ```text
//!   Placement ──selects──> root object ──placed on──> Site
//!                             │  names                 │ has
//!                             v                        v
//!                        dependencies              Lease (when last heard)
//!   root ──rendered into──> Work (per site) ──reports──> pods ──shown as──> mirrors
//! ```
//!
//! Every change marks the roots it concerns as dirty; [`crate::plan`] then says what to do about each.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use kube::ResourceExt;
use serde_json::Value;
use tombolo_api::{HubRef, Placement, Site, SiteGroup, Work, names};
use tombolo_placement::Resources;

use crate::clock::Moment;
use crate::convert;
use crate::decide::Decided;
use crate::object::{Key, Object, is_workload, text};
use crate::references;
use crate::rooms::Rooms;

/// A site and when it was last heard.
#[derive(Clone, Debug)]
pub struct SiteState {
    pub site: Site,
    /// The last heartbeat known, or when this hub met the site.
    pub heard: Moment,
    /// Version of the site's Lease that was last looked at.
    lease: Option<String>,
    pub groups: Vec<String>,
}

#[derive(Default)]
pub struct Index {
    pub hub: HubRef,
    /// Nothing is believed lost before this moment (a new leader waits one full lease).
    pub since: Moment,
    /// Seconds of silence after which a site counts as lost.
    pub lease_seconds: i64,
    /// The hub was restored from a backup: tombstones of before are void.
    pub restored: bool,
    pub objects: HashMap<Key, Object>,
    services: HashMap<String, BTreeSet<Key>>,
    pub placements: BTreeMap<(String, String), Placement>,
    pub groups: BTreeMap<String, SiteGroup>,
    pub sites: BTreeMap<String, SiteState>,
    /// Works by root, then by (site, name of the Work).
    works: HashMap<Key, BTreeMap<(String, String), Arc<Work>>>,
    /// Root of every Work.
    root_of: HashMap<(String, String), Key>,
    /// What each root has at a site, against what the site's reported capacity knows of it.
    rooms: BTreeMap<String, Rooms>,
    /// How many Works a site has.
    at_site: HashMap<String, usize>,
    /// Kinds that Works or placements name.
    pub kinds: HashSet<(String, String)>,
    /// Mirrored pods by (site, Work), then by name at the hub.
    mirrors: HashMap<(String, String), BTreeMap<String, Object>>,
    /// Who names what: dependency to roots.
    users: HashMap<Key, HashSet<Key>>,
    needs: HashMap<Key, BTreeSet<Key>>,
    pub decided: HashMap<Key, Decided>,
    /// When replicas of a root last moved.
    pub moved: HashMap<Key, i64>,
    /// Changes with sites, groups and their readiness.
    pub topology: u64,
    /// Changes with reported capacity.
    pub capacity: u64,
    /// Roots whose Works say what they should, with what that was found from ([`crate::stamp`]).
    pub rendered: HashMap<Key, u64>,
    /// Roots whose plans take long are not planned before this moment for what their sites say.
    pub resting: HashMap<Key, Instant>,
    /// Roots that wait for room or for time.
    pub unsettled: HashSet<Key>,
    /// Sites that said something about a workload that may run at most once, and were not noted as heard for it yet.
    stirred: HashSet<String>,
    /// Sites that showed other pods, with no time for that yet.
    undated: HashSet<String>,
    dirty: BTreeSet<Key>,
}

impl Index {
    pub fn new(hub: HubRef, restored: bool, since: Moment, lease_seconds: i64) -> Self {
        Self { hub, restored, since, lease_seconds, ..Default::default() }
    }

    /// Roots that something changed for, and forgets them.
    pub fn take_dirty(&mut self, most: usize) -> Vec<Key> {
        let some: Vec<Key> = self.dirty.iter().take(most).cloned().collect();
        for key in &some {
            self.dirty.remove(key);
        }
        some
    }

    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub fn mark(&mut self, key: &Key) {
        self.dirty.insert(key.clone());
    }

    /// Everything that is or was placed.
    pub fn mark_all(&mut self) {
        let all: Vec<Key> = self.objects.keys().chain(self.works.keys()).cloned().collect();
        self.dirty.extend(all);
    }

    pub fn mark_unsettled(&mut self) {
        let waiting: Vec<Key> = self.unsettled.iter().cloned().collect();
        self.dirty.extend(waiting);
    }

    /// An object of a watched kind, mirrors excepted.
    pub fn put_object(&mut self, key: Key, object: Object) {
        // The same or an older version is no news: answers to writes that changed nothing come back here.
        if let Some(old) = self.objects.get(&key)
            && version(old) >= version(&object)
            && version(old) > 0
        {
            return;
        }
        if key.kind == "Service" {
            self.services.entry(key.namespace.clone()).or_default().insert(key.clone());
            self.mark_namespace_workloads(&key.namespace.clone());
        }
        let generation = |o: &Value| o.pointer("/metadata/generation").and_then(Value::as_i64);
        if self.objects.get(&key).is_none_or(|old| generation(old) != generation(&object)) {
            self.resting.remove(&key);
        }
        self.objects.insert(key.clone(), object);
        self.mark_users(&key);
        self.dirty.insert(key);
    }

    /// An answer to a write. The watch may have shown the object's deletion meanwhile: then it stays gone.
    pub fn refresh_object(&mut self, key: Key, object: Object) {
        if self.objects.contains_key(&key) {
            self.put_object(key, object);
        }
    }

    /// As [`Index::refresh_object`].
    pub fn refresh_work(&mut self, work: Work) {
        let root = Key::of_root(&work.spec.root);
        if self.works_of(&root).any(|(_, w)| w.metadata.uid == work.metadata.uid) {
            self.put_work(work);
        }
    }

    pub fn drop_object(&mut self, key: &Key) {
        self.objects.remove(key);
        self.resting.remove(key);
        if let Some(services) = self.services.get_mut(&key.namespace) {
            services.remove(key);
        }
        self.mark_users(key);
        self.dirty.insert(key.clone());
    }

    fn mark_users(&mut self, key: &Key) {
        let users: Vec<Key> = self.users.get(key).into_iter().flatten().cloned().collect();
        self.dirty.extend(users);
    }

    fn mark_namespace_workloads(&mut self, namespace: &str) {
        let roots: Vec<Key> =
            self.works.keys().filter(|k| k.namespace == namespace && is_workload(k)).cloned().collect();
        self.dirty.extend(roots);
    }

    /// The objects that a root needs, as far as they exist, and remembers who needs what.
    pub fn needs(&mut self, key: &Key, root: &Value) -> Vec<Object> {
        let mut wanted = references::named(root);
        let services = self.services.get(&key.namespace).into_iter().flatten();
        let services = services.filter_map(|k| Some((k, self.objects.get(k)?)));
        wanted.extend(references::selecting_services(root, services));
        // What is placed by itself need not travel with others, but must not be missing either: it is counted twice.
        for old in self.needs.insert(key.clone(), wanted.clone()).unwrap_or_default() {
            if !wanted.contains(&old)
                && let Some(users) = self.users.get_mut(&old)
            {
                users.remove(key);
            }
        }
        for need in &wanted {
            self.users.entry(need.clone()).or_default().insert(key.clone());
        }
        wanted.iter().filter_map(|k| self.objects.get(k).cloned()).collect()
    }

    pub fn put_work(&mut self, work: Work) {
        let Some(site) = work.namespace().as_deref().and_then(names::site_of_namespace).map(str::to_owned)
        else {
            return;
        };
        let root = Key::of_root(&work.spec.root);
        let id = (site, work.name_any());
        if let Some(old) = self.works.get(&root).and_then(|works| works.get(&id)) {
            if number_of(old.resource_version()) > number_of(work.resource_version()) {
                return;
            }
            // Whoever reports is alive. A site says which tie it holds before it renews the lease of such a workload, so a
            // hub that has just buried the Work learns here that it must not count on the site's silence.
            if work.spec.lease.is_some() && old.status != work.status {
                self.stirred.insert(id.0.clone());
            }
        }
        self.kinds.insert((root.api_version.clone(), root.kind.clone()));
        self.count(&id.0, &root, &work);
        self.root_of.insert(id.clone(), root.clone());
        let works = self.works.entry(root.clone()).or_default();
        if works.insert(id.clone(), Arc::new(work)).is_none() {
            *self.at_site.entry(id.0).or_default() += 1;
        }
        self.dirty.insert(root);
    }

    fn count(&mut self, site: &str, root: &Key, work: &Work) {
        let rooms = self.rooms.entry(site.to_owned()).or_default();
        if work.spec.tombstone.is_some() || !is_workload(root) {
            return rooms.forget(root);
        }
        let assigned = work.spec.replicas.unwrap_or(1);
        let status = work.status.as_ref();
        let shown = status.map_or(0, |s| s.pods.values().filter(|p| !p.node.is_empty()).count() as i64);
        if rooms.put(root, assigned, shown, || convert::asks(&work.spec.object)) {
            self.undated.insert(site.to_owned());
        }
    }

    pub fn drop_work(&mut self, work: &Work) {
        let Some(site) = work.namespace().as_deref().and_then(names::site_of_namespace).map(str::to_owned)
        else {
            return;
        };
        let root = Key::of_root(&work.spec.root);
        let id = (site, work.name_any());
        self.root_of.remove(&id);
        if let Some(rooms) = self.rooms.get_mut(&id.0) {
            rooms.forget(&root);
        }
        if let Some(works) = self.works.get_mut(&root) {
            if works.remove(&id).is_some()
                && let Some(count) = self.at_site.get_mut(&id.0)
            {
                *count = count.saturating_sub(1);
            }
            if works.is_empty() {
                self.works.remove(&root);
            }
        }
        self.dirty.insert(root);
    }

    pub fn works_of(&self, root: &Key) -> impl Iterator<Item = (&String, &Arc<Work>)> {
        self.works.get(root).into_iter().flatten().map(|((site, _), work)| (site, work))
    }

    /// A Work as it was last seen.
    pub fn work(&self, site: &str, name: &str) -> Option<Arc<Work>> {
        let id = (site.to_owned(), name.to_owned());
        self.works.get(self.root_of.get(&id)?)?.get(&id).cloned()
    }

    /// How many Works a site has.
    pub fn works_at(&self, site: &str) -> usize {
        self.at_site.get(site).copied().unwrap_or(0)
    }

    /// A mirrored pod at the hub; its Work is in the mirror label.
    pub fn put_mirror(&mut self, pod: Object) {
        let Some(id) = mirror_id(&pod) else { return };
        let name = text(&pod, "/metadata/name").to_owned();
        let shown = self.mirrors.entry(id.clone()).or_default();
        // An answer to a write can be newer than what the watch shows next.
        let same = |old: &Object| text(old, "/metadata/uid") == text(&pod, "/metadata/uid");
        if shown.get(&name).is_some_and(|old| same(old) && version(old) >= version(&pod) && version(old) > 0)
        {
            return;
        }
        shown.insert(name, pod);
        self.mark_work(&id);
    }

    /// As [`Index::refresh_object`].
    pub fn refresh_mirror(&mut self, pod: Object) {
        let shown = mirror_id(&pod).and_then(|id| self.mirrors.get(&id));
        if shown.is_some_and(|pods| pods.contains_key(text(&pod, "/metadata/name"))) {
            self.put_mirror(pod);
        }
    }

    pub fn drop_mirror(&mut self, pod: &Value) {
        let Some(id) = mirror_id(pod) else { return };
        if let Some(pods) = self.mirrors.get_mut(&id) {
            pods.remove(text(pod, "/metadata/name"));
            if pods.is_empty() {
                self.mirrors.remove(&id);
            }
        }
        self.mark_work(&id);
    }

    fn mark_work(&mut self, id: &(String, String)) {
        let root = self.root_of.get(id).cloned();
        self.dirty.extend(root);
    }

    pub fn mirrors_of(&self, site: &str, work: &str) -> BTreeMap<String, Object> {
        self.mirrors.get(&(site.to_owned(), work.to_owned())).cloned().unwrap_or_default()
    }

    /// Mirrors whose Work is gone.
    pub fn orphaned_mirrors(&self) -> Vec<Object> {
        self.mirrors
            .iter()
            .filter(|(id, _)| !self.root_of.contains_key(*id))
            .flat_map(|(_, pods)| pods.values().cloned())
            .collect()
    }

    /// A site as the API has it. One that is new here counts as heard now.
    pub fn put_site(&mut self, site: Site, now: Moment) {
        let name = site.name_any();
        let groups = convert::groups_of(&name, &site, &self.groups);
        let before = self.sites.get(&name);
        let heard = before.map_or(now, |s| s.heard);
        let lease = before.and_then(|s| s.lease.clone());
        let reshaped = before.is_none_or(|old| {
            let leaving = |s: &Site| s.metadata.deletion_timestamp.is_some();
            old.site.spec != site.spec
                || old.site.metadata.labels != site.metadata.labels
                || old.site.is_ready() != site.is_ready()
                || leaving(&old.site) != leaving(&site)
        });
        let refilled = before.is_none_or(|old| {
            let room = |s: &Site| s.status.clone().map(|s| (s.shapes, s.offers));
            room(&old.site) != room(&site)
        });
        if refilled && let Some(rooms) = self.rooms.get_mut(&name) {
            rooms.told();
        }
        self.sites.insert(name, SiteState { site, heard, lease, groups });
        if reshaped {
            self.topology += 1;
            self.mark_all();
        } else if refilled {
            self.capacity += 1;
            self.mark_unsettled();
        }
    }

    pub fn drop_site(&mut self, name: &str) {
        if self.sites.remove(name).is_some() {
            self.topology += 1;
            self.mark_all();
        }
    }

    /// A heartbeat `ago` seconds before `now`. Says whether the site was thought lost until now.
    pub fn heard(&mut self, name: &str, ago: i64, now: Moment) -> bool {
        let lost = self.silent(name, now.steady).is_some();
        let Some(state) = self.sites.get_mut(name) else { return false };
        let at = now.before(ago.max(0));
        if at.steady > state.heard.steady {
            state.heard = at;
        }
        let back = lost && self.silent(name, now.steady).is_none();
        if back {
            self.topology += 1;
            self.mark_all();
        }
        back
    }

    /// What the replica that a site is tied to writes in its Lease: heard so many seconds before that was written. A version
    /// that was there before, or that was seen already, is no news.
    pub fn read_lease(&mut self, name: &str, version: &str, ago: i64, now: Moment) -> bool {
        let Some(state) = self.sites.get_mut(name) else { return false };
        let before = state.lease.replace(version.to_owned());
        before.is_some_and(|before| before != version) && self.heard(name, ago, now)
    }

    /// Gives a time to what came in since the last time: whoever spoke was heard, what was shown is counted before long.
    pub fn note_news(&mut self, now: Moment) {
        for site in std::mem::take(&mut self.stirred) {
            self.heard(&site, 0, now);
        }
        for site in std::mem::take(&mut self.undated) {
            if let Some(rooms) = self.rooms.get_mut(&site) {
                rooms.date(now.steady);
            }
        }
    }

    /// Seconds of silence, if the site counts as lost. `now` on the steady clock.
    pub fn silent(&self, name: &str, now: i64) -> Option<u64> {
        let state = self.sites.get(name)?;
        let lease = state.site.spec.lease_seconds.map_or(self.lease_seconds, i64::from);
        let silence = now - state.heard.steady.max(self.since.steady);
        (silence > lease).then(|| u64::try_from(silence).unwrap_or(0))
    }

    /// Since when nothing was heard, if the site counts as lost.
    pub fn silent_since(&self, name: &str, now: i64) -> Option<String> {
        self.silent(name, now)?;
        let heard = self.sites.get(name)?.heard;
        Some(crate::time_text(if heard.steady > self.since.steady { heard.wall } else { self.since.wall }))
    }

    pub fn put_group(&mut self, group: SiteGroup) {
        self.groups.insert(group.name_any(), group);
        self.regroup();
    }

    pub fn drop_group(&mut self, name: &str) {
        self.groups.remove(name);
        self.regroup();
    }

    fn regroup(&mut self) {
        for (name, state) in &mut self.sites {
            state.groups = convert::groups_of(name, &state.site, &self.groups);
        }
        self.topology += 1;
        self.mark_all();
    }

    pub fn put_placement(&mut self, placement: Placement) {
        let id = (placement.namespace().unwrap_or_default(), placement.name_any());
        let same = self.placements.get(&id).is_some_and(|old| old.spec == placement.spec);
        let named = placement.spec.objects.iter().filter_map(|o| o.api_version.clone().zip(o.kind.clone()));
        self.kinds.extend(named);
        self.placements.insert(id.clone(), placement);
        if !same {
            self.mark_placed_from(&id.0);
        }
    }

    pub fn drop_placement(&mut self, namespace: &str, name: &str) {
        self.placements.remove(&(namespace.to_owned(), name.to_owned()));
        self.mark_placed_from(namespace);
    }

    fn mark_placed_from(&mut self, namespace: &str) {
        let reach = |key: &&Key| namespace == names::SYSTEM_NAMESPACE || key.namespace == namespace;
        let all: Vec<Key> = self.objects.keys().chain(self.works.keys()).filter(reach).cloned().collect();
        for key in &all {
            self.resting.remove(key);
        }
        self.dirty.extend(all);
    }

    /// Replicas placed at each site that its reported capacity does not know yet, those of `but` left out.
    pub fn on_their_way(&self, but: &Key, now: i64) -> BTreeMap<String, Vec<(Resources, u32)>> {
        self.rooms.iter().map(|(site, rooms)| (site.clone(), rooms.on_their_way(but, now))).collect()
    }

    /// How many pods of the root the site's reported capacity has taken into account.
    pub fn counted(&self, site: &str, root: &Key, now: i64) -> i64 {
        self.rooms.get(site).map_or(0, |rooms| rooms.counted(root, now))
    }
}

fn mirror_id(pod: &Value) -> Option<(String, String)> {
    let site = text(pod, "/metadata/labels/tombolo.dev~1site");
    let work = text(pod, "/metadata/labels/tombolo.dev~1mirror");
    (!site.is_empty() && !work.is_empty()).then(|| (site.to_owned(), work.to_owned()))
}

fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or(0)
}

fn number_of(version: Option<String>) -> u64 {
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}
