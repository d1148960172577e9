//! Listing: records are copied into the answer, not parsed, and large answers are rendered as they are sent.

use bytes::Bytes;
use http::{Response, StatusCode};
use tombolo_k8s::continuation::Continue;
use tombolo_store::{At, Range, Record as Stored, StoreError};

use super::options::{Filter, ListOptions, VersionMatch};
use super::render;
use super::resource::{Resource, Shared};
use crate::http::body::Body;
use crate::http::negotiate::{self, Output};
use crate::http::status::{Failure, Result, bytes_response};
use crate::record::push_number;
use crate::server::Call;

/// Records per round trip to the store when a selector makes the size of a page unknown.
const STEP: usize = 1000;
/// A rendered list is handed to the connection in pieces of about this size.
const PIECE: usize = 128 * 1024;

pub struct Listed {
    pub records: Vec<Stored>,
    pub revision: u64,
    pub resume: Option<String>,
    pub remaining: Option<usize>,
}

pub async fn handle(call: &Call, resource: &Shared) -> Result<Response<Body>> {
    let options = ListOptions::parse(resource, &call.query, false)?;
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let listed = fetch(call, resource, &options).await?;
    respond(call, resource, output, listed)
}

pub async fn fetch(call: &Call, resource: &Resource, options: &ListOptions) -> Result<Listed> {
    let scope = resource.scope(&call.target.namespace);
    let (mut at, mut after) = (starting_point(options), None);
    if let Some(token) = &options.resume {
        if options.version.is_some_and(|v| v != 0) {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = Continue::decode(token).map_err(|e| Failure::bad_request(e.to_string()))?;
        at = token.revision.map_or(At::Latest, At::Exact);
        after = Some(format!("{scope}{}", token.after));
    }
    // With a name in the selector there is at most one record to look at.
    let narrowed = match (&options.filter.name, &options.filter.namespace) {
        (Some(name), None) if !resource.namespaced || !call.target.namespace.is_empty() => {
            Some(format!("{scope}{name}"))
        }
        (Some(name), Some(namespace)) if call.target.namespace.is_empty() && resource.namespaced => {
            Some(format!("{scope}{namespace}/{name}"))
        }
        _ => None,
    };
    let prefix = narrowed.as_deref().unwrap_or(&scope);
    let everything = options.filter.is_everything();
    let mut records = Vec::new();
    loop {
        let limit = match (options.limit, everything) {
            (0, _) => 0,
            (limit, true) => limit,
            (limit, false) => limit.max(STEP),
        };
        let range = Range { prefix, after: after.as_deref(), limit, at };
        let page = call.app.store.range(range).await.map_err(|e| expired(call, options, e))?;
        // All pages of one list show the state of its first.
        at = At::Exact(page.revision);
        let last = page.records.last().map(|r| r.key.to_string());
        let mut left = page.remaining;
        let mut taken = 0;
        let total = page.records.len();
        for record in page.records {
            taken += 1;
            if everything || options.filter.matches(resource, &record.key, &record.value) {
                records.push(record);
                if options.limit > 0 && records.len() == options.limit {
                    break;
                }
            }
        }
        left += total - taken;
        let full = options.limit > 0 && records.len() >= options.limit;
        if left == 0 || full {
            let resume = (full && left > 0)
                .then(|| records.last().map(|r| Continue::encode(Some(page.revision), &r.key[scope.len()..])))
                .flatten();
            let remaining = (resume.is_some() && everything).then_some(left);
            return Ok(Listed { records, revision: page.revision, resume, remaining });
        }
        after = last;
    }
}

fn starting_point(options: &ListOptions) -> At {
    match (options.version, options.version_match) {
        (None, _) => At::Latest,
        (Some(0), _) => At::Cached,
        (Some(version), VersionMatch::Exact) => At::Exact(version),
        (Some(version), VersionMatch::NotOlderThan) => At::AtLeast(version),
        (Some(version), VersionMatch::Unset) if options.limit > 0 => At::Exact(version),
        (Some(version), VersionMatch::Unset) => At::AtLeast(version),
    }
}

fn expired(call: &Call, options: &ListOptions, error: StoreError) -> Failure {
    let StoreError::Compacted { requested, compacted } = error else { return call.app.store_failure(error) };
    match options.resume.as_deref().map(Continue::decode) {
        Some(Ok(token)) => Failure::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new \
             list without the continue parameter, or use the continue token in this response to retrieve the \
             remainder of the results. Continuing with the provided token results in an inconsistent list - \
             objects that were created, modified, or deleted between the time the first chunk was returned and \
             now may show up in the list.",
        )
        .resume(Continue::encode(None, &token.after)),
        _ => Failure::expired(format!("The resourceVersion for the provided list is too old. ({requested} < {compacted})")),
    }
}

