//! Where kinds differ from each other beyond what the tables say.
//!
//! Every function here is a hook of the generic write path; most kinds need none of them.

pub mod certificates;
pub mod daemon_sets;
pub mod jobs;
pub mod namespaces;
pub mod pods;
pub mod services;

use serde_json::Value;

use crate::crd::lifecycle;
use crate::http::status::Result;
use crate::registry::resource::{Resource, Shared};
use crate::registry::schema::Schema;
use crate::registry::update::Part;
use crate::registry::write;
use crate::server::Call;

/// The path of a selectable field; empty when [`selectable`] computes it.
pub fn selectable_path(name: &str) -> Vec<String> {
    match name {
        "status.podIPs" | "status.podIP" | "spec.unschedulable" | "spec.hostNetwork" | "source"
        | "reportingComponent" | "status.successful" | "status.replicas" => Vec::new(),
        path => path.split('.').map(str::to_owned).collect(),
    }
}

/// Selectable fields that are not simply the text at their path.
pub fn selectable(_resource: &Resource, name: &str, object: &Value) -> String {
    let text = |pointer: &str| write::text(object, pointer).to_owned();
    let flag = |pointer: &str| object.pointer(pointer).and_then(Value::as_bool).unwrap_or(false).to_string();
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0).to_string();
    match name {
        "spec.unschedulable" => flag("/spec/unschedulable"),
        "spec.hostNetwork" => flag("/spec/hostNetwork"),
        "status.podIP" => text("/status/podIP"),
        "status.podIPs" => {
            let ips = object.pointer("/status/podIPs").and_then(Value::as_array);
            let ips: Vec<&str> = ips.into_iter().flatten().filter_map(|ip| ip["ip"].as_str()).collect();
            ips.join(",")
        }
        "source" => match text("/source/component") {
            component if component.is_empty() => text("/reportingComponent"),
            component => component,
        },
        "reportingComponent" => match text("/reportingComponent") {
            component if component.is_empty() => text("/source/component"),
            component => component,
        },
        "status.successful" => number("/status/succeeded"),
        "status.replicas" => number("/status/replicas"),
        _ => String::new(),
    }
}

/// Whether the status that a client sends with a new object is dropped.
pub fn drops_status(resource: &Resource) -> bool {
    // A kubelet registers its node with status in one request.
    !resource.is("", "nodes")
}

/// Whether a finished delete answers with the object instead of a `Status`.
pub fn returns_deleted(resource: &Resource) -> bool {
    if resource.is("storage.k8s.io", "csistoragecapacities") {
        return false;
    }
    matches!(
        (resource.group.as_str(), resource.plural.as_str()),
        (
            "",
            "pods"
                | "services"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
        ) | ("storage.k8s.io" | "resource.k8s.io", _)
    )
}

/// Seconds between the mark and the removal.
pub fn grace_period(resource: &Resource, object: &Value, asked: Option<i64>) -> i64 {
    if resource.is("", "pods") { pods::grace_period(object, asked) } else { 0 }
}

/// Whether a delete is written down even if nothing holds the object.
pub fn is_marked_first(resource: &Resource) -> bool {
    resource.is("", "pods")
}

/// Something other than finalizers keeps a deleted object around.
pub fn holds(resource: &Resource, object: &Value) -> bool {
    resource.is("", "namespaces") && namespaces::holds(object)
}

/// An object was just marked for deletion.
pub fn marked(resource: &Resource, object: &mut Value) {
    if resource.is("", "namespaces") {
        namespaces::terminating(object);
    }
    if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        lifecycle::terminating(object);
    }
    // These have controllers of their own that end them, whatever time they take.
    if resource.is("", "namespaces") || resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        write::metadata(object).remove("deletionGracePeriodSeconds");
    }
}

/// A delete begins: what must happen first is written down as finalizers.
pub fn before_delete(resource: &Resource, object: &mut Value) {
    if resource.is("apiextensions.k8s.io", "customresourcedefinitions") && !write::is_deleting(object) {
        lifecycle::hold_for_cleanup(object);
    }
}

