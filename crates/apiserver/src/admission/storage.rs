//! Default classes for claims and ingresses, protection of volumes in use, and bounds of claims.

use serde_json::{Value, json};

use super::{Operation, limits};
use crate::auth::node::node_name;
use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::update::Part;
use crate::registry::write::{self, metadata};
use crate::server::Call;

pub async fn admit(
    call: &Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    if let (Operation::Update(Part::Status), Some(node), Some(old)) = (operation, node_name(&call.user), old)
    {
        return restrict_node(resource, object, old, node);
    }
    if resource.is("", "persistentvolumeclaims")
        && matches!(operation, Operation::Create | Operation::Update(Part::Main))
    {
        limits::admit_claim(call, resource, object).await?;
    }
    if operation != Operation::Create {
        return Ok(());
    }
    match resource.plural.as_str() {
        "persistentvolumeclaims" => {
            protect(object, "kubernetes.io/pvc-protection");
            let unset = object.pointer("/spec/storageClassName").is_none_or(Value::is_null)
                && object.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class").is_none();
            if unset && let Some(class) = default_class(call, "storageclasses", "storageclass").await? {
                object["spec"]["storageClassName"] = class.into();
            }
        }
        "persistentvolumes" => protect(object, "kubernetes.io/pv-protection"),
        "ingresses" => {
            let unset = object.pointer("/spec/ingressClassName").is_none_or(Value::is_null)
                && object.pointer("/metadata/annotations/kubernetes.io~1ingress.class").is_none();
            if unset && let Some(class) = default_class(call, "ingressclasses", "ingressclass").await? {
                object["spec"]["ingressClassName"] = class.into();
            }
        }
        _ => {}
    }
    Ok(())
}

/// A node says how large a claim has become, and nothing else of it: owners and finalizers decide whether its data stays.
fn restrict_node(resource: &Resource, claim: &Value, old: &Value, node: &str) -> Result<()> {
    let rest = |claim: &Value| {
        let mut rest = claim.clone();
        for (part, fields) in [
            ("metadata", &["resourceVersion", "managedFields"][..]),
            ("status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
        ] {
            let part = rest.get_mut(part).and_then(Value::as_object_mut);
            part.into_iter().for_each(|part| part.retain(|field, _| !fields.contains(&field.as_str())));
        }
        rest
    };
    if rest(claim) == rest(old) {
        return Ok(());
    }
    let why = format!(
        "node \"{node}\" is not allowed to update fields other than status.capacity and status.conditions"
    );
    Err(resource.forbidden(write::name_of(claim), why))
}

fn protect(object: &mut Value, finalizer: &str) {
    let mut finalizers = write::finalizers(object);
    if !finalizers.iter().any(|f| f == finalizer) {
        finalizers.push(finalizer.into());
        metadata(object).insert("finalizers".into(), json!(finalizers));
    }
}

/// The class that is marked as default; of several the newest, then the first by name.
async fn default_class(call: &Call, plural: &str, annotation: &str) -> Result<Option<String>> {
    let app = &call.app;
    let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
    let key = format!("{annotation}.kubernetes.io/is-default-class");
    let marked = policies.all(plural).filter(|c| c["metadata"]["annotations"][&key] == "true");
    let newest = marked.max_by(|a, b| {
        let time = |c: &Value| write::text(c, "/metadata/creationTimestamp").to_owned();
        time(a).cmp(&time(b)).then_with(|| write::name_of(b).cmp(write::name_of(a)))
    });
    Ok(newest.map(|c| write::name_of(c).to_owned()))
}
