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
        let mut taints =
            object.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
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
        return Err(
            resource.forbidden(&name, format!("node \"{node}\" is not allowed to modify node \"{name}\""))
        );
    }
    // Labels under this prefix mark what a node must not choose itself.
    let reserved = |object: Option<&Value>| -> Vec<(String, Value)> {
        let labels = object.and_then(|o| o.pointer("/metadata/labels")).and_then(Value::as_object);
        let labels =
            labels.into_iter().flatten().filter(|(k, _)| k.contains("node-restriction.kubernetes.io/"));
        labels.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    if operation != Operation::Delete && reserved(Some(object)) != reserved(old) {
        let why =
            format!("node \"{node}\" is not allowed to modify labels: node-restriction.kubernetes.io/*");
        return Err(resource.forbidden(&name, why));
    }
    Ok(())
}

/// A node speaks of its own devices only.
pub fn admit_slice(call: &Call, resource: &Resource, operation: Operation<'_>, object: &Value) -> Result<()> {
    let Some(node) = node_name(&call.user) else { return Ok(()) };
    if operation == Operation::Delete || write::text(object, "/spec/nodeName") == node {
        return Ok(());
    }
    let why = format!("node \"{node}\" can only write slices with spec.nodeName set to itself");
    Err(resource.forbidden(write::name_of(object), why))
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
            if object.pointer("/status/certificate")
                != old.and_then(|o| o.pointer("/status/certificate")) =>
        {
            "sign"
        }
        Operation::Create => return restrict_subject(resource, object, &signer),
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

/// Nobody becomes an administrator by way of a certificate for ordinary clients.
fn restrict_subject(resource: &Resource, object: &Value, signer: &str) -> Result<()> {
    if signer != "kubernetes.io/kube-apiserver-client" {
        return Ok(());
    }
    if organizations(write::text(object, "/spec/request")).iter().any(|o| o == "system:masters") {
        let why =
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
        return Err(resource.forbidden(write::name_of(object), why));
    }
    Ok(())
}

/// The organizations in a signing request (base64 of PEM); none when it cannot be read.
fn organizations(request: &str) -> Vec<String> {
    use base64::Engine;
    use x509_parser::prelude::{FromDer, X509CertificationRequest};
    let read = || {
        let text = base64::engine::general_purpose::STANDARD.decode(request).ok()?;
        let block = pem::parse(text).ok()?;
        let (_, request) = X509CertificationRequest::from_der(block.contents()).ok()?;
        let subject = &request.certification_request_info.subject;
        Some(subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect())
    };
    read().unwrap_or_default()
}
