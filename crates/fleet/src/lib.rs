//! The hub's controllers: register sites, place objects, propagate them, observe what comes back, fail over.
//!
//! ```text
//!   watches ──> Index ──root to plan──> plan (choose, decide, render, merge status, mirror) ──> Actions ──> hub's API
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
mod again;
mod choose;
mod clock;
mod compare;
mod config;
mod convert;
mod decide;
mod explain;
mod forward;
mod identity;
mod import;
mod index;
mod install;
mod intent;
mod kept;
mod kinds;
mod lead;
mod lease;
mod mirror;
pub mod object;
mod overrides;
mod parts;
mod plan;
mod references;
pub mod register;
mod render;
mod renew;
mod restored;
mod rooms;
mod run;
mod sign;
mod sites;
mod stamp;
mod standing;
mod status;
mod stuck;
pub mod tokens;
mod told;
mod tunnels;
mod watches;

pub use config::{Approval, FleetConfig};
pub use explain::{Explained, explain};
pub use forward::{Forward, ReplicaTls, forward};
pub use import::{forget, give_back, import, placement_of as import_placement};
pub use lease::interval as heartbeat_interval;
pub use mirror::PodRoute;
pub use run::{FleetError, run};
pub use sites::replica_of;
pub use tombolo_agent::ca_hash;
pub use tunnels::{Admission, OpenError, Serve, SitePeer, Tied, TunnelHub};

/// Seconds since 1970, as Kubernetes writes them.
pub(crate) fn time_text(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Now, as Kubernetes writes it.
pub(crate) fn now_text() -> String {
    time_text(jiff::Timestamp::now().as_second())
}
