//! Replacing objects, and the loop that every change of an existing object runs in.

use std::borrow::Cow;

use http::{Response, StatusCode};
use serde_json::{Map, Value};
use tombolo_k8s::field::FieldError;
use tombolo_store::Expect;

use super::resource::Shared;
use super::write::{self, WriteOptions, Written, metadata};
use super::{codec, create, delete, ownership, render};
use crate::admission::{self, Operation};
use crate::http::body::Body;
use crate::http::negotiate;
use crate::http::status::{Failure, Result};
use crate::kinds;
use crate::server::Call;

/// Which part of an object a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    Main,
    Status,
    /// Another subresource, which says itself what it changes.
    Other(&'a str),
}

impl<'a> Part<'a> {
    pub fn of(subresource: &'a str) -> Self {
        match subresource {
            "" => Self::Main,
            "status" => Self::Status,
            other => Self::Other(other),
        }
    }

    pub fn name(&self) -> &'a str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Other(name) => name,
        }
    }
}

/// A change proposed for an object.
pub struct Proposal {
    pub object: Value,
    /// Managed fields are already final (server-side apply computes them itself).
    pub owned: bool,
}

/// More lost races than this in a row mean that something rewrites the object without end.
const TRIES: usize = 100;

pub async fn handle(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let options = WriteOptions::parse(&call.query, call.user_agent(), "UpdateOptions", false)?;
    let mut object = codec::read_object(call, resource, body, options.validation).await?;
    let target = call.target.clone();
    write::check_named_place(resource, &mut object, &target.namespace, &target.name)?;
    let part = Part::of(&target.subresource);
    if part == Part::Main && resource.rules.create_on_update {
        let key = resource.key(&target.namespace, &target.name);
        if call.app.get(&key).await?.is_none() {
            call.authorize_also("create").await?;
            metadata(&mut object).remove("resourceVersion");
            metadata(&mut object).remove("uid");
            let written = create::create(call, resource, object, &options).await?;
            return render::stored(
                output,
                resource,
                &call.query,
                written.code,
                &written.value,
                written.revision,
            );
        }
    }
    let written =
        change(call, resource, part, &options, |_| Ok(Proposal { object: object.clone(), owned: false }))
            .await?;
    render::stored(output, resource, &call.query, written.code, &written.value, written.revision)
}

/// Reads the object, lets `propose` change it, and writes the result if nobody else wrote meanwhile; otherwise
/// again. A proposal that names a resource version is held to it.
pub async fn change(
    call: &mut Call,
    resource: &Shared,
    part: Part<'_>,
    options: &WriteOptions,
    propose: impl FnMut(&Value) -> Result<Proposal>,
) -> Result<Written> {
    change_admitted(call, resource, part, options, true, propose).await
}

/// The same for changes that the server makes within a client's write: they are not admitted again.
pub async fn change_quietly(
    call: &mut Call,
    resource: &Shared,
    part: Part<'_>,
    options: &WriteOptions,
    propose: impl FnMut(&Value) -> Result<Proposal>,
) -> Result<Written> {
    change_admitted(call, resource, part, options, false, propose).await
}

