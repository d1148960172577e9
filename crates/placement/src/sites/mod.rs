//! Replicas onto the sites of a fleet.
//!
//! The entry point is `place(&[SiteView], &Rule, &Request) -> Decision`.

mod decision;
mod types;

pub use decision::{Decision, Explanation, Note, Reason};
pub use types::*;
