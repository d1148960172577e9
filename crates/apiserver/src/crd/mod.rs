//! Custom resources: definitions become rows of the same registry.

use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;

use crate::registry::resource::Resource;
use crate::registry::update::Part;

/// The schema of one version of a definition.
#[derive(Debug, Default)]
pub struct CustomSchema {}

impl CustomSchema {
    /// Removes what the schema does not know; says what was removed.
    pub fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    pub fn topology(&self) -> tombolo_k8s::apply::Schema<'_> {
        tombolo_k8s::apply::Schema::Deduced
    }

    pub fn default(&self, _object: &mut Value) {}

    pub fn validate(&self, _resource: &Resource, _object: &Value, _old: Option<(&Value, Part<'_>)>) -> Vec<FieldError> {
        Vec::new()
    }

    pub fn columns(&self) -> Value {
        json!([])
    }

    pub fn cells(&self, _object: &Value, _now: i64) -> Vec<Value> {
        Vec::new()
    }
}
