//! Request bodies into values, judged against the tables in one pass.
//!
//! The value that comes out is what upstream's Go types would write back: unknown fields are gone, empty optional
//! fields are gone, always-written fields are there, quantities and times are in their canonical form. Two bodies
//! that upstream would store alike are therefore equal here. What strict field validation would object to is
//! collected on the way, in upstream's words and order.

pub(crate) mod leaf;
mod struct_;
mod untyped;
mod yaml_lines;
pub(crate) mod zero;

use serde::de::{DeserializeSeed, Deserializer};
use serde_json::Value;
use thiserror::Error;

use crate::schema::{self, Field, Type};
use struct_::Struct;
use untyped::Untyped;
pub(crate) use untyped::integers;

/// Upstream stops counting here.
const MAX_WARNINGS: usize = 100;

/// A decoded body.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// What `fieldValidation=Strict` refuses: `unknown field "spec.foo"`, `duplicate field "spec.replicas"`.
    pub warnings: Vec<String>,
}

/// Why a body could not be decoded. The text is the part of upstream's message that names the cause; the server
/// puts the kind before it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON or YAML at all.
    #[error("{0}")]
    Syntax(String),
    /// Well-formed, but not this type: `json: cannot unmarshal …`.
    #[error("{0}")]
    Type(String),
}

/// What upstream writes for a struct that nobody has filled in.
pub fn empty(type_: &Type) -> Value {
    zero::object(type_)
}

/// Decodes JSON against a built-in type, or without one.
pub fn json(bytes: &[u8], type_: Option<&'static Type>) -> Result<Decoded, DecodeError> {
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let mut notes = Notes::default();
    let value = run(&mut input, type_, &mut notes);
    let value = notes.settle(value, |e: serde_json::Error| syntax(bytes, &e))?;
    input.end().map_err(|e| syntax(bytes, &e))?;
    Ok(Decoded { value, warnings: notes.into_warnings() })
}

/// Decodes the first YAML document. Duplicate keys are reported by line, and first, as upstream does for YAML.
pub fn yaml(bytes: &[u8], type_: Option<&'static Type>) -> Result<Decoded, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|e| DecodeError::Syntax(format!("yaml: {e}")))?;
    let Some(input) = serde_yaml_ng::Deserializer::from_str(text).next() else {
        return Ok(Decoded { value: Value::Null, warnings: Vec::new() });
    };
    let mut notes = Notes::default();
    let value = run(input, type_, &mut notes);
    let value = notes.settle(value, |e: serde_yaml_ng::Error| {
        DecodeError::Syntax(format!("error converting YAML to JSON: yaml: {e}"))
    })?;
    let mut warnings = notes.into_warnings();
    if warnings.iter().any(|w| w.starts_with(DUPLICATE)) {
        warnings.retain(|w| !w.starts_with(DUPLICATE));
        warnings.splice(0..0, yaml_lines::duplicates(text));
    }
    Ok(Decoded { value, warnings })
}

/// A custom resource: free-form but for `metadata`, which is judged like that of a built-in kind.
pub fn custom(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    json(bytes, None)
}

/// The `apiVersion` and `kind` of a JSON body; empty when absent.
pub fn type_meta(bytes: &[u8]) -> Result<(String, String), DecodeError> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct TypeMeta {
        api_version: Option<String>,
        kind: Option<String>,
    }
    let meta: TypeMeta = serde_json::from_slice(bytes).map_err(|e| syntax(bytes, &e))?;
    Ok((meta.api_version.unwrap_or_default(), meta.kind.unwrap_or_default()))
}

/// Brings a value that is already parsed (the result of a patch) into canonical form for its type.
pub fn value(value: Value, type_: &'static Type) -> Result<Decoded, DecodeError> {
    let mut notes = Notes::default();
    let value = run(value, Some(type_), &mut notes);
    let value = notes.settle(value, |e: serde_json::Error| DecodeError::Syntax(e.to_string()))?;
    Ok(Decoded { value, warnings: notes.into_warnings() })
}

