//! CustomResourceDefinitions: structural schemas and what the API server does with them.
//!
//! [`Schema`] is parsed once per served version and then used for pruning, defaulting, validation, CEL rules and
//! server-side apply.

mod schema;

pub use schema::{Additional, Checks, Kind, Rule, Schema, SchemaError, Topology};
