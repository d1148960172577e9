//! JSON patch, RFC 6902.

use serde_json::{Map, Value};

use super::PatchError;

/// More operations than this are refused.
pub const MAX_OPERATIONS: usize = 10_000;
/// All `copy` operations of one patch together may add this much JSON.
pub const MAX_COPY_BYTES: usize = 3 * 1024 * 1024;

const MISSING: &str = "missing value";
const BAD_INDEX: &str = "invalid array index";

/// Applies the operations in order; the first that fails fails the patch.
pub fn json(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Some(operations) = patch.as_array() else {
        let text = "json: cannot unmarshal object into Go value of type jsonpatch.Patch";
        return Err(PatchError::BadRequest(text.into()));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut out = object.clone();
    let mut copied = 0;
    for operation in operations {
        let Some(operation) = operation.as_object() else {
            let text = "json: cannot unmarshal value into Go value of type jsonpatch.Operation";
            return Err(PatchError::BadRequest(text.into()));
        };
        one(&mut out, operation, &mut copied).map_err(PatchError::Unprocessable)?;
    }
    Ok(out)
}

fn one(doc: &mut Value, operation: &Map<String, Value>, copied: &mut usize) -> Result<(), String> {
    let kind = operation.get("op").and_then(Value::as_str).unwrap_or("unknown");
    let text = |field: &str| {
        operation
            .get(field)
            .and_then(Value::as_str)
            .ok_or_else(|| format!("{kind} operation failed to decode {field}: {MISSING}"))
    };
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    match kind {
        "add" => {
            let path = text("path")?;
            let (parent, key) = find(doc, path).ok_or_else(|| {
                format!("add operation does not apply: doc is missing path: \"{path}\": {MISSING}")
            })?;
            insert(parent, &key, value()).map_err(|e| format!("error in add for path: '{path}': {e}"))
        }
        "remove" => {
            let path = text("path")?;
            let (parent, key) = find(doc, path).ok_or_else(|| {
                format!("remove operation does not apply: doc is missing path: \"{path}\": {MISSING}")
            })?;
            take(parent, &key).map(drop).map_err(|e| format!("error in remove for path: '{path}': {e}"))
        }
        "replace" => replace(doc, text("path")?, value()),
        "test" => test(doc, text("path")?, operation.get("value").unwrap_or(&Value::Null)),
        "move" => {
            let (from, path) = (text("from")?, text("path")?);
            let (parent, key) = find(doc, from).ok_or_else(|| {
                format!("move operation does not apply: doc is missing from path: {from}: {MISSING}")
            })?;
            let value = take(parent, &key).map_err(|e| format!("error in move for path: '{key}': {e}"))?;
            let (parent, key) = find(doc, path).ok_or_else(|| {
                format!("move operation does not apply: doc is missing destination path: {path}: {MISSING}")
            })?;
            insert(parent, &key, value).map_err(|e| format!("error in move for path: '{path}': {e}"))
        }
        "copy" => {
            let (from, path) = (text("from")?, text("path")?);
            let (parent, key) = find(doc, from).ok_or_else(|| {
                format!("copy operation does not apply: doc is missing from path: {from}: {MISSING}")
            })?;
            let value =
                get(parent, &key).map_err(|e| format!("error in copy for from: '{from}': {e}"))?.clone();
            *copied += size(&value);
            if *copied > MAX_COPY_BYTES {
                return Err(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the \
                     limit {MAX_COPY_BYTES}"
                ));
            }
            let (parent, key) = find(doc, path).ok_or_else(|| {
                format!("copy operation does not apply: doc is missing destination path: {path}: {MISSING}")
            })?;
            insert(parent, &key, value).map_err(|e| format!("error while adding value during copy: {e}"))
        }
        _ => Err(format!("Unexpected kind: {kind}")),
    }
}

fn replace(doc: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err("replace operation value must be object or array".into());
        }
        *doc = value;
        return Ok(());
    }
    let (parent, key) = find(doc, path)
        .ok_or_else(|| format!("replace operation does not apply: doc is missing path: {path}: {MISSING}"))?;
    match parent {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) => {
            let at = index(&key, list.len()).map_err(|_| {
                format!("replace operation does not apply: doc is missing key: {path}: {MISSING}")
            })?;
            list[at] = value;
        }
        _ => {}
    }
    Ok(())
}

fn test(doc: &mut Value, path: &str, expected: &Value) -> Result<(), String> {
    let failed = || format!("testing value {path} failed: test failed");
    if path.is_empty() {
        return if doc == expected { Ok(()) } else { Err(failed()) };
    }
    let (parent, key) = find(doc, path)
        .ok_or_else(|| format!("test operation does not apply: is missing path: {path}: {MISSING}"))?;
    let found = get(parent, &key).map_err(|e| format!("error in test for path: '{path}': {e}"))?;
    if found == expected { Ok(()) } else { Err(failed()) }
}

/// The container that holds the last step of `path`, and that step.
fn find<'a>(doc: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut steps = path.split('/').skip(1).peekable();
    steps.peek()?;
    let mut current = doc;
    loop {
        let step = unescape(steps.next()?);
        if steps.peek().is_none() {
            return matches!(current, Value::Object(_) | Value::Array(_)).then_some((current, step));
        }
        current = match current {
            Value::Object(map) => map.get_mut(&step)?,
            Value::Array(list) => {
                let at = index(&step, list.len()).ok()?;
                &mut list[at]
            }
            _ => return None,
        };
    }
}

fn unescape(step: &str) -> String {
    if step.contains('~') { step.replace("~1", "/").replace("~0", "~") } else { step.to_owned() }
}

/// An existing position; negative ones count from the end.
fn index(key: &str, length: usize) -> Result<usize, String> {
    let number: i64 = key.parse().map_err(|_| format!("strconv.Atoi: parsing {key:?}: invalid syntax"))?;
    let at = if number < 0 { number + length as i64 } else { number };
    if at < 0 || at >= length as i64 {
        return Err(format!("Unable to access invalid index: {number}: {BAD_INDEX}"));
    }
    Ok(at as usize)
}

/// An absent member reads as null.
fn get<'a>(parent: &'a Value, key: &str) -> Result<&'a Value, String> {
    match parent {
        Value::Array(list) => Ok(&list[index(key, list.len())?]),
        other => Ok(other.get(key).unwrap_or(&Value::Null)),
    }
}

fn take(parent: &mut Value, key: &str) -> Result<Value, String> {
    match parent {
        Value::Object(map) => {
            map.remove(key).ok_or_else(|| format!("Unable to remove nonexistent key: {key}: {MISSING}"))
        }
        Value::Array(list) => {
            let at = index(key, list.len())?;
            Ok(list.remove(at))
        }
        _ => Err(MISSING.into()),
    }
}

fn insert(parent: &mut Value, key: &str, value: Value) -> Result<(), String> {
    match parent {
        Value::Object(map) => {
            map.insert(key.to_owned(), value);
        }
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            let at = index(key, list.len() + 1).map_err(|e| match e.strip_prefix("strconv") {
                Some(_) => format!("value was not a proper array index: '{key}': {e}"),
                None => e,
            })?;
            list.insert(at, value);
        }
        _ => return Err(MISSING.into()),
    }
    Ok(())
}

/// The length of the JSON text, near enough for a limit.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(s) => s.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|v| size(v) + 1).sum::<usize>(),
        Value::Object(map) => 2 + map.iter().map(|(k, v)| k.len() + 4 + size(v)).sum::<usize>(),
    }
}