pub async fn prepare_create(call: &mut Call, resource: &Shared, object: &mut Value) -> Result<()> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => namespaces::prepare_create(object),
        ("", "pods") => pods::prepare_create(object),
        ("batch", "jobs") => {
            let errors = jobs::prepare_create(object);
            if !errors.is_empty() {
                return Err(resource.invalid(write::name_of(object), &errors));
            }
        }
        ("certificates.k8s.io", "certificatesigningrequests") => {
            certificates::prepare_create(object, &call.user);
        }
        ("", "persistentvolumes") => {
            object["status"] =
                serde_json::json!({"phase": "Pending", "lastPhaseTransitionTime": write::now()});
        }
        ("", "persistentvolumeclaims") => object["status"] = serde_json::json!({"phase": "Pending"}),
        ("", "limitranges") if write::name_of(object).is_empty() => {
            object["metadata"]["name"] = uuid::Uuid::new_v4().to_string().into();
        }
        // Has a generation, which never counts anything.
        ("scheduling.k8s.io", "priorityclasses") => object["metadata"]["generation"] = 1.into(),
        ("apiregistration.k8s.io", "apiservices") if object["spec"]["service"].is_null() => {
            object["status"] = serde_json::json!({"conditions": [{
                "type": "Available", "status": "True", "lastTransitionTime": write::now(), "reason": "Local",
                "message": "Local APIServices are always available",
            }]});
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            let app = call.app.clone();
            lifecycle::settle(object, &*app.registry.custom(&app).await?);
        }
        _ => {}
    }
    if let Schema::Custom(custom) = &resource.schema {
        lifecycle::check_creatable(resource, custom.terminating)?;
    }
    Ok(())
}

/// Brings what is written in one form and kept in another into the latter.
pub fn convert(resource: &Resource, object: &mut Value, old: Option<&Value>) {
    match (resource.group.as_str(), resource.plural.as_str(), old) {
        ("", "secrets", _) => merge_string_data(object),
        ("apps", "daemonsets", old) => daemon_sets::convert(object, old),
        _ => {}
    }
}

/// Plain text in a secret becomes data; it is never read back.
fn merge_string_data(object: &mut Value) {
    use base64::Engine;
    let Some(Value::Object(texts)) = object.as_object_mut().and_then(|o| o.remove("stringData")) else {
        return;
    };
    if !object["data"].is_object() {
        object["data"] = serde_json::json!({});
    }
    for (key, text) in texts {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
        object["data"][key] = encoded.into();
    }
}

pub async fn prepare_update(
    call: &mut Call,
    resource: &Resource,
    part: Part<'_>,
    object: &mut Value,
    old: &Value,
) -> Result<()> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => namespaces::prepare_update(part, object, old),
        ("", "services") if part == Part::Main => services::prepare_update(object, old),
        ("", "pods") => pods::prepare_update(part, object, old),
        ("", "persistentvolumes") if part == Part::Status => {
            let before = &old["status"]["lastPhaseTransitionTime"];
            let time = &object["status"]["lastPhaseTransitionTime"];
            let same = object["status"]["phase"] == old["status"]["phase"];
            if !same && (time.is_null() || time == before) {
                object["status"]["lastPhaseTransitionTime"] = write::now().into();
            } else if time.is_null() && !before.is_null() {
                object["status"]["lastPhaseTransitionTime"] = before.clone();
            }
        }
        ("apps", "daemonsets") => daemon_sets::prepare_update(object, old),
        // Counts changes from nothing on.
        ("storage.k8s.io", "csidrivers") if object["spec"] != old["spec"] => {
            let before = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
            object["metadata"]["generation"] = (before + 1).into();
        }
        ("certificates.k8s.io", "certificatesigningrequests") => {
            certificates::prepare_update(part, object, old);
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") if part == Part::Main => {
            let app = call.app.clone();
            lifecycle::settle(object, &*app.registry.custom(&app).await?);
        }
        _ => {}
    }
    Ok(())
}

/// Hands out what only the server can (addresses, ports). Runs last, on an object that is otherwise valid.
pub async fn allocate(
    call: &mut Call,
    resource: &Resource,
    object: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<()> {
    if resource.is("", "services") {
        services::allocate(call, object, old, dry_run).await?;
    }
    Ok(())
}

/// A create is in the store.
pub async fn created(call: &mut Call, resource: &Resource, _object: &Value, _revision: u64) {
    let _ = resource;
    call.claims.clear();
}

/// A write was prepared but lost: what it was given is free again.
pub async fn abandoned(call: &mut Call) {
    let claims = std::mem::take(&mut call.claims);
    if !claims.is_empty() {
        services::release(&call.app.clone(), claims).await;
    }
}

pub async fn updated(call: &mut Call, resource: &Resource, old: &Value, new: &Value, revision: u64) {
    call.claims.clear();
    if resource.is("", "services") {
        services::freed(&call.app.clone(), old, Some(new), revision).await;
    }
    if resource.is("apiextensions.k8s.io", "customresourcedefinitions") && lifecycle::needs_cleanup(new) {
        lifecycle::spawn_cleanup(&call.app, new);
    }
}

pub async fn deleted(call: &mut Call, resource: &Resource, object: &Value, revision: u64) {
    if resource.is("", "services") {
        services::freed(&call.app.clone(), object, None, revision).await;
    }
}
