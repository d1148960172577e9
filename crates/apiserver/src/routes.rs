//! Which handler answers a path.

use http::{Method, Response, StatusCode};
use serde_json::json;

use crate::http::body::Body;
use crate::http::status::{Failure, Result, bytes_response, json_response};
use crate::server::Call;
use crate::{discovery, health, openapi, registry, upgrade, usage};

/// The Kubernetes release whose API is served.
pub const MAJOR: &str = "1";
pub const MINOR: &str = "36";

pub async fn dispatch(call: &mut Call, body: Body) -> Result<Response<Body>> {
    if let Some(handler) = call.app.config.upgrades.get(&call.path).cloned() {
        return upgrade::take_over(call, handler);
    }
    if call.target.is_resource() {
        if usage::is_asked(call) {
            return usage::handle(call).await;
        }
        return registry::dispatch(call, body).await;
    }
    if !matches!(call.method, Method::GET | Method::HEAD) {
        return Err(Failure::no_such_path());
    }
    let path = call.path.trim_end_matches('/').to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts.as_slice() {
        [path @ ("healthz" | "livez" | "readyz")] => health::handle(call, path, None).await,
        [path @ ("healthz" | "livez" | "readyz"), only] => health::handle(call, path, Some(only)).await,
        ["version"] => Ok(version()),
        ["metrics"] => {
            let revision = call.app.store.revision().await.map_err(|e| call.app.store_failure(e))?;
            let text = call.app.metrics.render(revision);
            Ok(bytes_response(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                text,
            ))
        }
        ["api" | "apis", ..] => discovery::handle(call, &parts).await,
        ["openapi", ..] => openapi::handle(call, &parts).await,
        [".well-known", "openid-configuration"] => Ok(openid(call)),
        ["openid", "v1", "jwks"] => {
            let keys = call.app.access.signer.jwks().to_string();
            Ok(bytes_response(StatusCode::OK, "application/jwk-set+json", keys))
        }
        [] => Ok(json_response(
            StatusCode::OK,
            &json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        )),
        _ => Err(Failure::no_such_path()),
    }
}

/// Where others find the keys that verify service-account tokens.
fn openid(call: &Call) -> Response<Body> {
    let issuer = &call.app.config.issuer;
    let host = call.header(http::header::HOST).unwrap_or("kubernetes.default.svc");
    let document = json!({
        "issuer": issuer, "jwks_uri": format!("https://{host}/openid/v1/jwks"),
        "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    json_response(StatusCode::OK, &document)
}

fn version() -> Response<Body> {
    let version = json!({
        "major": MAJOR, "minor": MINOR,
        "gitVersion": concat!("v1.36.3+tombolo-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
    });
    json_response(StatusCode::OK, &version)
}
