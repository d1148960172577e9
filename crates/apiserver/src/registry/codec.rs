//! Request bodies into objects: JSON, YAML, and protobuf for built-in kinds.

use std::time::Duration;

use http::header;
use serde_json::Value;
use tombolo_k8s::decode::{self, DecodeError, Decoded};
use tombolo_k8s::schema::{self, Type};

use super::resource::Resource;
use super::schema::Schema;
use super::write::{self, BODY_LIMIT, FieldValidation};
use crate::http::body::{Body, ReadError};
use crate::http::status::{Failure, Result};
use crate::server::Call;

const BUILT_IN: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const CUSTOM: &[&str] = &["application/json", "application/yaml"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Json,
    Yaml,
    Protobuf,
}

/// A client that sends its body slower than this holds a slot for nothing.
const BODY_TIME: Duration = Duration::from_secs(60);

pub async fn read_bytes(body: Body) -> Result<bytes::Bytes> {
    let read = tokio::time::timeout(BODY_TIME, body.read(BODY_LIMIT)).await;
    let read = read.map_err(|_| Failure::new(504, "Timeout", "the request body did not arrive in time"))?;
    read.map_err(|e| match e {
        ReadError::TooLarge(limit) => Failure::too_large(limit),
        ReadError::Broken(why) => Failure::bad_request(format!("the request body broke off: {why}")),
    })
}

/// The media type of the body, without parameters; JSON when the client says nothing.
pub fn content_type(call: &Call) -> &str {
    let value = call.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

fn wire(call: &Call, supported: &[&str]) -> Result<Wire> {
    let wire = match content_type(call) {
        "" | "*/*" | "application/json" => Wire::Json,
        "application/yaml" => Wire::Yaml,
        "application/vnd.kubernetes.protobuf" => Wire::Protobuf,
        _ => return Err(Failure::unsupported_media_type(supported)),
    };
    if wire == Wire::Protobuf && !supported.contains(&"application/vnd.kubernetes.protobuf") {
        return Err(Failure::unsupported_media_type(supported));
    }
    Ok(wire)
}

/// The object in a create or update request, of the kind its URL says.
pub async fn read_object(
    call: &mut Call,
    resource: &Resource,
    body: Body,
    validation: FieldValidation,
) -> Result<Value> {
    let (api_version, kind) = (resource.api_version(), resource.kind.as_str());
    match &resource.schema {
        Schema::BuiltIn(row) => read_typed(call, body, row.type_(), &api_version, kind, validation).await,
        Schema::Custom(custom) => {
            let wire = wire(call, CUSTOM)?;
            let bytes = read_bytes(body).await?;
            let decoded =
                if wire == Wire::Json { decode::custom(&bytes) } else { decode::yaml(&bytes, None) };
            let mut decoded = decoded.map_err(|e| undecodable(&api_version, kind, &e))?;
            write::check_kind(resource, &mut decoded.value)?;
            custom
                .coerce(&mut decoded.value)
                .map_err(|why| undecodable(&api_version, kind, &DecodeError::Type(why)))?;
            decoded.warnings.extend(custom.prune(&mut decoded.value));
            settle(call, decoded, &api_version, kind, validation)
        }
    }
}

/// A body of a built-in type, such as what a subresource takes.
pub async fn read_typed(
    call: &mut Call,
    body: Body,
    type_: &'static Type,
    api_version: &str,
    kind: &str,
    validation: FieldValidation,
) -> Result<Value> {
    let wire = wire(call, BUILT_IN)?;
    let bytes = read_bytes(body).await?;
    if bytes.is_empty() {
        return Err(Failure::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: unexpected end of JSON input",
            short(api_version)
        )));
    }
    let decoded = match wire {
        Wire::Json => decode::json(&bytes, Some(type_)),
        Wire::Yaml => decode::yaml(&bytes, Some(type_)),
        Wire::Protobuf => from_protobuf(&bytes),
    };
    let mut decoded = decoded.map_err(|e| undecodable(api_version, kind, &e))?;
    let Some(map) = decoded.value.as_object_mut() else {
        return Err(Failure::bad_request("the body is not a JSON object"));
    };
    write::check_type(map, api_version, kind)?;
    settle(call, decoded, api_version, kind, validation)
}

fn from_protobuf(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let object = tombolo_k8s::protobuf::decode(bytes).map_err(|e| DecodeError::Syntax(e.to_string()))?;
    Ok(Decoded { value: object.value, warnings: Vec::new() })
}

/// Options in the body of a delete; an empty body is an empty object.
pub async fn read_options(call: &mut Call, body: Body, kind: &str) -> Result<Value> {
    let wire = wire(call, BUILT_IN)?;
    let bytes = read_bytes(body).await?;
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let type_ = schema::type_of("", "v1", kind);
    let decoded = match wire {
        Wire::Json => decode::json(&bytes, type_),
        Wire::Yaml => decode::yaml(&bytes, type_),
        Wire::Protobuf => from_protobuf(&bytes),
    };
    let options = decoded.map_err(|e| undecodable("v1", kind, &e))?.value;
    let (version, said) = (write::text(&options, "/apiVersion"), write::text(&options, "/kind"));
    if version.matches('/').count() > 1 {
        return Err(Failure::bad_request(format!("unexpected GroupVersion string: {version}")));
    }
    // Options are the same in every group.
    if !said.is_empty() && said != kind {
        let why = format!(
            "the body is a {said} of version {version:?}, but must be {kind}; the object is not deleted"
        );
        return Err(Failure::bad_request(why));
    }
    Ok(options)
}

/// Judges what strict validation found.
fn settle(
    call: &mut Call,
    decoded: Decoded,
    api_version: &str,
    kind: &str,
    validation: FieldValidation,
) -> Result<Value> {
    if decoded.warnings.is_empty() {
        return Ok(decoded.value);
    }
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => call.warnings.extend(decoded.warnings),
        FieldValidation::Strict => {
            return Err(Failure::bad_request(format!(
                "{kind} in version \"{}\" cannot be handled as a {kind}: {}",
                short(api_version),
                strict_text(&decoded.warnings)
            )));
        }
    }
    Ok(decoded.value)
}

pub fn strict_text(warnings: &[String]) -> String {
    format!("strict decoding error: {}", warnings.join(", "))
}

fn short(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or(api_version)
}

fn undecodable(api_version: &str, kind: &str, error: &DecodeError) -> Failure {
    Failure::bad_request(format!(
        "{kind} in version \"{}\" cannot be handled as a {kind}: {error}",
        short(api_version)
    ))
}
