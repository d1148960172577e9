//! Admission: what is checked and filled in beyond the object itself, in upstream's order.

mod escalation;
mod limits;
mod nodes;
mod pods;
mod policies;
mod quota;
mod security;
mod storage;

pub use policies::{Policies, sources};
pub use quota::charge;

use serde_json::Value;

use crate::http::status::{Failure, Result};
use crate::record::Record;
use crate::registry::resource::Resource;
use crate::registry::update::Part;
use crate::registry::write;
use crate::server::Call;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    Create,
    Update(Part<'a>),
    Delete,
}

pub async fn admit(
    call: &mut Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    match operation {
        Operation::Create if resource.namespaced => namespace_exists(call, resource).await?,
        Operation::Create | Operation::Update(Part::Main) if resource.is("", "namespaces") => {
            namespace_labels(resource, object, old)?;
        }
        _ => {}
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") if operation == Operation::Delete => protect_namespace(call, resource)?,
        ("", "pods") => pods::admit(call, resource, operation, object, old).await?,
        ("", "persistentvolumeclaims" | "persistentvolumes") | ("networking.k8s.io", "ingresses") => {
            storage::admit(call, resource, operation, object).await?;
        }
        ("", "nodes") => nodes::admit(call, resource, operation, object, old)?,
        ("resource.k8s.io", "resourceslices") => nodes::admit_slice(call, resource, operation, object)?,
        ("rbac.authorization.k8s.io", _) => escalation::admit(call, resource, operation, object, old).await?,
        ("certificates.k8s.io", "certificatesigningrequests") => {
            nodes::admit_certificate(call, resource, operation, object, old).await?;
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            pods::admit_class(call, resource, operation, object).await?
        }
        _ => {}
    }
    Ok(())
}

fn protect_namespace(call: &Call, resource: &Resource) -> Result<()> {
    if matches!(call.target.name.as_str(), "default" | "kube-system" | "kube-public") {
        return Err(resource.forbidden(&call.target.name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// A namespace's levels are words that mean something; what is stored already is put up with.
fn namespace_labels(resource: &Resource, object: &Value, old: Option<&Value>) -> Result<()> {
    let errors = security::label_errors(object);
    if errors.is_empty() || old.is_some_and(|old| security::label_errors(old) == errors) {
        return Ok(());
    }
    Err(resource.invalid(write::name_of(object), &errors))
}

/// Nothing is created in a namespace that is not there or on its way out.
async fn namespace_exists(call: &mut Call, resource: &Resource) -> Result<()> {
    let name = call.target.namespace.clone();
    let name = name.as_str();
    let namespaces =
        call.app.registry.built_in.find("", "v1", "namespaces").expect("the tables hold namespaces");
    let Some(record) = call.app.get(&namespaces.key("", name)).await? else {
        return Err(Failure::not_found("", "namespaces", name));
    };
    let fields = Record::read(&record.value).map_err(Failure::internal)?;
    let phase = namespaces.fields.iter().position(|f| f.name == "status.phase").map(|i| fields.field(i));
    // Access reviews are questions, not content.
    if phase == Some("Terminating") && resource.verbs.contains(&"get") {
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        return Err(resource.forbidden(&call.target.name, why).cause(
            "NamespaceTerminating",
            format!("namespace {name} is being terminated"),
            "metadata.namespace",
        ));
    }
    Ok(())
}

/// Pods are held to their namespace's level; what makes pods is warned of what would become of them. Comes after the
/// object's own validation: what is wrong in any case is said first.
pub async fn judge(
    call: &mut Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    let is_pod = resource.is("", "pods");
    let template = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => Some(object),
        ("", "podtemplates") => object.get("template"),
        ("", "replicationcontrollers") | ("apps", _) | ("batch", "jobs") => object.pointer("/spec/template"),
        ("batch", "cronjobs") => object.pointer("/spec/jobTemplate/spec/template"),
        _ => None,
    };
    let Some(template) = template else { return Ok(()) };
    let matters = match operation {
        Operation::Create => true,
        // What a node reports and where a scheduler puts a pod change nothing of what it asks for.
        Operation::Update(part) if is_pod => {
            !matches!(part.name(), "status" | "binding")
                && old.is_none_or(|old| security::judges_anew(object, old))
        }
        Operation::Update(part) => part == Part::Main,
        Operation::Delete => false,
    };
    if !matters {
        return Ok(());
    }
    let namespaces =
        call.app.registry.built_in.find("", "v1", "namespaces").expect("the tables hold namespaces");
    let Some(record) = call.app.get(&namespaces.key("", &call.target.namespace)).await? else {
        return Ok(());
    };
    let fields = Record::read(&record.value).map_err(Failure::internal)?;
    let (enforced, warned) = security::levels(|key| fields.label(key));
    let (spec, annotations) = (&template["spec"], &template["metadata"]["annotations"]);
    if is_pod && let Some(text) = security::violation(enforced, spec, annotations) {
        return Err(resource.forbidden(write::name_of(object), text));
    }
    if let Some(text) = security::violation(warned, spec, annotations) {
        let text = text.replacen("violates", "would violate", 1);
        // A write that is tried again is judged again.
        if !call.warnings.contains(&text) {
            call.warnings.push(text);
        }
    }
    Ok(())
}
