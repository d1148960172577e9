//! Kubernetes protobuf into JSON values, by the tables.
//!
//! Clients written in Go send built-in kinds in this form and cannot be told not to. Go writes every field that is
//! not a pointer, zero or not; what comes out here is what Go would then write as JSON, by the same rules as
//! [`crate::decode`], so that both wires give equal objects.
//!
//! The bytes come from outside: depth, count of values and every length are bounded, and nothing panics.

mod leaf;
pub(crate) mod wire;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::decode::zero;
use crate::schema::{self, Field, Shape, Type};
use wire::{Reader, Wire};

/// What every body starts with.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// As deep as JSON may be.
const MAX_DEPTH: u32 = 120;
/// A message of two bytes can stand for an object of many fields; this bounds what a body can grow to.
const MAX_MESSAGES: u32 = 250_000;

/// A decoded body.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    pub api_version: String,
    pub kind: String,
    /// With `kind` in it, and `apiVersion` where the body had one.
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtobufError {
    #[error("the body does not start with the Kubernetes protobuf prefix; send application/json instead")]
    NoMagic,
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\"")]
    UnknownKind { api_version: String, kind: String },
    #[error("the content encoding {0:?} is not supported")]
    Encoding(String),
    #[error("proto: {0}")]
    Malformed(&'static str),
    /// A leaf that the type refuses, such as a bad quantity.
    #[error("{0}")]
    Value(String),
}

