//! The snapshot that pods are scheduled against, kept up to date one change at a time.
//!
//! Pods with equal labels, and pods with equal affinity, are counted together per node. A decision then
//! looks at every *kind* of pod once instead of at every pod, which is what makes affinity and spreading
//! affordable with thousands of replicas.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::types::{Affinity, NodeView, PodView};
use crate::{Labels, Resources};

/// Nodes, the pods on them, and namespaces. Changes cost the size of what changed, not of the cluster.
/// Cloning is for hypothetical changes; pods are shared between clones.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    by_name: HashMap<String, usize>,
    /// Pod key to slot.
    pods: HashMap<String, usize>,
    /// By namespace, then by labels.
    kinds: HashMap<String, HashMap<Labels, Kind>>,
    /// Pods per slot by what they want of other pods.
    affinities: HashMap<Arc<Affinity>, HashMap<usize, u32>>,
    namespaces: HashMap<String, Labels>,
    nodes: usize,
    /// On how many nodes each image is.
    image_nodes: HashMap<String, u32>,
}

/// A node with what is on it. `node` is absent while pods are known to be on a node that is not (yet, or
/// any longer) known itself: watches of pods and nodes are not ordered between each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub name: String,
    pub node: Option<NodeView>,
    pub used: Resources,
    /// Like `used`, with the usual minimum for pods that ask for nothing; only for scores.
    pub weighed: Resources,
    pub pods: HashMap<String, Arc<PodView>>,
}

/// Pods of one namespace with the same labels: how many per slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Kind {
    /// Those that stay.
    pub live: HashMap<usize, u32>,
    /// Those being deleted.
    pub terminating: HashMap<usize, u32>,
}

impl Cluster {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node or replaces what is known of it.
    pub fn set_node(&mut self, node: NodeView) {
        let slot = self.slot_for(&node.name);
        for image in node.images.keys() {
            *self.image_nodes.entry(image.clone()).or_default() += 1;
        }
        match self.slots[slot].node.replace(node) {
            Some(old) => self.forget_images(&old),
            None => self.nodes += 1,
        }
    }

    /// Removes a node. Its pods are remembered until they are removed themselves.
    pub fn remove_node(&mut self, name: &str) {
        let Some(&slot) = self.by_name.get(name) else { return };
        if let Some(old) = self.slots[slot].node.take() {
            self.nodes -= 1;
            self.forget_images(&old);
        }
        self.free_if_empty(slot);
    }

    /// Takes over the present state of a pod. Pods that are on no node, or finished, use nothing and are
    /// forgotten.
    pub fn set_pod(&mut self, pod: impl Into<Arc<PodView>>) {
        let pod = pod.into();
        let key = pod.key();
        self.remove_pod(&key);
        let Some(node) = pod.node.as_deref().filter(|_| !pod.finished) else { return };
        let slot = self.slot_for(node);
        self.count(slot, &pod, 1);
        self.slots[slot].pods.insert(key.clone(), pod);
        self.pods.insert(key, slot);
    }

    /// Forgets a pod by its key (`namespace/name`) and returns it; also how an [`assume`](Self::assume)d
    /// pod whose binding failed is taken back.
    pub fn remove_pod(&mut self, key: &str) -> Option<Arc<PodView>> {
        let slot = self.pods.remove(key)?;
        let pod = self.slots[slot].pods.remove(key)?;
        self.count(slot, &pod, -1);
        self.free_if_empty(slot);
        Some(pod)
    }

    /// Counts a pod as being on `node` before its binding is seen, so that the next decision takes it into
    /// account. The pod's own update later replaces this.
    pub fn assume(&mut self, pod: &PodView, node: &str) {
        self.set_pod(PodView { node: Some(node.to_owned()), ..pod.clone() });
    }

    pub fn set_namespace(&mut self, name: &str, labels: Labels) {
        self.namespaces.insert(name.to_owned(), labels);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// How many pods are counted on nodes.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.slots[*self.by_name.get(name)?].node.as_ref()
    }

    /// The node a pod is counted on.
    pub fn node_of(&self, pod_key: &str) -> Option<&str> {
        self.pods.get(pod_key).map(|slot| self.slots[*slot].name.as_str())
    }

