//! Questions about users and rights: token reviews, access reviews, "who am I".

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tombolo_k8s::selector::{FieldSelector, LabelSelector};
use tombolo_k8s::validate;

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
    write::check_place(resource, &mut object, &call.target.namespace, "")?;
    if resource.plural.ends_with("accessreviews") {
        let errors = validate::review(&resource.kind, &object);
        if !errors.is_empty() {
            return Err(resource.invalid("", &errors));
        }
    }
    let status = match resource.plural.as_str() {
        "tokenreviews" => token_review(call, &object).await?,
        "selfsubjectreviews" => json!({"userInfo": call.user.to_value()}),
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            access_review(call, &object, &subject(&object)).await?
        }
        "selfsubjectaccessreviews" => access_review(call, &object, &call.user).await?,
        "selfsubjectrulesreviews" => rules_review(call, &object).await?,
        _ => return Err(Failure::no_such_path()),
    };
    object["status"] = status;
    // Of these two nothing is repeated but the kind.
    match resource.plural.as_str() {
        "selfsubjectreviews" => object["metadata"] = json!({"creationTimestamp": write::now()}),
        "selfsubjectrulesreviews" => (object["metadata"], object["spec"]) = (json!({}), json!({})),
        _ => {}
    }
    Ok(json_response(StatusCode::CREATED, &object))
}

/// Whom a review is about.
fn subject(object: &Value) -> Identity {
    let spec = &object["spec"];
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    Identity {
        user: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: list(&spec["groups"]),
        extra: spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), list(v))).collect(),
    }
}

async fn access_review(call: &Call, object: &Value, user: &Identity) -> Result<Value> {
    let spec = &object["spec"];
    let (of_resource, of_path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let allowed = if of_path.is_object() {
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
    let mut status = json!({"allowed": allowed});
    let ignored = ignored_selectors(of_resource);
    if !ignored.is_empty() {
        status["evaluationError"] = ignored.join("; ").into();
    }
    Ok(status)
}

/// Selectors narrow a question. One that is not understood is left out, and the answer says so.
fn ignored_selectors(of: &Value) -> Vec<String> {
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    let field = |requirement: &Value| {
        matches!(requirement["operator"].as_str(), Some("In" | "NotIn")) && count(&requirement["values"]) == 1
    };
    let label = |requirement: &Value| {
        matches!(requirement["operator"].as_str(), Some("In" | "NotIn" | "Exists" | "DoesNotExist"))
    };
    let mut said = Vec::new();
    for (name, understood, parses) in [
        ("fieldSelector", &field as &dyn Fn(&Value) -> bool, FieldSelector::parse as fn(&str) -> _),
        ("labelSelector", &label, |text| LabelSelector::parse(text).map(|_| FieldSelector::default())),
    ] {
        let selector = &of[name];
        let all = count(&selector["requirements"]);
        let good =
            selector["requirements"].as_array().into_iter().flatten().filter(|r| understood(r)).count();
        let raw = selector["rawSelector"].as_str().is_none_or(|text| parses(text).is_ok());
        match (raw && good == all, good) {
            (true, _) => {}
            (false, 0) => said.push(format!("spec.resourceAttributes.{name} ignored due to parse error")),
            (false, _) => {
                said.push(format!("spec.resourceAttributes.{name} partially ignored due to parse error"));
            }
        }
    }
    said
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
        // Theirs without any role; usually a role says the same.
        let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        let everywhere = json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
        for (list, all) in [(&mut resources, everything), (&mut paths, everywhere)] {
            if !list.contains(&all) {
                list.insert(0, all);
            }
        }
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
        None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}
