//! Deleting: preconditions, finalizers, propagation, and the two steps of pods.

use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;
use tombolo_store::{Expect, StoreError};

use super::codec;
use super::options::ListOptions;
use super::resource::{Resource, Shared};
use super::write::{self, metadata};
use super::{list, render};
use crate::admission::{self, Operation};
use crate::http::body::Body;
use crate::http::negotiate;
use crate::http::query::Query;
use crate::http::status::{Failure, Result, bytes_response, json_response, success};
use crate::kinds;
use crate::server::Call;

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub dry_run: bool,
    /// Asked for in the old way not to leave dependents behind; such a client expects to hear that they are not gone yet.
    pub cascades: bool,
}

impl DeleteOptions {
    pub fn parse(body: &Value, query: &Query) -> Result<Self> {
        let invalid = |error| Failure::invalid("meta.k8s.io", "DeleteOptions", "", &[error]);
        let given = body.as_object().is_some_and(|o| !o.is_empty());
        let (policy, orphan, grace, mut dry_run) = if given {
            let dry = match body.get("dryRun").and_then(Value::as_array).map(Vec::as_slice) {
                None | Some([]) => false,
                Some(values) if values.iter().all(|v| v == "All") => true,
                Some(values) => {
                    return Err(invalid(FieldError::not_supported("dryRun", &values[0], &["All"])));
                }
            };
            (
                body.get("propagationPolicy").and_then(Value::as_str).map(str::to_owned),
                body.get("orphanDependents").and_then(Value::as_bool),
                body.get("gracePeriodSeconds").and_then(Value::as_i64),
                dry,
            )
        } else {
            (
                query.get("propagationPolicy").map(str::to_owned),
                query.has("orphanDependents").then(|| query.flag("orphanDependents")),
                query.number("gracePeriodSeconds")?,
                false,
            )
        };
        dry_run |= write::dry_run(query, "DeleteOptions")?;
        if policy.is_some() && orphan.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            return Err(invalid(FieldError::invalid("propagationPolicy", &json!(policy), detail)));
        }
        let propagation = match (policy.as_deref(), orphan) {
            (None, None) => None,
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                let allowed = ["Foreground", "Background", "Orphan", "nil"];
                return Err(invalid(FieldError::not_supported("propagationPolicy", &other.into(), &allowed)));
            }
        };
        let precondition = |key: &str| {
            let text = body.pointer("/preconditions")?.get(key)?.as_str()?;
            Some(text.to_owned())
        };
        Ok(Self {
            grace,
            propagation,
            uid: precondition("uid"),
            version: precondition("resourceVersion"),
            dry_run,
            cascades: orphan == Some(false),
        })
    }
}

/// What a delete did.
pub enum Outcome {
    /// The object is gone; this is its last state.
    Gone { value: bytes::Bytes, revision: u64, uid: String },
    /// The object is marked and waits for finalizers or for its node.
    Marked { value: bytes::Bytes, revision: u64 },
}

pub async fn handle(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let options = codec::read_options(call, body, "DeleteOptions").await?;
    let options = DeleteOptions::parse(&options, &call.query)?;
    let (namespace, name) = (call.target.namespace.clone(), call.target.name.clone());
    match delete(call, resource, &namespace, &name, &options).await? {
        Outcome::Gone { value, revision, uid } => {
            if kinds::returns_deleted(resource) {
                return render::stored(output, resource, &call.query, StatusCode::OK, &value, revision);
            }
            Ok(json_response(StatusCode::OK, &success(&resource.group, &resource.plural, &name, &uid)))
        }
        Outcome::Marked { value, revision } => {
            let code = if options.cascades { StatusCode::ACCEPTED } else { StatusCode::OK };
            render::stored(output, resource, &call.query, code, &value, revision)
        }
    }
}