    /// What is left on a node; negative where it is overcommitted.
    pub fn free(&self, node: &str) -> Option<Resources> {
        let slot = &self.slots[*self.by_name.get(node)?];
        let mut free = slot.node.as_ref()?.allocatable.clone();
        free.sub(&slot.used);
        Some(free)
    }

    /// All nodes, for summaries such as a site's report of what fits where.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.slots.iter().filter_map(|slot| slot.node.as_ref())
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.node.is_some())
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slot(&self, at: usize) -> &Slot {
        &self.slots[at]
    }

    pub(super) fn slot_of(&self, node: &str) -> Option<usize> {
        self.by_name.get(node).copied()
    }

    pub(super) fn kinds_in(&self, namespace: &str) -> impl Iterator<Item = (&Labels, &Kind)> {
        self.kinds.get(namespace).into_iter().flatten()
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = (&str, &Labels, &Kind)> {
        self.kinds.iter().flat_map(|(namespace, kinds)| {
            kinds.iter().map(move |(labels, kind)| (namespace.as_str(), labels, kind))
        })
    }

    pub(super) fn affinities(&self) -> impl Iterator<Item = (&Affinity, &HashMap<usize, u32>)> {
        self.affinities.iter().map(|(affinity, slots)| (affinity.as_ref(), slots))
    }

    pub(super) fn namespace_labels(&self, name: &str) -> &Labels {
        static NONE: Labels = Labels::new();
        self.namespaces.get(name).unwrap_or(&NONE)
    }

    pub(super) fn nodes_with_image(&self, image: &str) -> u32 {
        self.image_nodes.get(image).copied().unwrap_or(0)
    }

    fn slot_for(&mut self, name: &str) -> usize {
        if let Some(&slot) = self.by_name.get(name) {
            return slot;
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[slot] = Slot { name: name.to_owned(), ..Slot::default() };
        self.by_name.insert(name.to_owned(), slot);
        slot
    }

    fn free_if_empty(&mut self, slot: usize) {
        if self.slots[slot].node.is_none() && self.slots[slot].pods.is_empty() {
            let name = std::mem::take(&mut self.slots[slot].name);
            self.by_name.remove(&name);
            self.free_slots.push(slot);
        }
    }

    fn forget_images(&mut self, node: &NodeView) {
        for image in node.images.keys() {
            change(&mut self.image_nodes, image.clone(), -1);
        }
    }

    fn count(&mut self, at: usize, pod: &PodView, by: i32) {
        let slot = &mut self.slots[at];
        let weighed = weighed(&pod.requests);
        if by > 0 {
            slot.used.add(&pod.requests);
            slot.weighed.add(&weighed);
        } else {
            slot.used.sub(&pod.requests);
            slot.weighed.sub(&weighed);
        }
        if !self.kinds.contains_key(&pod.namespace) {
            self.kinds.insert(pod.namespace.clone(), HashMap::new());
        }
        if let Some(kinds) = self.kinds.get_mut(&pod.namespace) {
            if !kinds.contains_key(&pod.labels) {
                kinds.insert(pod.labels.clone(), Kind::default());
            }
            if let Some(kind) = kinds.get_mut(&pod.labels) {
                change(if pod.terminating { &mut kind.terminating } else { &mut kind.live }, at, by);
                if kind.live.is_empty() && kind.terminating.is_empty() {
                    kinds.remove(&pod.labels);
                }
            }
            if kinds.is_empty() {
                self.kinds.remove(&pod.namespace);
            }
        }
        if !pod.affinity.is_empty() {
            let slots = self.affinities.entry(pod.affinity.clone()).or_default();
            change(slots, at, by);
            if slots.is_empty() {
                self.affinities.remove(&pod.affinity);
            }
        }
    }
}

/// A pod that asks for nothing still weighs something when nodes are compared: 100m and 200 MB.
pub(super) fn weighed(requests: &Resources) -> Resources {
    let or = |value: i64, minimum: i64| if value == 0 { minimum } else { value };
    Resources::replica(or(requests.cpu, 100), or(requests.memory, 200 << 20))
}

/// Changes a count; counts that reach zero are dropped, so that maps do not grow with history.
fn change<K: Hash + Eq + Clone>(counts: &mut HashMap<K, u32>, key: K, by: i32) {
    let count = counts.entry(key.clone()).or_default();
    *count = count.saturating_add_signed(by);
    if *count == 0 {
        counts.remove(&key);
    }
}
