//! CustomResourceDefinitions: structural schemas and what the API server does with them.
//!
//! [`Custom`] is built once per served version and then prunes, defaults and validates that version's objects; its
//! [`Schema`] also drives server-side apply. The functions on definitions check the CustomResourceDefinition itself.

mod check;
mod custom;
mod definition;
mod extensions;
mod formats;
mod open_api;
mod prune;
mod schema;
mod structural;

#[cfg(test)]
mod tests;

pub use custom::Custom;
pub use definition::{
    CLEANUP_FINALIZER, default_definition, has_condition, set_condition, storage_version,
    validate_definition, validate_definition_status, validate_definition_update,
};
pub use schema::{Additional, Checks, Kind, Pattern, Rule, Schema, SchemaError, Topology};
