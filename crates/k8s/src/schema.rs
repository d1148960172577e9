//! The shape of every built-in Kubernetes type, as static data.
//!
//! One table serves strict decoding, protobuf decoding, strategic merge, server-side apply, and OpenAPI
//! publishing, so a kind is data and never code. The rows are generated from `data/` by `build.rs`;
//! `data/README.md` says from what and how.

/// A named struct type, such as `io.k8s.api.core.v1.PodSpec`.
#[derive(Debug)]
pub struct Type {
    /// The OpenAPI definition name.
    pub name: &'static str,
    /// In declaration order. Structs embedded inline in Go are flattened here; [`Field::nested`] says where the
    /// wire format keeps them apart.
    pub fields: &'static [Field],
    /// The whole object is one value to server-side apply (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
}

#[derive(Debug)]
pub struct Field {
    /// The JSON name.
    pub name: &'static str,
    /// The protobuf field number; 0 when the field is not on the wire.
    pub number: u32,
    /// For fields of a struct that Go embeds inline but protobuf nests (`Volume.volumeSource`): the number of
    /// the enclosing message field, 0 otherwise.
    pub nested: u32,
    pub shape: Shape,
    /// A Go pointer: a zero value on the protobuf wire is meaningful and kept.
    pub pointer: bool,
    /// Go's `omitempty` is absent: the field is always written, even when empty.
    pub required: bool,
    /// Strategic merge: lists merge by `merge_key` (or as a set when the key is empty) instead of replacing.
    pub patch_merge: bool,
    pub patch_retain_keys: bool,
    pub patch_replace: bool,
    pub merge_key: &'static str,
    /// Server-side apply topology of a list.
    pub list: ListType,
    /// `x-kubernetes-map-type: atomic` on this field.
    pub map_atomic: bool,
    /// OpenAPI `default`, as JSON text; empty when there is none.
    pub default: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType {
    /// Not a list, or no marker: treated as atomic by server-side apply.
    Unset,
    Atomic,
    Set,
    Map(&'static [&'static str]),
}

/// What a value looks like, on both wires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Bool,
    Int32,
    Int64,
    Float64,
    String,
    /// base64 in JSON.
    Bytes,
    /// RFC 3339, seconds; `{seconds, nanos}` on the protobuf wire.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// A Go duration string; `{duration}` on the wire.
    Duration,
    /// `{string}` on the wire.
    Quantity,
    /// `{type, intVal, strVal}` on the wire.
    IntOrString,
    /// Arbitrary JSON object, `{raw}` on the wire (RawExtension, JSON, FieldsV1).
    Raw,
    /// Index into [`TYPES`].
    Object(u16),
    List(&'static Shape),
    /// Keys are strings.
    Map(&'static Shape),
}

pub use crate::generated::TYPES;

/// Looks a type up by its OpenAPI definition name.
pub fn type_named(name: &str) -> Option<&'static Type> {
    TYPES.binary_search_by(|t| t.name.cmp(name)).ok().map(|i| &TYPES[i])
}

impl Type {
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.name == name)
    }
}

impl Shape {
    /// The struct type behind an object shape.
    pub fn object(&self) -> Option<&'static Type> {
        match self {
            Shape::Object(i) => Some(&TYPES[*i as usize]),
            _ => None,
        }
    }
}
