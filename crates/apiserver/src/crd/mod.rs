//! Custom resources: definitions become rows of the same registry.

mod definitions;
pub mod lifecycle;

pub use definitions::{Definitions, source};

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tombolo_k8s::apply;
use tombolo_k8s::crd::Custom;
use tombolo_k8s::field::FieldError;
use tombolo_k8s::tables::Printer;
use tombolo_k8s::validate;

use crate::http::status::{Failure, Result};
use crate::registry::resource::Resource;
use crate::registry::update::Part;

/// Objects of one kind whose rules may take long, at once: one that never ends must not keep out all others.
const SLOW: usize = 2;
/// Rules that take fewer steps are run where the request is answered.
const QUICK: u64 = 1_000_000;

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
    /// The version that objects are kept in, where only a webhook could tell what they look like in this one.
    pub kept_in: Option<String>,
    /// Rules that may take long are run for one object at a time.
    slow: Arc<Semaphore>,
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
        let columns = version.get("additionalPrinterColumns").cloned();
        Self { custom, columns, scale, terminating, kept_in: None, slow: Arc::new(Semaphore::new(SLOW)) }
    }

    /// Brings numbers, and metadata also of embedded resources, into canonical form; says what cannot be.
    pub fn coerce(&self, object: &mut Value) -> Result<(), String> {
        self.custom.as_ref().map_or(Ok(()), |custom| custom.coerce(object))
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

    pub async fn validate(
        self: &Arc<Self>,
        resource: &Resource,
        object: &Value,
        old: Option<(&Value, Part<'_>)>,
        rule_time: Duration,
    ) -> Result<Vec<FieldError>> {
        let old = old.map(|(old, _)| old);
        let mut errors = validate::custom_meta(object, old, resource.namespaced);
        errors.extend(self.uncountable(object, old));
        if let Some(custom) = &self.custom {
            errors.extend(match custom.steps(object, old) {
                ..QUICK => custom.validate(object, old),
                _ => self.validate_apart(resource, object.clone(), old.cloned(), rule_time).await?,
            });
        }
        Ok(errors)
    }

    /// Numbers of replicas that are none. Those that the stored object has are let pass.
    fn uncountable(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let check = |pointer: &String| {
            let number = object.pointer(pointer)?;
            if old.and_then(|old| old.pointer(pointer)) == Some(number) {
                return None;
            }
            let detail = match number.as_i64()? {
                ..0 => "should be a non-negative integer".to_owned(),
                n if n > i64::from(i32::MAX) => format!("should be less than or equal to {}", i32::MAX),
                _ => return None,
            };
            Some(FieldError::invalid(pointer.replace('/', "."), number, detail))
        };
        self.scale.iter().flat_map(|(spec, status, _)| [spec, status]).filter_map(check).collect()
    }

    /// Validates on a thread of its own. Rules cannot be stopped: those that take too long go on in vain, and the next object of
    /// this kind that is as large has to wait for them.
    async fn validate_apart(
        self: &Arc<Self>,
        resource: &Resource,
        object: Value,
        old: Option<Value>,
        rule_time: Duration,
    ) -> Result<Vec<FieldError>> {
        let Ok(Ok(turn)) = timeout(rule_time, self.slow.clone().acquire_owned()).await else {
            let text =
                format!("the validation rules of {} are still at work on another object", resource.kind);
            return Err(Failure::too_many_requests(text, 1));
        };
        let schema = self.clone();
        let (answer, answered) = oneshot::channel();
        let run = move || {
            let errors = schema.custom.as_ref().map(|custom| custom.validate(&object, old.as_ref()));
            drop(turn);
            // Who asked may have gone.
            let _ = answer.send(errors.unwrap_or_default());
        };
        // Not a thread of the runtime, which would wait for it at the end; but started by one, which may use all processors.
        let started =
            tokio::task::spawn_blocking(|| std::thread::Builder::new().name("rules".into()).spawn(run));
        started.await.map_err(Failure::internal)?.map_err(Failure::internal)?;
        match timeout(rule_time, answered).await {
            Ok(errors) => errors.map_err(Failure::internal),
            Err(_) => {
                tracing::warn!(
                    group = resource.group,
                    kind = resource.kind,
                    ?rule_time,
                    "the validation rules of a definition take too long; they go on until they are through or the server stops"
                );
                let detail = format!(
                    "validation failed due to running out of cost budget: the validation rules took longer than {rule_time:?} \
                     for this object; make it smaller, or the rules simpler"
                );
                Ok(vec![FieldError::invalid("<nil>", &Value::from("object"), detail)])
            }
        }
    }

    pub fn scale_paths(&self) -> Option<(String, String, Option<String>)> {
        self.scale.clone()
    }

    pub fn printer(&self) -> Printer {
        Printer::custom(self.columns.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_that_are_none_are_refused_unless_they_are_stored() {
        let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
        let schema = CustomSchema::new(&json!({"subresources": {"scale": scale}}), false, false);
        let of = |spec: i64, status: i64| json!({"spec": {"replicas": spec}, "status": {"replicas": status}});
        let paths = |new: &Value, old: Option<&Value>| -> Vec<String> {
            schema.uncountable(new, old).into_iter().map(|error| error.path).collect()
        };
        let old = of(-1, 1 << 40);
        assert_eq!(paths(&old, None), [".spec.replicas", ".status.replicas"]);
        assert!(paths(&old, Some(&old)).is_empty());
        assert_eq!(paths(&of(-2, 1 << 40), Some(&old)), [".spec.replicas"]);
    }
}