fn run<'de, D: Deserializer<'de>>(
    input: D,
    type_: Option<&'static Type>,
    notes: &mut Notes,
) -> Result<Value, D::Error> {
    match type_ {
        Some(type_) => Struct { type_, field: None, notes }.deserialize(input),
        None => Untyped { top: true, notes }.deserialize(input),
    }
}

fn syntax(bytes: &[u8], error: &serde_json::Error) -> DecodeError {
    if error.is_eof() {
        return DecodeError::Syntax("unexpected end of JSON input".to_owned());
    }
    // serde_json counts lines and columns from 1; upstream names the character.
    let line = bytes.split(|b| *b == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    match line.get(error.column().saturating_sub(1)) {
        Some(b) if b.is_ascii_graphic() && error.is_syntax() => {
            DecodeError::Syntax(format!("invalid character '{}': {error}", char::from(*b)))
        }
        _ => DecodeError::Syntax(error.to_string()),
    }
}

const DUPLICATE: &str = "duplicate field";

/// One step of the way from the root to the value at hand.
enum Step {
    Field(&'static Field, &'static Type),
    Key(String),
    Index(usize),
}

/// What is found on the way: where we are, what strict validation would say, the first type error.
#[derive(Default)]
struct Notes {
    path: Vec<Step>,
    warnings: Vec<String>,
    /// Upstream goes on after a type error and reports the first.
    mismatch: Option<String>,
    /// An error that ends decoding at once.
    fatal: Option<String>,
}

impl Notes {
    fn settle<E>(
        &mut self,
        result: Result<Value, E>,
        other: impl Fn(E) -> DecodeError,
    ) -> Result<Value, DecodeError> {
        match (result, self.fatal.take(), self.mismatch.take()) {
            (_, Some(text), _) => Err(DecodeError::Type(text)),
            (Err(e), None, _) => Err(other(e)),
            (Ok(_), None, Some(text)) => Err(DecodeError::Type(text)),
            (Ok(value), None, None) => Ok(value),
        }
    }

    fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    fn strict(&mut self, what: &str, name: &str) {
        if self.warnings.len() >= MAX_WARNINGS {
            return;
        }
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Index(i) => path.push_str(&format!("[{i}]")),
                Step::Field(f, _) => push_name(&mut path, f.name),
                Step::Key(k) => push_name(&mut path, k),
            }
        }
        push_name(&mut path, name);
        let text = format!("{what} {path:?}");
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }

    fn unknown(&mut self, name: &str) {
        self.strict("unknown field", name);
    }

    fn duplicate(&mut self, name: &str) {
        self.strict(DUPLICATE, name);
    }

    /// The value found (`string`, `number 1.5`) does not fit the Go type.
    fn mismatch(&mut self, found: &str, go_type: &str) {
        if self.mismatch.is_none() {
            self.mismatch = Some(self.cannot_unmarshal(found, go_type));
        }
    }

    fn cannot_unmarshal(&self, found: &str, go_type: &str) -> String {
        let mut owner = "";
        let mut path = String::new();
        for step in &self.path {
            if let Step::Field(field, type_) = step {
                owner = type_.short_name();
                if !field.embedded.is_empty() {
                    push_name(&mut path, field.embedded);
                }
                push_name(&mut path, field.name);
            }
        }
        if path.is_empty() {
            format!("json: cannot unmarshal {found} into Go value of type {go_type}")
        } else {
            format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {go_type}")
        }
    }

    /// Ends decoding with this text.
    fn fail<E: serde::de::Error>(&mut self, text: String) -> E {
        let error = E::custom(&text);
        self.fatal.get_or_insert(text);
        error
    }
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn object_meta() -> &'static Type {
    schema::type_named(schema::OBJECT_META).expect("the tables hold ObjectMeta")
}

#[cfg(test)]
mod tests;
