//! Certificate signing requests: who asked is written down by the server, and each subresource changes its own part.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;
use x509_parser::error::X509Error;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::auth::Identity;
use crate::registry::update::Part;

pub fn prepare_create(object: &mut Value, user: &Identity) {
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    let spec = &mut object["spec"];
    spec["username"] = user.user.as_str().into();
    spec["groups"] = json!(user.groups);
    match user.uid.as_str() {
        "" => {
            spec.as_object_mut().map(|s| s.remove("uid"));
        }
        uid => spec["uid"] = uid.into(),
    }
    if user.extra.is_empty() {
        spec.as_object_mut().map(|s| s.remove("extra"));
    } else {
        spec["extra"] = json!(user.extra);
    }
    object["status"] = json!({});
}

/// The complaint about a request that nobody signed, or that is none. Keys that we cannot check are the signer's affair.
pub fn unsigned(object: &Value) -> Option<FieldError> {
    let request = object.pointer("/spec/request").unwrap_or(&Value::Null);
    let pem = STANDARD.decode(request.as_str().unwrap_or_default()).unwrap_or_default();
    let wrong = |detail: String| Some(FieldError::invalid("spec.request", request, detail));
    let Some(block) = pem::parse(&pem).ok().filter(|block| block.tag() == "CERTIFICATE REQUEST") else {
        return wrong("PEM block type must be CERTIFICATE REQUEST".to_owned());
    };
    match X509CertificationRequest::from_der(block.contents()) {
        Err(error) => wrong(error.to_string()),
        Ok((_, parsed)) => match parsed.verify_signature() {
            Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => None,
            Err(error) => wrong(error.to_string()),
        },
    }
}

pub fn prepare_update(part: Part<'_>, object: &mut Value, old: &Value) {
    let decided = |c: &Value| c["type"] == "Approved" || c["type"] == "Denied";
    let list = |object: &Value| object.pointer("/status/conditions").and_then(Value::as_array).cloned();
    match part {
        Part::Main => {
            object["spec"] = old["spec"].clone();
            object["status"] = old["status"].clone();
        }
        Part::Other("approval") => {
            let conditions = list(object);
            let metadata = object["metadata"].clone();
            *object = old.clone();
            object["metadata"] = metadata;
            if let Some(conditions) = conditions {
                if !object["status"].is_object() {
                    object["status"] = json!({});
                }
                object["status"]["conditions"] = conditions.into();
            }
            stamp(object);
        }
        Part::Status => {
            // Whether a request was approved is not for the signer to say.
            let mut conditions: Vec<Value> =
                list(old).unwrap_or_default().into_iter().filter(decided).collect();
            conditions.extend(list(object).unwrap_or_default().into_iter().filter(|c| !decided(c)));
            if !conditions.is_empty() {
                if !object["status"].is_object() {
                    object["status"] = json!({});
                }
                object["status"]["conditions"] = conditions.into();
            }
            stamp(object);
        }
        Part::Other(_) => {}
    }
}

/// Conditions without times get them.
fn stamp(object: &mut Value) {
    let now = crate::registry::write::now();
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        for key in ["lastUpdateTime", "lastTransitionTime"] {
            if condition[key].as_str().is_none_or(str::is_empty) {
                condition[key] = now.as_str().into();
            }
        }
    }
}
