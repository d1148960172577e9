//! Admission: what is checked and filled in beyond the object itself.

use serde_json::Value;

use crate::http::status::Result;
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
    _object: &mut Value,
    _old: Option<&Value>,
    _dry_run: bool,
) -> Result<()> {
    if operation == Operation::Create && resource.namespaced {
        namespace_exists(call, resource).await?;
    }
    Ok(())
}

/// Nothing is created in a namespace that is not there or on its way out.
async fn namespace_exists(call: &Call, resource: &Resource) -> Result<()> {
    use crate::http::status::Failure;
    let name = &call.target.namespace;
    let namespaces = call.app.registry.built_in.find("", "v1", "namespaces").expect("the tables hold namespaces");
    let Some(record) = call.app.get(&namespaces.key("", name)).await? else {
        return Err(Failure::not_found("", "namespaces", name));
    };
    let fields = crate::record::Record::read(&record.value).map_err(Failure::internal)?;
    let phase = namespaces.fields.iter().position(|f| f.name == "status.phase").map(|i| fields.field(i));
    if phase == Some("Terminating") {
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        return Err(resource
            .forbidden(&call.target.name, why)
            .cause("NamespaceTerminating", format!("namespace {name} is being terminated"), "metadata.namespace"));
    }
    Ok(())
}
