//! Types of the tables as schemas.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Dialect, descriptions};
use crate::schema::{Field, KINDS, ListType, Shape, TYPES, Type, type_named};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";

/// The definitions of one document: those asked for and all that they refer to.
pub struct Definitions {
    pub dialect: Dialect,
    done: BTreeMap<String, Value>,
}

impl Definitions {
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, done: BTreeMap::new() }
    }

    pub fn finish(self) -> Map<String, Value> {
        self.done.into_iter().collect()
    }

    /// Adds a definition that is no table type.
    pub fn put(&mut self, name: String, schema: Value) {
        self.done.insert(name, schema);
    }

    /// A reference to a definition, which is added when it is a table type.
    pub fn refer(&mut self, name: &str) -> Value {
        if let Some(type_) = type_named(name) {
            self.add(type_);
        } else if let Some(leaf) = leaf(name, self.dialect) {
            self.done.insert(name.to_owned(), leaf);
        }
        self.dialect.reference(name)
    }

    fn add(&mut self, type_: &'static Type) {
        if self.done.contains_key(type_.name) {
            return;
        }
        // Holds the place against recursion.
        self.done.insert(type_.name.to_owned(), Value::Null);
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in type_.fields {
            let mut schema = self.property(field);
            if let Some(words) = descriptions::of_field(type_, field.name) {
                schema["description"] = words.into();
            }
            properties.insert(field.name.to_owned(), self.dialect.with_siblings(schema));
            if field.listed {
                required.push(field.name);
            }
        }
        let mut schema = json!({"type": "object"});
        if let Some(words) = descriptions::of_type(type_) {
            schema["description"] = words.into();
        }
        if !properties.is_empty() {
            schema["properties"] = properties.into();
        }
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        if type_.atomic {
            schema["x-kubernetes-map-type"] = "atomic".into();
        }
        let kinds = kinds_of(type_);
        if !kinds.is_empty() {
            schema["x-kubernetes-group-version-kind"] = kinds.into();
        }
        self.done.insert(type_.name.to_owned(), schema);
    }

    fn property(&mut self, field: &'static Field) -> Value {
        let mut schema = self.shape(&field.shape, field);
        match field.list {
            ListType::Unset => {}
            ListType::Atomic => schema["x-kubernetes-list-type"] = "atomic".into(),
            ListType::Set => schema["x-kubernetes-list-type"] = "set".into(),
            ListType::Map(keys) => {
                schema["x-kubernetes-list-type"] = "map".into();
                schema["x-kubernetes-list-map-keys"] = keys.into();
            }
        }
        if field.map_atomic {
            schema["x-kubernetes-map-type"] = "atomic".into();
        }
        if field.map_granular {
            schema["x-kubernetes-map-type"] = "granular".into();
        }
        let strategies = [
            (field.patch_merge, "merge"),
            (field.patch_replace, "replace"),
            (field.patch_retain_keys, "retainKeys"),
        ];
        let mut strategy: Vec<&str> =
            strategies.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        strategy.sort_unstable();
        if !strategy.is_empty() {
            schema["x-kubernetes-patch-strategy"] = strategy.join(",").into();
        }
        if !field.merge_key.is_empty() {
            schema["x-kubernetes-patch-merge-key"] = field.merge_key.into();
        }
        if !field.default.is_empty()
            && self.dialect == Dialect::V3
            && let Ok(default) = serde_json::from_str::<Value>(field.default)
        {
            schema["default"] = default;
        }
        schema
    }

    fn shape(&mut self, shape: &'static Shape, field: &Field) -> Value {
        match shape {
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Int32 => json!({"type": "integer", "format": "int32"}),
            Shape::Int64 => json!({"type": "integer", "format": "int64"}),
            Shape::Float64 => json!({"type": "number", "format": "double"}),
            Shape::String => json!({"type": "string"}),
            Shape::Bytes => json!({"type": "string", "format": "byte"}),
            Shape::Time => self.refer(&format!("{META}Time")),
            Shape::MicroTime => self.refer(&format!("{META}MicroTime")),
            Shape::Duration => self.refer(&format!("{META}Duration")),
            Shape::Quantity => self.refer("io.k8s.apimachinery.pkg.api.resource.Quantity"),
            Shape::IntOrString => self.refer("io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
            Shape::Raw if field.go.contains("FieldsV1") => self.refer(&format!("{META}FieldsV1")),
            Shape::Raw if field.go.contains("JSON") => self.refer(&format!("{EXTENSIONS}JSON")),
            Shape::Raw => self.refer("io.k8s.apimachinery.pkg.runtime.RawExtension"),
            Shape::SchemaOrBool => self.refer(&format!("{EXTENSIONS}JSONSchemaPropsOrBool")),
            Shape::SchemaOrArray => self.refer(&format!("{EXTENSIONS}JSONSchemaPropsOrArray")),
            Shape::SchemaOrStrings => self.refer(&format!("{EXTENSIONS}JSONSchemaPropsOrStringArray")),
            Shape::Object(i) => self.refer(TYPES[*i as usize].name),
            Shape::List(inner) => json!({"type": "array", "items": self.shape(inner, field)}),
            Shape::Map(inner) => json!({"type": "object", "additionalProperties": self.shape(inner, field)}),
        }
    }
}

fn leaf(name: &str, dialect: Dialect) -> Option<Value> {
    let short = name.rsplit('.').next().unwrap_or(name);
    let v3 = dialect == Dialect::V3;
    Some(match short {
        "Time" | "MicroTime" => json!({"type": "string", "format": "date-time"}),
        "Duration" => json!({"type": "string"}),
        "Quantity" if v3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        "Quantity" => json!({"type": "string"}),
        "IntOrString" if v3 => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        "IntOrString" => json!({"type": "string", "format": "int-or-string"}),
        "FieldsV1" | "RawExtension" | "Patch" => json!({"type": "object"}),
        "JSON" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" => {
            json!({})
        }
        _ => return None,
    })
}

fn kinds_of(type_: &'static Type) -> Vec<Value> {
    let entry =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    match type_.name.strip_prefix(META) {
        // Every group-version speaks these.
        Some(kind @ ("DeleteOptions" | "WatchEvent")) => {
            let mut gvs: Vec<_> = KINDS.iter().map(|k| (k.group, k.version)).collect();
            gvs.dedup();
            gvs.into_iter().map(|(group, version)| entry(group, version, kind)).collect()
        }
        Some("Status") => vec![entry("", "v1", "Status")],
        _ => {
            let index = TYPES.iter().position(|t| std::ptr::eq(t, type_));
            let kinds = KINDS.iter().filter(|k| Some(k.type_index as usize) == index);
            kinds.map(|k| entry(k.group, k.version, k.kind)).collect()
        }
    }
}
