//! Tokens for service accounts: `serviceaccounts/<name>/token`.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;
use tombolo_k8s::schema;

use crate::auth::tokens::{self, Bound};
use crate::http::body::Body;
use crate::http::status::{Failure, Result, json_response};
use crate::registry::codec;
use crate::registry::resource::Shared;
use crate::registry::write::{self, WriteOptions};
use crate::server::Call;

const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;
const USUAL: i64 = 3600;

pub async fn create(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let options = WriteOptions::parse(&call.query, call.user_agent(), "CreateOptions", false)?;
    let type_ =
        schema::type_of("authentication.k8s.io", "v1", "TokenRequest").expect("the tables hold TokenRequest");
    let mut object =
        codec::read_typed(call, body, type_, "authentication.k8s.io/v1", "TokenRequest", options.validation)
            .await?;
    let (namespace, name) = (call.target.namespace.clone(), call.target.name.clone());
    let app = call.app.clone();
    let Some(account) = app.object("", "v1", "serviceaccounts", &namespace, &name).await? else {
        return Err(resource.not_found(&name));
    };
    let seconds = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(USUAL);
    let refuse = |detail: &str| {
        let error = FieldError::invalid("spec.expirationSeconds", &seconds.into(), detail);
        Failure::invalid("authentication.k8s.io", "TokenRequest", "", &[error])
    };
    if seconds < SHORTEST {
        return Err(refuse("may not specify a duration less than 10 minutes"));
    }
    if seconds > LONGEST {
        return Err(refuse("may not specify a duration larger than 2^32 seconds"));
    }
    let given = object.pointer("/spec/audiences").and_then(Value::as_array);
    let mut audiences: Vec<String> =
        given.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect();
    if audiences.is_empty() {
        audiences.push(app.config.issuer.clone());
    }
    let bound = bound(call, resource, &object, &namespace, &name).await?;
    let now = jiff::Timestamp::now().as_second();
    let id = uuid::Uuid::new_v4().to_string();
    let uid = write::text(&account, "/metadata/uid");
    let claims = tokens::claims(
        &app.config.issuer,
        &namespace,
        (&name, uid),
        &audiences,
        seconds,
        now,
        bound.as_ref(),
        &id,
    );
    let expires = jiff::Timestamp::from_second(now + seconds).unwrap_or(jiff::Timestamp::MAX);
    object["spec"]["audiences"] = json!(audiences);
    object["spec"]["expirationSeconds"] = seconds.into();
    object["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": write::now()});
    object["status"] = json!({
        "token": app.access.signer.sign(&claims),
        "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    Ok(json_response(StatusCode::CREATED, &object))
}

/// The object that the token shall live and die with.
async fn bound(
    call: &Call,
    resource: &Shared,
    request: &Value,
    namespace: &str,
    account: &str,
) -> Result<Option<Bound>> {
    let Some(reference) = request.pointer("/spec/boundObjectRef").filter(|r| r.is_object()) else {
        return Ok(None);
    };
    let (kind, name, uid) =
        (write::text(reference, "/kind"), write::text(reference, "/name"), write::text(reference, "/uid"));
    let (kind, plural, home) = match kind {
        "Pod" => ("pod", "pods", namespace),
        "Secret" => ("secret", "secrets", namespace),
        "Node" => ("node", "nodes", ""),
        other => {
            return Err(Failure::bad_request(format!(
                "cannot bind token for serviceaccount to object of type {other}"
            )));
        }
    };
    let Some(object) = call.app.object("", "v1", plural, home, name).await? else {
        return Err(Failure::not_found("", plural, name));
    };
    let actual = write::text(&object, "/metadata/uid");
    if !uid.is_empty() && uid != actual {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(resource.conflict(name, why));
    }
    let mut node = None;
    if kind == "pod" {
        if write::text(&object, "/spec/serviceAccountName") != account {
            return Err(Failure::bad_request(format!(
                "cannot bind token for serviceaccount \"{account}\" to pod running with different serviceaccount name."
            )));
        }
        let name = write::text(&object, "/spec/nodeName");
        if !name.is_empty() {
            let found = call.app.object("", "v1", "nodes", "", name).await?;
            let uid = found.as_ref().map(|n| write::text(n, "/metadata/uid")).unwrap_or_default();
            node = Some((name.to_owned(), uid.to_owned()));
        }
    }
    Ok(Some(Bound { kind, name: name.to_owned(), uid: actual.to_owned(), node }))
}
