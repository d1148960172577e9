//! What only Kubernetes' own extensions of JSON schema say: unique keys in lists, and well-formed objects inside objects.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::schema::{Additional, Schema, Topology};
use crate::field::FieldError;
use crate::names;

/// Problems with the uniqueness that `x-kubernetes-list-type` asks for. Where the `old` object has any, it was stored before
/// the schema asked for it, and none are reported.
pub(super) fn list_types(object: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    let find = |object: &Value| {
        let mut errors = Vec::new();
        walk(object, None, schema, "", &mut |data, _, schema, path| {
            if let Value::Array(list) = data {
                unique(list, schema, path, &mut errors);
            }
        });
        errors
    };
    let errors = find(object);
    match old {
        Some(old) if !errors.is_empty() && !find(old).is_empty() => Vec::new(),
        _ => errors,
    }
}

/// Problems with embedded resources that are not the same in the `old` object.
pub(super) fn embedded_resources(object: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(object, old, schema, "", &mut |data, old, schema, path| match data {
        Value::Object(map) if schema.embedded && !path.is_empty() && old != Some(data) => {
            embedded(map, path, &mut errors);
        }
        _ => {}
    });
    errors
}

/// Shows every value that has a schema, with the old value at its place.
fn walk<'v>(
    data: &'v Value,
    old: Option<&'v Value>,
    schema: &Schema,
    path: &str,
    see: &mut dyn FnMut(&'v Value, Option<&'v Value>, &Schema, &str),
) {
    see(data, old, schema, path);
    match data {
        Value::Object(map) => {
            for (name, member) in map {
                let (inner, path) = match (schema.properties.get(name), &schema.additional) {
                    (Some(inner), _) => {
                        (inner, if path.is_empty() { name.clone() } else { format!("{path}.{name}") })
                    }
                    (None, Some(Additional::Schema(inner))) => (inner.as_ref(), format!("{path}[{name}]")),
                    _ => continue,
                };
                walk(member, old.and_then(|old| old.get(name)), inner, &path, see);
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, item) in list.iter().enumerate() {
                walk(item, old.and_then(|old| old.get(i)), items, &format!("{path}[{i}]"), see);
            }
        }
        _ => {}
    }
}

fn unique(list: &[Value], schema: &Schema, path: &str, out: &mut Vec<FieldError>) {
    let keys: Vec<Value> = match &schema.list {
        Topology::Atomic => return,
        Topology::Set => list.to_vec(),
        Topology::Map(names) => {
            if let Some(i) = list.iter().position(|v| !v.is_object() && !v.is_null()) {
                let detail = "must be an object for an array of list-type map";
                out.push(FieldError::invalid(format!("{path}[{i}]"), &list[i], detail));
                return;
            }
            let key = |item: &Value| {
                let pairs = names.iter().filter_map(|n| Some((n.clone(), item.get(n)?.clone())));
                Value::Object(pairs.collect())
            };
            list.iter().map(key).collect()
        }
    };
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(keys.len());
    for (i, key) in keys.iter().enumerate() {
        let times = seen.entry(key.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            out.push(FieldError::duplicate(format!("{path}[{i}]"), key));
        }
    }
}

fn embedded(map: &Map<String, Value>, path: &str, out: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let path = format!("{path}.{name}");
        match map.get(name) {
            None => out.push(FieldError::required(path, "")),
            Some(Value::String(text)) if text.is_empty() => {
                out.push(FieldError::invalid(path, &map[name], "must not be empty"));
            }
            Some(Value::String(text)) if name == "kind" => {
                let complaints = names::dns1035_label(&text.to_lowercase());
                if !complaints.is_empty() {
                    let detail =
                        format!("may have mixed case, but should otherwise match: {}", complaints.join(","));
                    out.push(FieldError::invalid(path, &map[name], detail));
                }
            }
            Some(Value::String(text)) => {
                if text.matches('/').count() > 1 {
                    let detail = format!("unexpected GroupVersion string: {text}");
                    out.push(FieldError::invalid(path, &map[name], detail));
                }
            }
            Some(other) => out.push(FieldError::invalid(path, other, "must be a string")),
        }
    }
    if let Some(metadata) = map.get("metadata") {
        crate::validate::embedded_meta(metadata, &format!("{path}.metadata"), out);
    }
}
