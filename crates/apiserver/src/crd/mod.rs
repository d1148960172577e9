//! Custom resources: definitions become rows of the same registry.

mod definitions;
pub mod lifecycle;

pub use definitions::{Definitions, source};

use serde_json::Value;
use tombolo_k8s::apply;
use tombolo_k8s::crd::Custom;
use tombolo_k8s::field::FieldError;
use tombolo_k8s::tables::Printer;
use tombolo_k8s::validate;

use crate::registry::resource::Resource;
use crate::registry::update::Part;

/// One version of a definition: its schema, columns and scale paths.
#[derive(Debug)]
pub struct CustomSchema {
    custom: Option<Custom>,
    /// `additionalPrinterColumns`.
    columns: Option<Value>,
    /// JSON pointers to the replicas in spec and status, and to the selector.
    scale: Option<(String, String, Option<String>)>,
    /// The definition is going away: nothing new may be created.
    pub terminating: bool,
}

impl CustomSchema {
    pub fn new(version: &Value, preserve_unknown: bool, terminating: bool) -> Self {
        let schema = version.pointer("/schema/openAPIV3Schema").filter(|_| !preserve_unknown);
        // A schema that does not parse was refused when the definition was written; older ones keep everything.
        let custom = schema.and_then(|s| Custom::new(s).ok());
        let pointer = |key: &str| {
            let path = version.pointer("/subresources/scale")?.get(key)?.as_str()?;
            Some(path.replace('.', "/"))
        };
        let scale = pointer("specReplicasPath").zip(pointer("statusReplicasPath"));
        let scale = scale.map(|(spec, status)| (spec, status, pointer("labelSelectorPath")));
        Self { custom, columns: version.get("additionalPrinterColumns").cloned(), scale, terminating }
    }

    /// Removes what the schema does not know; says what was removed in the words of strict validation.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let removed = self.custom.as_ref().map(|c| c.prune(object)).unwrap_or_default();
        removed.iter().map(|path| format!("unknown field \"{path}\"")).collect()
    }

    pub fn topology(&self) -> apply::Schema<'_> {
        self.custom.as_ref().map_or(apply::Schema::Deduced, |c| apply::Schema::Root(&c.schema))
    }

    pub fn default(&self, object: &mut Value) {
        if let Some(custom) = &self.custom {
            custom.default(object);
        }
    }

    pub fn validate(
        &self,
        resource: &Resource,
        object: &Value,
        old: Option<(&Value, Part<'_>)>,
    ) -> Vec<FieldError> {
        let old = old.map(|(old, _)| old);
        let mut errors = validate::custom_meta(object, old, resource.namespaced);
        if let Some(custom) = &self.custom {
            errors.extend(custom.validate(object, old));
        }
        errors
    }

    pub fn scale_paths(&self) -> Option<(String, String, Option<String>)> {
        self.scale.clone()
    }

    pub fn printer(&self) -> Printer {
        Printer::custom(self.columns.as_ref())
    }
}
