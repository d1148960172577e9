//! Validation of values against a schema, with the texts of upstream's OpenAPI validator.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::formats;
use super::schema::{Additional, Kind, Schema, Topology};
use crate::field::{ErrorKind, FieldError};

/// Checks a whole object against what JSON schema can say. A problem with a value that is the same in the `old` object is
/// let pass, so that old objects stay writable when a schema is tightened. The whole object is never the same: every write
/// changes its metadata.
pub(super) fn check(object: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    let mut out = Found::default();
    find(object, old, schema, "", &mut out);
    out.errors
}

/// The old item that an item of a list is a change of. Only items with keys can be told apart.
struct OldItems<'v> {
    keys: &'v [String],
    items: HashMap<String, &'v Value>,
}

impl<'v> OldItems<'v> {
    fn new(old: Option<&'v Value>, schema: &'v Schema) -> Option<Self> {
        let (Some(Value::Array(old)), Topology::Map(keys)) = (old, &schema.list) else { return None };
        let mut items = HashMap::with_capacity(old.len());
        for item in old {
            items.entry(key_of(item, keys)).or_insert(item);
        }
        Some(Self { keys, items })
    }

    fn of(&self, item: &Value) -> Option<&'v Value> {
        self.items.get(&key_of(item, self.keys)).copied()
    }
}

fn key_of(item: &Value, keys: &[String]) -> String {
    let parts: Vec<Option<&Value>> = keys.iter().map(|key| item.get(key)).collect();
    serde_json::to_string(&parts).unwrap_or_default()
}

/// Errors so far, and how many checks passed: the alternative that got furthest explains a failed `anyOf`.
#[derive(Default)]
struct Found {
    errors: Vec<FieldError>,
    matched: usize,
}

impl Found {
    fn push(&mut self, kind: ErrorKind, path: &str, value: Value, detail: String) {
        let path = match path.trim_start_matches('.') {
            "" => "<nil>",
            path => path,
        };
        let value = match kind {
            ErrorKind::Required | ErrorKind::TooLong | ErrorKind::Forbidden => String::new(),
            _ => value.to_string(),
        };
        self.errors.push(FieldError { kind, path: path.to_owned(), value, detail });
    }

    fn invalid(&mut self, path: &str, value: Value, detail: String) {
        self.push(ErrorKind::Invalid, path, value, detail);
    }

    /// Problems of the whole that belong to no field.
    fn general(&mut self, detail: String) {
        self.push(ErrorKind::Invalid, "", Value::from(""), detail);
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if !n.is_i64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The format that upstream gives a value by its Go type.
fn format_name(value: &Value) -> &'static str {
    match value {
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        _ => "",
    }
}

/// The format of a schema, if it means something for its type.
fn schema_format(schema: &Schema) -> Option<&str> {
    let format = schema.checks.format.as_deref()?;
    let known = match schema.kind {
        Some(Kind::Integer) => matches!(format, "int32" | "int64"),
        Some(Kind::Number) => matches!(format, "float" | "double"),
        Some(Kind::String) => formats::matches(format, "").is_some(),
        _ => false,
    };
    known.then_some(format)
}

fn has_type(value: &Value, schema: &Schema) -> bool {
    // Beyond the whole numbers that a float tells apart, a float is none of them.
    let safe = |f: f64| f.fract() == 0.0 && f.abs() <= 9_007_199_254_740_991.0;
    let whole = |n: &serde_json::Number| n.is_i64() || n.as_f64().is_some_and(safe);
    if schema.int_or_string {
        return value.is_string() || matches!(value, Value::Number(n) if whole(n));
    }
    match (schema.kind, value) {
        (None, _) => true,
        (Some(Kind::Object), v) => v.is_object(),
        (Some(Kind::Array), v) => v.is_array(),
        (Some(Kind::String), v) => v.is_string(),
        (Some(Kind::Boolean), v) => v.is_boolean(),
        (Some(Kind::Number), v) => v.is_number(),
        (Some(Kind::Integer), Value::Number(n)) => whole(n),
        (Some(Kind::Integer), _) => false,
    }
}

fn value(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Found) {
    let before = out.errors.len();
    find(value, old, schema, path, out);
    if out.errors.len() > before && old == Some(value) {
        out.errors.truncate(before);
    }
}

fn find(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Found) {
    let expected = || match (schema.int_or_string, schema.kind) {
        (true, _) => "integer,string",
        (_, kind) => kind.map_or("", Kind::name),
    };
    if value.is_null() && schema.nullable {
        return;
    }
    if !has_type(value, schema) {
        let (expected, actual) = match schema_format(schema) {
            Some(format) if !matches!(value, Value::Null | Value::String(_) | Value::Array(_)) => {
                (format, format_name(value))
            }
            _ => (expected(), type_name(value)),
        };
        let detail = format!("{path} in body must be of type {expected}: {actual:?}");
        out.push(ErrorKind::TypeInvalid, path, Value::from(actual), detail);
    } else {
        out.matched += 1;
    }
    if !value.is_null() {
        junctors(value, schema, path, out);
    }
    match value {
        Value::String(text) => string(text, schema, path, out),
        Value::Number(_) => number(value, schema, path, out),
        Value::Array(list) => array(list, old, schema, path, out),
        Value::Object(map) => object(map, old, schema, path, out),
        Value::Null | Value::Bool(_) => {}
    }
    if let Some(choices) = &schema.checks.choices
        && !choices.iter().any(|c| c == value || same_number(c, value))
    {
        let shown: Vec<String> =
            choices.iter().map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned)).collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        let mut error = FieldError::not_supported("", value, &shown);
        error.path = path.trim_start_matches('.').to_owned();
        out.errors.push(error);
    }
}

