//! What the site knows about the Works it was given: a plain struct, fed by watches, read by the apply and report loops.
//!
//! For every Work it holds the last spec heard from the hub (so that the site can act on it while cut off), the status as
//! it should be at the hub, and what the hub was told of it ([`Told`]). The difference is what there is to report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use kube::core::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tombolo_api::{Condition, DriftItem, PodSummary, Work, WorkSpec, WorkStatus, names};

use crate::difference::without_nulls;
use crate::owners::{Owner, Owners};
use crate::remove::Removed;
use crate::told::Told;

/// An object at the site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub uid: String,
    pub generation: i64,
    /// The hub's, when it was last heard of this Work.
    revision: u64,
    pub spec: Arc<WorkSpec>,
    /// What the hub should show.
    pub status: WorkStatus,
    told: Told,
    /// From an earlier run of the agent, or before the hub was restored: what the hub shows is not known yet, so nothing is
    /// reported.
    recalled: bool,
    /// The tombstone in `spec` left nothing of the Work's objects; its pods may still be there.
    emptied: Option<Removed>,
    /// Whose pods the root speaks for, as the site itself said when it was applied or seen with the Work's mark. Nothing that
    /// comes from the hub goes in here: it would name pods that the site's owner does not show it.
    selects: Option<Selects>,
}

/// The pods that an object at the site stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Selects {
    namespace: String,
    labels: BTreeMap<String, String>,
}

impl Selects {
    /// `data`: the object but for its metadata, as the site has it.
    pub fn of(namespace: &str, data: &Value) -> Option<Self> {
        let selector = data.pointer("/spec/selector/matchLabels").and_then(Value::as_object)?;
        let label = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        let labels = selector.iter().map(label).collect::<Option<BTreeMap<_, _>>>()?;
        (!labels.is_empty()).then(|| Self { namespace: namespace.to_owned(), labels })
    }

    fn fits(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespace == namespace && self.labels.iter().all(|(k, v)| labels.get(k) == Some(v))
    }
}

/// A root as the site has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Root {
    pub generation: i64,
    pub status: Option<Value>,
    pub selects: Option<Selects>,
}

impl Entry {
    fn is_removed(&self) -> bool {
        self.status.conditions.iter().any(|c| c.r#type == "Removed" && c.status == "True")
    }

    fn keeps_lease(&self) -> bool {
        self.spec.lease.is_some() && self.spec.tombstone.is_none()
    }
}

/// How an attempt to apply ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub drift: Vec<DriftItem>,
    /// As the site's API answered.
    pub root: Root,
    /// Why not, if it was not applied: reason and message.
    pub refused: Option<(String, String)>,
    /// What was applied, as the site's API answered.
    pub made: Vec<(Key, Version)>,
}

/// A state of an object at the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    generation: Option<i64>,
    pub revision: String,
}

impl Version {
    pub fn of(metadata: &ObjectMeta) -> Self {
        let revision = metadata.resource_version.clone().unwrap_or_default();
        Self { generation: metadata.generation, revision }
    }

    /// The same intent; kinds without generations have none apart from the whole object.
    pub fn is_intent_of(&self, other: &Self) -> bool {
        match (self.generation, other.generation) {
            (Some(one), Some(other)) => one == other,
            _ => self.revision == other.revision,
        }
    }
}

#[derive(Default)]
pub struct Ledger {
    works: BTreeMap<String, Entry>,
    roots: HashMap<Key, String>,
    /// Object to the Works that name it, as root or as dependency.
    named: HashMap<Key, BTreeSet<String>>,
    changed: BTreeSet<String>,
    serial: u64,
    /// A Work came that may run at most once.
    pub lease_wanted: Arc<Notify>,
    /// Pods must be looked at anew: a Work took something over.
    pub recount: Arc<Notify>,
}

/// One status to send.
pub struct Report {
    pub work: String,
    /// To be handed back with [`Ledger::landed`].
    pub id: u64,
    pub patch: Value,
}

