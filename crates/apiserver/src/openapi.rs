//! OpenAPI documents, built when asked for and not kept: they are large and rarely read.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tombolo_k8s::openapi::{self, Custom};

use crate::http::body::Body;
use crate::http::status::{Failure, Result, bytes_response, json_response};
use crate::server::Call;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// Clients ask by this name, which is no valid media type.
const OLD_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The documents of built-in groups change with the program only.
const BUILT_IN_HASH: &str = concat!("v1.36-", env!("CARGO_PKG_VERSION"));

pub async fn handle(call: &mut Call, parts: &[&str]) -> Result<Response<Body>> {
    let app = call.app.clone();
    let definitions = app.registry.definitions(&app).await?;
    let customs: Vec<Custom> = definitions.iter().flat_map(|d| Custom::of(d)).collect();
    match parts {
        ["openapi", "v2"] => v2(call, &definitions, &customs),
        ["openapi", "v3"] => {
            let hashes = hashes(&customs);
            Ok(json_response(StatusCode::OK, &openapi::v3_index(&hashes)))
        }
        ["openapi", "v3", "api", version] => v3(call, "", version, &customs),
        ["openapi", "v3", "apis", group, version] => v3(call, group, version, &customs),
        _ => Err(Failure::no_such_path()),
    }
}

/// Group-versions of definitions are hashed by what they publish; built-in ones by the program's version.
fn hashes(customs: &[Custom]) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut add = |group: &str, version: &str, hash: &dyn Fn() -> String| {
        let path = openapi::path_of(group, version);
        if !out.iter().any(|(p, _)| *p == path) {
            out.push((path, hash()));
        }
    };
    for custom in customs {
        let (group, version) = (custom.row.group, custom.row.version);
        add(group, version, &|| {
            openapi::v3(group, version, customs).map_or_else(String::new, |d| openapi::hash(&d))
        });
    }
    for row in tombolo_k8s::discovery::built_in() {
        add(row.group, row.version, &|| BUILT_IN_HASH.to_owned());
    }
    out.sort();
    out
}

fn v3(call: &Call, group: &str, version: &str, customs: &[Custom]) -> Result<Response<Body>> {
    let Some(document) = openapi::v3(group, version, customs) else { return Err(Failure::no_such_path()) };
    let etag = openapi::hash(&document);
    let mut response = tagged(call, JSON, &etag, || document.to_string().into());
    if call.query.get("hash").is_some() {
        // The hash is part of the address, so what is behind it never changes.
        let forever = HeaderValue::from_static("public, immutable");
        response.headers_mut().insert(header::CACHE_CONTROL, forever);
    }
    Ok(response)
}

fn v2(call: &Call, definitions: &[Arc<Value>], customs: &[Custom]) -> Result<Response<Body>> {
    let accept = call.accept().unwrap_or("*/*");
    let Some(form) = form(accept) else { return Err(Failure::not_acceptable(&[JSON, PROTOBUF])) };
    // The document follows from the program and the definitions, so these name it: a client that has it is told so
    // without building it.
    let specs: Vec<&Value> = definitions.iter().map(|d| &d["spec"]).collect();
    let etag = openapi::hash(&json!({"program": BUILT_IN_HASH, "form": form, "definitions": specs}));
    Ok(tagged(call, form, &etag, || match form {
        PROTOBUF => openapi::v2_protobuf(customs).into(),
        _ => openapi::v2(customs).to_string().into(),
    }))
}

/// The form that a client lists first, of those there are.
fn form(accept: &str) -> Option<&'static str> {
    accept.split(',').find_map(|kind| match kind.split(';').next().unwrap_or_default().trim() {
        "*/*" | "application/*" | JSON => Some(JSON),
        PROTOBUF | OLD_PROTOBUF => Some(PROTOBUF),
        _ => None,
    })
}

/// A document under an ETag: a client that names the tag is told that it has it already.
pub fn tagged(
    call: &Call,
    content_type: &'static str,
    etag: &str,
    document: impl FnOnce() -> Bytes,
) -> Response<Body> {
    let quoted = format!("\"{etag}\"");
    let known = call.header(header::IF_NONE_MATCH).is_some_and(|tags| tags.contains(etag));
    let mut response = if known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        bytes_response(StatusCode::OK, content_type, document())
    };
    if let Ok(value) = HeaderValue::from_str(&quoted) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}
