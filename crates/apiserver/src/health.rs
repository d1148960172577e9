//! `/livez`, `/readyz` and `/healthz`: whether the server runs, and whether it is of use.

use std::time::Duration;

use http::{Response, StatusCode};

use crate::http::body::Body;
use crate::http::status::{Failure, Result, bytes_response};
use crate::server::Call;

/// A store that takes longer to say how far it is helps nobody.
const PATIENCE: Duration = Duration::from_secs(2);

/// All checks of one path, or one of them by its name.
pub async fn handle(call: &Call, path: &str, only: Option<&str>) -> Result<Response<Body>> {
    let mut checks = vec![("ping", None)];
    // A process that waits for its store is not helped by a restart.
    if path != "livez" {
        checks.push(("store", store(call).await));
    }
    if path == "readyz" {
        let stopping = call.app.stop.is_cancelled().then(|| "the server is stopping".to_owned());
        checks.push(("shutdown", stopping));
    }
    if let Some(only) = only {
        // What upstream calls it.
        let only = if only == "etcd" { "store" } else { only };
        checks.retain(|(name, _)| *name == only);
        if checks.is_empty() {
            return Err(Failure::no_such_path());
        }
    }
    let failed = checks.iter().any(|(_, wrong)| wrong.is_some());
    if !failed && !call.query.has("verbose") {
        return Ok(text(StatusCode::OK, "ok".to_owned()));
    }
    let line = |(name, wrong): &(&str, Option<String>)| match wrong {
        None => format!("[+]{name} ok\n"),
        Some(wrong) => format!("[-]{name} failed: {wrong}\n"),
    };
    let lines: String = checks.iter().map(line).collect();
    Ok(match failed {
        true => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{path} check failed\n")),
        false => text(StatusCode::OK, format!("{lines}{path} check passed\n")),
    })
}

async fn store(call: &Call) -> Option<String> {
    match tokio::time::timeout(PATIENCE, call.app.store.revision()).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

fn text(code: StatusCode, text: String) -> Response<Body> {
    bytes_response(code, "text/plain; charset=utf-8", text)
}
