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
//! Every change marks the roots it concerns: something else is wanted of them, or something was told of them.
//! [`crate::plan`] then says what to do about each.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::ObjectMeta;
use serde_json::Value;
use tombolo_api::{HubRef, Placement, Site, SiteGroup, Work, WorkSpec, names};
use tombolo_placement::Resources;

use crate::clock::Moment;
use crate::convert;
use crate::decide::Decided;
use crate::kept::{Kept, Mirror, Mirrors, Shown};
use crate::object::{Key, Object, is_workload, text};
use crate::references;
use crate::rooms::Rooms;
use crate::stuck::Stuck;

/// Site and name of a Work.
pub type WorkId = (String, String);

/// A site and when it was last heard.
#[derive(Clone, Debug)]
pub struct SiteState {
    pub site: Site,
    /// The last heartbeat known, or when this hub met the site.
    pub heard: Moment,
    /// Version of the site's Lease that was last looked at.
    lease: Option<String>,
    pub groups: Vec<String>,
    /// Changes with all that decides how objects are rendered for the site.
    pub shape: u64,
    /// Seconds of silence after which it counts as lost.
    lease_seconds: i64,
}

#[derive(Default)]
pub struct Index {
    pub hub: HubRef,
    /// Nothing is believed lost before this moment (a new leader waits one full lease).
    pub since: Moment,
    /// Seconds of silence after which a site counts as lost, where the site asks for nothing else.
    pub lease_seconds: i64,
    /// The hub was restored from a backup: tombstones of before are void.
    pub restored: bool,
    /// Until then nothing starts that may run at most once ([`crate::restored`]), on the steady clock.
    pub nothing_once_before: i64,
    /// Until then no replica moves because its site is silent: the hub did not listen.
    pub nobody_lost_before: i64,
    /// Seconds for which another replica may hear a site without having written so.
    pub unheard: i64,
    pub objects: HashMap<Key, Object>,
    services: HashMap<String, BTreeSet<Key>>,
    pub placements: BTreeMap<(String, String), Placement>,
    pub groups: BTreeMap<String, SiteGroup>,
    pub sites: BTreeMap<String, SiteState>,
    /// Works by root, then by (site, name of the Work).
    works: HashMap<Key, BTreeMap<WorkId, Arc<Kept>>>,
    /// Root of every Work.
    root_of: HashMap<WorkId, Key>,
    /// What each root has at a site, against what the site's reported capacity knows of it.
    rooms: BTreeMap<String, Rooms>,
    /// How many Works a site has.
    at_site: HashMap<String, usize>,
    /// Kinds that Works or placements name.
    pub kinds: HashSet<(String, String)>,
    /// Mirrored pods by (site, Work), then by name at the hub.
    mirrors: HashMap<WorkId, Mirrors>,
    /// Who names what: dependency to roots.
    users: HashMap<Key, HashSet<Key>>,
    needs: HashMap<Key, BTreeSet<Key>>,
    pub decided: HashMap<Key, Arc<Decided>>,
    /// When replicas of a root last moved.
    pub moved: HashMap<Key, i64>,
    /// Changes with sites, groups and their readiness.
    pub topology: u64,
    /// Changes with reported capacity.
    pub capacity: u64,
    /// Roots whose Works say what they should, with what that was found from ([`crate::stamp`]).
    pub rendered: HashMap<Key, u64>,
    /// Roots that wait for room or for time, and when they are to be looked at in any case.
    pub unsettled: HashMap<Key, i64>,
    /// Objects of which a warning was told that their status has no room for: uid, and what was told.
    pub warned: HashMap<Key, (String, String)>,
    /// What sites cannot schedule.
    pub stuck: Stuck,
    /// Sites that said something about a workload that may run at most once, and were not noted as heard for it yet.
    stirred: HashSet<String>,
    /// Sites that showed other pods, with no time for that yet.
    undated: HashSet<String>,
    wanted: BTreeSet<Key>,
    told: HashSet<Key>,
}

impl Index {
    pub fn new(hub: HubRef, restored: bool, since: Moment, lease_seconds: i64) -> Self {
        Self { hub, restored, since, lease_seconds, ..Default::default() }
    }

    /// Roots of which something else is wanted, and forgets them.
    pub fn take_wanted(&mut self, most: usize) -> Vec<Key> {
        let some: Vec<Key> = self.wanted.iter().take(most).cloned().collect();
        for key in &some {
            self.wanted.remove(key);
            self.told.remove(key);
        }
        some
    }

