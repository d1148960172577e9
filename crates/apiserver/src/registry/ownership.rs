//! Who owns which field: managed fields on every write, and server-side apply.

use serde_json::Value;
use tombolo_k8s::apply::{self, ApplyError, Paths, Write};
use tombolo_k8s::decode;
use tombolo_k8s::schema::Type;

use super::codec;
use super::resource::{Resource, Shared};
use super::schema::Schema;
use super::update::Part;
use super::write::{self, FieldValidation, WriteOptions, metadata};
use crate::http::status::{Failure, Result};
use crate::server::Call;

pub fn track_create(call: &Call, resource: &Resource, object: &mut Value, options: &WriteOptions) {
    // Whatever a client claims about owners of an object that does not exist yet is void.
    metadata(object).remove("managedFields");
    if !call.app.config.is_written_by_programs(resource) {
        track(resource, None, object, Part::Main, options);
    }
}

pub fn track_update(
    call: &Call,
    resource: &Resource,
    old: &Value,
    new: &mut Value,
    part: Part<'_>,
    options: &WriteOptions,
) {
    // Once somebody has applied an object, its owners are kept whatever its kind.
    let owned = old.pointer("/metadata/managedFields").is_some();
    if owned || !call.app.config.is_written_by_programs(resource) {
        track(resource, Some(old), new, part, options);
    } else {
        metadata(new).remove("managedFields");
    }
}

fn track(resource: &Resource, old: Option<&Value>, new: &mut Value, part: Part<'_>, options: &WriteOptions) {
    let (api_version, now) = (resource.api_version(), write::now());
    let write = Write {
        manager: &options.manager,
        subresource: part.name(),
        api_version: &api_version,
        now: &now,
        reset: reset(resource, part),
    };
    let fields = apply::track_update(old, new, resource.schema.topology(), &write);
    let metadata = metadata(new);
    match fields {
        Some(fields) => metadata.insert("managedFields".into(), fields),
        None => metadata.remove("managedFields"),
    };
}

fn reset(resource: &Resource, part: Part<'_>) -> Paths {
    match (&resource.schema, part) {
        (Schema::BuiltIn(row), part) => apply::reset_fields(row.kind, row.has_status(), part.name()),
        (Schema::Custom(_), Part::Main) if resource.has_status() => apply::CUSTOM_MAIN,
        (Schema::Custom(_), Part::Status) => apply::CUSTOM_STATUS,
        _ => &[],
    }
}

/// Reads the configuration of an apply request: YAML, of which JSON is a part.
pub fn read_applied(
    call: &mut Call,
    resource: &Shared,
    bytes: &[u8],
    options: &WriteOptions,
) -> Result<Value> {
    let bad = |e: decode::DecodeError| match e {
        decode::DecodeError::Syntax(_) => Failure::bad_request(format!("error decoding YAML: {e}")),
        decode::DecodeError::Type(_) => {
            Failure::new(500, "", format!("failed to create typed patch object: {e}"))
        }
    };
    // Ownership follows what the client wrote, so the configuration is not brought into canonical form. Unknown
    // fields are refused by the merge itself, whatever the validation; here only duplicates count.
    let decoded =
        if bytes.first() == Some(&b'{') { decode::json(bytes, None) } else { decode::yaml(bytes, None) };
    let decode::Decoded { mut value, mut warnings } = decoded.map_err(bad)?;
    let unknown = warnings.extract_if(.., |w| w.starts_with("unknown field")).collect::<Vec<_>>();
    if let Some(first) = unknown.first() {
        return Err(undeclared(resource, &value, first));
    }
    if !value.is_object() {
        return Err(Failure::bad_request("error decoding YAML: the configuration is not an object"));
    }
    match options.validation {
        _ if warnings.is_empty() => {}
        FieldValidation::Ignore => {}
        FieldValidation::Warn => call.warnings.extend(warnings),
        FieldValidation::Strict => {
            return Err(Failure::bad_request(codec::strict_text(&warnings)));
        }
    }
    let (api_version, kind) = (write::text(&value, "/apiVersion"), write::text(&value, "/kind"));
    if api_version.is_empty() || kind.is_empty() {
        return Err(Failure::bad_request("apiVersion and kind must be set in an applied configuration"));
    }
    write::check_kind(resource, &mut value)?;
    Ok(value)
}

/// Unknown metadata, which is not there any more when the merge looks, in its words.
fn undeclared(resource: &Resource, value: &Value, warning: &str) -> Failure {
    let path = warning.trim_start_matches("unknown field ").trim_matches('"');
    Failure::new(
        500,
        "",
        format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): .{path}: field not declared in schema",
            write::text(value, "/metadata/namespace"),
            write::name_of(value),
            resource.api_version(),
            resource.kind
        ),
    )
}

/// Lays a configuration over the current object.
pub fn apply(
    resource: &Resource,
    current: Option<&Value>,
    applied: &Value,
    part: Part<'_>,
    options: &WriteOptions,
) -> Result<Value> {
    let (api_version, now) = (resource.api_version(), write::now());
    let write = Write {
        manager: &options.manager,
        subresource: part.name(),
        api_version: &api_version,
        now: &now,
        reset: reset(resource, part),
    };
    let force = options.force.unwrap_or(false);
    let name = write::name_of(applied);
    match apply::apply(current, applied, resource.schema.topology(), &write, force) {
        Ok(result) => match super::patch::conformed(resource, result.object) {
            Ok((object, _)) => Ok(object),
            Err(failure) if !resource.schema.is_custom() => {
                Err(Failure::new(500, "", format!("failed to convert new object: {}", failure.message())))
            }
            Err(failure) => Err(failure),
        },
        Err(ApplyError::Conflicts(conflicts)) => {
            let mut failure = Failure::new(409, "Conflict", conflicts.to_string());
            for conflict in &conflicts.0 {
                failure = failure.cause("FieldManagerConflict", conflict.message(), &conflict.field());
            }
            Err(failure)
        }
        Err(ApplyError::BadRequest(text)) => Err(Failure::bad_request(text)),
        Err(ApplyError::Mismatch(text)) => {
            Err(Failure::new(500, "", text).about(&resource.group, &resource.plural, name))
        }
    }
}

/// The configuration of an apply to `scale`.
pub fn read_scale(bytes: &[u8], type_: &'static Type) -> Result<Value> {
    let wrong = |why: String| Failure::new(500, "", format!("failed to create typed patch object: {why}"));
    let mut decoded = decode::yaml(bytes, Some(type_)).map_err(|e| match e {
        decode::DecodeError::Syntax(_) => Failure::bad_request(format!("error decoding YAML: {e}")),
        decode::DecodeError::Type(_) => wrong(e.to_string()),
    })?;
    let Some(map) = decoded.value.as_object_mut() else {
        return Err(Failure::bad_request("error decoding YAML: the configuration is not an object"));
    };
    write::check_type(map, "autoscaling/v1", "Scale")?;
    // The type takes a zero for nothing.
    let written = decode::yaml(bytes, None).ok();
    if let Some(0) = written.and_then(|written| written.value.pointer("/spec/replicas")?.as_i64()) {
        decoded.value["spec"]["replicas"] = 0.into();
    }
    match decoded.warnings.first() {
        Some(warning) => Err(wrong(warning.clone())),
        None => Ok(decoded.value),
    }
}
