//! The hub's controllers: register sites, place objects, propagate them, observe what comes back, fail over.
//!
//! ```text
//!   watches ──> Index ──dirty root──> plan (choose, decide, render, merge status, mirror) ──> Actions ──> hub's API
//!   tunnels ──heartbeats──> Leases ──> who is lost ──> decide again
//! ```
//!
//! The [`index`] is a plain struct; [`plan`] is a function of it. Only `run`, `act`, `watches`, `register`, `sites` and
//! `tunnels` know the API.
//!
//! Invariants:
//! - The Works are the decision: nothing else remembers where a root is.
//! - Nothing is planned for a kind before everything of that kind is known, so that absence means deletion.
//! - A Work leaves a site only through a tombstone with this hub's identity and epoch; it is deleted here when the site
//!   says that it is done, or when the site itself is removed.
//! - A silent site is unknown: never ready, never zero.

mod act;
mod choose;
mod config;
mod convert;
mod decide;
mod explain;
mod identity;
mod index;
mod install;
mod intent;
mod lead;
mod mirror;
mod object;
mod overrides;
mod plan;
mod references;
pub mod register;
mod render;
mod run;
mod sign;
mod sites;
mod status;
pub mod tokens;
mod tunnels;
mod watches;

pub use config::{Approval, FleetConfig};
pub use explain::explain;
pub use mirror::PodRoute;
pub use run::{FleetError, run};
pub use tombolo_agent::ca_hash;
pub use tunnels::{Admission, OpenError, Serve, SitePeer, Tied, TunnelHub};

/// Now, as Kubernetes writes it.
pub(crate) fn now_text() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