/// Decodes a body of `application/vnd.kubernetes.protobuf`.
pub fn decode(bytes: &[u8]) -> Result<Object, ProtobufError> {
    let Some(envelope) = bytes.strip_prefix(&MAGIC) else { return Err(ProtobufError::NoMagic) };
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader::new(envelope);
    while let Some((number, value)) = reader.next_field()? {
        match number {
            1 => {
                let mut meta = Reader::new(value.bytes()?);
                while let Some((number, value)) = meta.next_field()? {
                    match number {
                        1 => api_version = value.text()?,
                        2 => kind = value.text()?,
                        _ => {}
                    }
                }
            }
            2 => raw = value.bytes()?,
            3 if !value.bytes()?.is_empty() => return Err(ProtobufError::Encoding(value.text()?)),
            _ => {}
        }
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let Some(type_) = schema::type_of(group, version, &kind) else {
        return Err(ProtobufError::UnknownKind { api_version, kind });
    };
    let mut object = message(raw, type_)?;
    // Empty is absent, as in all that is decoded: the URL fills it in.
    if !api_version.is_empty() {
        object.insert("apiVersion".to_owned(), api_version.clone().into());
    }
    object.insert("kind".to_owned(), kind.clone().into());
    Ok(Object { api_version, kind, value: Value::Object(object) })
}

/// Decodes a message of a known type, without the envelope.
pub fn message(bytes: &[u8], type_: &'static Type) -> Result<Map<String, Value>, ProtobufError> {
    Decoder { depth: 0, messages: 0 }.message(bytes, type_)
}

struct Decoder {
    depth: u32,
    messages: u32,
}

impl Decoder {
    fn message(&mut self, bytes: &[u8], type_: &'static Type) -> Result<Map<String, Value>, ProtobufError> {
        self.messages += 1;
        if self.messages > MAX_MESSAGES {
            return Err(ProtobufError::Malformed("too many values"));
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ProtobufError::Malformed("nested too deeply"));
        }
        let mut object = Map::new();
        self.fields(bytes, type_, &[], &mut object)?;
        self.depth -= 1;
        self.settle(type_, &mut object);
        Ok(object)
    }

    /// Leaves out and fills in what Go would.
    fn settle(&self, type_: &'static Type, object: &mut Map<String, Value>) {
        let mut seen = 0u128;
        for (i, field) in type_.fields.iter().enumerate() {
            let Some(value) = object.remove(field.name) else { continue };
            if let Some(value) = zero::keep(field, value) {
                object.insert(field.name.to_owned(), value);
                seen |= 1 << i;
            }
        }
        zero::fill(type_, object, seen);
    }

    /// Reads the fields of a message, or of the part of it that `within` leads to.
    fn fields(
        &mut self,
        bytes: &[u8],
        type_: &'static Type,
        within: &[u32],
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field()? {
            if let Some(field) = type_.fields.iter().find(|f| f.number == number && f.nested == within) {
                self.field(field, value, object)?;
                continue;
            }
            let inner: Vec<u32> = within.iter().copied().chain([number]).collect();
            if type_.fields.iter().any(|f| f.nested.starts_with(&inner)) {
                self.fields(value.bytes()?, type_, &inner, object)?;
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        field: &'static Field,
        value: Wire,
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        match &field.shape {
            Shape::List(inner) => {
                let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(items) = list else { return Err(ProtobufError::Malformed("list expected")) };
                self.items(inner, value, items)
            }
            Shape::Map(inner) => {
                let (key, value) = self.entry(inner, value.bytes()?)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key, value);
                }
                Ok(())
            }
            shape => {
                let value = self.single(shape, value)?;
                object.insert(field.name.to_owned(), value);
                Ok(())
            }
        }
    }

    /// One element of a repeated field, or several when scalars come packed.
    fn items(
        &mut self,
        shape: &'static Shape,
        value: Wire,
        items: &mut Vec<Value>,
    ) -> Result<(), ProtobufError> {
        if let (Shape::Int32 | Shape::Int64 | Shape::Bool, Wire::Bytes(packed)) = (shape, value) {
            let mut reader = Reader::new(packed);
            while let Some(value) = reader.next_varint()? {
                items.push(leaf::scalar(shape, Wire::Varint(value))?);
            }
            return Ok(());
        }
        items.push(self.single(shape, value)?);
        Ok(())
    }

    fn entry(&mut self, shape: &'static Shape, bytes: &[u8]) -> Result<(String, Value), ProtobufError> {
        let (mut key, mut found) = (String::new(), None);
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field()? {
            match number {
                1 => key = value.text()?,
                2 => found = Some(self.single(shape, value)?),
                _ => {}
            }
        }
        let value = match found {
            // Bytes of a map are empty rather than absent when the entry has no value.
            Some(Value::Null) | None if matches!(shape, Shape::Bytes) => Value::String(String::new()),
            Some(Value::Null) | None => zero::zero_of(shape),
            Some(value) => value,
        };
        Ok((key, value))
    }

    fn single(&mut self, shape: &'static Shape, value: Wire) -> Result<Value, ProtobufError> {
        match shape {
            Shape::Object(_) => {
                let type_ = shape.object().ok_or(ProtobufError::Malformed("type out of range"))?;
                Ok(Value::Object(self.message(value.bytes()?, type_)?))
            }
            // A list that is itself an element is wrapped: {items = 1}.
            Shape::List(inner) => {
                let mut items = Vec::new();
                let mut reader = Reader::new(value.bytes()?);
                while let Some((number, value)) = reader.next_field()? {
                    if number == 1 {
                        self.items(inner, value, &mut items)?;
                    }
                }
                Ok(if items.is_empty() { Value::Null } else { Value::Array(items) })
            }
            Shape::Map(_) => Err(ProtobufError::Malformed("a map cannot be an element")),
            Shape::SchemaOrBool | Shape::SchemaOrArray | Shape::SchemaOrStrings => {
                self.schema_or(shape, value.bytes()?)
            }
            shape => leaf::scalar(shape, value),
        }
    }

    fn schema_or(&mut self, shape: &Shape, bytes: &[u8]) -> Result<Value, ProtobufError> {
        let type_ =
            schema::type_named(schema::JSON_SCHEMA).ok_or(ProtobufError::Malformed("no schema type"))?;
        let (mut schema, mut allows, mut items) = (None, false, Vec::new());
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field()? {
            match (shape, number) {
                (Shape::SchemaOrBool, 1) => allows = value.varint()? != 0,
                (Shape::SchemaOrBool, 2) | (_, 1) => schema = Some(self.message(value.bytes()?, type_)?),
                (Shape::SchemaOrArray, 2) => items.push(Value::Object(self.message(value.bytes()?, type_)?)),
                (Shape::SchemaOrStrings, 2) => items.push(value.text()?.into()),
                _ => {}
            }
        }
        Ok(match (shape, schema) {
            (Shape::SchemaOrArray | Shape::SchemaOrStrings, _) if !items.is_empty() => Value::Array(items),
            (_, Some(schema)) => Value::Object(schema),
            (Shape::SchemaOrBool, None) => Value::Bool(allows),
            (_, None) => Value::Null,
        })
    }
}

#[cfg(test)]
mod tests;