/// The opening of a list of a kind, up to the first item.
pub fn opening_of(resource: &Resource, listed: &Listed) -> Vec<u8> {
    // Clients of custom resources are told that a list does not go on, too.
    let end = resource.schema.is_custom().then_some("");
    let resume = listed.resume.as_deref().or(end);
    opening(&resource.api_version(), &resource.list_kind, listed, resume)
}

fn opening(api_version: &str, kind: &str, listed: &Listed, resume: Option<&str>) -> Vec<u8> {
    let mut out = format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{{\"resourceVersion\":\""
    )
    .into_bytes();
    push_number(&mut out, listed.revision);
    out.push(b'"');
    if let Some(token) = resume {
        out.extend_from_slice(b",\"continue\":\"");
        out.extend_from_slice(token.as_bytes());
        out.push(b'"');
    }
    if let Some(remaining) = listed.remaining {
        out.extend_from_slice(b",\"remainingItemCount\":");
        push_number(&mut out, remaining as u64);
    }
    out.extend_from_slice(b"}");
    out
}

fn respond(call: &Call, resource: &Shared, output: Output, listed: Listed) -> Result<Response<Body>> {
    let form = render::Form::new(output, resource, &call.query);
    let mut out = match output {
        Output::Json | Output::Yaml => opening_of(resource, &listed),
        Output::Metadata(version) => {
            opening(version.api_version(), "PartialObjectMetadataList", &listed, listed.resume.as_deref())
        }
        Output::Table(version) => {
            let mut out = opening(version.api_version(), "Table", &listed, listed.resume.as_deref());
            out.extend_from_slice(b",\"columnDefinitions\":");
            out.extend_from_slice(form.columns().to_string().as_bytes());
            out
        }
    };
    out.extend_from_slice(match output {
        Output::Table(_) => b",\"rows\":[".as_slice(),
        _ => b",\"items\":[".as_slice(),
    });
    if output == Output::Yaml {
        for (i, record) in listed.records.iter().enumerate() {
            separate(&mut out, i);
            form.item(&mut out, &record.value, record.revision);
        }
        out.extend_from_slice(b"]}");
        return render::yaml(&out);
    }
    let mut items = listed.records.into_iter().enumerate();
    let mut piece = move |mut out: Vec<u8>| {
        for (i, record) in items.by_ref() {
            separate(&mut out, i);
            form.item(&mut out, &record.value, record.revision);
            if out.len() >= PIECE {
                return (out, true);
            }
        }
        out.extend_from_slice(b"]}\n");
        (out, false)
    };
    let (first, more) = piece(out);
    let body = if more {
        let mut next = Some(Bytes::from(first));
        let mut more = true;
        Body::stream(futures::stream::iter(std::iter::from_fn(move || {
            if let Some(first) = next.take() {
                return Some(Ok(first));
            }
            if !std::mem::take(&mut more) {
                return None;
            }
            let (bytes, again) = piece(Vec::with_capacity(PIECE + PIECE / 4));
            more = again;
            Some(Ok(Bytes::from(bytes)))
        })))
    } else {
        first.into()
    };
    Ok(bytes_response(StatusCode::OK, "application/json", body))
}

fn separate(out: &mut Vec<u8>, index: usize) {
    if index > 0 {
        out.push(b',');
    }
}

/// Every record of a kind in a scope, for the server's own use.
pub async fn all(call: &Call, resource: &Resource, namespace: &str, filter: &Filter) -> Result<Vec<Stored>> {
    let scope = resource.scope(namespace);
    let page = call.app.store.range(Range::all(&scope)).await.map_err(|e| call.app.store_failure(e))?;
    let mut records = page.records;
    records.retain(|r| filter.matches(resource, &r.key, &r.value));
    Ok(records)
}
