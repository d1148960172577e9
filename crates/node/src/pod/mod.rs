//! The life of one pod on this node.
//!
//! [`plan`] decides from what is wanted and what is, [`status`] says what is in the words of the API; both are pure.
//! [`worker`] is the thin shell around them: look, decide, act, report.

pub(crate) mod admission;
pub(crate) mod env;
mod fencing;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod quantity;
pub(crate) mod spec;
pub(crate) mod status;
pub(crate) mod worker;
