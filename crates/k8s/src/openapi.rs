//! OpenAPI documents, generated from the tables on demand: v3 per group-version, v2 as one.
//!
//! Clients need three things of them: which kinds take which patch types and field validation (`kubectl apply`), the
//! merge keys and list types of every field (client-side apply, `kubectl diff`), and the shape of types (`kubectl
//! explain`). Descriptions are not in the tables and so not in the documents, except those of the fields that every
//! object has and those that a CustomResourceDefinition brings.

mod custom;
mod definitions;
mod descriptions;
mod paths;
mod wire;

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::discovery::{self, Row};

pub use custom::Custom;

/// The group-version prefix under which paths and documents are named: `api/v1`, `apis/apps/v1`.
pub fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The two dialects. They differ in where definitions live and in what a schema may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, name: &str) -> Value {
        let folder = match self {
            Dialect::V2 => "#/definitions/",
            Dialect::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{folder}{name}")})
    }

    /// A schema whose reference may have siblings beside it, which OpenAPI 3.0 does not allow as such.
    fn with_siblings(self, mut schema: Value) -> Value {
        if self == Dialect::V3
            && let Some(object) = schema.as_object_mut()
            && object.len() > 1
            && let Some(reference) = object.remove("$ref")
        {
            object.insert("allOf".to_owned(), json!([{"$ref": reference}]));
        }
        schema
    }
}

/// `/openapi/v3/<path_of(group, version)>`; `None` when nothing is served there.
pub fn v3(group: &str, version: &str, customs: &[Custom]) -> Option<Value> {
    let mut document = Builder::new(Dialect::V3);
    document.add(|r| r.group == group && r.version == version, customs);
    if document.paths.is_empty() {
        return None;
    }
    let Builder { paths, definitions, .. } = document;
    let bearer = json!({"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}});
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36"},
        "paths": paths,
        "components": {"schemas": definitions.finish(), "securitySchemes": bearer},
    }))
}

/// `/openapi/v2` as JSON.
pub fn v2(customs: &[Custom]) -> Value {
    let mut document = Builder::new(Dialect::V2);
    document.add(|_| true, customs);
    let Builder { paths, definitions, .. } = document;
    let bearer = json!({"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}});
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36"},
        "paths": paths,
        "definitions": definitions.finish(),
        "securityDefinitions": bearer,
    })
}

/// `/openapi/v2` as protobuf, which older clients ask for.
pub fn v2_protobuf(customs: &[Custom]) -> Vec<u8> {
    wire::encode(&v2(customs))
}

/// Every document with its hash, for `/openapi/v3`. The hash changes when and only when the document does.
pub fn v3_hashes(customs: &[Custom]) -> Vec<(String, String)> {
    let mut gvs: Vec<(&str, &str)> = Vec::new();
    for (group, version) in discovery::built_in()
        .map(|r| (r.group, r.version))
        .chain(customs.iter().map(|c| (c.row.group, c.row.version)))
    {
        if !gvs.contains(&(group, version)) {
            gvs.push((group, version));
        }
    }
    gvs.into_iter()
        .filter_map(|(group, version)| Some((path_of(group, version), hash(&v3(group, version, customs)?))))
        .collect()
}

/// The document of `/openapi/v3`.
pub fn v3_index(hashes: &[(String, String)]) -> Value {
    let paths: Map<String, Value> = hashes
        .iter()
        .map(|(path, hash)| {
            (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
        })
        .collect();
    json!({"paths": paths})
}

/// A hash of a document, for ETags and hashed URLs. It guards caches, not secrets.
pub fn hash(document: &Value) -> String {
    struct Fnv(u64, u64);
    impl Write for Fnv {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            for b in bytes {
                self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
                self.1 = (self.1 ^ self.0.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut out = Fnv(0xcbf2_9ce4_8422_2325, 0);
    serde_json::to_writer(&mut out, document)
        .expect("a value always serialises and the hash never refuses bytes");
    format!("{:016X}{:016X}", out.0, out.1)
}

struct Builder {
    dialect: Dialect,
    paths: Map<String, Value>,
    definitions: definitions::Definitions,
}

impl Builder {
    fn new(dialect: Dialect) -> Self {
        Self { dialect, paths: Map::new(), definitions: definitions::Definitions::new(dialect) }
    }

    fn add(&mut self, wanted: impl Fn(&Row) -> bool, customs: &[Custom]) {
        for row in discovery::built_in().filter(|r| wanted(r)) {
            let names = |kind: &str, group: &str, version: &str| {
                crate::schema::type_of(group, version, kind).map(|t| t.name.to_owned())
            };
            paths::resource(&mut self.paths, self.dialect, &row, true, &names, &mut self.definitions);
        }
        for custom in customs.iter().filter(|c| wanted(&c.row)) {
            let list = format!("{}List", custom.row.kind);
            let list_kind = if custom.list_kind.is_empty() { &list } else { custom.list_kind };
            let names = |kind: &str, group: &str, version: &str| match kind {
                "Scale" => crate::schema::type_of(group, version, kind).map(|t| t.name.to_owned()),
                // The list kind is asked for as `<Kind>List` whatever the definition calls it.
                kind if kind == list => Some(custom::definition_name(group, version, list_kind)),
                kind => Some(custom::definition_name(group, version, kind)),
            };
            paths::resource(&mut self.paths, self.dialect, &custom.row, false, &names, &mut self.definitions);
            custom::define(&mut self.definitions, self.dialect, custom, list_kind);
        }
    }
}

#[cfg(test)]
mod tests;
