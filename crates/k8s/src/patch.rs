//! The three classic patch types, as functions from an object and a patch to a new object.
//!
//! - [`json`]: RFC 6902, with upstream's limits and its leniency (`replace` of an absent key adds it).
//! - [`merge`]: RFC 7386.
//! - [`strategic`]: Kubernetes' own, which knows from the schema which lists merge and by which key.
//!
//! Server-side apply is the fourth and lives in [`crate::apply`].

mod json;
mod merge;
mod strategic;

#[cfg(test)]
pub(crate) mod tests;

use thiserror::Error;

pub use json::{MAX_COPY_BYTES, MAX_OPERATIONS, json};
pub use merge::merge;
pub use strategic::strategic;

/// Why a patch was not applied. The variant says which answer upstream gives.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The patch itself is malformed: 400.
    #[error("{0}")]
    BadRequest(String),
    /// The patch is well formed but does not fit this object: 422, reason `Invalid`. Upstream's message is then "the
    /// server rejected our request due to an error in our request", with this text in a cause of type
    /// `UnexpectedServerResponse`.
    #[error("{0}")]
    Unprocessable(String),
    /// Too many operations: 413.
    #[error("{0}")]
    TooLarge(String),
    /// A strategic merge patch that contradicts the schema; upstream answers 500.
    #[error("{0}")]
    Contradiction(String),
}
