//! JSON merge patch, RFC 7386.

use serde_json::{Map, Value};

use super::PatchError;

/// Null removes a member, an object merges, anything else replaces.
pub fn merge(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Some(patch) = patch.as_object() else {
        return Err(PatchError::BadRequest("Invalid JSON Patch".into()));
    };
    let mut out = object.as_object().cloned().unwrap_or_default();
    merge_object(&mut out, patch);
    Ok(Value::Object(out))
}

fn merge_object(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match (target.get_mut(key), value) {
            (_, Value::Null) => {
                target.remove(key);
            }
            (Some(Value::Object(inner)), Value::Object(changes)) => merge_object(inner, changes),
            (Some(place), _) => *place = without_nulls(value),
            (None, _) => {
                target.insert(key.clone(), without_nulls(value));
            }
        }
    }
}

/// A value that arrives whole has nothing for its nulls to remove.
pub(super) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
