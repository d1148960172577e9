//! Everything about one pod that is the same for every node, worked out once per decision.

use std::rc::Rc;

use super::cluster::{Cluster, Slot, weighed};
use super::topology::{Counts, Topologies};
use super::types::{NodeView, PodTerm, PodView, SpreadConstraint, selects};
use crate::{Effect, Labels, Requirement, Resources, Taint, Toleration, untolerated};

/// A node that the pod might go to.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'c> {
    pub at: usize,
    pub slot: &'c Slot,
    pub node: &'c NodeView,
}

pub(super) struct State<'c> {
    pub cluster: &'c Cluster,
    pub pod: &'c PodView,
    /// The pod's request as scores weigh it.
    pub weighed: Resources,
    pub tolerates_unschedulable: bool,
    pub hard_spread: Vec<HardSpread<'c>>,
    pub soft_spread: Vec<SoftSpread<'c>>,
    /// One per term the pod must be near to.
    pub near: Vec<Counts<'c>>,
    /// Nothing matches those terms yet but the pod itself does: it may be the first of its kind.
    pub first_of_its_kind: bool,
    /// One per term the pod must be apart from.
    pub apart: Vec<Counts<'c>>,
    /// Pods that want to be apart from this one, per topology key.
    pub kept_out: Vec<Counts<'c>>,
    /// Preferences of this pod about others and of others about it, per topology key.
    pub pulls: Vec<Counts<'c>>,
}

pub(super) struct HardSpread<'c> {
    pub constraint: &'c SpreadConstraint,
    pub counts: Counts<'c>,
    /// The smallest count among the domains that take part.
    pub fewest: i64,
    /// 1 when the pod counts towards its own constraint.
    pub own: i64,
}

pub(super) struct SoftSpread<'c> {
    pub counts: SoftCounts<'c>,
    pub max_skew: i64,
    /// Grows with the number of domains, so that few large domains are not drowned by many small ones.
    pub weight: f64,
    /// What a node in no domain counts as having.
    pub nowhere: i64,
}

pub(super) enum SoftCounts<'c> {
    /// By slot: the topology is the node itself.
    PerNode(Vec<u32>),
    PerDomain(Counts<'c>),
}

const ZONE: &str = "topology.kubernetes.io/zone";

impl<'c> State<'c> {
    pub fn new(cluster: &'c Cluster, pod: &'c PodView) -> Self {
        let mut topologies = Topologies::default();
        let mut state = State {
            cluster,
            pod,
            weighed: weighed(&pod.requests),
            tolerates_unschedulable: tolerates_unschedulable(&pod.tolerations),
            hard_spread: Vec::new(),
            soft_spread: Vec::new(),
            near: Vec::new(),
            first_of_its_kind: false,
            apart: Vec::new(),
            kept_out: Vec::new(),
            pulls: Vec::new(),
        };
        state.count_spread(&mut topologies);
        state.count_own_terms(&mut topologies);
        state.count_terms_of_others(&mut topologies);
        state
    }

    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'c>> + use<'c> {
        self.cluster.slots().filter_map(|(at, slot)| Some(Candidate { at, slot, node: slot.node.as_ref()? }))
    }

