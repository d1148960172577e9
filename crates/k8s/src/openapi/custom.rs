//! Schemas of CustomResourceDefinitions, as published.

use serde_json::{Value, json};

use super::definitions::Definitions;
use super::{Dialect, descriptions};
use crate::discovery::{self, Row};
use crate::schema::{LIST_META, OBJECT_META};

/// One served version of a CustomResourceDefinition.
#[derive(Debug, Clone)]
pub struct Custom<'a> {
    pub row: Row<'a>,
    pub list_kind: &'a str,
    /// `openAPIV3Schema`; without one anything goes.
    pub schema: Option<&'a Value>,
    /// `spec.preserveUnknownFields` of the whole definition.
    pub preserve_unknown: bool,
}

impl<'a> Custom<'a> {
    /// The served versions of a CustomResourceDefinition.
    pub fn of(crd: &'a Value) -> Vec<Self> {
        let versions =
            crd.pointer("/spec/versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        discovery::custom(crd)
            .into_iter()
            .map(|row| {
                let version = versions.iter().find(|v| v["name"] == row.version);
                Custom {
                    schema: version.and_then(|v| v.pointer("/schema/openAPIV3Schema")),
                    list_kind: crd
                        .pointer("/spec/names/listKind")
                        .and_then(Value::as_str)
                        .unwrap_or_default(),
                    preserve_unknown: crd.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true)),
                    row,
                }
            })
            .collect()
    }
}

/// `com.example.stable.v1.CronTab`.
pub fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let group: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", group.join("."))
}

/// Adds the definitions of the kind and its list.
pub fn define(definitions: &mut Definitions, dialect: Dialect, custom: &Custom, list_kind: &str) {
    let Row { group, version, kind, .. } = custom.row;
    let name = definition_name(group, version, kind);
    let mut schema = own_schema(definitions, dialect, custom);
    schema["x-kubernetes-group-version-kind"] = json!([{"group": group, "version": version, "kind": kind}]);
    definitions.put(name.clone(), schema);
    let list_meta = definitions.refer(LIST_META);
    let list = json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": list_meta,
            "items": {"type": "array", "items": dialect.reference(&name)},
        },
        "x-kubernetes-group-version-kind": [{"group": group, "version": version, "kind": list_kind}],
    });
    definitions.put(definition_name(group, version, list_kind), list);
}

fn own_schema(definitions: &mut Definitions, dialect: Dialect, custom: &Custom) -> Value {
    const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
    let Some(schema) = custom.schema else { return json!({"type": "object"}) };
    let open = schema.get(PRESERVE) == Some(&Value::Bool(true)) || custom.preserve_unknown;
    if dialect == Dialect::V2 && open {
        return json!({"type": "object"});
    }
    let mut schema = schema.clone();
    let meta = definitions.refer(OBJECT_META);
    publish(&mut schema, dialect, &meta);
    type_meta(&mut schema, dialect, &meta);
    schema
}

fn type_meta(schema: &mut Value, dialect: Dialect, meta: &Value) {
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    // `kubectl explain` shows these beside the author's own words.
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": descriptions::API_VERSION});
    schema["properties"]["kind"] = json!({"type": "string", "description": descriptions::KIND});
    let mut metadata = meta.clone();
    metadata["description"] = descriptions::METADATA.into();
    schema["properties"]["metadata"] = dialect.with_siblings(metadata);
}

/// Adds what embedded resources always have and, for v2, takes out what v2 clients cannot read.
fn publish(schema: &mut Value, dialect: Dialect, meta: &Value) {
    let preserve = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if dialect == Dialect::V2
        && let Some(object) = schema.as_object_mut()
    {
        for junctor in ["allOf", "anyOf", "oneOf", "not"] {
            object.remove(junctor);
        }
        let nullable = object.remove("nullable") == Some(Value::Bool(true));
        if nullable || preserve {
            object.remove("items");
            object.remove("properties");
        }
        let array = object.get("type").is_some_and(|t| t == "array");
        let object_type = object.get("type").is_some_and(|t| t == "object");
        if nullable || (array && !object.contains_key("items")) || (preserve && object_type) {
            object.remove("type");
        }
        // What may be null cannot be told to be required.
        let null: Vec<String> = object
            .get("properties")
            .and_then(Value::as_object)
            .map(|p| p.iter().filter(|(_, s)| s["nullable"] == true).map(|(k, _)| k.clone()).collect())
            .unwrap_or_default();
        if let Some(required) = object.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|r| r.as_str().is_none_or(|r| !null.iter().any(|n| n == r)));
            if required.is_empty() {
                object.remove("required");
            }
        }
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|s| publish(s, dialect, meta));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(inner).filter(|s| s.is_object()) {
            publish(inner, dialect, meta);
        }
    }
    let embedded = schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
    if embedded && !(preserve && dialect == Dialect::V2) {
        type_meta(schema, dialect, meta);
        let mut required = schema["required"].as_array().cloned().unwrap_or_default();
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|r| r == name) {
                required.push(name.into());
            }
        }
        schema["required"] = required.into();
    }
}
