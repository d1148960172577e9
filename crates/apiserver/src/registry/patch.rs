//! Patching: the four patch types, each a function from the current object to a new one.

use http::{Response, StatusCode};
use serde_json::Value;
use tombolo_k8s::field::FieldError;
use tombolo_k8s::patch::{self, PatchError};

use super::resource::{Resource, Shared};
use super::schema::Schema;
use super::update::{self, Part, Proposal};
use super::write::{self, FieldValidation, WriteOptions, Written};
use super::{codec, create, ownership, render};
use crate::http::body::Body;
use crate::http::negotiate;
use crate::http::status::{Failure, Result};
use crate::server::Call;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

const BUILT_IN: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

impl PatchType {
    pub fn of(content_type: &str, custom: bool) -> Result<Self> {
        match content_type {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if !custom => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ => Err(Failure::unsupported_media_type(if custom { CUSTOM } else { BUILT_IN })),
        }
    }
}

pub async fn handle(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let kind = PatchType::of(codec::content_type(call), resource.schema.is_custom())?;
    let options =
        WriteOptions::parse(&call.query, call.user_agent(), "PatchOptions", kind == PatchType::Apply)?;
    let bytes = codec::read_bytes(body).await?;
    let subresource = call.target.subresource.clone();
    let part = Part::of(&subresource);
    let written = match kind {
        PatchType::Apply => apply(call, resource, part, &bytes, &options).await?,
        _ => {
            let patch: Value = serde_json::from_slice(&bytes)
                .map_err(|e| Failure::bad_request(format!("error decoding patch: {e}")))?;
            change(call, resource, part, kind, &patch, &options).await?
        }
    };
    render::stored(output, resource, &call.query, written.code, &written.value, written.revision)
}

async fn change(
    call: &mut Call,
    resource: &Shared,
    part: Part<'_>,
    kind: PatchType,
    patch: &Value,
    options: &WriteOptions,
) -> Result<Written> {
    let mut warnings = Vec::new();
    let (row, target) = (resource.clone(), call.target.clone());
    let result = update::change(call, resource, part, options, |current| {
        // The rest of the object is put back afterwards; a patch that does not look at it needs no copy of it.
        let seen = (part == Part::Status && row.has_status() && is_about_status(patch, kind))
            .then(|| status_and_metadata(current));
        let mut patched = patched(seen.as_ref().unwrap_or(current), patch, kind, &row.schema)?;
        // Strategic merge patches are of a type that is known; what they say of it is not heard.
        if let (PatchType::Strategic, Some(map)) = (kind, patched.as_object_mut()) {
            map.remove("apiVersion");
            map.remove("kind");
        }
        // An empty list disowns; the type has no such.
        if let Some(owners) = patched.pointer_mut("/metadata/managedFields")
            && !row.schema.is_custom()
            && owners.as_array().is_some_and(Vec::is_empty)
        {
            *owners = serde_json::json!([{}]);
        }
        let (mut object, notes) = conformed(&row, patched)?;
        if !notes.is_empty() && options.validation == FieldValidation::Strict {
            let shown = patch.to_string();
            let error = FieldError::invalid("patch", &shown.into(), codec::strict_text(&notes));
            return Err(Failure::invalid("", "", "", &[error]));
        }
        warnings = notes;
        write::check_named_place(&row, &mut object, &target.namespace, &target.name)?;
        check_uid(&row, &object, current)?;
        Ok(Proposal { object, owned: false })
    })
    .await?;
    if options.validation == FieldValidation::Warn {
        call.warnings.extend(warnings);
    }
    Ok(result)
}

fn is_about_status(patch: &Value, kind: PatchType) -> bool {
    let own = |part: &String| matches!(part.as_str(), "apiVersion" | "kind" | "metadata" | "status");
    kind != PatchType::Json && patch.as_object().is_some_and(|patch| patch.keys().all(own))
}

fn status_and_metadata(object: &Value) -> Value {
    let parts = ["apiVersion", "kind", "metadata", "status"];
    let parts = parts.into_iter().filter_map(|part| Some((part.to_owned(), object.get(part)?.clone())));
    Value::Object(parts.collect())
}