impl Key {
    pub fn of(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            api_version: text("/apiVersion")?,
            kind: text("/kind")?,
            namespace: text("/metadata/namespace").unwrap_or_default(),
            name: text("/metadata/name")?,
        })
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl Ledger {
    /// A change as the hub's watch tells it; what was read before may be newer. Says whether the site must act.
    pub fn follow(&mut self, work: &Work) -> bool {
        let known = work.metadata.name.as_ref().and_then(|name| self.works.get(name));
        let late = known.is_some_and(|entry| {
            Some(&entry.uid) == work.metadata.uid.as_ref() && entry.revision > revision(work)
        });
        !late && self.put(work)
    }

    /// A Work as the hub has it now. Says whether the site must act.
    pub fn put(&mut self, work: &Work) -> bool {
        let name = work.metadata.name.clone().unwrap_or_default();
        let uid = work.metadata.uid.clone().unwrap_or_default();
        let generation = work.metadata.generation.unwrap_or_default();
        let known = || work.status.as_ref().map_or_else(|| json!({}), |s| without_nulls(json!(s)));
        if let Some(entry) = self.works.get_mut(&name)
            && entry.uid == uid
        {
            if std::mem::take(&mut entry.recalled) {
                entry.told.is_known(known());
                self.changed.insert(name.clone());
            }
            entry.revision = revision(work);
            // Our own reports echo back here; only another intent is news. That of a restored hub may be an older one, and
            // have the number of one that this site knows.
            if entry.generation == generation && *entry.spec == work.spec {
                return false;
            }
            entry.generation = generation;
            entry.emptied = None;
            if Key::of(&entry.spec.object) != Key::of(&work.spec.object) {
                entry.selects = None;
            }
            entry.status.observed_generation = entry.status.observed_generation.min(generation - 1);
            let old = std::mem::replace(&mut entry.spec, Arc::new(work.spec.clone()));
            self.unname(&name, &old);
        } else {
            let entry = Entry {
                uid,
                generation,
                revision: revision(work),
                spec: Arc::new(work.spec.clone()),
                status: work.status.clone().unwrap_or_default(),
                told: Told::new(known()),
                recalled: false,
                emptied: None,
                selects: None,
            };
            if let Some(old) = self.works.insert(name.clone(), entry) {
                self.unname(&name, &old.spec);
            }
        }
        for key in keys(&work.spec) {
            self.named.entry(key).or_default().insert(name.clone());
        }
        if let Some(key) = Key::of(&work.spec.object) {
            self.roots.insert(key, name);
        }
        if work.spec.lease.is_some() {
            self.lease_wanted.notify_one();
        }
        true
    }

    /// A Work as an earlier run of the agent heard it, before the hub has spoken.
    pub fn recall(&mut self, work: &Work) {
        self.put(work);
        if let Some(entry) = work.metadata.name.as_ref().and_then(|name| self.works.get_mut(name)) {
            entry.recalled = true;
        }
    }

    /// The hub was restored: what it wants and what it shows is not known until it has spoken again.
    pub fn doubt_all(&mut self) {
        self.works.values_mut().for_each(|entry| entry.recalled = true);
    }

    /// Is there a Work of which the hub has not spoken since this agent began, or since the hub was restored?
    pub fn recalls_any(&self) -> bool {
        self.works.values().any(|entry| entry.recalled)
    }

    /// The hub no longer has the Work. That is no order to delete anything: the site only stops speaking of it.
    pub fn forget(&mut self, work: &str) {
        if let Some(entry) = self.works.remove(work) {
            self.unname(work, &entry.spec);
            if let Some(key) = Key::of(&entry.spec.object)
                && self.roots.get(&key).is_some_and(|w| w == work)
            {
                self.roots.remove(&key);
            }
        }
        self.changed.remove(work);
    }

    fn unname(&mut self, work: &str, spec: &WorkSpec) {
        for key in keys(spec) {
            if let Some(works) = self.named.get_mut(&key) {
                works.remove(work);
                if works.is_empty() {
                    self.named.remove(&key);
                }
            }
        }
    }

    pub fn get(&self, work: &str) -> Option<&Entry> {
        self.works.get(work)
    }

    pub fn versions(&self) -> impl Iterator<Item = (&String, &str, i64)> {
        self.works.iter().map(|(name, e)| (name, e.uid.as_str(), e.generation))
    }

    /// Does the hub still want what `owner` recorded?
    pub fn alive(&self, owner: &Owner) -> bool {
        self.works.get(&owner.work).is_some_and(|e| e.uid == owner.uid && e.spec.tombstone.is_none())
    }

    /// An object at the site as it is now. It speaks for the Work whose root it is only if that Work made it: one of the same
    /// name may be of an earlier Work that is still being removed, or that was forgotten. Says whether a Work is concerned.
    pub fn see_object(&mut self, key: &Key, owners: &Owners, seen: Root) -> bool {
        let Some((name, entry)) = self.roots.get(key).and_then(|name| self.works.get_key_value(name)) else {
            return false;
        };
        let own = owners.iter().any(|o| o.work == *name && o.hub == entry.spec.hub.id);
        let name = name.clone();
        self.see_root(&name, own.then_some(seen));
        true
    }

    /// An object at the site is gone. Says whether a Work is concerned.
    pub fn miss_object(&mut self, key: &Key) -> bool {
        let Some(name) = self.roots.get(key).cloned() else { return false };
        self.see_root(&name, None);
        true
    }

    /// The Work that a pod with these labels was born of. What was taken over keeps the label of the Work that once made it,
    /// and of which nobody speaks any more.
    pub fn work_of_pod(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Option<String> {
        let label = labels.get(names::WORK_LABEL);
        let known = label.filter(|work| self.works.contains_key(*work));
        known.or_else(|| self.adopter(namespace, labels)).or(label).cloned()
    }

    /// The Work that took over the object whose selector fits these labels. Such a Work could not label its pods. One that the
    /// site refuses has taken over nothing, whatever its status at the hub says.
    fn adopter(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Option<&String> {
        let fits = |entry: &Entry| {
            entry.spec.adopt && entry.selects.as_ref().is_some_and(|selects| selects.fits(namespace, labels))
        };
        self.works.iter().find(|(_, entry)| fits(entry)).map(|(name, _)| name)
    }

    /// The longest lease of any at-most-once workload here, and the shortest time one may run between two renewals,
    /// in seconds.
    pub fn lease_seconds(&self) -> Option<(i64, i64)> {
        let terms = || self.works.values().filter_map(|e| e.spec.lease.as_ref());
        Some((terms().map(|t| t.seconds).max()?, terms().map(|t| t.seconds - t.stop_seconds).min()?))
    }

    /// Tells the hub under which tie workloads that may run at most once are kept.
    pub fn hold(&mut self, tie: &str) {
        for (name, entry) in self.works.iter_mut().filter(|(_, e)| e.keeps_lease()) {
            if entry.status.tie.as_deref() != Some(tie) {
                entry.status.tie = Some(tie.to_owned());
                self.changed.insert(name.clone());
            }
        }
    }

    /// Does the hub know of all of them that they are kept under `tie`?
    pub fn held(&self, tie: &str) -> bool {
        let told = |e: &Entry| e.told.arrived("tie").is_some_and(|t| t == tie);
        self.works.values().filter(|e| e.keeps_lease()).all(told)
    }

    /// Works of workloads that may run at most once and that the hub wants here, with their uids.
    pub fn leased(&self) -> impl Iterator<Item = (&String, &String)> {
        let works = self.works.iter().filter(|(_, e)| e.keeps_lease() && !e.recalled);
        works.map(|(name, e)| (name, &e.uid))
    }

    /// Is the removal of a workload that may run at most once still under way?
    pub fn fences_pending(&self) -> bool {
        self.works.values().any(|e| e.spec.lease.is_some() && e.spec.tombstone.is_some() && !e.is_removed())
    }

    /// Works that name the object, as root or as dependency.
    pub fn works_with(&self, key: &Key) -> Vec<String> {
        self.named.get(key).into_iter().flatten().cloned().collect()
    }

    /// Is the Work applied as the hub has it now?
    pub fn is_applied(&self, work: &str) -> bool {
        self.works.get(work).is_some_and(|e| {
            let applied = e.status.conditions.iter().any(|c| c.r#type == "Applied" && c.status == "True");
            applied && e.status.observed_generation == e.generation && !e.recalled
        })
    }

    /// Records an attempt for `generation` of the Work; an attempt for an older one only counts as far as it goes.
    pub fn applied(&mut self, work: &str, uid: &str, generation: i64, outcome: Outcome, now: &str) {
        let Some(entry) = self.works.get_mut(work).filter(|e| e.uid == uid) else { return };
        let status = &mut entry.status;
        let condition = match &outcome.refused {
            None => ("True", "Applied".to_owned(), String::new()),
            Some((reason, message)) => ("False", reason.clone(), message.clone()),
        };
        set(status, "Applied", condition, now);
        status.observed_generation = generation;
        if outcome.refused.is_none() {
            status.root_generation = entry.spec.root.generation;
            status.site_generation = outcome.root.generation;
            status.drift = outcome.drift;
            // The watch may already have shown something newer than the answer to our patch.
            if status.object.is_none() {
                status.object = outcome.root.status;
            }
            if entry.takes_over(outcome.root.selects) {
                self.recount.notify_one();
            }
        }
        self.changed.insert(work.to_owned());
    }

    /// A tombstone left nothing of the Work's objects. It is the present one's if that still is `spec`.
    pub fn emptied(&mut self, work: &str, spec: &Arc<WorkSpec>, how: Removed) {
        if let Some(entry) = self.works.get_mut(work).filter(|e| Arc::ptr_eq(&e.spec, spec)) {
            entry.emptied = Some(how);
        }
    }

    pub fn how_emptied(&self, work: &str) -> Option<Removed> {
        self.works.get(work).and_then(|e| e.emptied.clone())
    }

    /// All that a tombstone asked for is done. What was said of it first stands: whoever looks again does not see what was let
    /// go, and why.
    pub fn removed(&mut self, work: &str, uid: &str, generation: i64, message: &str, now: &str) {
        let Some(entry) = self.works.get_mut(work).filter(|e| e.uid == uid) else { return };
        if entry.is_removed() && entry.status.observed_generation == generation {
            return;
        }
        set(&mut entry.status, "Removed", ("True", "Tombstone".into(), message.to_owned()), now);
        entry.status.observed_generation = generation;
        self.changed.insert(work.to_owned());
    }

    /// The root as the site has it now; `None` when it is gone.
    fn see_root(&mut self, work: &str, seen: Option<Root>) {
        let Some(entry) = self.works.get_mut(work) else { return };
        // What is gone leaves its pods behind for a while: they are still the Work's.
        if let Some(root) = &seen
            && entry.takes_over(root.selects.clone())
        {
            self.recount.notify_one();
        }
        let Root { generation, status: object, .. } = seen.unwrap_or_default();
        if entry.status.object != object || entry.status.site_generation != generation {
            entry.status.object = object;
            entry.status.site_generation = generation;
            self.changed.insert(work.to_owned());
        }
    }

    pub fn see_pod(&mut self, work: &str, pod: &str, summary: Option<PodSummary>) {
        let Some(entry) = self.works.get_mut(work) else { return };
        let changed = match summary {
            Some(summary) => entry.status.pods.insert(pod.to_owned(), summary.clone()) != Some(summary),
            None => entry.status.pods.remove(pod).is_some(),
        };
        if changed {
            self.changed.insert(work.to_owned());
        }
    }

    /// Replaces all that is known about pods (after a new list).
    pub fn see_pods(&mut self, mut pods: BTreeMap<String, BTreeMap<String, PodSummary>>) {
        for (name, entry) in &mut self.works {
            let pods = pods.remove(name).unwrap_or_default();
            if entry.status.pods != pods {
                entry.status.pods = pods;
                self.changed.insert(name.clone());
            }
        }
    }

    /// Up to `most` reports, each the difference to all that was sent before. In a rush of Works to apply, they gather.
    pub fn reports(&mut self, most: usize, now: Instant, rush: bool) -> Vec<Report> {
        let works = &mut self.works;
        let free = |e: &mut Entry| e.told.is_free(now, rush) && !e.recalled;
        let ready = self.changed.iter().filter(|w| works.get_mut(*w).is_none_or(free));
        let ready: Vec<String> = ready.take(most).cloned().collect();
        let mut reports = Vec::new();
        for work in ready {
            self.changed.remove(&work);
            let Some(entry) = self.works.get_mut(&work) else { continue };
            let (id, wanted) = (self.serial + 1, without_nulls(json!(entry.status)));
            let Some(patch) = entry.told.tell(wanted, id, now) else { continue };
            self.serial = id;
            reports.push(Report { work, id, patch: json!({ "status": patch }) });
        }
        reports
    }

    /// Is there a change that waits only for a moment to pass?
    pub fn resting(&self, now: Instant) -> bool {
        self.changed.iter().any(|w| self.works.get(w).is_some_and(|e| e.told.waits(now)))
    }

    /// The hub answered: with the revision at which it took the report, or (0) that it never will.
    pub fn landed(&mut self, work: &str, id: u64, revision: u64) {
        if self.works.get_mut(work).is_some_and(|e| e.told.landed(id, revision)) {
            self.changed.insert(work.to_owned());
        }
    }

    /// After a reconnect: what was under way may have arrived or not.
    pub fn reconnected(&mut self) {
        let works: Vec<String> = self.works.keys().cloned().collect();
        for work in works {
            self.unknown(&work);
        }
    }

    /// Nobody knows which of the reports under way arrive: the next one says everything.
    pub fn unknown(&mut self, work: &str) {
        if self.works.get_mut(work).is_some_and(|e| e.told.lose_sight()) {
            self.changed.insert(work.to_owned());
        }
    }
}

impl Entry {
    /// Says whether pods that are there already may be this Work's from now on, or no longer are.
    fn takes_over(&mut self, selects: Option<Selects>) -> bool {
        let news = self.selects != selects;
        self.selects = selects;
        news && self.spec.adopt
    }
}

fn revision(work: &Work) -> u64 {
    work.metadata.resource_version.as_ref().and_then(|revision| revision.parse().ok()).unwrap_or_default()
}

pub fn keys(spec: &WorkSpec) -> impl Iterator<Item = Key> + '_ {
    std::iter::once(&spec.object).chain(&spec.with).filter_map(Key::of)
}

fn set(status: &mut WorkStatus, kind: &str, (value, reason, message): (&str, String, String), now: &str) {
    let condition = Condition {
        r#type: kind.into(),
        status: value.into(),
        reason,
        message,
        last_transition_time: now.into(),
    };
    condition.set(&mut status.conditions);
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
