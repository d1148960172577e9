//! The typed walk: a visitor per struct, and one for everything a field can hold.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::untyped::Untyped;
use super::{Notes, Step, leaf, zero};
use crate::schema::{self, Field, Shape, Type};

/// A struct value of a known type.
pub(super) struct Struct<'n> {
    pub type_: &'static Type,
    /// The field that holds it, for error texts.
    pub field: Option<&'static Field>,
    pub notes: &'n mut Notes,
}

/// A value of a known shape inside a field.
struct Slot<'n> {
    shape: &'static Shape,
    field: &'static Field,
    notes: &'n mut Notes,
}

/// Finds the field without owning the key.
struct FieldName<'n> {
    type_: &'static Type,
    notes: &'n mut Notes,
}

impl Struct<'_> {
    fn mismatch(self, found: &str) -> Value {
        let go_type = match self.field {
            Some(field) => elem_type(&field.go_type(), &field.shape, self.type_),
            None => go_name(self.type_),
        };
        self.notes.mismatch(found, &go_type);
        Value::Null
    }
}

/// The Go type of the value itself when the field is a list or map of it.
fn elem_type(go_type: &str, shape: &Shape, type_: &Type) -> String {
    if matches!(shape, Shape::Object(_)) { go_type.to_owned() } else { go_name(type_) }
}

fn go_name(type_: &Type) -> String {
    let start = type_.name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    type_.name[start..].to_owned()
}

