//! Questions about users and rights: token reviews, access reviews, "who am I".

use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::auth::rbac::Action;
use crate::auth::{Identity, tokens};
use crate::http::body::Body;
use crate::http::negotiate;
use crate::http::status::{Failure, Result, json_response};
use crate::registry::codec;
use crate::registry::resource::Shared;
use crate::registry::write::{self, WriteOptions};
use crate::server::Call;

/// Answers a create of a kind that is a question: the same object with its status filled in.
pub async fn answer(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    negotiate::negotiate(call.accept(), negotiate::PLAIN)?;
    let options = WriteOptions::parse(&call.query, call.user_agent(), "CreateOptions", false)?;
    let mut object = codec::read_object(call, resource, body, options.validation).await?;
    let status = match resource.plural.as_str() {
        "tokenreviews" => token_review(call, &object).await?,
        "selfsubjectreviews" => json!({"userInfo": call.user.to_value()}),
        "subjectaccessreviews" => {
            let user = subject(resource, &object)?;
            access_review(call, resource, &object, &user).await?
        }
        "localsubjectaccessreviews" => {
            let namespace = write::text(&object, "/spec/resourceAttributes/namespace");
            if namespace != call.target.namespace {
                return Err(Failure::bad_request(format!(
                    "spec.resourceAttributes.namespace must match namespace: {}",
                    call.target.namespace
                )));
            }
            let user = subject(resource, &object)?;
            access_review(call, resource, &object, &user).await?
        }
        "selfsubjectaccessreviews" => {
            let user = (*call.user).clone();
            access_review(call, resource, &object, &user).await?
        }
        "selfsubjectrulesreviews" => rules_review(call, &object).await?,
        _ => return Err(Failure::no_such_path()),
    };
    object["status"] = status;
    Ok(json_response(StatusCode::CREATED, &object))
}

fn invalid(resource: &Shared, field: &str, detail: &str) -> Failure {
    let error = tombolo_k8s::field::FieldError::required(field, detail);
    resource.invalid("", &[error])
}

fn subject(resource: &Shared, object: &Value) -> Result<Identity> {
    let spec = &object["spec"];
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let identity = Identity {
        user: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: list(&spec["groups"]),
        extra: spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), list(v))).collect(),
    };
    if identity.user.is_empty() && identity.groups.is_empty() {
        return Err(invalid(resource, "spec.user", "at least one of user or group must be specified"));
    }
    Ok(identity)
}

async fn access_review(call: &Call, resource: &Shared, object: &Value, user: &Identity) -> Result<Value> {
    let spec = &object["spec"];
    let (of_resource, of_path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let allowed = if of_resource.is_object() == of_path.is_object() {
        return Err(invalid(
            resource,
            "spec.resourceAttributes",
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ));
    } else if of_path.is_object() {
        let (verb, path) = (text(of_path, "verb"), text(of_path, "path"));
        let action = Action { verb: &verb, path: &path, ..Action::default() };
        call.app.access.allows(&call.app, user, &action).await?
    } else {
        let subresource = text(of_resource, "subresource");
        let mut name = text(of_resource, "resource");
        if !subresource.is_empty() {
            name = format!("{name}/{subresource}");
        }
        let (verb, group) = (text(of_resource, "verb"), text(of_resource, "group"));
        let (namespace, object_name) = (text(of_resource, "namespace"), text(of_resource, "name"));
        let action = Action {
            verb: &verb,
            group: &group,
            resource: &name,
            namespace: &namespace,
            name: &object_name,
            ..Action::default()
        };
        call.app.access.allows(&call.app, user, &action).await?
    };
    Ok(json!({"allowed": allowed}))
}

async fn rules_review(call: &Call, object: &Value) -> Result<Value> {
    let namespace = write::text(object, "/spec/namespace");
    if namespace.is_empty() {
        return Err(Failure::bad_request("no namespace on request"));
    }
    let rules = call.app.access.rules_for(&call.app, &call.user, namespace).await?;
    let (paths, resources): (Vec<_>, Vec<_>) = rules.iter().partition(|r| !r.paths.is_empty());
    let mut resources: Vec<Value> = resources.iter().map(|r| r.to_value()).collect();
    let mut paths: Vec<Value> = paths.iter().map(|r| r.to_value()).collect();
    if call.user.in_group(crate::auth::identity::GROUP_MASTERS) {
        resources.insert(0, json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        paths.insert(0, json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    Ok(json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}))
}

async fn token_review(call: &Call, object: &Value) -> Result<Value> {
    let token = write::text(object, "/spec/token");
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    let given = object.pointer("/spec/audiences").and_then(Value::as_array);
    let mut audiences: Vec<String> =
        given.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect();
    if audiences.is_empty() {
        audiences.push(call.app.config.issuer.clone());
    }
    let app = &call.app;
    Ok(match tokens::identify(app, &app.access.signer, token, &audiences).await? {
        Some((identity, audiences)) => {
            json!({"authenticated": true, "user": identity.to_value(), "audiences": audiences})
        }
        None => json!({"authenticated": false, "user": {}, "error": "invalid bearer token"}),
    })
}
