//! Nodes and certificates: what a node may say of itself, and who may approve and sign.

use serde_json::{Value, json};

use super::Operation;
use crate::auth::node::node_name;
use crate::auth::rbac::Action;
use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::update::Part;
use crate::registry::write;
use crate::server::Call;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub fn admit(
    call: &Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    let name = write::name_of(object).to_owned();
    if operation == Operation::Create {
        // A new node takes no pods until it has reported that it is ready.
        let mut taints = object.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
        if !taints.iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule") {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
            if !object["spec"].is_object() {
                object["spec"] = json!({});
            }
            object["spec"]["taints"] = taints.into();
        }
    }
    let Some(node) = node_name(&call.user) else { return Ok(()) };
    if node != name && operation != Operation::Delete {
        return Err(resource.forbidden(&name, format!("node \"{node}\" is not allowed to modify node \"{name}\"")));
    }
    // Labels under this prefix mark what a node must not choose itself.
    let reserved = |object: Option<&Value>| -> Vec<(String, Value)> {
        let labels = object.and_then(|o| o.pointer("/metadata/labels")).and_then(Value::as_object);
        let labels = labels.into_iter().flatten().filter(|(k, _)| k.contains("node-restriction.kubernetes.io/"));
        labels.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    if operation != Operation::Delete && reserved(Some(object)) != reserved(old) {
        let why = format!("node \"{node}\" is not allowed to modify labels: node-restriction.kubernetes.io/*");
        return Err(resource.forbidden(&name, why));
    }
    Ok(())
}

pub async fn admit_certificate(
    call: &Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    let name = write::name_of(object);
    let signer = write::text(object, "/spec/signerName").to_owned();
    let verb = match operation {
        Operation::Update(Part::Other("approval")) => "approve",
        Operation::Update(Part::Status)
            if object.pointer("/status/certificate") != old.and_then(|o| o.pointer("/status/certificate")) =>
        {
            "sign"
        }
        Operation::Create => {
            let masters = strings(&object["spec"]["groups"]);
            let _ = masters;
            return Ok(());
        }
        _ => return Ok(()),
    };
    let app = &call.app;
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer.clone(), format!("{domain}/*")] {
        let action = Action {
            verb,
            group: "certificates.k8s.io",
            resource: "signers",
            name: &name,
            ..Action::default()
        };
        if app.access.allows(app, &call.user, &action).await? {
            return Ok(());
        }
    }
    let why = format!("user not permitted to {verb} requests with signerName \"{signer}\"");
    Err(resource.forbidden(name, why))
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