async fn change_admitted(
    call: &mut Call,
    resource: &Shared,
    part: Part<'_>,
    options: &WriteOptions,
    admitted: bool,
    mut propose: impl FnMut(&Value) -> Result<Proposal>,
) -> Result<Written> {
    let (namespace, name) = (call.target.namespace.clone(), call.target.name.clone());
    let key = resource.key(&namespace, &name);
    for _ in 0..TRIES {
        let Some(stored) = call.app.get(&key).await? else { return Err(resource.not_found(&name)) };
        let old = resource.decode(&stored.value, stored.revision).map_err(Failure::internal)?;
        let Proposal { object: mut new, owned } = propose(&old)?;
        check_version(resource, &name, &old, &new, stored.revision, part)?;
        // Who applies says himself who owns what, also when nobody does.
        let disowned = owned && !metadata(&mut new).contains_key("managedFields");
        keep_system_metadata(&mut new, &old);
        if disowned {
            metadata(&mut new).remove("managedFields");
        }
        match part {
            Part::Main => keep_status(resource, &mut new, &old),
            Part::Status => keep_all_but_status(resource, &mut new, &old),
            Part::Other(_) => {}
        }
        resource.schema.default(&mut new);
        kinds::convert(resource, &mut new, Some(&old));
        if !owned {
            ownership::track_update(call, resource, &old, &mut new, part, options);
        }
        kinds::prepare_update(call, resource, part, &mut new, &old).await?;
        if admitted {
            let operation = Operation::Update(part);
            admission::admit(call, resource, operation, &mut new, Some(&old)).await?;
        }
        // A scheduler's decision is not a change of what was asked for.
        let counts = !matches!(part, Part::Status | Part::Other("binding"));
        if resource.rules.generation && counts && spec_changed(resource, &new, &old) {
            let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
            metadata(&mut new).insert("generation".into(), (generation + 1).into());
        }
        let rule_time = call.app.config.rule_time;
        let errors = resource.schema.validate(resource, &new, Some((&old, part)), rule_time).await?;
        if !errors.is_empty() {
            return Err(resource.invalid(&name, &errors));
        }
        if admitted {
            admission::judge(call, resource, Operation::Update(part), &new, Some(&old)).await?;
        }
        kinds::allocate(call, resource, &mut new, Some(&old), options.dry_run).await?;
        if same(&new, &old) {
            return Ok(Written { value: stored.value, revision: stored.revision, code: StatusCode::OK });
        }
        let last = write::is_deleting(&new) && delete::is_released(resource, &new);
        let old_stored = resource.to_stored(old);
        let new_stored = resource.to_stored(new);
        let value = resource.encode(&new_stored);
        if options.dry_run {
            return Ok(Written { value, revision: stored.revision, code: StatusCode::OK });
        }
        if last {
            // The last finalizer is gone: what was being deleted goes now.
            if let Some(revision) =
                delete::remove(call, resource, &key, &new_stored, Expect::Revision(stored.revision)).await?
            {
                kinds::deleted(call, resource, &new_stored, revision).await;
                return Ok(Written { value, revision, code: StatusCode::OK });
            }
            continue;
        }
        if let Some(revision) =
            write::put(call, resource, &key, &new_stored, value.clone(), Expect::Revision(stored.revision))
                .await?
        {
            kinds::updated(call, resource, &old_stored, &new_stored, revision).await;
            return Ok(Written { value, revision, code: StatusCode::OK });
        }
        kinds::abandoned(call).await;
    }
    Err(resource.conflict(&name, "too many concurrent writers; try again"))
}

fn check_version(
    resource: &Shared,
    name: &str,
    old: &Value,
    new: &Value,
    revision: u64,
    part: Part<'_>,
) -> Result<()> {
    let given: Cow<str> = match new.pointer("/metadata/resourceVersion") {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(Value::Null) | None => Cow::Borrowed(""),
        Some(other) => Cow::Owned(other.to_string()),
    };
    match given.as_ref() {
        "" | "0" if resource.rules.unconditional_update || matches!(part, Part::Other(_)) => {}
        "" | "0" => {
            let error =
                FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            return Err(resource.invalid(name, &[error]));
        }
        given => match given.parse::<u64>() {
            Ok(version) if version == revision => {}
            Ok(_) => return Err(resource.modified(name)),
            Err(_) => {
                return Err(Failure::new(
                    500,
                    "",
                    format!("strconv.ParseUint: parsing {given:?}: invalid syntax"),
                ));
            }
        },
    }
    let (uid, old_uid) = (write::text(new, "/metadata/uid"), write::text(old, "/metadata/uid"));
    if !uid.is_empty() && uid != old_uid {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}");
        return Err(resource.conflict(name, why));
    }
    // Of an object that is being deleted, the server's time is kept, whatever a client remembers.
    let deletion = new.pointer("/metadata/deletionTimestamp").cloned().unwrap_or_default();
    if !deletion.is_null() && !write::is_deleting(old) {
        let error = FieldError::invalid("metadata.deletionTimestamp", &deletion, "field is immutable");
        return Err(resource.invalid(name, &[error]));
    }
    Ok(())
}

