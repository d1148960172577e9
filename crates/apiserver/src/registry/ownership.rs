//! Who owns which field: managed fields on every write, and server-side apply.

use serde_json::Value;

use super::resource::{Resource, Shared};
use super::update::Part;
use super::write::WriteOptions;
use crate::http::status::{Failure, Result};
use crate::server::Call;

pub fn track_create(_resource: &Resource, _object: &mut Value, _options: &WriteOptions) {}

pub fn track_update(
    _resource: &Resource,
    _old: &Value,
    _new: &mut Value,
    _part: Part<'_>,
    _options: &WriteOptions,
) {
}

/// Reads the configuration of an apply request: YAML, of which JSON is a part.
pub fn read_applied(
    _call: &mut Call,
    _resource: &Shared,
    _bytes: &[u8],
    _options: &WriteOptions,
) -> Result<Value> {
    Err(Failure::unsupported_media_type(&["application/merge-patch+json"]))
}

pub fn apply(
    _resource: &Resource,
    _current: Option<&Value>,
    applied: &Value,
    _part: Part<'_>,
    _options: &WriteOptions,
) -> Result<Value> {
    Ok(applied.clone())
}