pub async fn delete(
    call: &mut Call,
    resource: &Shared,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Outcome> {
    let key = resource.key(namespace, name);
    loop {
        let Some(stored) = call.app.get(&key).await? else { return Err(resource.not_found(name)) };
        let old = resource.decode(&stored.value, stored.revision).map_err(Failure::internal)?;
        check_preconditions(resource, name, &old, stored.revision, options)?;
        admission::admit(call, resource, Operation::Delete, &mut old.clone(), Some(&old)).await?;
        let mut new = old.clone();
        // The objects of a definition are its only dependents, and always go first.
        let is_definition = resource.is("apiextensions.k8s.io", "customresourcedefinitions");
        if !is_definition || write::is_deleting(&old) {
            set_finalizers(resource, &mut new, options);
        }
        kinds::before_delete(resource, &mut new);
        let grace = kinds::grace_period(resource, &old, options.grace);
        let deleting = write::is_deleting(&old);
        let held = !write::finalizers(&new).is_empty() || kinds::holds(resource, &new);
        let now = Timestamp::now();
        match (deleting, grace) {
            (false, grace) if held || kinds::is_marked_first(resource) => {
                let at = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
                let metadata = metadata(&mut new);
                metadata.insert("deletionTimestamp".into(), written(at));
                metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
                if let Some(generation) = metadata.get("generation").and_then(Value::as_i64)
                    && !is_definition
                {
                    metadata.insert("generation".into(), (generation + 1).into());
                }
                kinds::marked(resource, &mut new);
            }
            (true, grace) if options.grace.is_some() => shorten(&mut new, grace, now),
            _ => {}
        }
        let gone = if write::is_deleting(&new) { is_released(resource, &new) } else { true };
        let uid = write::text(&old, "/metadata/uid").to_owned();
        let new_stored = resource.to_stored(new.clone());
        if gone {
            let value = resource.encode(&new_stored);
            if options.dry_run {
                return Ok(Outcome::Gone { value, revision: stored.revision, uid });
            }
            if let Some(revision) =
                // As durable as what is removed was; the mark of this delete was never stored.
                remove(call, resource, &key, &old, Expect::Revision(stored.revision)).await?
            {
                kinds::deleted(call, resource, &new_stored, revision).await;
                return Ok(Outcome::Gone { value, revision, uid });
            }
            continue;
        }
        if new == old || options.dry_run {
            let value = resource.encode(&new_stored);
            return Ok(Outcome::Marked { value, revision: stored.revision });
        }
        let value = resource.encode(&new_stored);
        if let Some(revision) =
            write::put(call, resource, &key, &new_stored, value.clone(), Expect::Revision(stored.revision))
                .await?
        {
            let old_stored = resource.to_stored(old);
            kinds::updated(call, resource, &old_stored, &new_stored, revision).await;
            return Ok(Outcome::Marked { value, revision });
        }
    }
}

fn written(at: Timestamp) -> Value {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

/// A second delete may shorten the wait, counted from when it began.
fn shorten(object: &mut Value, grace: i64, now: Timestamp) {
    let current = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    let end = write::text(object, "/metadata/deletionTimestamp").parse::<Timestamp>();
    let (Some(current), Ok(end)) = (current.filter(|current| grace < *current), end) else { return };
    let at = end.saturating_sub(SignedDuration::from_secs(current - grace)).unwrap_or(now);
    // What is over already still gets a moment, so that its node is the one to end it.
    let (at, grace) = if at < now { (now, grace.min(1)) } else { (at, grace) };
    let metadata = metadata(object);
    metadata.insert("deletionTimestamp".into(), written(at));
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
}

/// Nothing holds the object back any more.
pub fn is_released(resource: &Resource, object: &Value) -> bool {
    let grace = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    write::finalizers(object).is_empty() && grace == 0 && !kinds::holds(resource, object)
}

/// Removes a key; a lost race is `None`.
pub async fn remove(
    call: &Call,
    resource: &Resource,
    key: &str,
    object: &Value,
    expect: Expect,
) -> Result<Option<u64>> {
    let durability = call.app.config.durability(resource, object);
    match call.app.store.delete(key, expect, durability).await {
        Ok(deleted) => Ok(Some(deleted.revision)),
        Err(StoreError::Conflict { .. }) => Ok(None),
        Err(error) => Err(call.app.store_failure(error)),
    }
}

pub fn check_preconditions(
    resource: &Resource,
    name: &str,
    object: &Value,
    revision: u64,
    options: &DeleteOptions,
) -> Result<()> {
    let uid = write::text(object, "/metadata/uid");
    if let Some(wanted) = options.uid.as_deref().filter(|w| *w != uid) {
        let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}");
        return Err(resource.conflict(name, why));
    }
    if let Some(wanted) = options.version.as_deref().filter(|w| w.parse() != Ok(revision)) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {revision}"
        );
        return Err(resource.conflict(name, why));
    }
    Ok(())
}

/// The propagation policy travels to the garbage collector as finalizers.
fn set_finalizers(resource: &Resource, object: &mut Value, options: &DeleteOptions) {
    let old = write::finalizers(object);
    let has = |name: &str| old.iter().any(|f| f == name);
    let (orphan, foreground) = match options.propagation {
        Some(Propagation::Orphan) => (true, false),
        Some(Propagation::Foreground) => (false, true),
        Some(Propagation::Background) => (false, false),
        None if has(ORPHAN) || has(FOREGROUND) => (has(ORPHAN), has(FOREGROUND)),
        None => (resource.rules.orphan_by_default, false),
    };
    let mut new: Vec<String> = old.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
    if orphan {
        new.push(ORPHAN.into());
    }
    if foreground {
        new.push(FOREGROUND.into());
    }
    if new == old {
        return;
    }
    let metadata = metadata(object);
    if new.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), json!(new));
    }
}

/// Deletes what a list with the same options shows (with a limit one page of it) and answers with what it was.
pub async fn collection(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let options = codec::read_options(call, body, "DeleteOptions").await?;
    let options = DeleteOptions::parse(&options, &call.query)?;
    let wanted = ListOptions::parse(resource, &call.query, false)?;
    let listed = list::fetch(call, resource, &wanted).await?;
    let mut out = list::opening_of(resource, &listed);
    out.extend_from_slice(b",\"items\":[");
    let form = render::Form::new(negotiate::Output::Json, resource, &call.query);
    let mut first = true;
    for record in listed.records {
        let (namespace, name) = resource.split_key(&record.key);
        let (value, revision) = match delete(call, resource, namespace, name, &options).await {
            Ok(Outcome::Gone { value, revision, .. } | Outcome::Marked { value, revision }) => {
                (value, revision)
            }
            // Somebody else was faster: that is what was asked for.
            Err(failure) if failure.code() == 404 => continue,
            Err(failure) => return Err(failure),
        };
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        form.item(&mut out, &value, revision);
    }
    out.extend_from_slice(b"]}\n");
    Ok(bytes_response(StatusCode::OK, "application/json", out))
}
