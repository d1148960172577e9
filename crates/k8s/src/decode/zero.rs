//! Which values Go leaves out and what it writes for fields that are never left out.

use serde_json::{Map, Value};

use crate::schema::{Field, Shape, Type};

/// What the field becomes in the written object; `None` when it is left out.
pub fn keep(field: &Field, value: Value) -> Option<Value> {
    if value.is_null() {
        return field.required.then(|| zero(field));
    }
    // A store of messages does not tell an empty list from none, so upstream never shows an empty one.
    if field.required
        && !field.pointer
        && is_list(&field.shape)
        && value.as_array().is_some_and(Vec::is_empty)
    {
        return Some(Value::Null);
    }
    if field.pointer || field.required || !is_empty(&field.shape, &value) {
        return Some(value);
    }
    None
}

fn is_list(shape: &Shape) -> bool {
    matches!(shape, Shape::List(_))
}

/// What Go's `omitempty` leaves out.
fn is_empty(shape: &Shape, value: &Value) -> bool {
    match (shape, value) {
        // Structs are never empty to Go, whatever is in them.
        (Shape::Object(_) | Shape::Raw | Shape::Quantity | Shape::IntOrString, _) => false,
        (_, Value::Bool(b)) => !b,
        (_, Value::Number(n)) => n.as_f64() == Some(0.0),
        (_, Value::String(s)) => s.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        (_, Value::Object(fields)) => fields.is_empty(),
        (_, Value::Null) => true,
    }
}

/// The zero value as JSON.
pub fn zero(field: &Field) -> Value {
    if field.pointer { Value::Null } else { zero_of(&field.shape) }
}

/// The zero value of a shape held by value, such as an element of a list.
pub fn zero_of(shape: &Shape) -> Value {
    match shape {
        Shape::Bool => Value::Bool(false),
        Shape::Int32 | Shape::Int64 | Shape::Float64 | Shape::IntOrString => Value::from(0),
        Shape::String => Value::String(String::new()),
        Shape::Quantity => Value::String("0".to_owned()),
        Shape::Duration => Value::String("0s".to_owned()),
        Shape::Object(_) => shape.object().map_or_else(|| Value::Object(Map::new()), object),
        Shape::SchemaOrBool => Value::Bool(false),
        _ => Value::Null,
    }
}

/// What stands for `null` in a list or map. Bytes there are never absent, only empty.
pub fn element(shape: &Shape) -> Value {
    if *shape == Shape::Bytes { Value::String(String::new()) } else { zero_of(shape) }
}

/// The object of a type with nothing but its always-written fields.
pub fn object(type_: &Type) -> Value {
    let mut object = Map::new();
    fill(type_, &mut object, 0);
    Value::Object(object)
}

/// Adds the always-written fields that are absent. `seen` has a bit per field of the type.
pub fn fill(type_: &Type, object: &mut Map<String, Value>, seen: u128) {
    for (i, field) in type_.fields.iter().enumerate() {
        if field.required && seen & (1 << i) == 0 {
            object.insert(field.name.to_owned(), zero(field));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::TYPES;

    #[test]
    fn a_bit_set_holds_the_fields_of_every_type() {
        assert!(TYPES.iter().all(|t| t.fields.len() <= 128));
    }
}
