//! Removing what the schema does not know, and nulls it does not allow.

use serde_json::{Map, Value};

use super::schema::{Additional, Schema};
use crate::decode;
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

fn prune_embedded(map: &mut Map<String, Value>, schema: &Schema, path: &str, unknown: &mut Vec<String>) {
    if let Some(metadata) = map.get_mut("metadata").filter(|_| schema.embedded) {
        prune_metadata(metadata, &format!("{path}.metadata"), unknown);
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
            prune_embedded(map, schema, path, unknown);
            members(map, schema, schema.preserve_unknown, schema.embedded, path, unknown);
        }
        (Value::Object(map), None) => {
            unknown.extend(map.keys().map(|name| format!("{path}.{name}")));
            map.clear();
        }
        (Value::Array(list), Some(schema)) if schema.preserve_unknown => {
            for (i, item) in list.iter_mut().enumerate() {
                if let (Value::Object(map), Some(items)) = (item, &schema.items) {
                    let path = format!("{path}[{i}]");
                    prune_embedded(map, items, &path, unknown);
                    members(map, items, true, items.embedded, &path, unknown);
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

/// Brings a resource's numbers, and what it and those embedded in it say of themselves, into canonical form. Says what cannot
/// be, and where.
pub fn coerce(object: &mut Value, schema: &Schema) -> Result<(), String> {
    if let Value::Object(map) = object {
        map.iter_mut().filter(|(name, _)| *name != "metadata").for_each(|(_, value)| decode::integers(value));
        coerce_resource(map, "")?;
    }
    coerce_embedded(object, schema, "")
}

fn coerce_embedded(value: &mut Value, schema: &Schema, path: &str) -> Result<(), String> {
    if !schema.has_embedded {
        return Ok(());
    }
    match value {
        Value::Object(map) => {
            if schema.embedded {
                coerce_resource(map, path)?;
            }
            for (name, member) in map {
                if let Some(inner) = schema.member(name) {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    coerce_embedded(member, inner, &path)?;
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                for (i, item) in list.iter_mut().enumerate() {
                    coerce_embedded(item, items, &format!("{path}[{i}]"))?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn coerce_resource(map: &mut Map<String, Value>, path: &str) -> Result<(), String> {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for name in ["apiVersion", "kind"] {
        if let Some(other) = map.get(name).filter(|value| !value.is_string()) {
            return Err(format!("{}: Invalid value: {other}: must be a string", below(name)));
        }
    }
    match map.remove("metadata") {
        None => Ok(()),
        Some(Value::Null) => {
            map.insert("metadata".into(), Value::Object(Map::new()));
            Ok(())
        }
        Some(metadata) => {
            let kind = type_named(OBJECT_META).expect("the tables hold ObjectMeta");
            let mut decoded = decode::value(metadata.clone(), kind)
                .map_err(|e| format!("{}: Invalid value: {metadata}: {e}", below("metadata")))?
                .value;
            put_back_unknown(&mut decoded, metadata, kind);
            map.insert("metadata".into(), decoded);
            Ok(())
        }
    }
}

/// Gives a decoded value the fields that decoding dropped because its type does not have them: pruning names and drops them.
fn put_back_unknown(decoded: &mut Value, written: Value, kind: &'static Type) {
    let (Value::Object(decoded), Value::Object(written)) = (decoded, written) else { return };
    for (name, value) in written {
        let Some(field) = kind.field(&name) else {
            decoded.insert(name, value);
            continue;
        };
        let Shape::List(inner) = &field.shape else { continue };
        if let (Some(kind), Some(Value::Array(items)), Value::Array(written)) =
            (inner.object(), decoded.get_mut(&name), value)
        {
            items.iter_mut().zip(written).for_each(|(item, written)| put_back_unknown(item, written, kind));
        }
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
