//! What sites cannot schedule, since when, and where it gets no more for a while. A site's numbers may say that something fits; the
//! site knows better.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;
use tombolo_api::names;

use crate::index::WorkId;
use crate::kept::Kept;
use crate::object::{Key, annotation, text};

/// Seconds after which pods that a site cannot schedule belong elsewhere: they may only wait for others to end.
pub const STUCK: i64 = 10;
/// Seconds for which a site then gets no more of them.
const SHUN: i64 = 600;

#[derive(Debug, Default)]
pub struct Stuck {
    waiting: HashMap<WorkId, Waiting>,
    /// Where a root gets no more replicas.
    shunned: HashMap<Key, BTreeMap<String, Shunned>>,
}

#[derive(Debug)]
struct Waiting {
    since: i64,
    /// What the site was last given.
    replicas: Option<i64>,
}

#[derive(Debug)]
struct Shunned {
    until: i64,
    /// Of the root: another one of that name has done nothing.
    uid: String,
    /// What the site was given and could not schedule. If it does after all, it is as good as before.
    replicas: usize,
}

impl Stuck {
    /// The Works of a root as they are now. What was stuck for long gets no more there for a while.
    pub fn note(&mut self, key: &Key, uid: &str, works: &BTreeMap<WorkId, Arc<Kept>>, now: i64) {
        for (id, work) in works {
            if work.unschedulable() == 0 {
                self.waiting.remove(id);
                continue;
            }
            let new = || Waiting { since: now, replicas: work.replicas };
            let waiting = self.waiting.entry(id.clone()).or_insert_with(new);
            // Some were taken away: the site has yet to let go of them, and they are those that wait.
            if work.replicas < waiting.replicas {
                waiting.since = now;
            }
            waiting.replicas = work.replicas;
            if now - waiting.since >= STUCK {
                let replicas = work.replicas.and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
                let (until, uid) = (now + SHUN, work.root.uid.clone());
                let shunned = Shunned { until, uid, replicas };
                self.shunned.entry(key.clone()).or_default().insert(id.0.clone(), shunned);
            }
        }
        let Some(shunned) = self.shunned.get_mut(key) else { return };
        let scheduled = |site: &str| {
            let at = works.iter().filter(|((at, _), _)| at == site);
            at.map(|(_, work)| work.scheduled()).sum::<usize>()
        };
        shunned.retain(|site, shun| shun.until > now && shun.uid == uid && scheduled(site) < shun.replicas);
        if shunned.is_empty() {
            self.shunned.remove(key);
        }
    }

    pub fn forget_work(&mut self, id: &WorkId) {
        self.waiting.remove(id);
    }

    /// The root is gone, and its Works with it.
    pub fn forget_root(&mut self, key: &Key) {
        self.shunned.remove(key);
    }

    pub fn count(&self, id: &WorkId, work: &Kept, now: i64) -> usize {
        let long = self.waiting.get(id).is_some_and(|waiting| now - waiting.since >= STUCK);
        if long { work.unschedulable() } else { 0 }
    }

    /// Sites that get no more replicas of a root for now.
    pub fn shunned(&self, key: &Key) -> impl Iterator<Item = &String> {
        self.shunned.get(key).into_iter().flat_map(BTreeMap::keys)
    }

    /// When the first of these sites is as good as before.
    pub fn over_at(&self, key: &Key) -> Option<i64> {
        self.shunned.get(key).into_iter().flat_map(BTreeMap::values).map(|shun| shun.until).min()
    }

    /// What the hub knows of a root, as it is written on it: the names of sites, with commas between.
    pub fn written(&self, key: &Key) -> Option<String> {
        let sites: Vec<&str> = self.shunned(key).map(String::as_str).collect();
        (!sites.is_empty()).then(|| sites.join(","))
    }

    /// Takes up again what the hub that led before wrote on a root ([`Stuck::written`]), with a whole rest from `now` on: how much
    /// of the first one is over is not written there, and a longer one does no harm.
    pub fn recall(&mut self, key: &Key, root: &Value, now: i64) {
        let sites = annotation(root, names::SHUNNED_ANNOTATION).split(',').filter(|site| !site.is_empty());
        for site in sites {
            let uid = text(root, "/metadata/uid").to_owned();
            // How many it could not schedule is not known either: only time makes it as good as before.
            let shunned = Shunned { until: now + SHUN, uid, replicas: usize::MAX };
            self.shunned.entry(key.clone()).or_default().entry(site.to_owned()).or_insert(shunned);
        }
    }

    /// When the first of these will have waited long enough.
    pub fn due<'a>(&self, works: impl Iterator<Item = &'a WorkId>) -> Option<i64> {
        works.filter_map(|id| self.waiting.get(id)).map(|waiting| waiting.since + STUCK).min()
    }
}

#[cfg(test)]
#[path = "stuck_tests.rs"]
mod tests;
