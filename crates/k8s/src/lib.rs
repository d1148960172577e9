//! Kubernetes as data and pure functions: no IO, no clock, no randomness.
//!
//! A kind is data, never code. [`schema`] holds the shape of every built-in type and [`resources`] what is served of
//! it, both generated from the text in `data/`; everything else reads them:
//!
//! ```text
//!   bytes ──decode / protobuf──> value ──defaults──> value ──validate──> stored
//!                                  ^                   │
//!                            patch / apply          convert, tables ──> shown
//!   schema + resources ──> discovery, openapi
//! ```
//!
//! Objects are `serde_json::Value`s throughout, in the form that upstream's Go types would write: two bodies that
//! upstream would store alike are equal values here. Custom resources go the same way with the schema of their
//! definition in place of the tables ([`crd`]). Texts that clients match on are upstream's.

pub mod apply;
pub mod cel;
pub mod continuation;
pub mod convert;
pub mod crd;
pub mod decode;
pub mod defaults;
pub mod discovery;
pub mod field;
mod generated;
pub mod names;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod resources;
pub mod schema;
pub mod selector;
pub mod tables;
pub mod validate;