/// What only the server sets survives whatever the client sent.
fn keep_system_metadata(new: &mut Value, old: &Value) {
    let old_metadata = old.get("metadata").and_then(Value::as_object);
    let managed = ["managedFields"];
    let metadata = metadata(new);
    for key in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
        "name",
        "namespace",
    ] {
        match old_metadata.and_then(|m| m.get(key)) {
            Some(value) => {
                metadata.insert(key.into(), value.clone());
            }
            None => {
                metadata.remove(key);
            }
        }
    }
    metadata.remove("selfLink");
    for key in managed {
        // An absent list means "not mine to say"; an explicit empty one resets ownership.
        if !metadata.contains_key(key)
            && let Some(value) = old_metadata.and_then(|m| m.get(key))
        {
            metadata.insert(key.into(), value.clone());
        }
    }
}

fn keep_status(resource: &Shared, new: &mut Value, old: &Value) {
    if !resource.has_status() {
        return;
    }
    let map = new.as_object_mut().expect("decoded objects are JSON objects");
    match old.get("status") {
        Some(status) => {
            map.insert("status".into(), status.clone());
        }
        None => {
            map.remove("status");
        }
    }
}

/// Kinds of whose metadata a write of the status changes nothing.
const METADATA_STAYS: [(&str, &str); 6] = [
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("networking.k8s.io", "servicecidrs"),
    ("resource.k8s.io", "resourceclaims"),
    ("storage.k8s.io", "volumeattachments"),
];

fn keep_all_but_status(resource: &Shared, new: &mut Value, old: &Value) {
    let mut take = |part: &str| new.as_object_mut().and_then(|map| map.remove(part));
    let (status, proposed) = (take("status"), take("metadata"));
    let kept = old.as_object().expect("decoded objects are JSON objects").iter();
    let mut map: Map<String, Value> = kept
        .filter(|(part, _)| *part != "status")
        .map(|(part, value)| (part.clone(), value.clone()))
        .collect();
    map.extend(status.map(|status| ("status".to_owned(), status)));
    *new = Value::Object(map);
    let Some(Value::Object(mut proposed)) = proposed else { return };
    let keep: &[&str] = if resource.is("", "pods") {
        &["managedFields", "annotations", "labels", "finalizers"]
    } else if resource.schema.is_custom() || METADATA_STAYS.iter().any(|(g, plural)| resource.is(g, plural)) {
        &["managedFields"]
    } else if resource.is("apps", "deployments") || resource.is("apiregistration.k8s.io", "apiservices") {
        &["managedFields", "annotations", "finalizers", "ownerReferences"]
    } else {
        &["managedFields", "annotations", "labels", "finalizers", "ownerReferences"]
    };
    let metadata = metadata(new);
    for key in keep {
        match proposed.remove(*key) {
            Some(value) => metadata.insert((*key).into(), value),
            None => metadata.remove(*key),
        };
    }
}

/// Whether anything changed that the generation counts: all but metadata and status; of deployments also annotations.
fn spec_changed(resource: &Shared, new: &Value, old: &Value) -> bool {
    let whole = resource.schema.is_custom() && !resource.has_status();
    let counts = |key: &str| !matches!(key, "metadata" | "apiVersion" | "kind") && (whole || key != "status");
    let annotations = |object: &Value| object.pointer("/metadata/annotations").cloned();
    if resource.is("apps", "deployments") && annotations(new) != annotations(old) {
        return true;
    }
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    new.iter().filter(|(k, _)| counts(k)).any(|(k, v)| old.get(k) != Some(v))
        || old.keys().filter(|k| counts(k)).any(|k| !new.contains_key(k))
}

fn same(new: &Value, old: &Value) -> bool {
    new == old
}
