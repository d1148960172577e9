//! One served version of a custom resource, ready to work on its objects.

use serde_json::Value;

use super::schema::{Schema, SchemaError};
use super::{check, extensions, prune};
use crate::cel::Rules;
use crate::field::{ErrorKind, FieldError};

/// A parsed schema with its compiled rules. Built once per definition version and shared.
#[derive(Debug)]
pub struct Custom {
    pub schema: Schema,
    rules: Option<Rules>,
}

impl Custom {
    /// From `spec.versions[*].schema.openAPIV3Schema`.
    pub fn new(open_api: &Value) -> Result<Self, SchemaError> {
        let schema = Schema::parse(open_api)?;
        let rules = schema.has_rules.then(|| Rules::compile(open_api));
        Ok(Self { schema, rules })
    }

    /// Brings numbers, and metadata also of embedded resources, into canonical form; says what cannot be.
    pub fn coerce(&self, object: &mut Value) -> Result<(), String> {
        prune::coerce(object, &self.schema)
    }

    /// Removes unknown fields; returns their paths for `fieldValidation`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(object, &self.schema)
    }

    /// Fills in defaults; also for objects read from storage, whose schema may have grown since.
    pub fn default(&self, object: &mut Value) {
        prune::default(object, &self.schema);
    }

    /// At most about so many steps are taken to evaluate the rules.
    pub fn steps(&self, object: &Value, old: Option<&Value>) -> u64 {
        self.rules.as_ref().map_or(0, |rules| rules.steps(object, old))
    }

    /// Everything but metadata. On update (`old` present) a problem with a value that did not change is let pass,
    /// so that tightening a schema does not make existing objects unwritable.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = check::check(object, old, &self.schema);
        errors.extend(extensions::list_types(object, old, &self.schema));
        errors.extend(extensions::embedded_resources(object, old, &self.schema));
        let Some(rules) = &self.rules else { return errors };
        let blocking = [
            ErrorKind::Required,
            ErrorKind::TooLong,
            ErrorKind::TooMany,
            ErrorKind::TypeInvalid,
            ErrorKind::NotSupported,
        ];
        if errors.iter().any(|e| blocking.contains(&e.kind)) {
            let detail = "some validation rules were not checked because the object was invalid; correct the \
                          existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", &Value::Null, detail));
        } else {
            errors.extend(rules.evaluate(object, old));
        }
        errors
    }
}