impl<'de> DeserializeSeed<'de> for Struct<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Struct<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object of type {}", self.type_.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let Struct { type_, notes, .. } = self;
        let mut object = Map::new();
        let mut seen: u128 = 0;
        while let Some(found) = input.next_key_seed(FieldName { type_, notes })? {
            let Some(i) = found else {
                input.next_value::<IgnoredAny>()?;
                continue;
            };
            let field = &type_.fields[i];
            if seen & (1 << i) != 0 {
                notes.duplicate(field.name);
            }
            notes.path.push(Step::Field(field, type_));
            let value = input.next_value_seed(Slot { shape: &field.shape, field, notes })?;
            notes.path.pop();
            match zero::keep(field, value) {
                Some(value) => {
                    object.insert(field.name.to_owned(), value);
                }
                None if seen & (1 << i) != 0 => {
                    object.remove(field.name);
                }
                None => {}
            }
            seen |= 1 << i;
        }
        zero::fill(type_, &mut object, seen);
        Ok(Value::Object(object))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<Value, E> {
        Ok(self.mismatch("bool"))
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        Ok(self.mismatch("number"))
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<Value, E> {
        Ok(self.mismatch("number"))
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<Value, E> {
        Ok(self.mismatch("number"))
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<Value, E> {
        Ok(self.mismatch("string"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        while input.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.mismatch("array"))
    }
}

impl<'de> DeserializeSeed<'de> for FieldName<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Option<usize>, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldName<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<usize>, E> {
        let found = self.type_.fields.iter().position(|f| f.name == name);
        if found.is_none() {
            self.notes.unknown(name);
        }
        Ok(found)
    }
    // YAML keys need not be strings; upstream turns them into strings.
    fn visit_bool<E: Error>(self, v: bool) -> Result<Option<usize>, E> {
        self.visit_str(if v { "true" } else { "false" })
    }
    fn visit_i64<E: Error>(self, v: i64) -> Result<Option<usize>, E> {
        self.visit_str(&v.to_string())
    }
    fn visit_u64<E: Error>(self, v: u64) -> Result<Option<usize>, E> {
        self.visit_str(&v.to_string())
    }
    fn visit_f64<E: Error>(self, v: f64) -> Result<Option<usize>, E> {
        self.visit_str(&v.to_string())
    }
    fn visit_unit<E: Error>(self) -> Result<Option<usize>, E> {
        self.visit_str("null")
    }
}

impl Slot<'_> {
    /// The Go type at this depth of the field: a list's element names its own type.
    fn go_type(&self) -> String {
        if std::ptr::eq(self.shape, &self.field.shape) {
            return self.field.go_type();
        }
        // `[]v1.Foo` and `map[string]v1.Foo` tell the element's name even where the shape does not.
        let outer = self.field.go_type();
        let inner = outer
            .strip_prefix("[]")
            .or_else(|| outer.strip_prefix("map[").and_then(|r| r.split_once(']')).map(|(_, r)| r));
        match (inner, self.shape) {
            (Some(inner), _) => inner.to_owned(),
            (None, Shape::Quantity) => "resource.Quantity".to_owned(),
            (None, _) => "string".to_owned(),
        }
    }

    fn mismatch(self, found: &str) -> Value {
        let go_type = match self.shape {
            Shape::Time | Shape::MicroTime | Shape::Duration => "string".to_owned(),
            Shape::IntOrString => "int32".to_owned(),
            _ => self.go_type(),
        };
        self.notes.mismatch(found, &go_type);
        Value::Null
    }

    fn integer<E: Error>(self, value: Number, text: impl fmt::Display) -> Result<Value, E> {
        let fits = match (value.as_i64(), self.shape) {
            (Some(n), Shape::Int32 | Shape::IntOrString) => i32::try_from(n).is_ok(),
            (Some(_), Shape::Int64) => true,
            _ => false,
        };
        if fits { Ok(Value::Number(value)) } else { Ok(self.mismatch(&format!("number {text}"))) }
    }

    fn number<E: Error>(self, value: Number) -> Result<Value, E> {
        match self.shape {
            Shape::Int32 | Shape::Int64 | Shape::IntOrString => {
                let text = value.to_string();
                self.integer(value, text)
            }
            Shape::Float64 if value.is_f64() => Ok(leaf::float(value.as_f64().unwrap_or_default())),
            Shape::Float64 | Shape::Raw => Ok(Value::Number(value)),
            Shape::Quantity => leaf::quantity(&value.to_string()).map_err(|e| self.notes.fail(e)),
            Shape::SchemaOrBool | Shape::SchemaOrArray | Shape::SchemaOrStrings => {
                Err(self.notes.fail("boolean or JSON schema expected".to_owned()))
            }
            _ => Ok(self.mismatch("number")),
        }
    }

    fn object_type(&self) -> Option<&'static Type> {
        match self.shape {
            Shape::SchemaOrBool | Shape::SchemaOrArray | Shape::SchemaOrStrings => {
                schema::type_named(schema::JSON_SCHEMA)
            }
            shape => shape.object(),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Slot<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        match self.shape.object() {
            Some(type_) => Struct { type_, field: Some(self.field), notes: self.notes }.deserialize(input),
            None if *self.shape == Shape::Raw => Untyped { top: false, notes: self.notes }.lenient(input),
            None => input.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Slot<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.field.go_type())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        match self.shape {
            Shape::Bool | Shape::SchemaOrBool => Ok(Value::Bool(value)),
            Shape::Quantity => {
                leaf::quantity(if value { "true" } else { "false" }).map_err(|e| self.notes.fail(e))
            }
            _ => Ok(self.mismatch("bool")),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.number(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.number(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.number(number),
            None => Ok(self.mismatch("number")),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        match self.shape {
            Shape::Time => leaf::time(value).map_err(|e| self.notes.fail(e)),
            Shape::MicroTime => leaf::micro_time(value).map_err(|e| self.notes.fail(e)),
            Shape::Quantity => leaf::quantity(value).map_err(|e| self.notes.fail(e)),
            _ => self.visit_string(value.to_owned()),
        }
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        match self.shape {
            Shape::String | Shape::IntOrString | Shape::Duration => Ok(Value::String(value)),
            Shape::Bytes => leaf::bytes(value).or_else(|text| {
                self.notes.mismatch.get_or_insert(text);
                Ok(Value::Null)
            }),
            Shape::Time | Shape::MicroTime | Shape::Quantity => self.visit_str(&value),
            _ => Ok(self.mismatch("string")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let inner = match self.shape {
            Shape::List(inner) => *inner,
            Shape::SchemaOrArray | Shape::SchemaOrStrings => return self.alternatives(input),
            _ => {
                while input.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(self.mismatch("array"));
            }
        };
        let mut items = Vec::with_capacity(input.size_hint().unwrap_or(0).min(64));
        loop {
            self.notes.path.push(Step::Index(items.len()));
            let item =
                input.next_element_seed(Slot { shape: inner, field: self.field, notes: self.notes })?;
            self.notes.path.pop();
            match item {
                Some(Value::Null) => items.push(zero::element(inner)),
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        if let Some(type_) = self.object_type() {
            return Struct { type_, field: Some(self.field), notes: self.notes }.visit_map(input);
        }
        let Shape::Map(inner) = self.shape else {
            while input.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return match self.shape {
                Shape::Quantity => Err(self.notes.fail(leaf::quantity("{").err().unwrap_or_default())),
                _ => Ok(self.mismatch("object")),
            };
        };
        let mut object = Map::new();
        while let Some(key) = input.next_key_seed(super::untyped::Key)? {
            if object.contains_key(&key) {
                self.notes.duplicate(&key);
            }
            self.notes.path.push(Step::Key(key));
            let value = input.next_value_seed(Slot { shape: inner, field: self.field, notes: self.notes })?;
            let Some(Step::Key(key)) = self.notes.path.pop() else { unreachable!("pushed above") };
            let value = if value.is_null() { zero::element(inner) } else { value };
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

impl Slot<'_> {
    /// The list form of a schema-or-list field.
    fn alternatives<'de, A: SeqAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        if *self.shape == Shape::SchemaOrStrings {
            while let Some(item) = input.next_element::<String>()? {
                items.push(Value::String(item));
            }
        } else if let Some(type_) = schema::type_named(schema::JSON_SCHEMA) {
            while let Some(item) =
                input.next_element_seed(Struct { type_, field: Some(self.field), notes: self.notes })?
            {
                items.push(item);
            }
        }
        Ok(Value::Array(items))
    }
}
