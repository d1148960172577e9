//! The schema inside a definition: what upstream allows in it beyond being structural.

use serde_json::{Value, json};

use super::schema::{Additional, Schema};
use super::{check, extensions, prune, structural};
use crate::cel;
use crate::validate::{At, Errors, same};

pub(super) fn check_schema(e: &mut Errors, schema: &At<'_, '_>, status: bool) {
    let before = e.0.len();
    if status && !schema.get("type").is_empty() && schema.get("type").str() != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is \
                      enabled";
        e.invalid(&schema.get("type"), detail);
    }
    if schema.get("nullable").bool() {
        e.forbidden(&schema.get("nullable"), "nullable cannot be true at the root");
    }
    let parsed = Schema::parse(schema.value);
    if parsed.is_ok() {
        e.0.extend(structural::check(schema));
    }
    standard(e, schema, true, None);
    if e.0.len() > before {
        return;
    }
    match parsed {
        Err(error) => e.invalid_value(schema, &Value::from(""), error.to_string()),
        Ok(parsed) => defaults(e, schema, &parsed),
    }
}

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Checks on every node; `sealed` is where `oldSelf` stopped having a counterpart.
fn standard(e: &mut Errors, s: &At<'_, '_>, root: bool, sealed: Option<&str>) {
    let kind = s.get("type");
    if kind.str() == "null" {
        e.forbidden(&kind, "type cannot be set to null, use nullable as an alternative");
    } else if !kind.is_empty() && !TYPES.contains(&kind.str()) {
        e.not_supported(&kind, &TYPES);
    }
    for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if s.get(name).is_set() && !s.get(name).is_empty() {
            e.forbidden(&s.get(name), format!("{name} is not supported"));
        }
    }
    let items = s.get("items");
    if items.value.is_array() {
        e.forbidden(&items, "items must be a schema object and not an array");
    }
    if s.get("uniqueItems").bool() {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        e.forbidden(&s.get("uniqueItems"), detail);
    }
    let (additional, properties) = (s.get("additionalProperties"), s.get("properties"));
    if additional.is_set() && additional.value != &Value::Bool(true) && !properties.is_empty() {
        e.forbidden(&additional, "additionalProperties and properties are mutual exclusive");
    }
    let preserve = s.get("x-kubernetes-preserve-unknown-fields");
    if preserve.value == &Value::Bool(false) {
        e.invalid(&preserve, "must be true or undefined");
    }
    topology(e, s);
    rules(e, s, sealed);
    let path = s.path();
    let atomic_map = s.get("x-kubernetes-map-type").str() == "atomic";
    let inside = if atomic_map { sealed.or(Some(path.as_str())) } else { sealed };
    for (name, property) in properties.entries() {
        if root && matches!(name, "metadata" | "kind" | "apiVersion") && property.get("default").is_set() {
            e.forbidden(&property.get("default"), format!("must not be set in top-level {name}"));
        }
        standard(e, &property, false, inside);
    }
    if additional.value.is_object() {
        standard(e, &additional, false, sealed);
    }
    if items.value.is_object() {
        let keyed = s.get("x-kubernetes-list-type").str() == "map";
        standard(e, &items, false, if keyed { sealed } else { sealed.or(Some(path.as_str())) });
    }
    for junctor in ["allOf", "oneOf", "anyOf"] {
        s.get(junctor).items().for_each(|inner| standard(e, &inner, false, sealed));
    }
    if s.get("not").is_set() {
        standard(e, &s.get("not"), false, sealed);
    }
}

fn topology(e: &mut Errors, s: &At<'_, '_>) {
    let (kind, items) = (s.get("type"), s.get("items"));
    let must_be = |e: &mut Errors, wanted: &str, marker: &str| {
        if kind.str() != wanted {
            let detail = format!("must be {wanted} if {marker} is specified");
            if kind.is_empty() { e.required(&kind, detail) } else { e.invalid(&kind, detail) }
        }
    };
    let map_type = s.get("x-kubernetes-map-type");
    if map_type.is_set() {
        must_be(e, "object", "x-kubernetes-map-type");
        e.optional_one_of(&map_type, &["atomic", "granular"]);
    }
    let list_type = s.get("x-kubernetes-list-type");
    let keys = s.get("x-kubernetes-list-map-keys");
    if list_type.is_set() {
        must_be(e, "array", "x-kubernetes-list-type");
        e.optional_one_of(&list_type, &["atomic", "set", "map"]);
    }
    if !keys.is_empty() && list_type.str() != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        if list_type.is_set() { e.invalid(&list_type, detail) } else { e.required(&list_type, detail) }
    }
    match list_type.str() {
        "set" if items.get("type").str() == "object" => {
            let inner = items.get("x-kubernetes-map-type");
            if inner.str() != "atomic" {
                let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
                e.invalid_value(&inner, &Value::Null, detail);
            }
        }
        "map" => {
            if keys.is_empty() {
                e.required(&keys, "must not be empty if x-kubernetes-list-type is map");
            }
            if !items.is_set() {
                e.required(&items, "must have a schema if x-kubernetes-list-type is map");
            } else if items.get("type").str() != "object" {
                let detail = "must be object if parent array's x-kubernetes-list-type is map";
                e.invalid(&items.get("type"), detail);
            } else {
                map_keys(e, &keys, &items);
            }
        }
        _ => {}
    }
}

