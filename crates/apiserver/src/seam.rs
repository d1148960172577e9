//! Calls into the Kubernetes tables, in one place.

use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;
use tombolo_k8s::resources::Resource;

pub fn default(_row: &'static Resource, _object: &mut Value) {}

pub fn validate(
    _row: &'static Resource,
    _object: &Value,
    _old: Option<(&Value, &str)>,
) -> Vec<FieldError> {
    Vec::new()
}

pub fn columns(_row: &'static Resource) -> Value {
    json!([
        {"name": "Name", "type": "string", "format": "name", "description": "Name", "priority": 0},
        {"name": "Created At", "type": "date", "format": "", "description": "Created", "priority": 0},
    ])
}

pub fn cells(_row: &'static Resource, object: &Value, _now: i64) -> Value {
    json!([object.pointer("/metadata/name"), object.pointer("/metadata/creationTimestamp")])
}
