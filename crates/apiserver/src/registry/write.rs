//! What all writes share: their options, system metadata, and the last steps before the store.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value};
use tombolo_k8s::field::FieldError;
use tombolo_store::{Expect, StoreError};

use super::resource::Resource;
use crate::http::query::Query;
use crate::http::status::{Failure, Result};
use crate::server::Call;

/// Upstream's limit on the size of a request body.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The options that create, update and patch have in common.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    pub validation: FieldValidation,
    pub force: Option<bool>,
    /// A new object keeps the status that came with it (`withStatus=true`, an option of ours): one write instead of two for
    /// who may write both.
    pub with_status: bool,
}

impl WriteOptions {
    pub fn parse(query: &Query, user_agent: &str, kind: &str, apply: bool) -> Result<Self> {
        let invalid = |error| Failure::invalid("meta.k8s.io", kind, "", &[error]);
        let dry_run = dry_run(query, kind)?;
        let validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let allowed = ["Ignore", "Strict", "Warn"];
                return Err(invalid(FieldError::not_supported("fieldValidation", &other.into(), &allowed)));
            }
        };
        let named = query.get("fieldManager");
        if let Some(name) = named {
            if name.chars().count() > 128 {
                let error = FieldError {
                    kind: tombolo_k8s::field::ErrorKind::TooLong,
                    path: "fieldManager".into(),
                    value: String::new(),
                    detail: "may not be more than 128 bytes".into(),
                };
                return Err(invalid(error));
            }
            if let Some(bad) = name.chars().find(|c| c.is_control()) {
                let detail = format!("should only contain printable characters: invalid character {bad:?}");
                return Err(invalid(FieldError::invalid("fieldManager", &name.into(), detail)));
            }
        }
        let force = query.has("force").then(|| query.flag("force"));
        if apply && named.is_none() {
            return Err(invalid(FieldError::required("fieldManager", "is required for apply patch")));
        }
        if !apply && force.is_some() {
            return Err(invalid(FieldError::forbidden("force", "may not be specified for non-apply patch")));
        }
        let manager = named.map(str::to_owned).unwrap_or_else(|| {
            let name = user_agent.split('/').next().unwrap_or_default();
            name.chars().filter(|c| !c.is_control()).take(128).collect()
        });
        let with_status = kind == "CreateOptions" && query.flag("withStatus");
        Ok(Self { dry_run, manager, validation, force, with_status })
    }

    /// Options of a write that the server makes on a client's behalf (a binding, a scale).
    pub fn internal(manager: &str, dry_run: bool) -> Self {
        let validation = FieldValidation::Ignore;
        Self { dry_run, manager: manager.into(), validation, force: None, with_status: false }
    }
}

pub fn dry_run(query: &Query, kind: &str) -> Result<bool> {
    let mut dry = false;
    for value in query.all("dryRun") {
        match value {
            "All" => dry = true,
            "" => {}
            other => {
                let error = FieldError::not_supported("dryRun", &other.into(), &["All"]);
                return Err(Failure::invalid("meta.k8s.io", kind, "", &[error]));
            }
        }
    }
    Ok(dry)
}

/// An object as it was written.
pub struct Written {
    pub value: Bytes,
    pub revision: u64,
    pub code: StatusCode,
}

/// The object's metadata, made if it is missing.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    let map = object.as_object_mut().expect("decoded objects are JSON objects");
    let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("set to an object just above")
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The elements of a list two levels down. Indexing mutably would write a `null` where there is none.
pub fn list_mut<'a>(object: &'a mut Value, part: &str, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(part).and_then(|p| p.get_mut(list)).and_then(Value::as_array_mut).into_iter().flatten()
}

pub fn name_of(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

pub fn finalizers(object: &Value) -> Vec<String> {
    object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(|f| f.as_str().map(str::to_owned)).collect())
        .unwrap_or_default()
}

/// Seconds, as Kubernetes writes times.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Checks that a body is the kind its URL says, and fills in what a client may leave out.
pub fn check_kind(resource: &Resource, object: &mut Value) -> Result<()> {
    let Some(map) = object.as_object_mut() else {
        return Err(Failure::bad_request("the body is not a JSON object"));
    };
    let expected = (resource.api_version(), resource.kind.clone());
    check_type(map, &expected.0, &expected.1)
}

pub fn check_type(map: &mut Map<String, Value>, api_version: &str, kind: &str) -> Result<()> {
    let given = |map: &Map<String, Value>, key: &str| {
        map.get(key).and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned)
    };
    match given(map, "apiVersion") {
        Some(other) if other != api_version => {
            return Err(Failure::bad_request(format!(
                "the API version in the data ({other}) does not match the expected API version ({api_version})"
            )));
        }
        Some(_) => {}
        None => {
            map.insert("apiVersion".into(), api_version.into());
        }
    }
    match given(map, "kind") {
        Some(other) if other != kind => {
            return Err(Failure::bad_request(format!(
                "{other} in version \"{}\" cannot be handled as a {kind}: converting ({other}) to ({kind}): unknown conversion",
                api_version.rsplit('/').next().unwrap_or(api_version)
            )));
        }
        Some(_) => {}
        None => {
            map.insert("kind".into(), kind.into());
        }
    }
    Ok(())
}

/// Checks that names in the body and in the URL agree; an empty one is filled in.
pub fn check_place(resource: &Resource, object: &mut Value, namespace: &str, name: &str) -> Result<()> {
    let metadata = metadata(object);
    if resource.namespaced {
        match metadata.get("namespace").and_then(Value::as_str).unwrap_or_default() {
            "" => {
                metadata.insert("namespace".into(), namespace.into());
            }
            given if given != namespace => {
                return Err(Failure::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            _ => {}
        }
    } else {
        metadata.remove("namespace");
    }
    if !name.is_empty() {
        match metadata.get("name").and_then(Value::as_str).unwrap_or_default() {
            "" => {
                metadata.insert("name".into(), name.into());
            }
            given if given != name => {
                return Err(Failure::bad_request(format!(
                    "the name of the object ({given}) does not match the name on the URL ({name})"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The same for what must say itself what it is called.
pub fn check_named_place(resource: &Resource, object: &mut Value, namespace: &str, name: &str) -> Result<()> {
    if name_of(object).is_empty() {
        let why = "was undeterminable: name must be provided";
        return Err(Failure::bad_request(format!("the name of the object ({name} based on URL) {why}")));
    }
    check_place(resource, object, namespace, name)
}

/// Writes an object and its encoded form; a lost race is `None`.
pub async fn put(
    call: &Call,
    resource: &Resource,
    key: &str,
    object: &Value,
    value: Bytes,
    expect: Expect,
) -> Result<Option<u64>> {
    let durability = call.app.config.durability(resource, object);
    match call.app.store.put(key, value, expect, durability).await {
        Ok(revision) => Ok(Some(revision)),
        Err(StoreError::Conflict { .. }) => Ok(None),
        Err(error) => Err(call.app.store_failure(error)),
    }
}
