//! What exists before the first request: keys and the objects every cluster has.

pub mod endpoints;
pub mod keys;
pub mod objects;
pub mod replicas;
pub mod roles;
