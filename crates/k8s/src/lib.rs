//! Kubernetes as data and pure functions: no IO, no clock, no randomness.

pub mod decode;
pub mod defaults;
pub mod discovery;
pub mod field;
mod generated;
pub mod openapi;
pub mod protobuf;
pub mod resources;
pub mod schema;
pub mod tables;
pub mod names;
pub mod quantity;
pub mod selector;
pub mod patch;
pub mod apply;
pub mod crd;
pub mod cel;
pub mod validate;
