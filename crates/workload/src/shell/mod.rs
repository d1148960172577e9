//! The thin shell that all controllers share: one informer per kind, one keyed work queue, one executor.
//!
//! ```text
//!  watch ──> Cache ──handlers──> Queue ──key──> Controller::plan ──Vec<Action>──> Shell::act ──> API
//!              ^                                                                      │
//!              └──────────────── the answer of every write is offered back ───────────┘
//! ```
//!
//! Offering answers back to the cache is what makes a plan see its own writes: a lagging watch can
//! neither cause a second pod nor delay the next controller in the chain.

mod act;
mod action;
mod cache;
mod engine;
mod events;
mod informer;
mod queue;
mod refusals;
mod resource;
mod world;

pub use act::{ActError, Shell};
pub use action::{Action, Announce, Json, Note, PatchKind, Severity};
pub use cache::{Cache, Key};
pub use engine::{Controller, Engine, Enqueue, Reconciled};
pub use events::Recorder;
pub use informer::{Source, follow};
pub use refusals::Refusals;
pub use resource::{Object, Resource};
pub use world::{Watch, World};