/// A uid cannot change. Who speaks of an earlier version speaks of another object, and is told so by its version.
fn check_uid(resource: &Resource, object: &Value, current: &Value) -> Result<()> {
    let uid = |object: &Value| object.pointer("/metadata/uid").cloned().unwrap_or_default();
    let version = |object: &Value| write::text(object, "/metadata/resourceVersion").to_owned();
    let is_stale = !version(object).is_empty() && version(object) != version(current);
    if uid(object).is_null() || uid(object) == uid(current) || is_stale {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.uid", &uid(object), "field is immutable");
    Err(resource.invalid(write::name_of(current), &[error]))
}

/// Applies one of the three classic patches.
pub fn patched(object: &Value, patch: &Value, kind: PatchType, schema: &Schema) -> Result<Value> {
    let result = match (kind, schema) {
        (PatchType::Json, _) => patch::json(object, patch),
        (PatchType::Strategic, Schema::BuiltIn(row)) => patch::strategic(object, patch, row.type_()),
        _ => patch::merge(object, patch),
    };
    result.map_err(failure)
}

pub fn failure(error: PatchError) -> Failure {
    match error {
        PatchError::BadRequest(text) => Failure::bad_request(text),
        PatchError::Unprocessable(text) => Failure::new(
            422,
            "Invalid",
            format!("the server rejected our request due to an error in our request: {text}"),
        ),
        PatchError::TooLarge(text) => Failure::new(413, "RequestEntityTooLarge", text),
        PatchError::Contradiction(text) => Failure::new(500, "", text),
    }
}

/// Brings a patched object into the canonical form of its kind; says what strict validation would refuse.
pub fn conformed(resource: &Resource, mut object: Value) -> Result<(Value, Vec<String>)> {
    match &resource.schema {
        Schema::BuiltIn(row) => {
            write::check_kind(resource, &mut object)
                .map_err(|failure| Failure::new(422, "Invalid", failure.message().to_owned()))?;
            let decoded = tombolo_k8s::decode::value(object, row.type_())
                .map_err(|e| Failure::new(422, "Invalid", e.to_string()))?;
            Ok((decoded.value, decoded.warnings))
        }
        Schema::Custom(custom) => {
            let own = [("apiVersion", resource.api_version()), ("kind", resource.kind.clone())];
            if let Some((field, _)) = own.iter().find(|(field, own)| object[*field] != own.as_str()) {
                let error = FieldError::invalid(
                    *field,
                    &object[*field],
                    format!("must be that of {}", resource.kind),
                );
                return Err(resource.invalid(write::name_of(&object), &[error]));
            }
            custom.coerce(&mut object).map_err(|why| Failure::new(422, "Invalid", why))?;
            let notes = custom.prune(&mut object);
            Ok((object, notes))
        }
    }
}

/// Server-side apply: creates what is missing, and merges by field ownership.
async fn apply(
    call: &mut Call,
    resource: &Shared,
    part: Part<'_>,
    bytes: &[u8],
    options: &WriteOptions,
) -> Result<Written> {
    let mut applied = ownership::read_applied(call, resource, bytes, options)?;
    let target = call.target.clone();
    write::check_place(resource, &mut applied, &target.namespace, &target.name)?;
    loop {
        let row = resource.clone();
        let result = update::change(call, resource, part, options, |current| {
            let object = ownership::apply(&row, Some(current), &applied, part, options)?;
            check_uid(&row, &applied, current)?;
            Ok(Proposal { object, owned: true })
        })
        .await;
        match result {
            Err(failure) if failure.code() == 404 && part == Part::Main => {}
            other => return other,
        }
        if !write::text(&applied, "/metadata/resourceVersion").is_empty() {
            let version = write::text(&applied, "/metadata/resourceVersion");
            let why = format!(
                "StorageError: invalid object, Code: 4, the object does not exist at resourceVersion {version}"
            );
            return Err(resource.conflict(&target.name, why));
        }
        let uid = write::text(&applied, "/metadata/uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(resource.conflict(&target.name, why));
        }
        call.authorize_also("create").await?;
        let object = ownership::apply(resource, None, &applied, part, options)?;
        match create::create_owned(call, resource, object, options).await {
            // Somebody created it meanwhile: apply to that one.
            Err(failure) if failure.reason() == "AlreadyExists" => {}
            Ok(written) => return Ok(Written { code: StatusCode::CREATED, ..written }),
            Err(failure) => return Err(failure),
        }
    }
}
