//! Admission: what is checked and filled in beyond the object itself, in upstream's order.

mod escalation;
mod judge;
mod limits;
mod nodes;
mod pods;
mod policies;
mod quota;
mod security;
mod storage;

pub use judge::judge;
pub use policies::{Policies, sources};
pub use quota::charge;

use serde_json::Value;

use crate::http::status::{Failure, Result};
use crate::record::Record;
use crate::registry::resource::Resource;
use crate::registry::update::Part;
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
            judge::labels(resource, object, old)?;
        }
        _ => {}
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") if operation == Operation::Delete => protect_namespace(call, resource)?,
        ("", "pods") => pods::admit(call, resource, operation, object, old).await?,
        ("", "persistentvolumeclaims" | "persistentvolumes") | ("networking.k8s.io", "ingresses") => {
            storage::admit(call, resource, operation, object, old).await?;
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
