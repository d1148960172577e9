//! The controllers that make a site a cluster.
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
pub mod replicaset;
mod revision;
mod run;
pub mod scheduler;
pub mod service_account;
pub mod shell;
pub mod statefulset;
mod volume;

pub use run::{Ca, Name, Options, run};
