//! A model-checked soak of `tombolo serve`.
//!
//! # The model
//!
//! ```text
//!   random clients ──> answers ──┐
//!   the witness, which watches ──┴──> one history: revision -> (object, state) ──> checks: answers, lists, watchers
//!   everything ──> events
//! ```
//!
//! Every change has a revision of its own, so all that clients and watchers are told must fit into one history:
//! - no lost update: each change leads from the state just before it to the state it answered with; one that names a
//!   version replaces exactly that version;
//! - no missed, repeated or reordered event: each watch, wherever it began, brings exactly the events of its part of
//!   the history;
//! - lists, whatever their pages, are the state at the revision they name;
//! - nothing is older than what anybody was told before it was asked for.
//!
//! [`steady`] leaves the server running and also measures its memory; [`crash`] kills it at random moments.
//! A seed decides what each client asks for, though not how the clients interleave.

mod change;
mod check;
mod client;
pub mod crash;
mod history;
mod memory;
mod object;
pub mod random;
pub mod steady;
mod watcher;
mod worker;
