//! A place in an object: its value and, without allocating until there is something to say, its path.

use serde_json::Value;

use crate::field::{ErrorKind, FieldError};

static NULL: Value = Value::Null;

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

/// A value that may be absent, with the way to it.
#[derive(Clone, Copy)]
pub(crate) struct At<'v, 'p> {
    pub value: &'v Value,
    parent: Option<&'p At<'v, 'p>>,
    step: Step<'p>,
}

impl<'v, 'p> At<'v, 'p> {
    pub fn root(value: &'v Value) -> Self {
        Self { value, parent: None, step: Step::Root }
    }

    /// A root whose path is not empty: for parts of objects.
    pub fn named(value: &'v Value, path: &'p str) -> Self {
        Self { value, parent: None, step: if path.is_empty() { Step::Root } else { Step::Field(path) } }
    }

    /// A field, which may be absent.
    pub fn get<'q>(&'q self, name: &'q str) -> At<'v, 'q> {
        At { value: self.value.get(name).unwrap_or(&NULL), parent: Some(self), step: Step::Field(name) }
    }

    /// The same place with another value, for messages about a value that is not there itself.
    pub fn with(self, value: &'v Value) -> Self {
        At { value, ..self }
    }

    pub fn key<'q>(&'q self, name: &'q str) -> At<'v, 'q> {
        At { value: self.value.get(name).unwrap_or(&NULL), parent: Some(self), step: Step::Key(name) }
    }

    pub fn index(&self, i: usize) -> At<'v, '_> {
        At { value: self.value.get(i).unwrap_or(&NULL), parent: Some(self), step: Step::Index(i) }
    }

    pub fn items(&self) -> impl Iterator<Item = At<'v, '_>> {
        (0..self.len()).map(|i| self.index(i))
    }

    /// The members of a map, addressed as `path[key]`.
    pub fn entries<'q>(&'q self) -> impl Iterator<Item = (&'v str, At<'v, 'q>)>
    where
        'v: 'q,
    {
        self.value.as_object().into_iter().flat_map(|m| m.keys()).map(|k| (k.as_str(), self.key(k)))
    }

    /// The number of items or members.
    pub fn len(&self) -> usize {
        match self.value {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        }
    }

    /// Present and not null.
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Absent, null, or an empty string, list or map.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(s) => s.is_empty(),
            Value::Array(_) | Value::Object(_) => self.len() == 0,
            _ => false,
        }
    }

    pub fn str(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    pub fn int(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub fn bool(&self) -> bool {
        self.value.as_bool().unwrap_or_default()
    }

    pub fn path(&self) -> String {
        let mut out = match self.parent {
            Some(parent) => parent.path(),
            None => String::new(),
        };
        match self.step {
            Step::Root => {}
            Step::Field(name) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Step::Index(i) => out.push_str(&format!("[{i}]")),
            Step::Key(name) => out.push_str(&format!("[{name}]")),
        }
        out
    }
}

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Errors(pub Vec<FieldError>);

impl Errors {
    fn push(&mut self, at: &At<'_, '_>, kind: ErrorKind, value: String, detail: impl Into<String>) {
        let path = match at.path() {
            path if path.is_empty() => "<nil>".to_owned(),
            path => path,
        };
        self.0.push(FieldError { kind, path, value, detail: detail.into() });
    }

    pub fn required(&mut self, at: &At<'_, '_>, detail: impl Into<String>) {
        self.push(at, ErrorKind::Required, String::new(), detail);
    }

    pub fn forbidden(&mut self, at: &At<'_, '_>, detail: impl Into<String>) {
        self.push(at, ErrorKind::Forbidden, String::new(), detail);
    }

    pub fn invalid(&mut self, at: &At<'_, '_>, detail: impl Into<String>) {
        // An absent string shows as an empty one.
        let shown = if at.value.is_null() { "\"\"".to_owned() } else { at.value.to_string() };
        self.push(at, ErrorKind::Invalid, shown, detail);
    }

    pub fn invalid_value(&mut self, at: &At<'_, '_>, value: &Value, detail: impl Into<String>) {
        self.push(at, ErrorKind::Invalid, value.to_string(), detail);
    }

    pub fn not_supported(&mut self, at: &At<'_, '_>, allowed: &[&str]) {
        let quoted: Vec<_> = allowed.iter().map(|a| format!("{a:?}")).collect();
        let shown = if at.value.is_null() { "\"\"".to_owned() } else { at.value.to_string() };
        self.push(at, ErrorKind::NotSupported, shown, format!("supported values: {}", quoted.join(", ")));
    }

    pub fn duplicate(&mut self, at: &At<'_, '_>) {
        self.push(at, ErrorKind::Duplicate, at.value.to_string(), "");
    }

    pub fn not_found(&mut self, at: &At<'_, '_>) {
        self.push(at, ErrorKind::NotFound, at.value.to_string(), "");
    }

    pub fn internal(&mut self, at: &At<'_, '_>, detail: impl Into<String>) {
        self.push(at, ErrorKind::Internal, String::new(), detail);
    }

    pub fn too_long(&mut self, at: &At<'_, '_>, max: usize) {
        self.push(at, ErrorKind::TooLong, String::new(), format!("may not be more than {max} bytes"));
    }

    pub fn too_many(&mut self, at: &At<'_, '_>, actual: usize, max: usize) {
        let unit = if max == 1 { "item" } else { "items" };
        self.push(at, ErrorKind::TooMany, actual.to_string(), format!("must have at most {max} {unit}"));
    }

    /// One `Invalid` per complaint.
    pub fn complaints(&mut self, at: &At<'_, '_>, complaints: Vec<String>) {
        for complaint in complaints {
            self.invalid(at, complaint);
        }
    }

    /// Required, and one of these.
    pub fn one_of(&mut self, at: &At<'_, '_>, allowed: &[&str]) {
        if at.is_empty() {
            self.required(at, "");
        } else if !allowed.contains(&at.str()) {
            self.not_supported(at, allowed);
        }
    }

    /// If present, one of these.
    pub fn optional_one_of(&mut self, at: &At<'_, '_>, allowed: &[&str]) {
        if !at.is_empty() && !allowed.contains(&at.str()) {
            self.not_supported(at, allowed);
        }
    }

    /// If set, one of these; the empty text is none of them.
    pub fn set_one_of(&mut self, at: &At<'_, '_>, allowed: &[&str]) {
        if at.is_set() && !allowed.contains(&at.str()) {
            self.not_supported(at, allowed);
        }
    }

    pub fn non_negative(&mut self, at: &At<'_, '_>) {
        if at.int().is_some_and(|n| n < 0) {
            self.invalid(at, "must be greater than or equal to 0");
        }
    }

    /// Required and in the name syntax.
    pub fn name(&mut self, at: &At<'_, '_>, syntax: fn(&str) -> Vec<String>) {
        if at.is_empty() {
            self.required(at, "");
        } else {
            self.complaints(at, syntax(at.str()));
        }
    }

    /// `new` must equal `old`.
    pub fn immutable(&mut self, new: &At<'_, '_>, old: &Value) {
        if !same(new.value, old) {
            self.invalid_value(new, new.value, "field is immutable");
        }
    }
}

/// Equality as Go sees it: absent, null and empty are one.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_nothing),
        // Decoding leaves zeros only where Go has a pointer to them.
        Value::Bool(_) | Value::Number(_) => false,
    };
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| same(v, y.get(k).unwrap_or(&NULL)))
                && y.iter().all(|(k, v)| x.contains_key(k) || same(&NULL, v))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        (Value::Null, other) | (other, Value::Null) => empty(other),
        _ => a == b,
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_nothing),
        Value::Array(list) => list.is_empty(),
        Value::String(s) => s.is_empty(),
        _ => false,
    }
}
