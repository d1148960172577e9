//! Discovery: which groups, versions and resources there are.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::Value;
use tombolo_k8s::discovery::{self, Row};
use tombolo_k8s::openapi::hash;

use crate::http::body::Body;
use crate::http::negotiate::clauses;
use crate::http::status::{Failure, Result, json_response};
use crate::openapi::tagged;
use crate::server::Call;

pub async fn handle(call: &mut Call, parts: &[&str]) -> Result<Response<Body>> {
    let app = call.app.clone();
    let definitions = app.registry.definitions(&app).await?;
    let mut rows = all_rows(&definitions);
    if app.usage.is_some() {
        rows.extend(crate::usage::rows());
    }
    let document = match parts {
        ["api"] | ["apis"] if wants_aggregated(call) => {
            let document = discovery::aggregated(&rows, parts[0] == "api");
            let etag = hash(&document);
            return Ok(tagged(call, discovery::AGGREGATED, &etag, || document.to_string().into()));
        }
        ["api"] => Some(discovery::api_versions("")),
        ["apis"] => Some(discovery::group_list(&rows)),
        ["api", version] => discovery::resource_list(&rows, "", version),
        ["apis", group] => discovery::group(&rows, group),
        ["apis", group, version] => discovery::resource_list(&rows, group, version),
        _ => None,
    };
    match document {
        Some(document) => Ok(json_response(StatusCode::OK, &document)),
        None => Err(Failure::no_such_path()),
    }
}

fn wants_aggregated(call: &Call) -> bool {
    clauses(call.accept().unwrap_or_default()).any(|c| {
        c.media == "application/json"
            && c.param("g") == Some("apidiscovery.k8s.io")
            && c.param("v") == Some("v2")
            && c.param("as") == Some("APIGroupDiscoveryList")
    })
}

/// Built-in rows first: upstream's order decides what an ambiguous name means.
fn all_rows(definitions: &[Arc<Value>]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for row in discovery::built_in() {
        rows.push(row);
    }
    for definition in definitions {
        rows.extend(discovery::custom(definition));
    }
    rows
}
