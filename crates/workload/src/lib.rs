//! The controllers that make a site a cluster.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod catalog;
pub mod deployment;
pub mod endpoints;
pub mod garbage;
mod meta;
pub mod namespace;
mod pod;
pub mod replicaset;
mod run;
pub mod scheduler;
pub mod service_account;
pub mod shell;
mod volume;

pub use run::{Ca, Name, Options, run};
