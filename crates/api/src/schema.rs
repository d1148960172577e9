//! Schemas that schemars cannot derive.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Any Kubernetes object: fields we do not know are kept.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

pub fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}
