//! The one place that turns errors into Kubernetes `Status` answers.
//!
//! Clients switch on `reason` and match parts of `message`, so both follow upstream's words.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;

use super::body::Body;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// An error answer. Boxed inside, so that `Result`s stay small.
#[derive(Debug, Clone)]
pub struct Failure(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    code: u16,
    reason: &'static str,
    message: String,
    name: String,
    group: String,
    kind: String,
    uid: String,
    causes: Vec<Cause>,
    retry_after: Option<u32>,
    resume: Option<String>,
}

/// One entry of `details.causes`.
#[derive(Debug, Clone)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

impl Failure {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            reason,
            message: message.into(),
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after: None,
            resume: None,
        }))
    }

    /// What the error is about: `details.group`, `details.kind` (the resource) and `details.name`.
    pub fn about(mut self, group: &str, resource: &str, name: &str) -> Self {
        self.0.group = group.to_owned();
        self.0.kind = resource.to_owned();
        self.0.name = name.to_owned();
        self
    }

    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        self.0.causes.push(Cause {
            reason: reason.to_owned(),
            message: message.into(),
            field: field.to_owned(),
        });
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    /// The continue token with which an expired list can go on, inconsistently.
    pub fn resume(mut self, token: String) -> Self {
        self.0.resume = Some(token);
        self
    }

    pub fn code(&self) -> u16 {
        self.0.code
    }

    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let message = match (resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{} is forbidden: {why}", qualified(group, resource)),
            _ => format!("{} \"{name}\" is forbidden: {why}", qualified(group, resource)),
        };
        Self::new(403, "Forbidden", message).about(group, resource, name)
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", qualified(group, resource)))
            .about(group, resource, name)
    }

    /// No such path: what a client sees for kinds that are not served.
    pub fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").cause(
            "UnexpectedServerResponse",
            "404 page not found",
            "",
        )
    }

    pub fn method_not_allowed(group: &str, resource: &str, verb: &str) -> Self {
        let message =
            format!("{verb} is not supported on resources of kind \"{}\"", qualified(group, resource));
        Self::new(405, "MethodNotAllowed", message).about(group, resource, "")
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", qualified(group, resource)))
            .about(group, resource, name)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(group, resource));
        Self::new(409, "Conflict", message).about(group, resource, name)
    }

    /// A write that was based on a version that is no longer the newest.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let text = match errors {
            [one] => one.to_string(),
            many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        };
        let kind_name = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let message = if errors.is_empty() {
            format!("{kind_name} \"{name}\" is invalid")
        } else {
            format!("{kind_name} \"{name}\" is invalid: {text}")
        };
        let mut failure = Self::new(422, "Invalid", message).about(group, kind, name);
        failure.0.causes = errors
            .iter()
            .map(|e| Cause { reason: e.kind.cause().to_owned(), message: e.message(), field: e.path.clone() })
            .collect();
        failure
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    pub fn unsupported_media_type(supported: &[&str]) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                supported.join(", ")
            ),
        )
    }

    pub fn not_acceptable(supported: &[&str]) -> Self {
        Self::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {}", supported.join(", ")),
        )
    }

    pub fn too_many_requests(message: impl Into<String>, seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message).retry_after(seconds)
    }

    pub fn internal(why: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {why}")).cause(
            "",
            why.to_string(),
            "",
        )
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message).retry_after(1)
    }

    /// A client named a revision that this server has not reached.
    pub fn future_revision(asked: u64, current: u64) -> Self {
        Self::new(504, "Timeout", format!("Too large resource version: {asked}, current: {current}"))
            .cause("ResourceVersionTooLarge", "Too large resource version", "")
            .retry_after(1)
    }

    pub fn to_value(&self) -> Value {
        let inner = &self.0;
        let mut details = serde_json::Map::new();
        for (key, text) in
            [("name", &inner.name), ("group", &inner.group), ("kind", &inner.kind), ("uid", &inner.uid)]
        {
            if !text.is_empty() {
                details.insert(key.into(), text.as_str().into());
            }
        }
        if !inner.causes.is_empty() {
            let causes = inner.causes.iter().map(|c| {
                let mut cause = serde_json::Map::new();
                for (key, text) in [("reason", &c.reason), ("message", &c.message), ("field", &c.field)] {
                    if !text.is_empty() {
                        cause.insert(key.into(), text.as_str().into());
                    }
                }
                Value::Object(cause)
            });
            details.insert("causes".into(), causes.collect());
        }
        if let Some(seconds) = inner.retry_after {
            details.insert("retryAfterSeconds".into(), seconds.into());
        }
        let mut metadata = serde_json::Map::new();
        if let Some(token) = &inner.resume {
            metadata.insert("continue".into(), token.as_str().into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": inner.message, "code": inner.code,
        });
        if !inner.reason.is_empty() {
            status["reason"] = inner.reason.into();
        }
        if !details.is_empty() {
            status["details"] = Value::Object(details);
        }
        status
    }

    pub fn response(&self) -> Response<Body> {
        let mut response = json_response(
            StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            &self.to_value(),
        );
        if let Some(seconds) = self.0.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.0.message, self.0.reason)
    }
}

impl std::error::Error for Failure {}

/// `deployments.apps`, or just `pods` in the core group.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

pub fn json_response(code: StatusCode, value: &Value) -> Response<Body> {
    bytes_response(code, "application/json", value.to_string().into_bytes())
}

pub fn bytes_response(code: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// `Status{status: Success}`, the answer to a finished delete.
pub fn success(group: &str, resource: &str, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": resource});
    if !group.is_empty() {
        details["group"] = group.into();
    }
    if !uid.is_empty() {
        details["uid"] = uid.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
