//! What is known to have happened to the objects of one kind, in revision order.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use super::object::{Scope, State, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// An event as a watcher must see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub version: Version,
}

/// Every version of every object since `base`. A revision names one change.
#[derive(Debug, Default)]
pub struct History {
    base: u64,
    /// Versions per key, oldest first; `None` is a deletion.
    chains: BTreeMap<String, BTreeMap<u64, Option<State>>>,
    /// Which key each revision changed.
    order: BTreeMap<u64, String>,
}

impl History {
    /// Begins with the objects that a list at `base` showed.
    pub fn new(base: u64, objects: impl IntoIterator<Item = Version>) -> Self {
        let mut history = Self { base, ..Self::default() };
        for object in objects {
            history.chains.entry(object.key).or_default().insert(object.revision, Some(object.state));
        }
        history
    }

    /// Adds a change; hearing of it twice is fine, hearing two different things is not.
    pub fn learn(&mut self, revision: u64, key: &str, state: Option<State>) -> Result<()> {
        if let Some(other) = self.order.get(&revision).filter(|other| *other != key) {
            bail!("revision {revision} names changes of two objects: {other} and {key}");
        }
        let chain = self.chains.entry(key.to_owned()).or_default();
        match chain.get(&revision) {
            Some(known) if *known != state => {
                bail!("revision {revision} of {key} is told in two ways:\n  {known:?}\n  {state:?}")
            }
            Some(_) => Ok(()),
            None if revision <= self.base => {
                bail!("revision {revision} of {key} is not newer than {}, where the round began", self.base)
            }
            None => {
                chain.insert(revision, state);
                self.order.insert(revision, key.to_owned());
                Ok(())
            }
        }
    }

    /// What the object was at this revision, with the revision it got that way.
    pub fn at(&self, key: &str, revision: u64) -> Option<(u64, &State)> {
        let (at, state) = self.chains.get(key)?.range(..=revision).next_back()?;
        state.as_ref().map(|state| (*at, state))
    }

    /// What the object was just before this revision.
    pub fn before(&self, key: &str, revision: u64) -> Option<(u64, &State)> {
        self.at(key, revision.saturating_sub(1))
    }

    /// All that the object was from this revision on; `None` is "absent".
    pub fn since(&self, key: &str, revision: u64) -> impl Iterator<Item = Option<(u64, &State)>> {
        let later = self.chains.get(key).into_iter().flat_map(move |chain| chain.range(revision + 1..));
        std::iter::once(self.at(key, revision))
            .chain(later.map(|(at, state)| state.as_ref().map(|s| (*at, s))))
    }

    /// The objects in scope at a revision, in key order.
    pub fn snapshot(&self, scope: &Scope, revision: u64) -> Vec<Version> {
        let keys = self.chains.keys();
        let versions = keys.filter_map(|key| {
            let (at, state) = self.at(key, revision)?;
            let version = || Version { key: key.clone(), revision: at, state: state.clone() };
            scope.covers(key, state).then(version)
        });
        versions.collect()
    }

    /// What a watcher of this scope sees after `start`, up to and including `end`. An object that leaves the
    /// selector is deleted for its watchers, and shown as it last was.
    pub fn events(&self, scope: &Scope, start: u64, end: u64) -> impl Iterator<Item = Event> {
        let changes = self.order.range(start + 1..end.max(start) + 1);
        changes.filter_map(move |(revision, key)| {
            let before = self.before(key, *revision).map(|(_, s)| s).filter(|s| scope.covers(key, s));
            let after = self.at(key, *revision).map(|(_, s)| s).filter(|s| scope.covers(key, s));
            let (kind, state) = match (before, after) {
                (None, None) => return None,
                (None, Some(after)) => (EventKind::Added, after),
                (Some(_), Some(after)) => (EventKind::Modified, after),
                (Some(before), None) => (EventKind::Deleted, before),
            };
            let version = Version { key: key.clone(), revision: *revision, state: state.clone() };
            Some(Event { kind, version })
        })
    }

    /// Every change: its revision and its key.
    pub fn changes(&self) -> impl Iterator<Item = (u64, &str)> {
        self.order.iter().map(|(revision, key)| (*revision, key.as_str()))
    }

    pub fn revisions(&self) -> BTreeSet<u64> {
        self.order.keys().copied().collect()
    }
}
