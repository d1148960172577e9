//! What a kind's objects look like: a built-in type from the tables, or the schema of a definition.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tombolo_k8s::field::FieldError;
use tombolo_k8s::resources;
use tombolo_k8s::tables::Printer;
use tombolo_k8s::{crd, validate};

use super::resource::Resource;
use super::update::Part;
use crate::crd::CustomSchema;
use crate::http::status::Result;
use crate::kinds::certificates;

#[derive(Debug)]
pub enum Schema {
    BuiltIn(&'static resources::Resource),
    Custom(Arc<CustomSchema>),
}

/// What upstream would refuse about an object of a built-in kind.
fn built_in(row: &resources::Resource, object: &Value, old: Option<(&Value, Part<'_>)>) -> Vec<FieldError> {
    let definition = row.kind == "CustomResourceDefinition";
    match old {
        None if definition => crd::validate_definition(object),
        None => {
            let mut errors = validate::create(row.group, row.kind, row.namespaced, object);
            if row.kind == "CertificateSigningRequest" {
                errors.extend(certificates::unsigned(object));
            }
            errors
        }
        Some((old, Part::Status)) if definition => crd::validate_definition_status(object, old),
        Some((old, _)) if definition => crd::validate_definition_update(object, old),
        Some((old, Part::Status | Part::Other("approval"))) => {
            validate::status_update(row.group, row.kind, object, old)
        }
        Some((old, Part::Other("ephemeralcontainers"))) => validate::ephemeral_containers_update(object, old),
        // These change what an ordinary update may not; the server itself makes the change.
        Some((_, Part::Other("binding" | "finalize"))) => Vec::new(),
        Some((old, Part::Other("resize"))) => validate::resize_update(object, old),
        Some((old, _)) => validate::update(row.group, row.kind, object, old),
    }
}

impl Schema {
    pub fn is_custom(&self) -> bool {
        matches!(self, Self::Custom(_))
    }

    /// Whether a stored record can be shown as it is.
    pub fn copies(&self, resource: &Resource, shape: u32) -> bool {
        match self {
            Self::BuiltIn(_) => resource.stored.is_none(),
            Self::Custom(_) => shape == resource.shape,
        }
    }

    /// What is done to an object that is read from the store: custom resources get defaults that were added to
    /// their schema after they were written.
    pub fn read(&self, object: &mut Value) {
        if let Self::Custom(custom) = self {
            custom.prune(object);
            custom.default(object);
        }
    }

    /// Drops what a client says about the status of a new object.
    pub fn clear_status(&self, object: &mut Value) {
        let Some(map) = object.as_object_mut() else { return };
        let always = match self {
            Self::BuiltIn(row) => row.type_().field("status").filter(|f| f.required),
            Self::Custom(_) => None,
        };
        match always.and_then(|field| field.shape.object()) {
            Some(type_) => map.insert("status".into(), tombolo_k8s::decode::empty(type_)),
            None => map.remove("status"),
        };
    }

    /// Which maps and lists are owned piece by piece.
    pub fn topology(&self) -> tombolo_k8s::apply::Schema<'_> {
        match self {
            Self::BuiltIn(row) => tombolo_k8s::apply::Schema::Type(row.type_()),
            Self::Custom(custom) => custom.topology(),
        }
    }

    pub fn default(&self, object: &mut Value) {
        match self {
            Self::BuiltIn(row) => tombolo_k8s::defaults::apply(object, row.type_(), jiff::Timestamp::now()),
            Self::Custom(custom) => custom.default(object),
        }
    }

    pub async fn validate(
        &self,
        resource: &Resource,
        object: &Value,
        old: Option<(&Value, Part<'_>)>,
        rule_time: Duration,
    ) -> Result<Vec<FieldError>> {
        match self {
            Self::BuiltIn(row) => Ok(built_in(row, object, old)),
            Self::Custom(custom) => custom.validate(resource, object, old, rule_time).await,
        }
    }

    /// How objects are shown as rows.
    pub fn printer(&self) -> Printer {
        match self {
            Self::BuiltIn(row) => Printer::built_in(row.group, row.plural),
            Self::Custom(custom) => custom.printer(),
        }
    }
}
