//! `metadata`, label selectors and other parts that all kinds share.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use super::at::{At, Errors, same};
use crate::names::{self, Complaints};
use crate::selector::Operator;

/// How a kind's objects may be named.
pub(crate) type NameSyntax = fn(&str) -> Complaints;

/// All annotations together may have this many bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

pub(crate) fn object_meta(e: &mut Errors, meta: &At<'_, '_>, namespaced: bool, syntax: NameSyntax) {
    let generate = meta.get("generateName");
    if !generate.is_empty() {
        e.complaints(&generate, names::as_prefix(syntax, generate.str()));
    }
    let name = meta.get("name");
    if name.is_empty() {
        e.required(&name, "name or generateName is required");
    } else {
        e.complaints(&name, syntax(name.str()));
    }
    let namespace = meta.get("namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => e.required(&namespace, ""),
        (true, false) => e.complaints(&namespace, names::dns_label(namespace.str())),
        (false, false) => e.forbidden(&namespace, "not allowed on this type"),
        (false, true) => {}
    }
    common_meta(e, meta);
}

fn common_meta(e: &mut Errors, meta: &At<'_, '_>) {
    e.non_negative(&meta.get("generation"));
    labels(e, &meta.get("labels"));
    annotations(e, &meta.get("annotations"));
    owner_references(e, &meta.get("ownerReferences"));
    finalizers(e, &meta.get("finalizers"), &Value::Null);
    managed_fields(e, &meta.get("managedFields"));
}

pub(crate) fn labels(e: &mut Errors, labels: &At<'_, '_>) {
    for (key, value) in labels.value.as_object().into_iter().flatten() {
        for complaint in names::label_key(key) {
            e.invalid_value(labels, &Value::from(key.as_str()), complaint);
        }
        for complaint in names::label_value(value.as_str().unwrap_or_default()) {
            e.invalid_value(labels, value, complaint);
        }
    }
}

pub(crate) fn annotations(e: &mut Errors, annotations: &At<'_, '_>) {
    let mut size = 0;
    for (key, value) in annotations.value.as_object().into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        for complaint in names::label_key(&key.to_lowercase()) {
            e.invalid_value(annotations, &Value::from(key.as_str()), complaint);
        }
    }
    if size > ANNOTATIONS_LIMIT {
        e.too_long(annotations, ANNOTATIONS_LIMIT);
    }
}

/// How many controllers of one object are complained about.
const MOST_CONTROLLERS: usize = 16;

fn owner_references(e: &mut Errors, references: &At<'_, '_>) {
    let mut controller: Option<String> = None;
    let mut controllers = 0;
    for item in references.items() {
        // Upstream reports at the list, not at the item.
        let field = |name: &'static str| item.value.get(name).and_then(Value::as_str).unwrap_or_default();
        for (name, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if field(name).is_empty() || (name == "apiVersion" && field(name).ends_with('/')) {
                e.invalid_value(&references.get(name), &Value::from(field(name)), detail);
            }
        }
        if field("apiVersion") == "v1" && field("kind") == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            e.invalid_value(references, item.value, detail);
        }
        // Each complaint shows the whole list: of a long one a few must do.
        if item.get("controller").bool() && controllers < MOST_CONTROLLERS {
            controllers += 1;
            let this = format!("{}/{}", field("kind"), field("name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for \
                         {first} and {this}"
                    );
                    e.invalid(references, detail);
                }
            }
        }
    }
}

