//! Which pods of lower priority must go so that a pod fits.

use std::cmp::Reverse;
use std::sync::Arc;

use super::cluster::Cluster;
use super::schedule::{Unschedulable, check};
use super::types::PodView;

/// Make room on `node` by removing `victims` (keys, most important first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    pub node: String,
    pub victims: Vec<String>,
}

/// The least harmful way to make room for a pod that [`schedule`](super::schedule) found no node for: the
/// node whose most important victim matters least, then the fewest in sum of priorities, then the fewest
/// pods, then by name. On that node the most important pods that can stay do stay.
/// `None` when the pod may not preempt or no removal would help.
pub fn preempt(cluster: &Cluster, pod: &PodView, refused: &Unschedulable) -> Option<Preemption> {
    if !pod.may_preempt || !refused.blocked.is_empty() {
        return None;
    }
    let curable = refused.per_node.iter().filter(|(_, whys)| whys.iter().all(|why| why.curable()));
    let mut trial = cluster.clone();
    let options = curable.filter_map(|(node, _)| {
        let victims = victims_on(&mut trial, pod, node)?;
        let highest = victims.iter().map(|v| v.priority).max()?;
        let sum: i64 = victims.iter().map(|v| i64::from(v.priority) - i64::from(i32::MIN)).sum();
        Some(((highest, sum, victims.len(), node), victims))
    });
    let ((_, _, _, node), victims) = options.min_by(|(a, _), (b, _)| a.cmp(b))?;
    Some(Preemption { node: node.clone(), victims: victims.iter().map(|v| v.key()).collect() })
}

/// Removes everything of lower priority from the node, then lets pods come back while the newcomer still
/// fits, most important first. Leaves `trial` as it was.
fn victims_on(trial: &mut Cluster, pod: &PodView, node: &str) -> Option<Vec<Arc<PodView>>> {
    let slot = trial.slot(trial.slot_of(node)?);
    let mut lower: Vec<_> = slot.pods.values().filter(|p| p.priority < pod.priority).cloned().collect();
    lower.sort_by_key(|p| (Reverse(p.priority), p.key()));
    lower.iter().for_each(|p| drop(trial.remove_pod(&p.key())));

    let mut victims = Vec::new();
    let fits_without_them = check(trial, pod, node).is_ok();
    for candidate in &lower {
        trial.set_pod(candidate.clone());
        if fits_without_them && check(trial, pod, node).is_err() {
            trial.remove_pod(&candidate.key());
            victims.push(candidate.clone());
        }
    }
    victims.iter().for_each(|p| trial.set_pod(p.clone()));
    (fits_without_them && !victims.is_empty()).then_some(victims)
}
