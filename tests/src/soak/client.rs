//! A client of the server under test, which turns answers into records.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use futures::{AsyncBufReadExt, StreamExt};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use super::change::Change;
use super::check::{Answer, Listing, Page, Record, Refusal};
use super::object::{Kind, Scope, Version};

/// The lines of an open watch.
pub type Lines = futures::stream::BoxStream<'static, std::io::Result<String>>;

/// The newest revision that any client has been told of.
#[derive(Debug, Default)]
pub struct Newest(AtomicU64);

impl Newest {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn raise(&self, revision: u64) {
        self.0.fetch_max(revision, Ordering::SeqCst);
    }
}

/// Why there is no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The connection broke: whether the request took effect is unknown.
    #[error("connection lost: {0}")]
    Lost(#[source] kube::Error),
    /// 429: nothing happened.
    #[error("the server is busy")]
    Busy,
    /// 410: the history no longer reaches back so far.
    #[error("expired")]
    Expired,
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

#[derive(Clone)]
pub struct Client {
    http: kube::Client,
    pub newest: Arc<Newest>,
}

impl Client {
    pub async fn connect(kubeconfig: &Path, newest: Arc<Newest>) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // A request that is repeated behind our back would look like two.
        config.default_retry = false;
        Ok(Self { http: kube::Client::try_from(config)?, newest })
    }

    pub async fn send(
        &self,
        method: &str,
        url: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Value, Failure> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request =
            Request::builder().method(method).uri(url).header("content-type", content_type).body(body);
        let request = request.context("a request")?;
        match self.http.request::<Value>(request).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) if status.code == 429 => Err(Failure::Busy),
            Err(kube::Error::Api(status)) => Err(Failure::Other(kube::Error::Api(status).into())),
            Err(error) => Err(Failure::Lost(error)),
        }
    }

    /// Asks for a change of one object.
    pub async fn change(&self, kind: &Kind, key: &str, change: Change) -> Result<Record, Failure> {
        let floor = self.newest.get();
        let wire = change.wire(kind, key);
        let answer = match self.send(wire.method, &wire.url, wire.content_type, &wire.body).await {
            Ok(answer) if answer["kind"] == "Status" => {
                let uid =
                    answer.pointer("/details/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
                Answer::Deleted { key: key.to_owned(), uid, expect: change.expect() }
            }
            Ok(answer) => {
                let version = kind.read(&answer)?;
                self.newest.raise(version.revision);
                Answer::Wrote { change, version }
            }
            Err(Failure::Other(error)) => {
                let why =
                    refusal(&error, &change).with_context(|| format!("{change:?} of {key}: {error:#}"))?;
                Answer::Refused { key: key.to_owned(), why }
            }
            Err(other) => return Err(other),
        };
        Ok(Record { floor, answer })
    }

    pub async fn read(&self, kind: &Kind, key: &str) -> Result<Record, Failure> {
        let floor = self.newest.get();
        let version = match self.send("GET", &kind.object(key), "application/json", &Value::Null).await {
            Ok(answer) => Some(kind.read(&answer)?),
            Err(Failure::Other(error)) if code(&error) == 404 => None,
            Err(other) => return Err(other),
        };
        if let Some(version) = &version {
            self.newest.raise(version.revision);
        }
        Ok(Record { floor, answer: Answer::Read { key: key.to_owned(), version } })
    }

    /// Deletes all in scope. Each object is recorded like a delete of its own.
    pub async fn delete_collection(&self, kind: &Kind, scope: &Scope) -> Result<Vec<Record>, Failure> {
        let floor = self.newest.get();
        let url = format!("{}?{}", kind.collection(scope.namespace.as_deref()), scope.query());
        let answer = self.send("DELETE", &url, "application/json", &Value::Null).await?;
        let mut records = Vec::new();
        for version in items(kind, &answer)? {
            let answer = if version.state.held {
                self.newest.raise(version.revision);
                Answer::Wrote { change: Change::Delete { expect: None }, version }
            } else {
                Answer::Deleted { key: version.key, uid: version.state.uid, expect: None }
            };
            records.push(Record { floor, answer });
        }
        Ok(records)
    }

    /// Lists to the last page. `at` is the query's part about resource versions.
    pub async fn list(
        &self,
        kind: &Kind,
        scope: &Scope,
        limit: u64,
        at: &str,
        exactly: Option<u64>,
    ) -> Result<Record, Failure> {
        let floor = self.newest.get();
        let base = format!("{}?limit={limit}{}", kind.collection(scope.namespace.as_deref()), scope.query());
        let mut url = format!("{base}{at}");
        let mut pages = Vec::new();
        loop {
            let answer = match self.send("GET", &url, "application/json", &Value::Null).await {
                Err(Failure::Other(error)) if code(&error) == 410 => return Err(Failure::Expired),
                other => other?,
            };
            let revision =
                answer.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
            let revision = revision.parse().with_context(|| format!("odd list version {revision:?}"))?;
            let remaining = answer.pointer("/metadata/remainingItemCount").and_then(Value::as_u64);
            let items = items(kind, &answer)?;
            if limit > 0 && items.len() as u64 > limit {
                return Err(Failure::Other(anyhow::anyhow!("{} items on a page of {limit}", items.len())));
            }
            pages.push(Page { revision, remaining: remaining.map(|r| r as usize), items });
            match answer.pointer("/metadata/continue").and_then(Value::as_str) {
                None | Some("") => break,
                Some(token) => url = format!("{base}&continue={token}"),
            }
        }
        if let Some(page) = pages.first() {
            self.newest.raise(page.revision);
        }
        Ok(Record { floor, answer: Answer::Listed(Listing { scope: scope.clone(), exactly, pages }) })
    }

    /// Everything of a kind now.
    pub async fn all(&self, kind: &Kind) -> Result<(u64, Vec<Version>), Failure> {
        let record = self.list(kind, &Scope::default(), 0, "", None).await?;
        let Answer::Listed(listing) = record.answer else { return Err(anyhow::anyhow!("not a list").into()) };
        let revision = listing.pages.first().map_or(0, |page| page.revision);
        Ok((revision, listing.pages.into_iter().flat_map(|page| page.items).collect()))
    }

    pub async fn watch(&self, kind: &Kind, scope: &Scope, query: &str) -> Result<Lines, Failure> {
        let collection = kind.collection(scope.namespace.as_deref());
        let url = format!("{collection}?watch=true{}{query}", scope.query());
        let request = Request::builder().uri(url).body(Vec::new()).context("a request")?;
        match self.http.request_stream(request).await {
            Ok(stream) => Ok(stream.lines().boxed()),
            Err(kube::Error::Api(status)) if status.code == 429 => Err(Failure::Busy),
            Err(kube::Error::Api(status)) if status.code == 410 => Err(Failure::Expired),
            Err(kube::Error::Api(status)) => Err(Failure::Other(kube::Error::Api(status).into())),
            Err(error) => Err(Failure::Lost(error)),
        }
    }
}

fn items(kind: &Kind, list: &Value) -> Result<Vec<Version>> {
    let items = list["items"].as_array().with_context(|| format!("no items in {list}"))?;
    items.iter().map(|item| kind.read(item)).collect()
}

fn code(error: &anyhow::Error) -> u16 {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.code,
        _ => 0,
    }
}

/// Which of the expected refusals this is.
fn refusal(error: &anyhow::Error, change: &Change) -> Result<Refusal> {
    let Some(kube::Error::Api(status)) = error.downcast_ref() else { bail!("not an answer") };
    Ok(match (status.code, status.reason.as_str(), change.expect()) {
        (404, ..) => Refusal::NotFound,
        (409, "AlreadyExists", _) => Refusal::AlreadyExists,
        (409, "Conflict", Some(expect)) => Refusal::Conflict(expect),
        // How a failed `test` of a JSON patch is told.
        (422, "Invalid", Some(expect)) => {
            ensure!(status.message.to_lowercase().contains("test"), "an unexpected refusal");
            Refusal::Conflict(expect)
        }
        _ => bail!("an unexpected refusal"),
    })
}
