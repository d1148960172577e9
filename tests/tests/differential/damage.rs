//! Every small damage at every place in an object.

use serde_json::{Value, json};

/// Every small damage at every place in an object.
pub fn damaged(object: &Value) -> Vec<(String, Value)> {
    let mut out = Vec::new();
    let mut spots = Vec::new();
    walk(object, String::new(), &mut spots);
    for spot in spots.iter().filter(|p| !["", "/apiVersion", "/kind"].contains(&p.as_str())) {
        for (what, damage) in damages(object.pointer(spot).unwrap_or(&Value::Null)) {
            let mut changed = object.clone();
            apply(&mut changed, spot, damage);
            out.push((format!("{spot} {what}"), changed));
        }
    }
    out
}

pub fn walk(value: &Value, path: String, places: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                walk(child, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), places);
            }
        }
        Value::Array(items) => {
            for (n, child) in items.iter().enumerate() {
                walk(child, format!("{path}/{n}"), places);
            }
        }
        _ => {}
    }
    places.push(path);
}

/// Small damages that fit a value's type; `None` removes it.
pub fn damages(value: &Value) -> Vec<(&'static str, Option<Value>)> {
    let mut out = vec![("removed", None), ("null", Some(Value::Null))];
    match value {
        Value::String(_) => out.extend([
            ("empty", Some(json!(""))),
            ("odd text", Some(json!("Not_Valid!"))),
            ("number for text", Some(json!(7))),
        ]),
        Value::Number(_) => out.extend([
            ("negative", Some(json!(-1))),
            ("huge", Some(json!(3_000_000_000_i64))),
            ("text for number", Some(json!("many"))),
        ]),
        Value::Bool(flag) => {
            out.extend([("flipped", Some(json!(!flag))), ("text for flag", Some(json!("yes")))])
        }
        Value::Array(items) => {
            out.push(("empty", Some(json!([]))));
            out.push(("object for list", Some(json!({"a": 1}))));
            if let Some(first) = items.first() {
                out.push(("doubled", Some(json!([first, first]))));
            }
        }
        Value::Object(_) => out.extend([("empty", Some(json!({}))), ("text for object", Some(json!("x")))]),
        Value::Null => {}
    }
    out
}

pub fn apply(object: &mut Value, place: &str, damage: Option<Value>) {
    match damage {
        Some(value) => {
            if let Some(target) = object.pointer_mut(place) {
                *target = value;
            }
        }
        None => {
            let Some((parent, key)) = place.rsplit_once('/') else { return };
            let key = key.replace("~1", "/").replace("~0", "~");
            match object.pointer_mut(parent) {
                Some(Value::Object(map)) => {
                    map.remove(&key);
                }
                Some(Value::Array(items)) => {
                    if let Ok(n) = key.parse::<usize>() {
                        items.remove(n);
                    }
                }
                _ => {}
            }
        }
    }
}
