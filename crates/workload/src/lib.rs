//! The controllers that make a site a cluster.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod deployment;
mod meta;
mod pod;
pub mod replicaset;
pub mod shell;
