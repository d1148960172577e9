//! The conditions a node must meet, in the order in which they are asked.

use std::fmt;

use super::state::{Candidate, REPELLING, State};
use super::types::HostPort;
use crate::pipeline::Filter;
use crate::{Shortage, Taint, untolerated};

/// Why a pod cannot go to a node. `Display` uses the words of the upstream scheduler, which people and
/// tools look for, and adds numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    Cordoned,
    OtherNode,
    Taint {
        key: String,
        value: String,
    },
    NodeAffinity,
    Port(HostPort),
    Insufficient(Shortage),
    VolumeAffinity,
    /// The node lacks the label of a spread constraint.
    SpreadLabel {
        key: String,
    },
    Spread {
        key: String,
        domain: String,
        has: i64,
        fewest: i64,
        max_skew: i64,
    },
    Near,
    Apart,
    /// A pod that is there wants to be apart from this one.
    KeptOut,
}

impl Why {
    /// Whether removing pods from the node could help.
    pub fn curable(&self) -> bool {
        use Why::{Apart, Insufficient, KeptOut, Port, Spread};
        matches!(self, Port(_) | Insufficient(_) | Spread { .. } | Apart | KeptOut)
    }
}

type Refusal = Vec<Why>;
type NodeFilter<'c> = Filter<State<'c>, Candidate<'c>, Refusal>;

pub(super) fn filters<'c>() -> [NodeFilter<'c>; 9] {
    [
        Filter(cordon),
        Filter(node_name),
        Filter(taints),
        Filter(node_affinity),
        Filter(ports),
        Filter(resources),
        Filter(volumes),
        Filter(spread),
        Filter(other_pods),
    ]
}

fn cordon(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    refuse_if(candidate.node.unschedulable && !state.tolerates_unschedulable, || Why::Cordoned)
}

fn node_name(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    let other = state.pod.node.as_ref().is_some_and(|name| *name != candidate.node.name);
    refuse_if(other, || Why::OtherNode)
}

fn taints(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    match untolerated(&candidate.node.taints, &state.pod.tolerations, &REPELLING) {
        None => Ok(()),
        Some(Taint { key, value, .. }) => Err(vec![Why::Taint { key: key.clone(), value: value.clone() }]),
    }
}

fn node_affinity(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    refuse_if(!state.pod.admits(candidate.node), || Why::NodeAffinity)
}

fn ports(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    if state.pod.host_ports.is_empty() {
        return Ok(());
    }
    let taken = |wanted: &&HostPort| {
        let mut there = candidate.slot.pods.values().flat_map(|pod| &pod.host_ports);
        there.any(|port| port.conflicts(wanted))
    };
    match state.pod.host_ports.iter().find(taken) {
        Some(port) => Err(vec![Why::Port(port.clone())]),
        None => Ok(()),
    }
}

fn resources(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    let (all, used, asked) = (&candidate.node.allocatable, &candidate.slot.used, &state.pod.requests);
    let fits = |all: i64, used: i64, asked: i64| asked <= 0 || asked <= all - used;
    if fits(all.cpu, used.cpu, asked.cpu)
        && fits(all.memory, used.memory, asked.memory)
        && fits(all.storage, used.storage, asked.storage)
        && fits(all.pods, used.pods, asked.pods)
        && asked.extended_iter().all(|(name, asked)| fits(all.extended(name), used.extended(name), asked))
    {
        return Ok(());
    }
    let mut free = all.clone();
    free.sub(used);
    Err(free.shortages(asked).into_iter().map(Why::Insufficient).collect())
}

fn volumes(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    let reachable =
        state.pod.volumes.iter().all(|terms| terms.iter().any(|term| term.matches(candidate.node)));
    refuse_if(!reachable, || Why::VolumeAffinity)
}

fn spread(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    for spread in &state.hard_spread {
        let (constraint, counts) = (spread.constraint, &spread.counts);
        let Some(domain) = counts.topology.domain(candidate.at) else {
            return Err(vec![Why::SpreadLabel { key: constraint.topology_key.clone() }]);
        };
        let has = counts.by_domain[domain];
        if has + spread.own - spread.fewest > constraint.max_skew {
            return Err(vec![Why::Spread {
                key: constraint.topology_key.clone(),
                domain: counts.topology.names[domain].to_owned(),
                has,
                fewest: spread.fewest,
                max_skew: constraint.max_skew,
            }]);
        }
    }
    Ok(())
}

fn other_pods(state: &State, candidate: &Candidate) -> Result<(), Refusal> {
    let at = candidate.at;
    let in_place = |counts: &super::topology::Counts| match counts.at(at) {
        None => false,
        Some(count) => count > 0 || state.first_of_its_kind,
    };
    refuse_if(!state.near.iter().all(in_place), || Why::Near)?;
    let present = |counts: &super::topology::Counts| counts.at(at).is_some_and(|count| count > 0);
    refuse_if(state.apart.iter().any(present), || Why::Apart)?;
    refuse_if(state.kept_out.iter().any(present), || Why::KeptOut)
}

fn refuse_if(refused: bool, why: impl FnOnce() -> Why) -> Result<(), Refusal> {
    if refused { Err(vec![why()]) } else { Ok(()) }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Cordoned => f.write_str("node(s) were unschedulable"),
            Why::OtherNode => f.write_str("node(s) didn't match the requested node name"),
            Why::Taint { key, value } => write!(f, "node(s) had untolerated taint {{{key}: {value}}}"),
            Why::NodeAffinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Why::Port(HostPort { port, protocol, .. }) => {
                write!(f, "node(s) didn't have free ports for the requested pod ports ({port}/{protocol})")
            }
            Why::Insufficient(short) if &*short.name == "pods" => f.write_str("Too many pods"),
            Why::Insufficient(short) => write!(f, "Insufficient {short}"),
            Why::VolumeAffinity => f.write_str("node(s) didn't match PersistentVolume's node affinity"),
            Why::SpreadLabel { key } => {
                write!(
                    f,
                    "node(s) didn't match pod topology spread constraints (missing required label) {key}"
                )
            }
            Why::Spread { key, domain, has, fewest, max_skew } => write!(
                f,
                "node(s) didn't match pod topology spread constraints \
                 ({key} {domain} has {has}, fewest {fewest}, max skew {max_skew})"
            ),
            Why::Near => f.write_str("node(s) didn't match pod affinity rules"),
            Why::Apart => f.write_str("node(s) didn't match pod anti-affinity rules"),
            Why::KeptOut => f.write_str("node(s) didn't satisfy existing pods anti-affinity rules"),
        }
    }
}
