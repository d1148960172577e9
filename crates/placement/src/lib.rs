//! Placement: pods onto the nodes of a site, replicas onto the sites of a fleet.
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