    pub fn wants_any(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Roots of which something was told, and forgets them.
    pub fn take_told(&mut self) -> HashSet<Key> {
        std::mem::take(&mut self.told)
    }

    pub fn mark(&mut self, key: &Key) {
        self.wanted.insert(key.clone());
    }

    /// Everything that is or was placed.
    pub fn mark_all(&mut self) {
        self.told.extend(self.objects.keys().chain(self.works.keys()).cloned());
    }

    /// Everything of a kind that is or was placed: all of it is known from now on.
    pub fn mark_kind(&mut self, api_version: &str, kind: &str) {
        let all = self.objects.keys().chain(self.works.keys());
        self.told.extend(all.filter(|k| k.api_version == api_version && k.kind == kind).cloned());
    }

    pub fn mark_unsettled(&mut self) {
        self.told.extend(self.unsettled.keys().cloned());
    }

    /// Those whose time has come.
    pub fn mark_due(&mut self, now: i64) {
        self.told.extend(self.unsettled.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
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
        let known = self.objects.insert(key.clone(), object.clone());
        if known.is_none() {
            // From the start of this hub on: what is seen for the first time later has it from nobody who led.
            self.stuck.recall(&key, &object, self.since.steady);
        }
        if known.is_some_and(|old| same_intent(&old, &object)) {
            self.told.insert(key);
            return;
        }
        self.mark_users(&key);
        self.wanted.insert(key);
    }

    /// An answer to a write of a Work's spec, of which the metadata came back. The watch may have shown the Work's deletion
    /// meanwhile: then it stays gone.
    pub fn work_written(&mut self, site: &str, metadata: ObjectMeta, spec: Option<WorkSpec>) {
        let name = metadata.name.as_deref().unwrap_or_default();
        let Some(old) = self.work(site, name).filter(|w| Some(&w.uid) == metadata.uid.as_ref()) else {
            return;
        };
        let id = (site.to_owned(), name.to_owned());
        let kept = old.written(metadata, spec);
        self.keep_work(id, Some(&old), kept);
    }

    pub fn drop_object(&mut self, key: &Key) {
        self.objects.remove(key);
        if let Some(services) = self.services.get_mut(&key.namespace) {
            services.remove(key);
        }
        self.mark_users(key);
        self.wanted.insert(key.clone());
    }

    fn mark_users(&mut self, key: &Key) {
        let users: Vec<Key> = self.users.get(key).into_iter().flatten().cloned().collect();
        self.wanted.extend(users);
    }

    fn mark_namespace_workloads(&mut self, namespace: &str) {
        let roots: Vec<Key> =
            self.works.keys().filter(|k| k.namespace == namespace && is_workload(k)).cloned().collect();
        self.wanted.extend(roots);
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
        let id = work_id(&work);
        if id.0.is_empty() {
            return;
        }
        let old = self.work(&id.0, &id.1);
        let news = |old: &Arc<Kept>| !old.is_from(&work.metadata);
        if old.as_ref().is_none_or(news) {
            let kept = Kept::new(work, old.as_deref());
            self.keep_work(id, old.as_ref(), kept);
        }
    }

    fn keep_work(&mut self, id: WorkId, old: Option<&Arc<Kept>>, kept: Kept) {
        let root = Key::of_root(&kept.root);
        if let Some(old) = old {
            if old.version > kept.version || (old.version == kept.version && old.is_as(&kept)) {
                return;
            }
            // Whoever reports is alive. A site says which tie it holds before it renews the lease of such a workload, so a
            // hub that has just buried the Work learns here that it must not count on the site's silence.
            if kept.lease.is_some() && !old.reports_as(&kept) {
                self.stirred.insert(id.0.clone());
            }
        }
        self.kinds.insert((root.api_version.clone(), root.kind.clone()));
        self.count(&id.0, &root, &kept);
        self.root_of.insert(id.clone(), root.clone());
        let works = self.works.entry(root.clone()).or_default();
        if works.insert(id.clone(), Arc::new(kept)).is_none() {
            *self.at_site.entry(id.0).or_default() += 1;
        }
        self.told.insert(root);
    }

    fn count(&mut self, site: &str, root: &Key, work: &Kept) {
        let rooms = self.rooms.entry(site.to_owned()).or_default();
        if work.tombstone.is_some() || !is_workload(root) {
            return rooms.forget(root);
        }
        let assigned = work.replicas.unwrap_or(1);
        let shown = work.status.pods.values().filter(|p| !p.node.is_empty()).count() as i64;
        let said = (work.uid.as_str(), work.generation);
        if rooms.put(root, said, assigned, shown, || convert::asks(&work.spec().object)) {
            self.undated.insert(site.to_owned());
        }
    }

    pub fn drop_work(&mut self, id: &WorkId) {
        let Some(root) = self.root_of.remove(id) else { return };
        self.stuck.forget_work(id);
        if let Some(rooms) = self.rooms.get_mut(&id.0) {
            rooms.forget(&root);
        }
        if let Some(works) = self.works.get_mut(&root) {
            if works.remove(id).is_some()
                && let Some(count) = self.at_site.get_mut(&id.0)
            {
                *count = count.saturating_sub(1);
            }
            if works.is_empty() {
                self.works.remove(&root);
            }
        }
        self.wanted.insert(root);
    }

    pub fn works_of(&self, root: &Key) -> impl Iterator<Item = (&String, &Arc<Kept>)> {
        self.works.get(root).into_iter().flatten().map(|((site, _), work)| (site, work))
    }

    /// A Work as it was last seen.
    pub fn work(&self, site: &str, name: &str) -> Option<Arc<Kept>> {
        let id = (site.to_owned(), name.to_owned());
        self.works.get(self.root_of.get(&id)?)?.get(&id).cloned()
    }

    /// How many Works a site has.
    pub fn works_at(&self, site: &str) -> usize {
        self.at_site.get(site).copied().unwrap_or(0)
    }

    /// A mirrored pod at the hub, of the Work that it names.
    pub fn put_mirror(&mut self, id: &WorkId, pod: Arc<Mirror>) {
        let shown = self.mirrors.entry(id.clone()).or_default();
        let news = |old: &Arc<Mirror>| old.uid != pod.uid || old.version < pod.version || old.version == 0;
        if !shown.pods.get(&pod.name).is_none_or(news) {
            return;
        }
        shown.pods.insert(pod.name.clone(), pod);
        shown.right_for = None;
        self.mark_work(id);
    }

    pub fn drop_mirror(&mut self, id: &WorkId, name: &str) {
        if let Some(shown) = self.mirrors.get_mut(id) {
            shown.pods.remove(name);
            shown.right_for = None;
            if shown.pods.is_empty() {
                self.mirrors.remove(id);
            }
        }
        self.mark_work(id);
    }

    fn mark_work(&mut self, id: &WorkId) {
        self.told.extend(self.root_of.get(id).cloned());
    }

    pub fn mirrors_of(&self, id: &WorkId) -> Option<&Mirrors> {
        self.mirrors.get(id)
    }

    /// Nothing is to be done about the mirrors of a Work while `shown` stays as it is.
    pub fn mirrors_are_right(&mut self, id: &WorkId, shown: Shown) {
        if let Some(mirrors) = self.mirrors.get_mut(id) {
            mirrors.right_for = Some(shown);
        }
    }

    /// Mirrors whose Work is gone.
    pub fn orphaned_mirrors(&self) -> Vec<Arc<Mirror>> {
        self.mirrors
            .iter()
            .filter(|(id, _)| !self.root_of.contains_key(*id))
            .flat_map(|(_, shown)| shown.pods.values().cloned())
            .collect()
    }

    /// A site as the API has it. One that is new here counts as heard now.
    pub fn put_site(&mut self, site: Site, now: Moment) {
        let name = site.name_any();
        let groups = convert::groups_of(&name, &site, &self.groups);
        let before = self.sites.get(&name);
        let heard = before.map_or(now, |s| s.heard);
        let lease = before.and_then(|s| s.lease.clone());
        let redrawn = before
            .is_none_or(|old| old.site.spec != site.spec || old.site.metadata.labels != site.metadata.labels);
        let reshaped = redrawn
            || before.is_some_and(|old| {
                let leaving = |s: &Site| s.metadata.deletion_timestamp.is_some();
                old.site.is_ready() != site.is_ready()
                    || leaving(&old.site) != leaving(&site)
                    || convert::takes_pods(&old.site) != convert::takes_pods(&site)
            });
        let refilled = before.is_none_or(|old| {
            let room = |s: &Site| s.status.clone().map(|s| (s.shapes, s.offers));
            room(&old.site) != room(&site)
        });
        if refilled && let Some(rooms) = self.rooms.get_mut(&name) {
            rooms.told();
        }
        let shape = if redrawn { self.topology + 1 } else { before.map_or(0, |s| s.shape) };
        let lease_seconds = crate::lease::of(&site, self.lease_seconds);
        self.sites.insert(name, SiteState { site, heard, lease, groups, shape, lease_seconds });
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

    /// Is the site being removed, and keeps what it runs?
    pub fn leaves_all_behind(&self, name: &str) -> bool {
        self.sites.get(name).is_some_and(|state| {
            let asked = state.site.annotations().get(names::ON_REMOVE_ANNOTATION);
            state.site.metadata.deletion_timestamp.is_some() && asked.is_some_and(|what| what == "keep")
        })
    }

    /// When all that may run at most once has stopped at a site that is heard no more; `None` where there is nothing such.
    pub fn fenced_at(&self, name: &str) -> Option<i64> {
        let heard = self.sites.get(name)?.heard.steady.max(self.since.steady);
        let works = self.works.values().flatten().filter(|((site, _), _)| site == name);
        let may_run = works.filter(|(_, work)| !work.is_removed()).filter_map(|(_, work)| {
            // Whoever removes a site that runs something without end knows better than we whether it does.
            work.lease.as_ref().map(|lease| work.stops_after().unwrap_or(lease.seconds))
        });
        may_run.max().map(|seconds| heard + seconds + crate::plan::FENCED + self.unheard)
    }

    /// Notes what sites cannot schedule of a root, and since when.
    pub fn note_stuck(&mut self, key: &Key, now: i64) {
        let none = BTreeMap::new();
        let uid = self.objects.get(key).map_or("", |root| text(root, "/metadata/uid"));
        self.stuck.note(key, uid, self.works.get(key).unwrap_or(&none), now);
    }

    /// How many pods of a Work its site could not schedule for so long that they belong elsewhere.
    pub fn stuck(&self, site: &str, work: &Kept, now: i64) -> usize {
        self.stuck.count(&(site.to_owned(), work.name.clone()), work, now)
    }

    /// When pods of a root that cannot be scheduled will have waited long enough.
    pub fn stuck_at(&self, key: &Key) -> Option<i64> {
        self.stuck.due(self.works.get(key).into_iter().flat_map(BTreeMap::keys))
    }

    /// Seconds of silence, if the site counts as lost. `now` on the steady clock.
    pub fn silent(&self, name: &str, now: i64) -> Option<u64> {
        let state = self.sites.get(name)?;
        let silence = now - state.heard.steady.max(self.since.steady);
        (silence >= state.lease_seconds).then(|| u64::try_from(silence).unwrap_or(0))
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
        self.topology += 1;
        for (name, state) in &mut self.sites {
            let groups = convert::groups_of(name, &state.site, &self.groups);
            if groups != state.groups {
                (state.groups, state.shape) = (groups, self.topology);
            }
        }
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
        self.wanted.extend(all);
    }

    /// Replicas placed at each site that its reported capacity does not know yet, those of `but` left out.
    pub fn on_their_way(&self, but: &Key, now: i64) -> BTreeMap<String, Vec<(Resources, u32)>> {
        self.rooms.iter().map(|(site, rooms)| (site.clone(), rooms.on_their_way(but, now))).collect()
    }

    /// When the next of what sites have shown is counted although they reported no room.
    pub fn room_counted_at(&self, now: i64) -> Option<i64> {
        self.rooms.values().filter_map(|rooms| rooms.counted_at(now)).min()
    }

    /// How many pods of the root the site's reported capacity has taken into account.
    pub fn counted(&self, site: &str, root: &Key, now: i64) -> i64 {
        self.rooms.get(site).map_or(0, |rooms| rooms.counted(root, now))
    }
}

/// The site is empty where a Work is in no site's namespace.
pub fn work_id(work: &Work) -> WorkId {
    let namespace = work.namespace().unwrap_or_default();
    (names::site_of_namespace(&namespace).unwrap_or_default().to_owned(), work.name_any())
}

/// Whether two states of an object differ only in what is said of it.
fn same_intent(old: &Value, new: &Value) -> bool {
    let of = |field: &str| (old.pointer(field), new.pointer(field));
    let same = |field: &str| {
        let (old, new) = of(field);
        old == new
    };
    let (generation, _) = of("/metadata/generation");
    // Kinds without generations say what they want with all they have.
    let spec = generation.is_some() && same("/metadata/generation");
    spec && ["uid", "deletionTimestamp", "labels", "annotations", "ownerReferences"]
        .iter()
        .all(|field| same(&format!("/metadata/{field}")))
}

fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_off_until_its_kind_is_known_is_looked_at_then() {
        let mut index = Index::default();
        let key =
            Key::new("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ships.sea.example.com");
        let other = Key::new("v1", "ConfigMap", "d", "a");
        for key in [&key, &other] {
            let object = serde_json::json!({"metadata": {"name": key.name, "resourceVersion": "7"}});
            index.put_object(key.clone(), Arc::new(object));
        }
        assert_eq!(index.take_wanted(9).len(), 2);
        assert!(index.take_told().is_empty());
        index.mark_kind(&key.api_version, &key.kind);
        assert_eq!(index.take_told(), HashSet::from([key]));
    }
}
