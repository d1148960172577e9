//! The controllers and the scheduler that make a site a cluster.
//!
//! # Data model
//!
//! ```text
//! CronJob -> Job ─────────────┐
//! Deployment -> ReplicaSet ───┼─> Pod ──> scheduler ──> Binding
//! StatefulSet, DaemonSet ─────┘    ^
//!                                  ├── Service -> EndpointSlice, Endpoints
//! Node, Lease -> taints ───────────┤
//! PersistentVolumeClaim -> Volume ─┘      every kind -> garbage collection, namespace deletion
//! ```
//!
//! Each controller is a pure `plan(&Snapshot) -> Vec<Action>` in a module of its own: it decides from what it is given,
//! time included, and asks for plain-data [`shell::Action`]s. The [`shell`] around all of them watches each kind once,
//! keeps a queue of keys, and carries actions out.
//!
//! # Invariants
//!
//! - One informer per kind for the whole process, however many controllers look at it.
//! - A plan sees the answers to all earlier writes of this process: a watch that lags behind causes no second pod
//!   and no second deletion.
//! - One key is worked on by one worker at a time; different keys run side by side.
//! - Every plan can be cut short at any request and planned again from what the server then holds.
//! - Nothing polls: plans run on changes, and at the times that they themselves ask for.
//! - Names, labels, annotations, owner references, conditions and event reasons are those of upstream, so that `kubectl
//!   rollout`, `describe` and `wait` read them. (Hash values differ; nothing reads those.)
//!
//! # Adding a controller
//!
//! One module with a `plan` and an implementation of [`shell::Controller`], one line in [`Name`] and one in `run`; a
//! kind that is not watched yet is one line in `shell/world.rs`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod catalog;
pub mod certificate;
pub mod cleanup;
pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod endpoints;
pub mod garbage;
pub mod job;
mod meta;
#[cfg(test)]
mod model;
pub mod namespace;
pub mod node;
mod pod;
pub mod quota;
pub mod replicaset;
pub mod replication_controller;
mod revision;
mod run;
pub mod scheduler;
pub mod service_account;
pub mod shell;
pub mod statefulset;
mod volume;

pub use node::PodNetwork;
pub use run::{Ca, Name, Options, run};
