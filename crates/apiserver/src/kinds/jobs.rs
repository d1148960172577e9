//! Jobs find their pods by a label that only they have, unless their user asks for another selector.

use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;

use crate::registry::write;

/// Gives a new Job a selector and its pods the labels for it. The Job has its uid already. Labels of another Job, in what was
/// copied from one, are refused.
pub fn prepare_create(object: &mut Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if object.pointer("/spec/manualSelector").and_then(Value::as_bool) == Some(true)
        || !object["spec"].is_object()
    {
        return errors;
    }
    let (uid, name) =
        (write::text(object, "/metadata/uid").to_owned(), write::text(object, "/metadata/name").to_owned());
    let Some(template) = object.pointer_mut("/spec/template").and_then(Value::as_object_mut) else {
        return errors;
    };
    let metadata = template.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = json!({});
    }
    if !metadata["labels"].is_object() {
        metadata["labels"] = json!({});
    }
    for (key, value) in [
        ("controller-uid", &uid),
        ("job-name", &name),
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
    ] {
        match metadata["labels"][key].as_str() {
            None => metadata["labels"][key] = json!(value),
            Some(given) if given == value => {}
            Some(_) => {
                let path = format!("spec.template.metadata.labels[{key}]");
                errors.push(FieldError::invalid(path, &metadata["labels"], format!("must be '{value}'")));
            }
        }
    }
    // Upstream labels a job like its pods, whenever it reads one that has no labels.
    let labels = metadata["labels"].clone();
    if object["metadata"]["labels"].as_object().is_none_or(|l| l.is_empty()) {
        object["metadata"]["labels"] = labels;
    }
    if !object["spec"]["selector"].is_object() {
        object["spec"]["selector"] = json!({});
    }
    object["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"] = json!(uid);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_selects_its_own_pods() {
        let mut job = json!({"metadata": {"name": "once", "uid": "u1"}, "spec": {"template": {"spec": {}}}});
        prepare_create(&mut job);
        assert_eq!(
            job["spec"]["selector"],
            json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}})
        );
        assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], "once");
    }

    #[test]
    fn a_selector_of_the_users_own_is_left_alone() {
        let spec = json!({"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": {}});
        let mut job = json!({"metadata": {"name": "once", "uid": "u1"}, "spec": spec});
        prepare_create(&mut job);
        assert_eq!(job["spec"], spec);
    }
}
