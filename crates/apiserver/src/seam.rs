//! Calls into the Kubernetes tables, in one place.

use serde_json::Value;
use tombolo_k8s::crd;
use tombolo_k8s::field::FieldError;
use tombolo_k8s::resources::Resource;

/// What upstream would refuse about an object; `old` and the subresource on updates.
pub fn validate(row: &'static Resource, object: &Value, old: Option<(&Value, &str)>) -> Vec<FieldError> {
    if row.kind == "CustomResourceDefinition" {
        return match old {
            None => crd::validate_definition(object),
            Some((old, "status")) => crd::validate_definition_status(object, old),
            Some((old, _)) => crd::validate_definition_update(object, old),
        };
    }
    Vec::new()
}