fn same_number(a: &Value, b: &Value) -> bool {
    a.is_number() && b.is_number() && a.as_f64() == b.as_f64()
}

fn junctors(data: &Value, schema: &Schema, path: &str, out: &mut Found) {
    let checks = &schema.checks;
    let run = |schema: &Schema| {
        let mut found = Found::default();
        // What did not change is spared as a whole, after the alternatives were compared.
        value(data, None, schema, path, &mut found);
        found
    };
    if !checks.any_of.is_empty() {
        let mut best: Option<Found> = None;
        let mut valid = false;
        for alternative in &checks.any_of {
            let found = run(alternative);
            if found.errors.is_empty() {
                valid = true;
                break;
            }
            if best.as_ref().is_none_or(|b| found.matched > b.matched) {
                best = Some(found);
            }
        }
        if !valid {
            out.general(format!("{path:?} must validate at least one schema (anyOf)"));
            out.errors.extend(best.into_iter().flat_map(|b| b.errors));
        }
    }
    if !checks.one_of.is_empty() {
        let mut best: Option<Found> = None;
        let mut valid = 0;
        for alternative in &checks.one_of {
            let found = run(alternative);
            if found.errors.is_empty() {
                valid += 1;
                best = None;
            } else if valid == 0 && best.as_ref().is_none_or(|b| found.matched > b.matched) {
                best = Some(found);
            }
        }
        if valid != 1 {
            let more = if valid == 0 {
                "Found none valid".into()
            } else {
                format!("Found {valid} valid alternatives")
            };
            out.general(format!("{path:?} must validate one and only one schema (oneOf). {more}"));
            out.errors.extend(best.into_iter().flat_map(|b| b.errors));
        }
    }
    if !checks.all_of.is_empty() {
        let found: Vec<Found> = checks.all_of.iter().map(run).collect();
        let valid = found.iter().filter(|f| f.errors.is_empty()).count();
        out.errors.extend(found.into_iter().flat_map(|f| f.errors));
        if valid != checks.all_of.len() {
            let more = if valid == 0 { ". None validated" } else { "" };
            out.general(format!("{path:?} must validate all the schemas (allOf){more}"));
        }
    }
    if let Some(not) = &checks.not
        && run(not).errors.is_empty()
    {
        out.general(format!("{path:?} must not validate the schema (not)"));
    }
}

fn string(text: &str, schema: &Schema, path: &str, out: &mut Found) {
    let checks = &schema.checks;
    let length = || text.chars().count() as u64;
    let shown = || Value::from(text);
    if let Some(max) = checks.max_length.filter(|max| length() > *max) {
        let unit = if max == 1 { "byte" } else { "bytes" };
        out.push(ErrorKind::TooLong, path, Value::Null, format!("may not be more than {max} {unit}"));
    } else if let Some(min) = checks.min_length.filter(|min| length() < *min) {
        out.invalid(path, shown(), format!("{path} in body should be at least {min} chars long"));
    } else if let Some(pattern) = &checks.pattern
        && !pattern.regex.as_ref().is_some_and(|r| r.is_match(text))
    {
        out.invalid(path, shown(), format!("{path} in body should match '{}'", pattern.text));
    }
    if let Some(format) = &checks.format
        && matches!(schema.kind, None | Some(Kind::String))
        && formats::matches(format, text) == Some(false)
    {
        let detail = format!("{path} in body must be of type {format}: {text:?}");
        out.push(ErrorKind::TypeInvalid, path, shown(), detail);
    }
}

