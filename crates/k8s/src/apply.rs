//! Server-side apply, and the tracking of field owners that every write takes part in.
//!
//! # Data model
//! `metadata.managedFields` has one [`Entry`] per owner; its fields are a set of paths ([`Fields`]). A [`Schema`] says
//! which maps and lists are owned piece by piece and which as a whole.
//!
//! # Invariants
//! - [`track_update`] never fails: a write is not refused because of who owned what.
//! - [`apply`] changes only fields the configuration sets, or that the same manager set before and nobody else owns.
//! - Applying the same configuration twice changes nothing the second time.
//! - Time is passed in; nothing here reads a clock.

mod compare;
mod configuration;
pub mod fields;
mod managers;
mod merge;
mod reset;
mod topology;
mod update;
mod walk;

#[cfg(test)]
mod tests;

use serde_json::Value;
use thiserror::Error;

pub use configuration::apply;
pub use fields::Fields;
pub use managers::{Entry, ManagedFieldsError, decode, encode, managed_fields};
pub use reset::{CUSTOM_MAIN, CUSTOM_STATUS, Paths, reset_fields};
pub use topology::Schema;
pub use update::track_update;

/// Who writes, through what, and when.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The field manager; empty becomes `unknown`.
    pub manager: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub api_version: &'a str,
    /// RFC 3339 with seconds, in UTC: `2026-01-02T03:04:05Z`.
    pub now: &'a str,
    /// What this endpoint cannot change, from [`reset_fields`].
    pub reset: Paths,
}

/// The outcome of an apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The new object with its `metadata.managedFields`; not yet defaulted or validated.
    pub object: Value,
    /// Whether anything but the managed fields differs from the live object.
    pub changed: bool,
}

/// Why a configuration was not applied.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ApplyError {
    /// 409, reason `Conflict`.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// 400.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the schema; upstream answers 500.
    #[error("{0}")]
    Mismatch(String),
}

/// Fields that others own and the configuration would change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conflicts(pub Vec<Conflict>);

#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// The owner, as [`Entry::describe`] names it.
    pub owner: String,
    /// Path elements, as in [`Fields`].
    pub path: Vec<String>,
}

impl Conflict {
    /// The message of the cause in the `Status` (type `FieldManagerConflict`).
    pub fn message(&self) -> String {
        format!("conflict with {}", self.owner)
    }

    /// The field of the cause.
    pub fn field(&self) -> String {
        fields::display(&self.path)
    }
}

impl std::fmt::Display for Conflicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let [one] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", one.message(), one.field());
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut owners: Vec<&str> = self.0.iter().map(|c| c.owner.as_str()).collect();
        owners.sort_unstable();
        owners.dedup();
        for (i, owner) in owners.into_iter().enumerate() {
            write!(f, "{}conflicts with {owner}:", if i > 0 { "\n" } else { "" })?;
            for conflict in self.0.iter().filter(|c| c.owner == owner) {
                write!(f, "\n- {}", conflict.field())?;
            }
        }
        Ok(())
    }
}
