//! The live object with a configuration laid over it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::topology::{Form, Schema, elements};
use super::walk::item_schema;

/// Where both set a leaf, the configuration wins; what only the live object has stays.
pub(super) fn merge(live: &Value, config: &Value, schema: Schema<'_>) -> Value {
    let is_empty = |v: &Value| match v {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    match (schema.form(live), schema.form(config)) {
        // Null for a map or list that is owned piece by piece says nothing about its pieces.
        (Form::Map(_) | Form::Set | Form::Keyed(..), _) if config.is_null() && !is_empty(live) => {
            live.clone()
        }
        (Form::Map(members), Form::Map(_)) => {
            let (Value::Object(live), Value::Object(config)) = (live, config) else { return config.clone() };
            let mut out = Map::new();
            for (name, value) in live {
                let merged = match config.get(name) {
                    None => value.clone(),
                    Some(change) => {
                        let schema = members.get(name).map_or(Schema::Deduced, |(schema, _)| schema);
                        merge(value, change, schema)
                    }
                };
                out.insert(name.clone(), merged);
            }
            for (name, value) in config {
                if !live.contains_key(name) {
                    out.insert(name.clone(), value.clone());
                }
            }
            Value::Object(out)
        }
        (form @ (Form::Set | Form::Keyed(..)), Form::Set | Form::Keyed(..)) => {
            let (Value::Array(live), Value::Array(config)) = (live, config) else { return config.clone() };
            if live.is_empty() && config.is_empty() {
                Value::Array(Vec::new())
            } else {
                lists(live, config, &form)
            }
        }
        _ => config.clone(),
    }
}

/// Interleaves two lists: items of the configuration keep its order, the live object's own items stay near their
/// neighbours.
fn lists(live: &[Value], config: &[Value], form: &Form<'_>) -> Value {
    let schema = item_schema(form);
    let left = elements(live, form);
    let right = elements(config, form);
    let mut by_left: HashMap<&str, Option<&Value>> = HashMap::new();
    for (element, item) in &left {
        // A duplicate in the live list has no single value to merge with.
        by_left.entry(element).and_modify(|v| *v = None).or_insert(Some(item));
    }
    let in_right: HashSet<&str> = right.iter().map(|(e, _)| e.as_str()).collect();
    let mut shared = right.iter().map(|(e, _)| e.as_str()).filter(|e| by_left.contains_key(e));
    let mut next_shared = shared.next();
    let mut done: HashSet<&str> = HashSet::new();
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let joined = |element: &str, item: &Value| match by_left.get(element) {
        Some(Some(live)) => merge(live, item, schema),
        _ => item.clone(),
    };
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            let element = left[l].0.as_str();
            if element == right[r].0 {
                done.insert(element);
                out.push(joined(element, right[r].1));
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if in_right.contains(element) && next_shared.is_some_and(|s| s != element) {
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            let element = left[l].0.as_str();
            if !in_right.contains(element) {
                out.push(left[l].1.clone());
                l += 1;
                continue;
            } else if done.contains(element) {
                l += 1;
            }
        }
        if r < right.len() {
            let element = right[r].0.as_str();
            done.insert(element);
            out.push(joined(element, right[r].1));
            r += 1;
            if next_shared == Some(element) {
                next_shared = shared.next();
            }
        }
    }
    Value::Array(out)
}
