//! What a value looks like to server-side apply: which maps and lists are owned field by field, and which whole.

use serde_json::Value;

use crate::crd::{self, Additional, Kind, Topology};
use crate::schema::{Field, ListType, OBJECT_META, Shape, Type, type_named};

/// Where in a schema a walk is. Cheap to copy.
#[derive(Clone, Copy)]
pub enum Schema<'a> {
    /// A built-in struct.
    Type(&'static Type),
    /// A field of a built-in struct.
    Field(&'static Field),
    /// The element of a built-in list or map.
    Shape(&'static Shape),
    /// The root of a custom resource: its metadata is always that of Kubernetes.
    Root(&'a crd::Schema),
    /// A node below the root; the flag says that unknown fields are kept here.
    Structural(&'a crd::Schema, bool),
    /// No schema: maps are owned key by key, lists whole.
    Deduced,
    /// No schema, owned whole.
    Atomic,
}

/// How a particular value is walked.
pub(super) enum Form<'a> {
    /// Owned whole: a scalar, null, or an atomic map or list.
    Leaf,
    Map(Members<'a>),
    /// A list of scalars, each owned by its value.
    Set,
    /// A list of objects, each owned by its key fields.
    Keyed(Keys<'a>, Schema<'a>),
}

/// The members of a map.
#[derive(Clone, Copy)]
pub(super) enum Members<'a> {
    Struct(&'static Type),
    Root(&'a crd::Schema),
    Structural(&'a crd::Schema, bool),
    Uniform(Schema<'a>),
}

/// The names of a keyed list's key fields.
#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    Static(&'static [&'static str]),
    One(&'static str),
    Owned(&'a [String]),
}

impl<'a> Keys<'a> {
    pub fn names(self) -> Vec<&'a str> {
        let mut names: Vec<&str> = match self {
            Keys::Static(names) => names.to_vec(),
            Keys::One(name) => vec![name],
            Keys::Owned(names) => names.iter().map(String::as_str).collect(),
        };
        names.sort_unstable();
        names
    }
}

impl<'a> Schema<'a> {
    pub(super) fn form(self, value: &Value) -> Form<'a> {
        match value {
            Value::Object(_) => self.members().map_or(Form::Leaf, Form::Map),
            Value::Array(_) => self.list(),
            _ => Form::Leaf,
        }
    }

    /// The members when a map here is owned key by key.
    pub(super) fn members(self) -> Option<Members<'a>> {
        match self {
            Schema::Type(kind) => (!kind.atomic).then_some(Members::Struct(kind)),
            Schema::Field(field) if field.map_atomic => None,
            Schema::Field(field) => Schema::Shape(&field.shape).members(),
            Schema::Shape(shape) => match shape {
                Shape::Object(_) => Schema::Type(shape.object()?).members(),
                Shape::Map(inner) => Some(Members::Uniform(Schema::Shape(inner))),
                Shape::SchemaOrBool | Shape::SchemaOrArray | Shape::SchemaOrStrings => {
                    Some(Members::Uniform(Schema::Deduced))
                }
                _ => None,
            },
            Schema::Root(schema) => Some(Members::Root(schema)),
            Schema::Structural(schema, _) if schema.atomic_map => None,
            Schema::Structural(schema, keeps) => Some(Members::Structural(schema, keeps)),
            Schema::Deduced => Some(Members::Uniform(Schema::Deduced)),
            Schema::Atomic => None,
        }
    }

    fn list(self) -> Form<'a> {
        match self {
            Schema::Field(field) => {
                let Shape::List(inner) = &field.shape else { return Form::Leaf };
                match field.list {
                    ListType::Set => Form::Set,
                    ListType::Map(keys) => Form::Keyed(Keys::Static(keys), Schema::Shape(inner)),
                    ListType::Unset if field.patch_merge && field.merge_key.is_empty() => Form::Set,
                    ListType::Unset if field.patch_merge => {
                        Form::Keyed(Keys::One(field.merge_key), Schema::Shape(inner))
                    }
                    _ => Form::Leaf,
                }
            }
            Schema::Structural(schema, keeps) => match (&schema.list, &schema.items) {
                (Topology::Set, _) => Form::Set,
                (Topology::Map(keys), Some(items)) => {
                    Form::Keyed(Keys::Owned(keys), Schema::Structural(items, keeps || items.preserve_unknown))
                }
                _ => Form::Leaf,
            },
            _ => Form::Leaf,
        }
    }

    /// The same whoever owns them: a map that is owned as a whole has declared members too.
    pub(super) fn declared(self) -> Option<Members<'a>> {
        match self {
            Schema::Type(kind) => Some(Members::Struct(kind)),
            Schema::Field(field) => Schema::Shape(&field.shape).declared(),
            Schema::Shape(shape @ Shape::Object(_)) => shape.object().map(Members::Struct),
            Schema::Structural(schema, keeps) => Some(Members::Structural(schema, keeps)),
            other => other.members(),
        }
    }

    /// What the items of a list here are.
    pub(super) fn item(self) -> Self {
        match self {
            Schema::Field(field) => Schema::Shape(&field.shape).item(),
            Schema::Shape(Shape::List(inner)) => Schema::Shape(inner),
            Schema::Structural(schema, keeps) => match &schema.items {
                Some(items) => Schema::Structural(items, keeps || items.preserve_unknown),
                None => Schema::Deduced,
            },
            _ => Schema::Deduced,
        }
    }

    /// Whether the value's type is one the schema declares here; used for configurations only.
    pub(super) fn accepts(self, value: &Value) -> bool {
        match (self.expected(), value) {
            (_, Value::Null) => true,
            (BOOLEAN, v) => v.is_boolean(),
            (NUMERIC, v) => v.is_number(),
            (STRING, v) => v.is_string(),
            (LIST, v) => v.is_array(),
            (MAP, v) => v.is_object(),
            _ => true,
        }
    }

    /// What a value of this type is called in a type error.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Schema::Type(_) => MAP,
            Schema::Field(field) => Schema::Shape(&field.shape).expected(),
            Schema::Shape(shape) => match shape {
                Shape::Bool => BOOLEAN,
                Shape::Int32 | Shape::Int64 | Shape::Float64 => NUMERIC,
                Shape::String | Shape::Bytes => STRING,
                Shape::List(_) => LIST,
                Shape::Object(_) | Shape::Map(_) => MAP,
                _ => "value",
            },
            Schema::Structural(schema, _) => match schema.kind {
                Some(Kind::Boolean) => BOOLEAN,
                Some(Kind::Integer | Kind::Number) => NUMERIC,
                // Upstream knows other formats by no type.
                Some(Kind::String) if schema.checks.format.as_deref().is_none_or(|f| f == "byte") => STRING,
                Some(Kind::String) => "value",
                Some(Kind::Array) => LIST,
                Some(Kind::Object) => MAP,
                None => "value",
            },
            _ => "value",
        }
    }
}

static TEXT: Shape = Shape::String;

const BOOLEAN: &str = "boolean";
const NUMERIC: &str = "numeric (int or float)";
const STRING: &str = "string";
const LIST: &str = "list";
const MAP: &str = "map";

impl<'a> Members<'a> {
    /// The schema of a member, and whether the schema names it; `None` where it may not exist.
    pub fn get(self, name: &str) -> Option<(Schema<'a>, bool)> {
        match self {
            Members::Struct(kind) => kind.field(name).map(|field| (Schema::Field(field), true)),
            Members::Uniform(schema) => Some((schema, false)),
            Members::Root(schema) => match name {
                "apiVersion" | "kind" => Some((Schema::Shape(&TEXT), true)),
                "metadata" => Some((type_named(OBJECT_META).map_or(Schema::Deduced, Schema::Type), true)),
                _ => Members::Structural(schema, schema.preserve_unknown).get(name),
            },
            Members::Structural(schema, keeps) => {
                let below =
                    |inner: &'a crd::Schema| Schema::Structural(inner, keeps || inner.preserve_unknown);
                if let Some(property) = schema.properties.get(name) {
                    return Some((below(property), true));
                }
                if schema.embedded && matches!(name, "apiVersion" | "kind" | "metadata") {
                    return Members::Root(schema).get(name);
                }
                match &schema.additional {
                    Some(Additional::Schema(inner)) => Some((below(inner), false)),
                    Some(Additional::Allowed(true)) => Some((Schema::Deduced, false)),
                    Some(Additional::Allowed(false)) => None,
                    None if keeps || schema.preserve_unknown || schema.properties.is_empty() => {
                        Some((Schema::Deduced, false))
                    }
                    None => None,
                }
            }
        }
    }

    pub fn is_struct(self) -> bool {
        matches!(self, Members::Struct(_))
    }

    /// The default of a key field.
    fn default(self, name: &str) -> Option<Value> {
        match self {
            Members::Struct(kind) => {
                let field = kind.field(name)?;
                match (field.default, &field.shape) {
                    ("", Shape::String) if field.required => Some("".into()),
                    ("", Shape::Int32 | Shape::Int64) if field.required => Some(0.into()),
                    ("", _) => None,
                    (text, _) => serde_json::from_str(text).ok(),
                }
            }
            Members::Structural(schema, _) | Members::Root(schema) => {
                schema.properties.get(name)?.default.clone()
            }
            Members::Uniform(_) => None,
        }
    }
}

/// The path element of an item of a keyed list: `k:{"name":"web"}`.
pub(super) fn key_element(item: &Value, keys: Keys<'_>, schema: Schema<'_>) -> Result<String, String> {
    let Value::Object(map) = item else {
        let kind = if item.is_null() { "a null element" } else { "non-map elements" };
        return Err(format!("associative list with keys may not have {kind}"));
    };
    let names = keys.names();
    let mut out = String::from("k:{");
    let mut found = false;
    for name in &names {
        let default;
        let value = match map.get(*name) {
            Some(value) => value,
            None => match schema.members().and_then(|m| m.default(name)) {
                Some(value) => {
                    default = value;
                    &default
                }
                None => continue,
            },
        };
        if found {
            out.push(',');
        }
        found = true;
        push_json(&mut out, &Value::from(*name));
        out.push(':');
        push_json(&mut out, value);
    }
    if !found {
        return Err(format!(
            "associative list with keys has an element that omits all key fields {names:?} (and doesn't have default \
             values for any key fields)"
        ));
    }
    out.push('}');
    Ok(out)
}

/// The path element of an item of a set: `v:"a"`.
pub(super) fn value_element(item: &Value) -> Result<String, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
        scalar => {
            let mut out = String::from("v:");
            push_json(&mut out, scalar);
            Ok(out)
        }
    }
}

fn push_json(out: &mut String, value: &Value) {
    use std::fmt::Write;
    let _ = write!(out, "{value}");
}

/// A list's items with their path elements. Items that have none are left out.
pub(super) fn elements<'v>(list: &'v [Value], form: &Form<'_>) -> Vec<(String, &'v Value)> {
    let element = |item: &Value| match form {
        Form::Keyed(keys, schema) => key_element(item, *keys, *schema),
        _ => value_element(item),
    };
    list.iter().filter_map(|item| Some((element(item).ok()?, item))).collect()
}