fn map_keys(e: &mut Errors, keys: &At<'_, '_>, items: &At<'_, '_>) {
    let properties = items.get("properties");
    let required = items.get("required");
    for (i, key) in keys.items().enumerate() {
        let property = properties.key(key.str());
        if !property.is_set() {
            e.invalid(keys, "entries must all be names of item properties");
        } else {
            if matches!(property.get("type").str(), "array" | "object") {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                e.invalid_value(&property.get("type"), items.get("type").value, detail);
            }
            let listed = required.items().any(|r| r.str() == key.str());
            if !listed && !property.get("default").is_set() {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                              required property";
                e.required(&property.get("default"), detail);
            }
            if property.get("nullable").bool() {
                let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                e.forbidden(&property.get("nullable"), detail);
            }
        }
        if keys.items().take(i).any(|k| k.str() == key.str()) {
            e.invalid(keys, "must not contain duplicate entries");
        }
    }
}

const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

fn rules(e: &mut Errors, s: &At<'_, '_>, sealed: Option<&str>) {
    let list = s.get("x-kubernetes-validations");
    for item in list.items() {
        let (rule, message) = (item.get("rule"), item.get("message"));
        let broken = |text: &str| text.contains(['\n', '\r']);
        let before = e.0.len();
        if rule.str().trim().is_empty() {
            e.required(&rule, "rule is not specified");
        } else if !message.str().is_empty() && message.str().trim().is_empty() {
            e.invalid(&message, "must be non-empty if specified");
        } else if broken(message.str().trim()) {
            e.invalid(&message, "must not contain line breaks");
        } else if broken(rule.str().trim()) && message.str().trim().is_empty() {
            e.required(&message, "message must be specified if rule contains line breaks");
        }
        e.optional_one_of(&item.get("reason"), &REASONS);
        if e.0.len() > before {
            continue;
        }
        for expression in [rule, item.get("messageExpression")] {
            if let Err(error) = cel::check(expression.str())
                && !expression.is_empty()
            {
                e.invalid_value(&expression, item.value, error.to_string());
            }
        }
        let transition = rule.str().contains("oldSelf");
        if transition && let Some(path) = sealed {
            let detail =
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {path}");
            e.invalid(&rule, detail);
        }
        if !transition && item.get("optionalOldSelf").is_set() {
            e.invalid(&item.get("optionalOldSelf"), "may not be set if oldSelf is not used in rule");
        }
    }
}

/// A default must itself be valid, and must not hold what would be pruned.
fn defaults(e: &mut Errors, at: &At<'_, '_>, schema: &Schema) {
    if let Some(default) = &schema.default {
        let shown = at.get("default");
        let mut pruned = json!({ "v": default });
        let wrapper = Schema {
            properties: [("v".to_owned(), schema.clone())].into_iter().collect(),
            ..Schema::default()
        };
        prune::prune(&mut pruned, &wrapper);
        if !same(&pruned["v"], default) {
            e.invalid(&shown, "must not have unknown fields");
        }
        let path = shown.path();
        let mut errors = check::check(default, None, schema);
        errors.extend(extensions::list_types(default, None, schema));
        errors.extend(extensions::embedded_resources(default, None, schema));
        for mut error in errors {
            error.path = match error.path.as_str() {
                "<nil>" => path.clone(),
                inner if inner.starts_with('[') => format!("{path}{inner}"),
                inner => format!("{path}.{inner}"),
            };
            e.0.push(error);
        }
    }
    if !schema.has_defaults {
        return;
    }
    let properties = at.get("properties");
    for (name, property) in &schema.properties {
        defaults(e, &properties.key(name), property);
    }
    if let Some(items) = &schema.items {
        defaults(e, &at.get("items"), items);
    }
    if let Some(Additional::Schema(inner)) = &schema.additional {
        defaults(e, &at.get("additionalProperties"), inner);
    }
}
