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
    /// For fields of a struct that Go embeds inline but protobuf nests (`Volume.volumeSource`): the numbers of
    /// the enclosing message fields, outermost first; empty otherwise.
    pub nested: &'static [u32],
    pub shape: Shape,
    /// A Go pointer: a zero value on the protobuf wire is meaningful and kept.
    pub pointer: bool,
    /// Always written, even when empty (`null`, `""`, `{}`): Go's `omitempty` is absent, or does nothing because
    /// the field is a struct by value.
    pub required: bool,
    /// In the `required` list of the OpenAPI definition.
    pub listed: bool,
    /// Strategic merge: lists merge by `merge_key` (or as a set when the key is empty) instead of replacing.
    pub patch_merge: bool,
    pub patch_retain_keys: bool,
    pub patch_replace: bool,
    pub merge_key: &'static str,
    /// Server-side apply topology of a list.
    pub list: ListType,
    /// `x-kubernetes-map-type: atomic` on this field.
    pub map_atomic: bool,
    /// `x-kubernetes-map-type: granular` on this field: it overrules [`Type::atomic`] of what the field holds.
    pub map_granular: bool,
    /// OpenAPI `default`, as JSON text; empty when there is none.
    pub default: &'static str,
    /// The Go type as error texts name it, where the shape does not tell; see [`Field::go_type`].
    pub go: &'static str,
    /// The Go structs embedded on the way to this field, which error texts name: `ProbeHandler`.
    pub embedded: &'static str,
}

/// A top-level kind, list kinds included.
#[derive(Debug)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// Index into [`TYPES`].
    pub type_index: u16,
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
    /// A `JSONSchemaProps` or a boolean; `{allows, schema}` on the wire.
    SchemaOrBool,
    /// A `JSONSchemaProps` or a list of them; `{schema, jSONSchemas}` on the wire.
    SchemaOrArray,
    /// A `JSONSchemaProps` or a list of strings; `{schema, property}` on the wire.
    SchemaOrStrings,
    /// Index into [`TYPES`].
    Object(u16),
    List(&'static Shape),
    /// Keys are strings. A list inside a map is wrapped in a message `{items}` on the wire.
    Map(&'static Shape),
}

pub use crate::generated::{KINDS, TYPES};

/// The definition name of JSON schemas in CustomResourceDefinitions.
pub const JSON_SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// Looks a type up by its OpenAPI definition name.
pub fn type_named(name: &str) -> Option<&'static Type> {
    TYPES.binary_search_by(|t| t.name.cmp(name)).ok().map(|i| &TYPES[i])
}

/// The type of a top-level kind. Meta kinds (`DeleteOptions`, `Status`, …) belong to every group-version.
pub fn type_of(group: &str, version: &str, kind: &str) -> Option<&'static Type> {
    let row = KINDS.binary_search_by(|k| (k.group, k.version, k.kind).cmp(&(group, version, kind)));
    if let Ok(i) = row {
        return Some(&TYPES[KINDS[i].type_index as usize]);
    }
    let meta = [
        "DeleteOptions",
        "Status",
        "WatchEvent",
        "PartialObjectMetadata",
        "PartialObjectMetadataList",
        "Table",
    ];
    let meta = meta.into_iter().find(|m| *m == kind)?;
    type_named(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{meta}"))
}

impl Type {
    /// The name without the package: `PodSpec`.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.name == name)
    }
}

impl Field {
    /// The Go type as error texts name it: `[]v1.Container`.
    pub fn go_type(&self) -> String {
        if self.go.is_empty() { self.shape.go_type() } else { self.go.to_owned() }
    }
}

impl Shape {
    fn go_type(&self) -> String {
        match self {
            Shape::Bool => "bool".into(),
            Shape::Int32 => "int32".into(),
            Shape::Int64 => "int64".into(),
            Shape::Float64 => "float64".into(),
            Shape::String => "string".into(),
            Shape::Bytes => "[]uint8".into(),
            Shape::Time => "v1.Time".into(),
            Shape::MicroTime => "v1.MicroTime".into(),
            Shape::Duration => "v1.Duration".into(),
            Shape::Quantity => "resource.Quantity".into(),
            Shape::IntOrString => "intstr.IntOrString".into(),
            Shape::Raw => "runtime.RawExtension".into(),
            Shape::SchemaOrBool => "v1.JSONSchemaPropsOrBool".into(),
            Shape::SchemaOrArray => "v1.JSONSchemaPropsOrArray".into(),
            Shape::SchemaOrStrings => "v1.JSONSchemaPropsOrStringArray".into(),
            Shape::Object(i) => {
                let name = TYPES[*i as usize].name;
                let start = name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
                name[start..].to_owned()
            }
            Shape::List(inner) => format!("[]{}", inner.go_type()),
            Shape::Map(inner) => format!("map[string]{}", inner.go_type()),
        }
    }

    /// The struct type behind an object shape.
    pub fn object(&self) -> Option<&'static Type> {
        match self {
            Shape::Object(i) => Some(&TYPES[*i as usize]),
            _ => None,
        }
    }
}
