//! One pod, one decision.

use std::collections::BTreeMap;
use std::fmt;

use super::cluster::Cluster;
use super::filters::{Why, filters};
use super::scores::scores;
use super::state::State;
use super::types::PodView;
use crate::amount;
use crate::pipeline::{self, Filter};

#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Node(Choice),
    /// No node can take the pod now.
    None(Unschedulable),
}

/// The node a pod goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub node: String,
    /// 0 to 10,000.
    pub score: i64,
    /// How many nodes could have taken it.
    pub feasible: usize,
    pub nodes: usize,
}

/// Why no node can take a pod; `Display` is the message of the `FailedScheduling` event.
#[derive(Clone, Debug, PartialEq)]
pub struct Unschedulable {
    /// How many nodes there are.
    pub nodes: usize,
    /// Reasons that have nothing to do with nodes; when there are any, `per_node` is empty.
    pub blocked: Vec<String>,
    /// Every node by name, with all that its first failing condition has to say.
    pub per_node: Vec<(String, Vec<Why>)>,
}

/// Chooses a node for a pod. Depends on nothing but its arguments.
pub fn schedule(cluster: &Cluster, pod: &PodView) -> Decision {
    let nodes = cluster.node_count();
    if !pod.blocked.is_empty() {
        let blocked = pod.blocked.clone();
        return Decision::None(Unschedulable { nodes, blocked, per_node: Vec::new() });
    }
    let state = State::new(cluster, pod);
    let survey = pipeline::survey(&state, state.candidates(), &filters(), &scores(&state));
    match survey.best(|candidate| candidate.node.name.as_str()) {
        Some(best) => Decision::Node(Choice {
            node: best.candidate.node.name.clone(),
            score: best.score,
            feasible: survey.feasible.len(),
            nodes,
        }),
        None => {
            let refused = survey.refused.into_iter();
            let mut per_node: Vec<_> = refused.map(|(c, why)| (c.node.name.clone(), why)).collect();
            per_node.sort();
            Decision::None(Unschedulable { nodes, blocked: Vec::new(), per_node })
        }
    }
}

/// Why `pod` cannot be on `node`, or nothing when it can; unlike [`schedule`] it looks at one node only.
/// For DaemonSets, and for checking again before a late binding.
pub fn check(cluster: &Cluster, pod: &PodView, node: &str) -> Result<(), Vec<Why>> {
    let state = State::new(cluster, pod);
    match state.candidate(node) {
        Some(candidate) => Filter::all(&filters(), &state, &candidate),
        None => Err(vec![Why::OtherNode]),
    }
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes are available", self.nodes)?;
        let reasons = if self.blocked.is_empty() { self.tally() } else { self.blocked.clone() };
        if reasons.is_empty() { f.write_str(".") } else { write!(f, ": {}.", reasons.join(", ")) }
    }
}

impl Unschedulable {
    /// Reasons with the number of nodes they hold for. Shortages are told as one line per resource, with
    /// the most that any of those nodes has free.
    fn tally(&self) -> Vec<String> {
        let mut plain: BTreeMap<String, usize> = BTreeMap::new();
        let mut short: BTreeMap<&str, (usize, i64, i64)> = BTreeMap::new();
        for why in self.per_node.iter().flat_map(|(_, whys)| whys) {
            match why {
                Why::Insufficient(shortage) if &*shortage.name != "pods" => {
                    let entry = short.entry(&shortage.name).or_insert((0, shortage.asked, i64::MIN));
                    entry.0 += 1;
                    entry.2 = entry.2.max(shortage.free);
                }
                // Domains differ from node to node; the sum is told per constraint.
                Why::Spread { key, max_skew, .. } => {
                    let text = "node(s) didn't match pod topology spread constraints";
                    *plain.entry(format!("{text} ({key}, max skew {max_skew})")).or_default() += 1;
                }
                why => *plain.entry(why.to_string()).or_default() += 1,
            }
        }
        let plain = plain.into_iter().map(|(text, nodes)| format!("{nodes} {text}"));
        let short = short.into_iter().map(|(name, (nodes, asked, free))| {
            let (asked, free) = (amount(name, asked), amount(name, free.max(0)));
            let most = if nodes == 1 { "" } else { "most " };
            format!("{nodes} Insufficient {name} (asked {asked}, {most}free {free})")
        });
        let mut all: Vec<_> = plain.chain(short).collect();
        all.sort();
        all
    }
}