/// Checks the finalizers that the stored object does not have.
fn finalizers(e: &mut Errors, finalizers: &At<'_, '_>, old: &Value) {
    let known = text_set(old);
    for item in finalizers.items().filter(|item| !known.contains(item.str())) {
        for complaint in names::label_key(item.str()) {
            e.invalid_value(finalizers, item.value, complaint);
        }
    }
    let both = ["orphan", "foregroundDeletion"];
    let set = both.iter().all(|name| finalizers.items().any(|item| item.str() == *name));
    if set && !both.iter().all(|name| known.contains(name)) {
        e.invalid(finalizers, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

/// Built-in kinds know their own finalizers; all others are qualified. Those that the stored object has may stay.
pub(super) fn standard_finalizers(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let metadata = object.get("metadata");
    let known = text_set(&old["metadata"]["finalizers"]);
    let finalizers = metadata.get("finalizers");
    let added = finalizers.items().filter(|item| !known.contains(item.str()));
    added.for_each(|item| standard_finalizer(e, &item));
}

pub(super) fn standard_finalizer(e: &mut Errors, at: &At<'_, '_>) {
    if !at.str().contains('/') && !matches!(at.str(), "kubernetes" | "orphan" | "foregroundDeletion") {
        e.invalid(at, "name is neither a standard finalizer name nor is it fully qualified");
    }
}

fn text_set(list: &Value) -> HashSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn managed_fields(e: &mut Errors, entries: &At<'_, '_>) {
    for entry in entries.items() {
        let operation = entry.get("operation");
        if !matches!(operation.str(), "Apply" | "Update") {
            e.invalid(&operation, "must be `Apply` or `Update`");
        }
        let kind = entry.get("fieldsType");
        if !kind.is_empty() && kind.str() != "FieldsV1" {
            e.invalid(&kind, "must be `FieldsV1`");
        }
        field_manager(e, &entry.get("manager"));
        if entry.get("subresource").str().len() > 256 {
            e.too_long(&entry.get("subresource"), 256);
        }
    }
}

/// At most 128 printable characters.
pub(crate) fn field_manager(e: &mut Errors, manager: &At<'_, '_>) {
    if manager.str().len() > 128 {
        e.too_long(manager, 128);
    }
    for (i, c) in manager.str().char_indices().filter(|(_, c)| c.is_control()) {
        e.invalid(manager, format!("invalid character U+{:04X} (at position {i})", c as u32));
    }
}

/// What may not change between two versions of an object.
pub(crate) fn meta_update(e: &mut Errors, new: &At<'_, '_>, old: &Value) {
    let before = |name: &str| old.get(name).unwrap_or(&Value::Null);
    let deleting = !before("deletionTimestamp").is_null();
    if deleting {
        let set = |v: &Value| -> BTreeSet<String> {
            let items = v.as_array().into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let (now, known) = (set(new.get("finalizers").value), set(before("finalizers")));
        let extra: Vec<_> = now.difference(&known).collect();
        if !extra.is_empty() {
            let shown: Vec<_> = extra.iter().map(|f| format!("{f:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                shown.join(", ")
            );
            e.forbidden(&new.get("finalizers"), detail);
        }
    }
    if new.get("resourceVersion").is_empty() {
        e.invalid_value(
            &new.get("resourceVersion"),
            &Value::from(new.get("resourceVersion").str()),
            "must be specified for an update",
        );
    }
    let generation = new.get("generation");
    if generation.int().unwrap_or_default() < before("generation").as_i64().unwrap_or_default() {
        e.invalid(&generation, "must not be decremented");
    }
    for name in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let at = new.get(name);
        if !same(at.value, before(name)) {
            e.invalid(&at, "field is immutable");
        }
    }
    labels(e, &new.get("labels"));
    annotations(e, &new.get("annotations"));
    owner_references(e, &new.get("ownerReferences"));
    finalizers(e, &new.get("finalizers"), before("finalizers"));
    managed_fields(e, &new.get("managedFields"));
}

/// The object form of a label selector.
pub(crate) fn label_selector(e: &mut Errors, selector: &At<'_, '_>) {
    labels(e, &selector.get("matchLabels"));
    let expressions = selector.get("matchExpressions");
    for expression in expressions.items() {
        let (operator, values) = (expression.get("operator"), expression.get("values"));
        match parse_operator(operator.str()) {
            Some(Operator::In | Operator::NotIn) if values.is_empty() => {
                e.required(&values, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            Some(Operator::Exists | Operator::DoesNotExist) if !values.is_empty() => {
                e.forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            Some(_) => {}
            None => e.invalid(&operator, "not a valid selector operator"),
        }
        selector_requirement(e, &expression);
    }
}

/// The key and values that a selector speaks of.
pub(super) fn selector_requirement(e: &mut Errors, requirement: &At<'_, '_>) {
    let key = requirement.get("key");
    e.complaints(&key, names::label_key(key.str()));
    for value in requirement.get("values").items() {
        e.complaints(&value, names::label_value(value.str()));
    }
}

fn parse_operator(name: &str) -> Option<Operator> {
    Some(match name {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return None,
    })
}

/// A status that is checked for its conditions only.
pub(super) fn status_conditions(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    conditions(e, &object.get("status").get("conditions"));
}

/// `status.conditions` of type metav1.Condition.
pub(crate) fn conditions(e: &mut Errors, conditions: &At<'_, '_>) {
    let mut seen = HashSet::new();
    for condition in conditions.items() {
        let kind = condition.get("type");
        if !seen.insert(kind.str()) {
            e.duplicate(&kind);
        }
        e.complaints(&kind, names::label_key(kind.str()));
        let status = condition.get("status");
        if !matches!(status.str(), "True" | "False" | "Unknown") {
            e.not_supported(&status, &["False", "True", "Unknown"]);
        }
        if condition.get("lastTransitionTime").is_empty() {
            e.required(&condition.get("lastTransitionTime"), "");
        }
        let reason = condition.get("reason");
        if reason.is_empty() {
            e.required(&reason, "");
        } else if !is_reason(reason.str()) {
            e.invalid(&reason, REASON);
        }
    }
}

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name', or 'MY_NAME', or 'MyName', or 'ReasonA,ReasonB', or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

fn is_reason(text: &str) -> bool {
    let ends = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().copied().is_some_and(ends)
        && bytes.iter().all(|&c| ends(c) || matches!(c, b',' | b':'))
}