    pub fn candidate(&self, node: &str) -> Option<Candidate<'c>> {
        let at = self.cluster.slot_of(node)?;
        let slot = self.cluster.slot(at);
        Some(Candidate { at, slot, node: slot.node.as_ref()? })
    }

    fn count_spread(&mut self, topologies: &mut Topologies<'c>) {
        let (cluster, pod) = (self.cluster, self.pod);
        let mut keys_of = |required: bool| -> Vec<Rc<_>> {
            let wanted = pod.spread.iter().filter(|c| c.required == required);
            wanted.map(|c| topologies.of(cluster, &c.topology_key)).collect()
        };
        let (hard_keys, soft_keys) = (keys_of(true), keys_of(false));
        for constraint in &pod.spread {
            let keys = if constraint.required { &hard_keys } else { &soft_keys };
            let matching = self.matching(constraint.selector.as_deref());
            let mut counts = topologies.counts(cluster, &constraint.topology_key);
            let mut takes_part = vec![false; counts.by_domain.len()];
            for candidate in self.candidates() {
                let at = candidate.at;
                if keys.iter().any(|topology| topology.domain(at).is_none())
                    || !includes(constraint, pod, candidate.node)
                {
                    continue;
                }
                counts.add(at, i64::from(matching[at]));
                if let Some(domain) = counts.topology.domain(at) {
                    takes_part[domain] = true;
                }
            }
            let domains = takes_part.iter().filter(|part| **part).count();
            if constraint.required {
                let present = counts.by_domain.iter().zip(&takes_part).filter(|(_, part)| **part);
                let fewest = present.map(|(count, _)| *count).min().unwrap_or(0);
                let enough = domains as i64 >= constraint.min_domains;
                let own = constraint.selector.as_ref().is_some_and(|all| selects(all, &pod.labels));
                let fewest = if enough { fewest } else { 0 };
                self.hard_spread.push(HardSpread { constraint, counts, fewest, own: i64::from(own) });
            } else {
                let nowhere = counts.by_domain.iter().copied().max().unwrap_or(0);
                self.soft_spread.push(SoftSpread {
                    counts: SoftCounts::PerDomain(counts),
                    max_skew: constraint.max_skew,
                    weight: domain_weight(domains),
                    nowhere,
                });
            }
        }
        if pod.spread.is_empty() {
            self.count_siblings(topologies);
        }
    }

    /// Without constraints of its own, a controller's pods are spread over nodes and zones.
    fn count_siblings(&mut self, topologies: &mut Topologies<'c>) {
        let Some(siblings) = &self.pod.siblings else { return };
        let matching = self.matching(Some(siblings));
        let mut zones = topologies.counts(self.cluster, ZONE);
        for (at, count) in matching.iter().enumerate().filter(|(_, count)| **count > 0) {
            zones.add(at, i64::from(*count));
        }
        let (nodes, weight) = (self.cluster.node_count(), domain_weight(zones.by_domain.len()));
        self.soft_spread.push(SoftSpread {
            counts: SoftCounts::PerNode(matching),
            max_skew: 3,
            weight: domain_weight(nodes),
            nowhere: 0,
        });
        let counts = SoftCounts::PerDomain(zones);
        self.soft_spread.push(SoftSpread { counts, max_skew: 5, weight, nowhere: 0 });
    }

    /// Pods per slot that stay and are selected, in the pod's own namespace.
    fn matching(&self, selector: Option<&[Requirement]>) -> Vec<u32> {
        let mut per_slot = vec![0; self.cluster.slot_count()];
        // As in Kubernetes, a selector without conditions counts nobody.
        let Some(selector) = selector.filter(|all| !all.is_empty()) else { return per_slot };
        for (labels, kind) in self.cluster.kinds_in(&self.pod.namespace) {
            if selects(selector, labels) {
                kind.live.iter().for_each(|(at, count)| per_slot[*at] += count);
            }
        }
        per_slot
    }

    fn count_own_terms(&mut self, topologies: &mut Topologies<'c>) {
        let (cluster, pod) = (self.cluster, self.pod);
        let affinity = &pod.affinity;
        if affinity.is_empty() {
            return;
        }
        let mut counts = |term: &PodTerm| topologies.counts(cluster, &term.topology_key);
        self.near = affinity.near.iter().map(&mut counts).collect();
        self.apart = affinity.apart.iter().map(&mut counts).collect();
        let mut pulls: Vec<_> = affinity.preferred.iter().map(|(_, term)| counts(term)).collect();
        let mut any_near = false;
        for (namespace, labels, kind) in cluster.kinds() {
            let means = |term: &PodTerm| term.matches(namespace, cluster.namespace_labels(namespace), labels);
            let near = !affinity.near.is_empty() && affinity.near.iter().all(means);
            let apart: Vec<bool> = affinity.apart.iter().map(means).collect();
            let pulled: Vec<bool> = affinity.preferred.iter().map(|(_, term)| means(term)).collect();
            for (at, count) in kind.live.iter().chain(&kind.terminating) {
                let count = i64::from(*count);
                if near {
                    self.near.iter_mut().for_each(|counts| {
                        any_near |= counts.topology.domain(*at).is_some();
                        counts.add(*at, count);
                    });
                }
                add_where(&mut self.apart, &apart, |_| (*at, count));
                add_where(&mut pulls, &pulled, |term| (*at, count * affinity.preferred[term].0));
            }
        }
        self.pulls = pulls;
        let own_labels = cluster.namespace_labels(&pod.namespace);
        let matches_itself = affinity.near.iter().all(|t| t.matches(&pod.namespace, own_labels, &pod.labels));
        self.first_of_its_kind = !any_near && matches_itself;
    }

    fn count_terms_of_others(&mut self, topologies: &mut Topologies<'c>) {
        let (cluster, pod) = (self.cluster, self.pod);
        let namespace_labels: &Labels = cluster.namespace_labels(&pod.namespace);
        let means = |term: &PodTerm| term.matches(&pod.namespace, namespace_labels, &pod.labels);
        for (affinity, slots) in cluster.affinities() {
            let mut add = |list: &mut Vec<Counts<'c>>, term: &PodTerm, weight: i64| {
                let mut counts = topologies.counts(cluster, &term.topology_key);
                slots.iter().for_each(|(at, count)| counts.add(*at, i64::from(*count) * weight));
                merge(list, counts);
            };
            for term in affinity.apart.iter().filter(|term| means(term)) {
                add(&mut self.kept_out, term, 1);
            }
            // A pod that must be near this one pulls it a little, as a preference of weight 1 would.
            for term in affinity.near.iter().filter(|term| means(term)) {
                add(&mut self.pulls, term, 1);
            }
            for (weight, term) in affinity.preferred.iter().filter(|(_, term)| means(term)) {
                add(&mut self.pulls, term, *weight);
            }
        }
    }
}

/// One set of counts per topology, however many terms there are.
fn merge<'c>(list: &mut Vec<Counts<'c>>, counts: Counts<'c>) {
    match list.iter_mut().find(|known| Rc::ptr_eq(&known.topology, &counts.topology)) {
        Some(known) => known.by_domain.iter_mut().zip(&counts.by_domain).for_each(|(sum, n)| *sum += n),
        None => list.push(counts),
    }
}

fn add_where(list: &mut [Counts<'_>], chosen: &[bool], what: impl Fn(usize) -> (usize, i64)) {
    for (term, counts) in list.iter_mut().enumerate().filter(|(term, _)| chosen[*term]) {
        let (at, count) = what(term);
        counts.add(at, count);
    }
}

/// Whether a node takes part in a spread constraint of the pod.
fn includes(constraint: &SpreadConstraint, pod: &PodView, node: &NodeView) -> bool {
    (!constraint.honor_affinity || pod.admits(node))
        && (!constraint.honor_taints || untolerated(&node.taints, &pod.tolerations, &REPELLING).is_none())
}

/// The effects that keep a pod out.
pub(super) const REPELLING: [Effect; 2] = [Effect::NoSchedule, Effect::NoExecute];

fn domain_weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

fn tolerates_unschedulable(tolerations: &[Toleration]) -> bool {
    let cordoned = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        value: String::new(),
        effect: Effect::NoSchedule,
    };
    tolerations.iter().any(|toleration| toleration.tolerates(&cordoned))
}
