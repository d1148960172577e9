//! Whether a schema is structural: every value's type is known without looking at the value.

use serde_json::Value;

use crate::validate::{At, Errors};

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Complaints about an `openAPIV3Schema`, sorted as upstream sorts them.
pub(super) fn check(schema: &At<'_, '_>) -> Vec<crate::field::FieldError> {
    let mut e = Errors::default();
    invariants(&mut e, schema, Level::Root);
    completeness(&mut e, schema);
    e.0.sort_by_key(ToString::to_string);
    e.0
}

fn is_true(at: &At<'_, '_>, name: &str) -> bool {
    at.value.get(name) == Some(&Value::Bool(true))
}

const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

fn invariants(e: &mut Errors, s: &At<'_, '_>, level: Level) {
    let kind = s.get("type");
    let items = s.get("items");
    if kind.str() == "array" && !items.is_set() {
        e.required(&items, "must be specified");
    }
    if items.is_set() {
        invariants(e, &items, Level::Item);
    }
    let properties = s.get("properties");
    for (_, property) in properties.entries() {
        invariants(e, &property, Level::Field);
    }
    let additional = s.get("additionalProperties");
    if additional.is_set() {
        if level == Level::Root {
            e.forbidden(&additional, "must not be used at the root");
        }
        if additional.value.is_object() {
            invariants(e, &additional, Level::Field);
        }
    }
    let (int_or_string, preserve, embedded) =
        (is_true(s, INT_OR_STRING), is_true(s, PRESERVE), is_true(s, EMBEDDED));
    if int_or_string && preserve {
        e.invalid(&s.get(PRESERVE), "must be false if x-kubernetes-int-or-string is true");
    }
    if int_or_string && embedded {
        e.invalid(&s.get(EMBEDDED), "must be false if x-kubernetes-int-or-string is true");
    }
    values(e, s, is_int_or_string(&s.get("anyOf")), all_of_int_or_string(s));
    if embedded && kind.str() != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if kind.is_empty() { e.required(&kind, detail) } else { e.invalid(&kind, detail) }
    } else if kind.is_empty() && !int_or_string && !preserve {
        e.required(
            &kind,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if embedded && additional.is_set() {
        e.forbidden(&additional, "must not be used if x-kubernetes-embedded-resource is set");
    }
    if level == Level::Root && !kind.is_empty() && kind.str() != "object" {
        e.invalid(&kind, "must be object at the root");
    }
    let resource = level == Level::Root || embedded;
    for name in ["kind", "apiVersion"] {
        let property = properties.key(name);
        if property.is_set() && resource && property.get("type").str() != "string" {
            e.invalid(&property.get("type"), "must be string");
        }
    }
    let metadata = properties.key("metadata");
    if metadata.is_set() {
        if resource && metadata.get("type").str() != "object" {
            e.invalid(&metadata.get("type"), "must be object");
        }
        if level == Level::Root && !only_names(&metadata) {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            e.forbidden(&metadata, detail);
        }
    }
    if embedded && !preserve && properties.is_empty() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        e.required(&properties, detail);
    }
}

fn only_names(metadata: &At<'_, '_>) -> bool {
    let Some(map) = metadata.value.as_object() else { return true };
    map.iter().all(|(key, value)| match key.as_str() {
        "type" | "default" | "description" => true,
        "properties" => {
            let names = value.as_object().map_or(0, |m| m.keys().filter(|k| !is_name(k)).count());
            names == 0
        }
        _ => value.is_null(),
    })
}

fn is_name(key: &str) -> bool {
    matches!(key, "name" | "generateName")
}

fn is_int_or_string(any_of: &At<'_, '_>) -> bool {
    any_of.value == &serde_json::json!([{"type": "integer"}, {"type": "string"}])
}

fn all_of_int_or_string(s: &At<'_, '_>) -> bool {
    is_int_or_string(&s.get("allOf").index(0).get("anyOf"))
}

/// Checks inside `anyOf` and friends, where only value validations may stand.
fn values(e: &mut Errors, s: &At<'_, '_>, skip_any_of: bool, skip_all_of: bool) {
    if !skip_any_of {
        s.get("anyOf").items().for_each(|inner| nested(e, &inner, false));
    }
    for (i, inner) in s.get("allOf").items().enumerate() {
        nested(e, &inner, skip_all_of && i == 0);
    }
    s.get("oneOf").items().for_each(|inner| nested(e, &inner, false));
    if s.get("not").is_set() {
        nested(e, &s.get("not"), false);
    }
    let pattern = s.get("pattern");
    if let Err(error) = regex::Regex::new(pattern.str()) {
        e.invalid(&pattern, format!("must be a valid regular expression, but isn't: {error}"));
    }
}

fn nested(e: &mut Errors, s: &At<'_, '_>, skip_any_of: bool) {
    values(e, s, skip_any_of, false);
    if s.get("items").is_set() {
        nested(e, &s.get("items"), false);
    }
    let properties = s.get("properties");
    properties.entries().for_each(|(_, property)| nested(e, &property, false));
    for (name, detail) in [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        (PRESERVE, "must be false to be structural"),
        (EMBEDDED, "must be false to be structural"),
        (INT_OR_STRING, "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        let at = s.get(name);
        if at.is_set() && at.value != &Value::Bool(false) && (!at.is_empty() || name == "default") {
            e.forbidden(&at, detail);
        }
    }
    if properties.key("metadata").is_set() {
        e.forbidden(&properties.key("metadata"), "must not be specified in a nested context");
    }
}

/// What occurs under a junctor must be declared outside it too. Upstream looks at the root's junctors only.
fn completeness(e: &mut Errors, s: &At<'_, '_>) {
    for junctor in ["anyOf", "allOf", "oneOf"] {
        s.get(junctor).items().for_each(|inner| declared(e, &inner, s));
    }
    if s.get("not").is_set() {
        declared(e, &s.get("not"), s);
    }
}

fn declared(e: &mut Errors, inner: &At<'_, '_>, outer: &At<'_, '_>) {
    let outer_properties = outer.get("properties");
    let properties = inner.get("properties");
    for (name, property) in properties.entries() {
        let outside = outer_properties.key(name);
        if outside.is_set() {
            declared(e, &property, &outside);
        } else {
            e.required(&outside, format!("because it is defined in {}", property.path()));
        }
    }
    let items = inner.get("items");
    if items.is_set() {
        let outside = outer.get("items");
        if outside.is_set() {
            declared(e, &items, &outside);
        } else {
            e.required(&outside, format!("because it is defined in {}", items.path()));
        }
    }
    for junctor in ["anyOf", "allOf", "oneOf"] {
        inner.get(junctor).items().for_each(|i| declared(e, &i, outer));
    }
    if inner.get("not").is_set() {
        declared(e, &inner.get("not"), outer);
    }
}
