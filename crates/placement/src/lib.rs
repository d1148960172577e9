//! Placement: pods onto the nodes of a site, replicas onto the sites of a fleet.
//!
//! Both are one pipeline ([`pipeline`]): filters say which candidates are out and why, scores order those
//! that are left, and an assign step picks. Everything here is a function of its arguments: no IO, no
//! clock, no randomness, no Kubernetes client. Time enters as seconds of silence, history as what is held
//! now, and the same input gives the same output whatever its order.
//!
//! | | pods onto nodes | replicas onto sites |
//! |---|---|---|
//! | candidate | a node | a part of a site (an ordinary site has one, a nested hub one per locality) |
//! | snapshot | [`pods::Cluster`], kept up to date change by change | `&[`[`sites::SiteView`]`]`, a value |
//! | decide | [`pods::schedule`] | [`sites::place`] |
//! | assign | the best node, one pod at a time | a board: keep, drop, fill, move |
//! | why not | [`pods::Unschedulable`]: upstream's words, with numbers | [`sites::Explanation`] for every place |
//!
//! # Invariants
//! - A candidate never gets more than fits, as far as what fits is known. What is there already may stay.
//! - Whoever asks again with the last answer as the present state gets the same answer.
//! - Every candidate that was not chosen has exactly one reason, and reasons carry their numbers.
//!
//! What they share beyond the pipeline: amounts ([`Resources`]), label conditions ([`Requirement`]) and
//! taints ([`Taint`], [`Toleration`]).

mod labels;
pub mod pipeline;
pub mod pods;
pub mod quantity;
mod resources;
pub mod sites;
mod taints;

pub use labels::{Labels, Operator, Requirement};
pub use resources::{Resources, Shortage, amount};
pub use taints::{Effect, Taint, Toleration, TolerationOperator, untolerated};
