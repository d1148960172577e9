//! Free-form values: custom resources and raw extensions. Only duplicates are looked for.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::struct_::Struct;
use super::{Notes, Step, object_meta};

/// A value of unknown type.
pub(super) struct Untyped<'n> {
    /// The root of an object, whose `metadata` has a known type.
    pub top: bool,
    pub notes: &'n mut Notes,
}

impl Untyped<'_> {
    /// Takes the value as it is: upstream does not look into raw extensions.
    pub fn lenient<'de, D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        Value::deserialize(input)
    }
}

/// The integer that upstream takes a float for: it writes `2.0` as `2`.
fn whole(value: f64) -> Option<Number> {
    // Beyond this not every whole number can be told from the next.
    (value.fract() == 0.0 && value.abs() < 9e15).then(|| (value as i64).into())
}

/// Turns the whole floats of a value that is already parsed into integers, as decoding does.
pub(crate) fn integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(integer) = number.as_f64().and_then(whole) {
                *number = integer;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(integers),
        Value::Object(map) => map.values_mut().for_each(integers),
        _ => {}
    }
}

impl<'de> DeserializeSeed<'de> for Untyped<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Untyped<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(whole(value).or_else(|| Number::from_f64(value)).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.notes.path.push(Step::Index(items.len()));
            let item = input.next_element_seed(Untyped { top: false, notes: self.notes })?;
            self.notes.path.pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = input.next_key_seed(Key)? {
            if object.contains_key(&key) {
                self.notes.duplicate(&key);
            }
            let meta = self.top && key == "metadata";
            self.notes.path.push(Step::Key(key));
            let value = if meta {
                input.next_value_seed(Struct { type_: object_meta(), field: None, notes: self.notes })?
            } else {
                input.next_value_seed(Untyped { top: false, notes: self.notes })?
            };
            let Some(Step::Key(key)) = self.notes.path.pop() else { unreachable!("pushed above") };
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// A map key, as a string whatever YAML makes of it.
pub(super) struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<String, D::Error> {
        input.deserialize_any(self)
    }
}

impl Visitor<'_> for Key {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E: Error>(self, key: &str) -> Result<String, E> {
        Ok(key.to_owned())
    }
    fn visit_string<E: Error>(self, key: String) -> Result<String, E> {
        Ok(key)
    }
    fn visit_bool<E: Error>(self, key: bool) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_i64<E: Error>(self, key: i64) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_u64<E: Error>(self, key: u64) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_f64<E: Error>(self, key: f64) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok("null".to_owned())
    }
}
