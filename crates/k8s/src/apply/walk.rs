//! Walks over one object: what it sets, whether it fits the schema, and the object without certain fields.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::fields::{self, Fields};
use super::topology::{Form, Schema, elements, key_element, value_element};

/// Every field a configuration sets.
pub(super) fn owned(value: &Value, schema: Schema<'_>) -> Fields {
    owned_below(value, schema).0
}

/// What is set below a value, and whether the value is itself a leaf.
fn owned_below(value: &Value, schema: Schema<'_>) -> (Fields, bool) {
    let mut out = Fields::new();
    match schema.form(value) {
        Form::Leaf => return (out, true),
        Form::Map(members) => {
            for (name, value) in value.as_object().into_iter().flatten() {
                let (schema, declared) = members.get(name).unwrap_or((Schema::Deduced, false));
                let (below, leaf) = owned_below(value, schema);
                let empty = value.as_object().is_some_and(Map::is_empty);
                if let Some(node) = fields::make(below, leaf || empty || !declared) {
                    out.insert(format!("f:{name}"), node);
                }
            }
        }
        form @ (Form::Set | Form::Keyed(..)) => {
            let schema = item_schema(&form);
            let list = value.as_array().map_or(&[][..], Vec::as_slice);
            for (element, item) in elements(list, &form) {
                // A second item with the same key: the whole of both is owned, nothing below.
                let below =
                    if out.contains_key(&element) { Fields::new() } else { owned_below(item, schema).0 };
                out.extend(fields::make(below, true).map(|node| (element, node)));
            }
        }
    }
    (out, false)
}

pub(super) fn item_schema<'a>(form: &Form<'a>) -> Schema<'a> {
    match form {
        Form::Keyed(_, schema) => *schema,
        _ => Schema::Atomic,
    }
}

/// The object without the members of `set`. A container that becomes empty without being a member itself becomes
/// null: it is still there for whoever owns it.
pub(super) fn remove(value: &Value, set: &Fields, schema: Schema<'_>) -> Option<Value> {
    match schema.form(value) {
        Form::Leaf => Some(value.clone()),
        Form::Map(members) => {
            let map = value.as_object()?;
            let mut out = Map::new();
            for (name, value) in map {
                let schema = members.get(name).map_or(Schema::Deduced, |(schema, _)| schema);
                if let Some(kept) = remove_element(value, set, &format!("f:{name}"), schema) {
                    out.insert(name.clone(), kept);
                }
            }
            Some(if out.is_empty() && !map.is_empty() { Value::Null } else { Value::Object(out) })
        }
        form @ (Form::Set | Form::Keyed(..)) => {
            let schema = item_schema(&form);
            let list = value.as_array()?;
            let kept: Vec<_> = elements(list, &form)
                .into_iter()
                .filter_map(|(element, item)| remove_element(item, set, &element, schema))
                .collect();
            Some(if kept.is_empty() && !list.is_empty() { Value::Null } else { Value::Array(kept) })
        }
    }
}

fn remove_element(value: &Value, set: &Fields, element: &str, schema: Schema<'_>) -> Option<Value> {
    match fields::below(set, element) {
        Some((_, true)) => None,
        Some((below, false)) if fields::has_children(below) => remove(value, below, schema),
        _ => Some(value.clone()),
    }
}

/// Makes the named fields on the way to a member members too, so that a struct goes with its last field.
pub(super) fn with_named(set: &Fields, schema: Option<Schema<'_>>) -> Fields {
    let mut out = Fields::new();
    for key in set.keys().filter(|k| *k != fields::SELF) {
        let Some((below, member)) = fields::below(set, key) else { continue };
        let (child, named) = match (key.strip_prefix("f:"), schema) {
            (Some(name), Some(schema)) => match schema.members().and_then(|m| m.get(name)) {
                Some((child, declared)) => (Some(child), declared),
                None => (None, false),
            },
            (None, Some(schema)) => match schema.form(&Value::Array(Vec::new())) {
                Form::Keyed(_, item) => (Some(item), false),
                _ => (None, false),
            },
            _ => (None, false),
        };
        out.extend(fields::make(with_named(below, child), member || named).map(|node| (key.clone(), node)));
    }
    out
}

/// Complaints about a configuration: unknown fields, wrong types, list items without or with the same key.
pub(super) fn check(value: &Value, schema: Schema<'_>, path: &str, out: &mut Vec<String>) {
    if !schema.accepts(value) {
        let got = match (schema.expected(), value) {
            ("numeric (int or float)", v) => go_type(v).to_owned(),
            ("string", v) => format!("&value.valueUnstructured{{Value:{v}}}"),
            (_, v) => format!("&{{{v}}}"),
        };
        out.push(format!("{path}: expected {}, got {got}", schema.expected()));
        return;
    }
    let form = match schema.form(value) {
        Form::Leaf => schema.declared().map_or(Form::Leaf, Form::Map),
        form => form,
    };
    match form {
        Form::Leaf | Form::Map(_) if value.is_array() => {
            for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                check(item, schema.item(), &format!("{path}[{i}]"), out);
            }
        }
        Form::Leaf => {}
        Form::Map(members) => {
            for (name, value) in value.as_object().into_iter().flatten() {
                let path = format!("{path}.{name}");
                match members.get(name) {
                    Some((schema, _)) => check(value, schema, &path, out),
                    None => out.push(format!("{path}: field not declared in schema")),
                }
            }
        }
        form @ (Form::Set | Form::Keyed(..)) => {
            let mut seen = HashSet::new();
            for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                let element = match &form {
                    Form::Keyed(keys, schema) => key_element(item, *keys, *schema),
                    _ => value_element(item),
                };
                match element {
                    Err(text) => {
                        out.push(format!("{path}: element {i}: {text}"));
                        return;
                    }
                    Ok(element) => {
                        let shown = fields::display(std::slice::from_ref(&element));
                        if !seen.insert(element) {
                            out.push(format!("{path}: duplicate entries for key {shown}"));
                        }
                        check(item, schema.item(), &format!("{path}{shown}"), out);
                    }
                }
            }
        }
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
        _ => "int64",
    }
}
