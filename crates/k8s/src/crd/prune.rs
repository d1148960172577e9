//! Removing what the schema does not know, and nulls it does not allow.

use serde_json::{Map, Value};

use super::schema::{Additional, Schema};
use crate::schema::{OBJECT_META, Shape, Type, type_named};

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields from a whole object and returns their paths (`spec.bogus`), sorted.
pub fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Value::Object(map) = object {
        if let Some(metadata) = map.get_mut("metadata") {
            prune_metadata(metadata, "metadata", &mut unknown);
        }
        members(map, schema, schema.preserve_unknown, true, "", &mut unknown);
    }
    unknown.sort();
    unknown
}

/// Metadata always has the fields of Kubernetes' own, whatever the schema says.
fn prune_metadata(metadata: &mut Value, path: &str, unknown: &mut Vec<String>) {
    if let Some(kind) = type_named(OBJECT_META) {
        prune_type(metadata, kind, path, unknown);
    }
}

fn prune_type(value: &mut Value, kind: &'static Type, path: &str, unknown: &mut Vec<String>) {
    let Value::Object(map) = value else { return };
    map.retain(|name, _| {
        let known = kind.field(name).is_some();
        if !known {
            unknown.push(format!("{path}.{name}"));
        }
        known
    });
    for (name, value) in map {
        let Some(Shape::List(inner)) = kind.field(name).map(|f| &f.shape) else { continue };
        let Some(kind) = inner.object() else { continue };
        for (i, item) in value.as_array_mut().into_iter().flatten().enumerate() {
            prune_type(item, kind, &format!("{path}.{name}[{i}]"), unknown);
        }
    }
}

fn members(
    map: &mut Map<String, Value>,
    schema: &Schema,
    keep: bool,
    resource: bool,
    path: &str,
    unknown: &mut Vec<String>,
) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    map.retain(|name, value| {
        if resource && META.contains(&name.as_str()) {
            return true;
        }
        match (schema.properties.get(name), &schema.additional) {
            (Some(inner), _) => node(value, Some(inner), &below(name), unknown),
            (None, Some(Additional::Schema(inner))) => node(value, Some(inner), &below(name), unknown),
            (None, Some(Additional::Allowed(_))) => node(value, None, &below(name), unknown),
            (None, None) if keep => {}
            (None, None) => {
                unknown.push(below(name));
                return false;
            }
        }
        true
    });
}

fn node(value: &mut Value, schema: Option<&Schema>, path: &str, unknown: &mut Vec<String>) {
    match (value, schema) {
        (Value::Object(map), Some(schema)) => {
            if schema.embedded
                && let Some(metadata) = map.get_mut("metadata")
            {
                prune_metadata(metadata, &format!("{path}.metadata"), unknown);
            }
            members(map, schema, schema.preserve_unknown, schema.embedded, path, unknown);
        }
        (Value::Object(map), None) => {
            unknown.extend(map.keys().map(|name| format!("{path}.{name}")));
            map.clear();
        }
        (Value::Array(list), Some(schema)) if schema.preserve_unknown => {
            for (i, item) in list.iter_mut().enumerate() {
                if let (Value::Object(map), Some(items)) = (item, &schema.items) {
                    members(map, items, true, items.embedded, &format!("{path}[{i}]"), unknown);
                }
            }
        }
        (Value::Array(list), schema) => {
            let items = schema.and_then(|s| s.items.as_deref());
            for (i, item) in list.iter_mut().enumerate() {
                node(item, items, &format!("{path}[{i}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Fills in defaults, then drops nulls that are neither allowed nor defaulted.
pub fn default(object: &mut Value, schema: &Schema) {
    drop_nulls(object, schema);
    fill(object, schema);
}

fn fill(value: &mut Value, schema: &Schema) {
    if !schema.has_defaults {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                match map.get(name) {
                    None => {
                        map.insert(name.clone(), default.clone());
                    }
                    Some(Value::Null) if !property.nullable => {
                        map.insert(name.clone(), default.clone());
                    }
                    _ => {}
                }
            }
            for (name, value) in map {
                if let Some(inner) = schema.member(name) {
                    fill_element(value, inner);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| fill_element(item, items));
            }
        }
        _ => {}
    }
}

fn fill_element(value: &mut Value, schema: &Schema) {
    if let (Value::Null, false, Some(default)) = (&*value, schema.nullable, &schema.default) {
        *value = default.clone();
    }
    fill(value, schema);
}

fn drop_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => map.retain(|name, value| match schema.member(name) {
            Some(inner) if value.is_null() => inner.nullable || inner.default.is_some(),
            Some(inner) => {
                drop_nulls(value, inner);
                true
            }
            None => true,
        }),
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| drop_nulls(item, items));
            }
        }
        _ => {}
    }
}