fn number(data: &Value, schema: &Schema, path: &str, out: &mut Found) {
    let checks = &schema.checks;
    let number = data.as_f64().unwrap_or_default();
    let format = schema_format(schema);
    let fits = match (schema.kind, format) {
        (Some(Kind::Integer), Some("int32")) => {
            number.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number)
        }
        (Some(Kind::Integer), _) => {
            data.is_i64() || (number.fract() == 0.0 && number.abs() < i64::MAX as f64)
        }
        (Some(Kind::Number), Some("float")) => (number as f32).is_finite(),
        _ => true,
    };
    if !fits {
        let kind = schema.kind.map_or("", Kind::name);
        let format = format.map_or("(default format)".into(), |format| format!("with format {format}"));
        out.general(format!("Checked value must be of type {kind} {format} in {path}"));
    }
    if let Some(factor) = checks.multiple_of.filter(|f| !data.is_f64() && *f < 1.0) {
        // Upstream divides whole numbers by the whole part of the factor.
        let whole = factor as i64;
        let detail = format!("factor MultipleOf declared for {path} must be positive: {whole}");
        out.invalid(path, Value::from(whole), detail);
    } else if let Some(factor) = checks.multiple_of {
        let times = number / factor;
        if factor <= 0.0 || (times - times.round()).abs() > f64::EPSILON * times.abs().max(1.0) {
            out.invalid(path, data.clone(), format!("{path} in body should be a multiple of {factor}"));
        }
    }
    if let Some(min) = checks.minimum
        && (number < min || (checks.exclusive_minimum && number <= min))
    {
        let than = if checks.exclusive_minimum { "greater than" } else { "greater than or equal to" };
        out.invalid(path, data.clone(), format!("{path} in body should be {than} {min}"));
    }
    if let Some(max) = checks.maximum
        && (number > max || (checks.exclusive_maximum && number >= max))
    {
        let than = if checks.exclusive_maximum { "less than" } else { "less than or equal to" };
        out.invalid(path, data.clone(), format!("{path} in body should be {than} {max}"));
    }
}

fn array(list: &[Value], old: Option<&Value>, schema: &Schema, path: &str, out: &mut Found) {
    if let Some(items) = &schema.items {
        let old = OldItems::new(old, schema);
        for (i, item) in list.iter().enumerate() {
            let old = old.as_ref().and_then(|old| old.of(item));
            value(item, old, items, &format!("{path}[{i}]"), out);
        }
    }
    let size = list.len() as u64;
    if let Some(min) = schema.checks.min_items.filter(|min| size < *min) {
        out.invalid(path, Value::from(size), format!("{path} in body should have at least {min} items"));
    }
    if let Some(max) = schema.checks.max_items.filter(|max| size > *max) {
        let unit = if max == 1 { "item" } else { "items" };
        out.push(ErrorKind::TooMany, path, Value::from(size), format!("must have at most {max} {unit}"));
    }
    let mut seen = HashSet::new();
    if schema.checks.unique_items && !list.iter().all(|item| seen.insert(item)) {
        out.invalid(path, Value::from(""), format!("{path} in body shouldn't contain duplicates"));
    }
}

fn object(map: &Map<String, Value>, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Found) {
    let checks = &schema.checks;
    let size = map.len() as u64;
    if let Some(min) = checks.min_properties.filter(|min| size < *min) {
        out.invalid(path, Value::from(size), format!("{path} in body should have at least {min} properties"));
    }
    if let Some(max) = checks.max_properties.filter(|max| size > *max) {
        let unit = if max == 1 { "item" } else { "items" };
        out.push(ErrorKind::TooMany, path, Value::from(size), format!("must have at most {max} {unit}"));
    }
    for (name, member) in map {
        let inside = |dot: &str| format!("{path}{dot}{name}");
        let old = old.and_then(|old| old.get(name));
        match (schema.properties.get(name), &schema.additional) {
            (Some(property), _) => {
                value(member, old, property, &inside(if path.is_empty() { "" } else { "." }), out)
            }
            (None, Some(Additional::Schema(inner))) => value(member, old, inner, &inside("."), out),
            (None, Some(Additional::Allowed(false))) => {
                let detail = format!("{path}.{name} in body is a forbidden property");
                out.invalid(path, Value::from(name.as_str()), detail);
            }
            _ => {}
        }
    }
    for name in checks.required.iter().filter(|name| !map.contains_key(*name)) {
        out.push(ErrorKind::Required, &format!("{path}.{name}"), Value::Null, String::new());
    }
}
