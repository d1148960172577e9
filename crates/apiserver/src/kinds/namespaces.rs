//! Namespaces: a finalizer of their own in the spec, and a phase.

use serde_json::{Value, json};

use crate::registry::update::Part;
use crate::registry::write::{self, metadata};

pub fn prepare_create(object: &mut Value) {
    object["status"] = json!({"phase": "Active"});
    let finalizers =
        object.pointer("/spec/finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    if !finalizers.iter().any(|f| f == "kubernetes") {
        let mut finalizers = finalizers;
        finalizers.push("kubernetes".into());
        if !object["spec"].is_object() {
            object["spec"] = json!({});
        }
        object["spec"]["finalizers"] = finalizers.into();
    }
    label(object);
}

/// Every namespace carries its own name as a label, so that selectors can pick it.
fn label(object: &mut Value) {
    let name = write::name_of(object).to_owned();
    let labels = metadata(object).entry("labels").or_insert_with(|| json!({}));
    if !labels.is_object() {
        *labels = json!({});
    }
    labels["kubernetes.io/metadata.name"] = name.into();
}

pub fn prepare_update(part: Part<'_>, object: &mut Value, old: &Value) {
    if part == Part::Main {
        // Spec finalizers change through `/finalize` only.
        if let Some(finalizers) = old.pointer("/spec/finalizers") {
            if !object["spec"].is_object() {
                object["spec"] = json!({});
            }
            object["spec"]["finalizers"] = finalizers.clone();
        }
    }
    if let Part::Other("finalize") = part {
        let finalizers = object.pointer("/spec/finalizers").cloned();
        let managed = object["metadata"]["managedFields"].clone();
        *object = old.clone();
        if !managed.is_null() {
            object["metadata"]["managedFields"] = managed;
        }
        if let Some(spec) = object["spec"].as_object_mut() {
            match finalizers {
                Some(list) if list.as_array().is_some_and(|l| !l.is_empty()) => {
                    spec.insert("finalizers".into(), list);
                }
                _ => {
                    spec.remove("finalizers");
                }
            }
        }
    }
    if part != Part::Other("finalize") {
        label(object);
    }
}

pub fn holds(object: &Value) -> bool {
    object.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|l| !l.is_empty())
}

pub fn terminating(object: &mut Value) {
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    object["status"]["phase"] = "Terminating".into();
}
