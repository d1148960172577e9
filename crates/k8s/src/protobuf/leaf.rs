//! Scalars and the types that have a wire form of their own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use super::ProtobufError;
use super::wire::{Reader, Wire};
use crate::decode::leaf::{float, quantity, write_micro_time, write_time};
use crate::schema::Shape;

pub fn scalar(shape: &Shape, value: Wire) -> Result<Value, ProtobufError> {
    Ok(match shape {
        Shape::Bool => Value::Bool(value.varint()? != 0),
        // Negative numbers come as ten bytes, sign-extended; what does not fit is cut off, as Go does.
        Shape::Int32 => Value::from(value.varint()? as i32),
        Shape::Int64 => Value::from(value.varint()? as i64),
        Shape::Float64 => match value {
            Wire::Fixed64(bits) => float(f64::from_bits(bits)),
            Wire::Fixed32(bits) => float(f32::from_bits(bits).into()),
            _ => return Err(ProtobufError::Malformed("wrong wireType: float expected")),
        },
        Shape::String => Value::String(value.text()?),
        Shape::Bytes => Value::String(STANDARD.encode(value.bytes()?)),
        Shape::Time => time(value.bytes()?)?.map_or(Value::Null, write_time),
        Shape::MicroTime => time(value.bytes()?)?.map_or(Value::Null, write_micro_time),
        Shape::Duration => {
            let nanos = field(value.bytes()?, 1)?.map_or(Ok(0), Wire::varint)? as i64;
            Value::String(duration(nanos))
        }
        Shape::Quantity => {
            let text = field(value.bytes()?, 1)?.map_or(Ok(String::new()), Wire::text)?;
            let text = if text.is_empty() { "0" } else { &text };
            quantity(text).map_err(ProtobufError::Value)?
        }
        Shape::IntOrString => int_or_string(value.bytes()?)?,
        Shape::Raw => {
            let raw = field(value.bytes()?, 1)?.map_or(Ok(&[][..]), Wire::bytes)?;
            if raw.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(raw).map_err(|e| ProtobufError::Value(format!("raw JSON: {e}")))?
            }
        }
        _ => return Err(ProtobufError::Malformed("scalar expected")),
    })
}

/// The last value of a field in a small message.
fn field(bytes: &[u8], wanted: u32) -> Result<Option<Wire<'_>>, ProtobufError> {
    let mut reader = Reader::new(bytes);
    let mut found = None;
    while let Some((number, value)) = reader.next_field()? {
        if number == wanted {
            found = Some(value);
        }
    }
    Ok(found)
}

/// `{seconds, nanos}`; an empty message is the zero time.
fn time(bytes: &[u8]) -> Result<Option<Timestamp>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let seconds = field(bytes, 1)?.map_or(Ok(0), Wire::varint)? as i64;
    let nanos = field(bytes, 2)?.map_or(Ok(0), Wire::varint)? as i32;
    Timestamp::new(seconds, nanos).map(Some).map_err(|_| ProtobufError::Malformed("time out of range"))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let kind = field(bytes, 1)?.map_or(Ok(0), Wire::varint)?;
    if kind == 0 {
        let value = field(bytes, 2)?.map_or(Ok(0), Wire::varint)? as i32;
        return Ok(Value::from(value));
    }
    Ok(Value::String(field(bytes, 3)?.map_or(Ok(String::new()), Wire::text)?))
}

/// A Go duration: hours, minutes, seconds with fraction.
fn duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let total = nanos.unsigned_abs();
    let (seconds, fraction) = (total / 1_000_000_000, total % 1_000_000_000);
    let fraction = format!(".{fraction:09}");
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{rest}{fraction}s"),
        (0, _) => format!("{sign}{minutes}m{rest}{fraction}s"),
        _ => format!("{sign}{hours}h{minutes}m{rest}{fraction}s"),
    }
}
