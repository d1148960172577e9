//! A served kind at one version: the row that every handler works from.

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tombolo_k8s::convert;
use tombolo_store::Durability;

use super::schema::Schema;
use crate::http::status::Failure;
use crate::record::{self, Record, Unreadable};

/// The tenant segment of every key. One API server serves one tenant today; keys are ready for more.
pub const TENANT: &str = "default";

/// One resource of one group and version, built in or from a CustomResourceDefinition.
#[derive(Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub list_kind: String,
    pub namespaced: bool,
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    pub schema: Schema,
    pub rules: Rules,
    /// Where objects are kept: `/<tenant>/<group>/<resource>/`. Several versions of a kind share one.
    pub place: String,
    pub durability: Durability,
    /// The opening of a rendered object at this version.
    pub prefix: String,
    /// Fields that a field selector may name, besides `metadata.name` and `metadata.namespace`.
    pub fields: Vec<SelectableField>,
    /// Under which rules records were normalized; see [`crate::record`].
    pub shape: u32,
    /// The version in which watch events are rendered once for all watchers.
    pub canonical: bool,
    /// Set when objects are stored in the form of another group or version.
    pub stored: Option<StoredForm>,
    /// Cancelled when the definition that this row is from changes or goes: what was begun with it ends.
    pub replaced: Option<CancellationToken>,
}

/// The group and version in which a kind is kept that is also served in another.
#[derive(Debug)]
pub struct StoredForm {
    pub group: &'static str,
    pub version: &'static str,
    /// The row that serves that form.
    pub row: Shared,
}

#[derive(Debug, Clone)]
pub struct Subresource {
    pub name: String,
    pub verbs: Vec<&'static str>,
}

#[derive(Debug, Clone)]
pub struct SelectableField {
    pub name: String,
    /// Dotted path into the object; empty when the value is computed by the kind.
    pub path: Vec<String>,
}

/// How writes to a kind behave where kinds differ.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// A PUT to a name that does not exist creates it.
    pub create_on_update: bool,
    /// A PUT without a resource version overwrites whatever is there.
    pub unconditional_update: bool,
    /// `metadata.generation` counts changes of the desired state.
    pub generation: bool,
    /// Dependents are orphaned when the client names no policy.
    pub orphan_by_default: bool,
}

impl Resource {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether the status is written through its own endpoint only.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{}{namespace}/{name}", self.place)
        } else {
            format!("{}{name}", self.place)
        }
    }

    /// All keys of a namespace, or of the whole kind when `namespace` is empty.
    pub fn scope(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("{}{namespace}/", self.place)
        } else {
            self.place.clone()
        }
    }

    /// The namespace (empty when cluster-scoped) and name in a key of this kind.
    pub fn split_key<'k>(&self, key: &'k str) -> (&'k str, &'k str) {
        let rest = key.get(self.place.len()..).unwrap_or_default();
        if self.namespaced { rest.split_once('/').unwrap_or(("", rest)) } else { ("", rest) }
    }

    /// Encodes an object in its stored form.
    pub fn encode(&self, object: &Value) -> bytes::Bytes {
        if let Some(form) = &self.stored {
            return form.row.encode(object);
        }
        let fields: Vec<String> = self.fields.iter().map(|f| f.value(self, object)).collect();
        record::encode(object, self.shape, &fields)
    }

    pub fn decode(&self, value: &[u8], revision: u64) -> Result<Value, Unreadable> {
        let record = Record::read(value)?;
        let mut object = match &self.stored {
            None => record.parse(&self.prefix, revision)?,
            Some(form) => {
                convert::convert(record.parse(&form.row.prefix, revision)?, &self.group, &self.version)
            }
        };
        if record.shape != self.shape {
            self.schema.read(&mut object);
        }
        Ok(object)
    }

    /// The form in which an object is kept.
    pub fn to_stored(&self, object: Value) -> Value {
        match &self.stored {
            None => object,
            Some(form) => convert::convert(object, form.group, form.version),
        }
    }

    pub fn not_found(&self, name: &str) -> Failure {
        Failure::not_found(&self.group, &self.plural, name)
    }

    pub fn already_exists(&self, name: &str) -> Failure {
        Failure::already_exists(&self.group, &self.plural, name)
    }

    pub fn conflict(&self, name: &str, why: impl std::fmt::Display) -> Failure {
        Failure::conflict(&self.group, &self.plural, name, why)
    }

    pub fn modified(&self, name: &str) -> Failure {
        Failure::modified(&self.group, &self.plural, name)
    }

    pub fn forbidden(&self, name: &str, why: impl std::fmt::Display) -> Failure {
        Failure::forbidden(&self.group, &self.plural, name, why)
    }

    pub fn invalid(&self, name: &str, errors: &[tombolo_k8s::field::FieldError]) -> Failure {
        Failure::invalid(&self.group, &self.kind, name, errors)
    }
}

impl SelectableField {
    pub fn value(&self, resource: &Resource, object: &Value) -> String {
        if self.path.is_empty() {
            return crate::kinds::selectable(resource, &self.name, object);
        }
        let mut at = object;
        for step in &self.path {
            match at.get(step) {
                Some(next) => at = next,
                None => return String::new(),
            }
        }
        match at {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}

pub type Shared = Arc<Resource>;
