//! Pods onto the nodes of a site.
//!
//! A [`Cluster`] is the snapshot; the scheduler's shell feeds it from watches. [`schedule`] decides for one
//! pod, [`Cluster::assume`] counts the decision before its binding is seen, [`preempt`] says which pods of
//! lower priority would have to go for a pod that fits nowhere.

mod cluster;
mod convert;
mod filters;
mod preempt;
mod requests;
mod schedule;
mod scores;
mod state;
mod topology;
mod types;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use cluster::Cluster;
pub use convert::label_selector;
pub use filters::Why;
pub use preempt::{Preemption, preempt};
pub use requests::{amounts, of_pod as requests_of_pod};
pub use schedule::{Choice, Decision, Unschedulable, check, schedule};
pub use types::{Affinity, HostPort, NodeTerm, NodeView, PodTerm, PodView, SpreadConstraint, queue_order};
