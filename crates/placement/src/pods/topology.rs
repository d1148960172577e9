//! Domains: the values of a node label, and how many pods of interest each holds.

use std::collections::HashMap;
use std::rc::Rc;

use super::cluster::Cluster;

/// A node without the label is in no domain.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Which domain of one label every slot is in.
#[derive(Debug)]
pub(super) struct Topology<'c> {
    /// By slot.
    domain_of: Vec<u32>,
    pub names: Vec<&'c str>,
}

/// Pods counted per domain.
#[derive(Clone, Debug)]
pub(super) struct Counts<'c> {
    pub topology: Rc<Topology<'c>>,
    pub by_domain: Vec<i64>,
}

/// The topologies of one decision, each built once.
#[derive(Default)]
pub(super) struct Topologies<'c>(HashMap<String, Rc<Topology<'c>>>);

impl<'c> Topologies<'c> {
    pub fn of(&mut self, cluster: &'c Cluster, key: &str) -> Rc<Topology<'c>> {
        if let Some(known) = self.0.get(key) {
            return known.clone();
        }
        let built = Rc::new(Topology::of(cluster, key));
        self.0.insert(key.to_owned(), built.clone());
        built
    }

    pub fn counts(&mut self, cluster: &'c Cluster, key: &str) -> Counts<'c> {
        let topology = self.of(cluster, key);
        let by_domain = vec![0; topology.names.len()];
        Counts { topology, by_domain }
    }
}

impl<'c> Topology<'c> {
    fn of(cluster: &'c Cluster, key: &str) -> Self {
        let mut ids: HashMap<&str, u32> = HashMap::new();
        let mut names = Vec::new();
        let mut domain_of = vec![NOWHERE; cluster.slot_count()];
        for (at, slot) in cluster.slots() {
            if let Some(value) = slot.node.as_ref().and_then(|node| node.labels.get(key)) {
                domain_of[at] = *ids.entry(value).or_insert_with(|| {
                    names.push(value.as_str());
                    names.len() as u32 - 1
                });
            }
        }
        Self { domain_of, names }
    }

    pub fn domain(&self, slot: usize) -> Option<usize> {
        Some(self.domain_of[slot]).filter(|id| *id != NOWHERE).map(|id| id as usize)
    }
}

impl Counts<'_> {
    /// Adds to the domain that `slot` is in.
    pub fn add(&mut self, slot: usize, count: i64) {
        if let Some(domain) = self.topology.domain(slot) {
            self.by_domain[domain] += count;
        }
    }

    /// The count of the domain that `slot` is in; `None` when it is in none.
    pub fn at(&self, slot: usize) -> Option<i64> {
        self.topology.domain(slot).map(|domain| self.by_domain[domain])
    }
}
