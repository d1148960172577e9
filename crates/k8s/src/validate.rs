//! What upstream refuses about built-in objects beyond their types: names, ranges, unions, references between
//! fields, and what may not change.
//!
//! Every check reads plain JSON that decoding has already checked against the tables and that defaulting has
//! completed. Messages are upstream's, because clients and conformance tests match on them.

mod at;
mod meta;

use serde_json::Value;

use crate::field::FieldError;
use crate::names;
pub(crate) use at::{At, Errors, same};
pub(crate) use meta::{meta_update, object_meta};

/// Metadata of an object inside a custom resource.
pub(crate) fn embedded_meta(metadata: &Value, path: &str, out: &mut Vec<FieldError>) {
    let mut errors = Errors::default();
    let mut metadata = metadata.clone();
    if let Some(map) = metadata.as_object_mut() {
        map.entry("name").or_insert_with(|| Value::from("fakename"));
    }
    let at = At::named(&metadata, path);
    let namespaced = !at.get("namespace").is_empty();
    object_meta(&mut errors, &at, namespaced, names::path_segment);
    out.extend(errors.0);
}

/// Metadata of a custom resource: create (`old` absent) or update.
pub fn custom_meta(object: &Value, old: Option<&Value>, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let root = At::root(object);
    let metadata = root.get("metadata");
    match old {
        None => object_meta(&mut errors, &metadata, namespaced, names::dns_subdomain),
        Some(old) => {
            meta_update(&mut errors, &metadata, old.get("metadata").unwrap_or(&Value::Null));
        }
    }
    errors.0
}
