//! The objects of a soak: which kinds, what of them the model follows, and which of them a request means.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

pub const COLOURS: &[&str] = &["red", "green", "blue"];
pub const NAMESPACES: &[&str] = &["north", "south"];
const FINALIZER: &str = "soak.example.com/held";

/// A kind whose objects carry one map of strings.
#[derive(Debug)]
pub struct Kind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// The top-level field with the map.
    pub field: &'static str,
    /// Custom resources know no strategic merge patch.
    pub strategic: bool,
}

/// A built-in kind and a custom one: they go different ways through the server.
pub const KINDS: &[Kind] = &[
    Kind { api_version: "v1", kind: "ConfigMap", plural: "configmaps", field: "data", strategic: true },
    Kind {
        api_version: "soak.example.com/v1",
        kind: "Tally",
        plural: "tallies",
        field: "spec",
        strategic: false,
    },
];

/// The definition of the custom kind.
pub fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "tallies.soak.example.com"},
        "spec": {
            "group": "soak.example.com",
            "scope": "Namespaced",
            "names": {"plural": "tallies", "singular": "tally", "kind": "Tally", "listKind": "TallyList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "additionalProperties": {"type": "string"}},
                }}},
            }],
        },
    })
}

impl Kind {
    /// The URL of a collection, of all namespaces when none is named.
    pub fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.api_version.contains('/') { "/apis" } else { "/api" };
        let within = namespace.map(|n| format!("/namespaces/{n}")).unwrap_or_default();
        format!("{root}/{}{within}/{}", self.api_version, self.plural)
    }

    /// The URL of the object with this `namespace/name`.
    pub fn object(&self, key: &str) -> String {
        let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
        format!("{}/{name}", self.collection(Some(namespace)))
    }

    pub fn render(&self, key: &str, state: &State) -> Value {
        let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
        let mut object = json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"namespace": namespace, "name": name, "labels": {"colour": state.colour}},
        });
        object[self.field] = json!(state.fields);
        if state.held {
            object["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        object
    }

    pub fn read(&self, object: &Value) -> Result<Version> {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let revision = text("/metadata/resourceVersion");
        let fields = match object.get(self.field) {
            Some(map) => {
                serde_json::from_value(map.clone()).with_context(|| format!("odd map in {object}"))?
            }
            None => BTreeMap::new(),
        };
        ensure!(!text("/metadata/uid").is_empty(), "an object without a uid: {object}");
        Ok(Version {
            key: format!("{}/{}", text("/metadata/namespace"), text("/metadata/name")),
            revision: revision.parse().with_context(|| format!("odd resourceVersion {revision:?}"))?,
            state: State {
                uid: text("/metadata/uid"),
                fields,
                colour: text("/metadata/labels/colour"),
                held: object.pointer("/metadata/finalizers").is_some(),
                deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            },
        })
    }
}

/// What the model follows of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    pub uid: String,
    pub fields: BTreeMap<String, String>,
    pub colour: String,
    /// Has a finalizer.
    pub held: bool,
    pub deleting: bool,
}

/// An object as the server showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// `namespace/name`.
    pub key: String,
    pub revision: u64,
    pub state: State,
}

/// Which objects of a kind a list or a watch means.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    pub namespace: Option<String>,
    pub colour: Option<String>,
    pub name: Option<String>,
}

impl Scope {
    pub fn is_whole_collection(&self) -> bool {
        self.colour.is_none() && self.name.is_none()
    }

    pub fn covers(&self, key: &str, state: &State) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
            && self.colour.as_deref().is_none_or(|wanted| wanted == state.colour)
    }

    /// The selectors as query parameters, each with a leading `&`.
    pub fn query(&self) -> String {
        let mut query = String::new();
        if let Some(colour) = &self.colour {
            query.push_str(&format!("&labelSelector=colour%3D{colour}"));
        }
        if let Some(name) = &self.name {
            query.push_str(&format!("&fieldSelector=metadata.name%3D{name}"));
        }
        query
    }
}
