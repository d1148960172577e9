//! The site's end of a fleet: applies what the hub wants, corrects drift, reports what is.
//!
//! ```text
//!   hub ──Works──> [works] ──> Ledger ──> [execute] ──server-side apply──> site's API
//!   hub <─status── [report] <── Ledger <── [observe] <──────watches─────────┘
//!   hub ──streams──> [serve] ──as the identity the owner gave──> site's API (logs, exec, …)
//! ```
//!
//! Data model: the [`Ledger`](ledger::Ledger) holds per Work the last spec heard, the status as it should be at the hub and
//! the status the hub has. Objects at the site record on themselves which Works want them ([`owners`]).
//!
//! Invariants:
//! - Nothing is deleted without a tombstone of the hub that made it, in an epoch not behind what was seen; a namespace or a
//!   definition in which others have something is let go.
//! - Nothing is taken over that the hub did not make, unless the Work says `adopt`; that is let go in the end, never deleted.
//! - Everything the hub asks for is done in the name of the identity the site's owner made for that hub.
//! - The private key never leaves the site.
//! - The hub being away stops nothing here: drift of the Works known so far is still corrected, also after a restart of
//!   the agent where it has a folder to keep them in.

mod apply;
mod capacity;
mod clean;
mod config;
pub mod difference;
mod doors;
mod execute;
mod fields;
mod inside;
pub mod join;
mod keep;
mod leave;
pub mod ledger;
mod observe;
mod offers;
pub mod owners;
mod pods;
mod remove;
mod report;
mod run;
pub mod rush;
mod serve;
mod state;
mod todo;
mod told;
mod works;

pub use clean::remove_if_empty;
pub use config::{ActingAs, AgentConfig, SiteDial};
pub use join::ca_hash;
pub use leave::{Removal, leave, removal};
pub use run::{AgentError, run};
pub use state::{State, StateSecret};
