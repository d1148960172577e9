//! Which of the possible nodes is best: the opinions and weights of the upstream default profile.

use super::state::{Candidate, SoftCounts, State};
use crate::pipeline::{Scale, Score};
use crate::{Effect, untolerated};

type NodeScore<'c> = Score<State<'c>, Candidate<'c>>;

/// The scores that can tell nodes apart for this pod; the others would give all nodes the same.
pub(super) fn scores<'c>(state: &State<'c>) -> Vec<NodeScore<'c>> {
    let mut scores: Vec<NodeScore<'c>> = vec![
        Score { weight: 3, raw: unwanted_taints, scale: Scale::Low },
        Score { weight: 1, raw: least_allocated, scale: Scale::Percent },
        Score { weight: 1, raw: balanced, scale: Scale::Percent },
        Score { weight: 1, raw: images, scale: Scale::Percent },
    ];
    if !state.pod.preferred_nodes.is_empty() {
        scores.push(Score { weight: 2, raw: preferred_nodes, scale: Scale::High });
    }
    if !state.soft_spread.is_empty() {
        scores.push(Score { weight: 2, raw: spread, scale: Scale::Low });
    }
    if !state.pulls.is_empty() {
        scores.push(Score { weight: 2, raw: pulls, scale: Scale::Span });
    }
    scores
}

fn unwanted_taints(state: &State, candidate: &Candidate) -> i64 {
    let unwanted = |taint| {
        let one = std::slice::from_ref(taint);
        untolerated(one, &state.pod.tolerations, &[Effect::PreferNoSchedule]).is_some()
    };
    candidate.node.taints.iter().filter(|taint| unwanted(taint)).count() as i64
}

fn preferred_nodes(state: &State, candidate: &Candidate) -> i64 {
    let met = state.pod.preferred_nodes.iter().filter(|(_, term)| term.matches(candidate.node));
    met.map(|(weight, _)| weight).sum()
}

/// Used after placing, in thousandths of what there is, for cpu and memory.
fn used_share(state: &State, candidate: &Candidate) -> [i64; 2] {
    let share = |all: i64, used: i64, asked: i64| match all {
        ..=0 => 1000,
        all => ((i128::from(used) + i128::from(asked)) * 1000 / i128::from(all)).clamp(0, 1000) as i64,
    };
    let (all, used) = (&candidate.node.allocatable, &candidate.slot.weighed);
    [share(all.cpu, used.cpu, state.weighed.cpu), share(all.memory, used.memory, state.weighed.memory)]
}

fn least_allocated(state: &State, candidate: &Candidate) -> i64 {
    let [cpu, memory] = used_share(state, candidate);
    (2000 - cpu - memory) / 20
}

/// Best where cpu and memory are used up alike.
fn balanced(state: &State, candidate: &Candidate) -> i64 {
    let [cpu, memory] = used_share(state, candidate);
    100 - (cpu - memory).abs() / 20
}

/// Nodes that have the images already, less so for an image that few nodes have: otherwise a new image
/// would draw everything to the one node that happened to get it first.
fn images(state: &State, candidate: &Candidate) -> i64 {
    const LEAST: i64 = 23 << 20;
    const MOST_PER_IMAGE: i64 = 1000 << 20;
    if candidate.node.images.is_empty() {
        return 0;
    }
    let nodes = state.cluster.node_count().max(1) as i128;
    let present = |image: &String| {
        let size = *candidate.node.images.get(image)?;
        let spread = i128::from(state.cluster.nodes_with_image(image));
        Some((i128::from(size) * spread / nodes) as i64)
    };
    let sum: i64 = state.pod.images.iter().filter_map(present).sum();
    let most = MOST_PER_IMAGE * state.pod.images.len().max(1) as i64;
    100 * (sum.clamp(LEAST, most) - LEAST) / (most - LEAST)
}

fn spread(state: &State, candidate: &Candidate) -> i64 {
    let at = candidate.at;
    let cost = state.soft_spread.iter().map(|spread| {
        let count = match &spread.counts {
            SoftCounts::PerNode(per_slot) => i64::from(per_slot[at]),
            SoftCounts::PerDomain(counts) => counts.at(at).unwrap_or(spread.nowhere),
        };
        count as f64 * spread.weight + (spread.max_skew - 1) as f64
    });
    cost.sum::<f64>().round() as i64
}

fn pulls(state: &State, candidate: &Candidate) -> i64 {
    state.pulls.iter().filter_map(|counts| counts.at(candidate.at)).sum()
}
