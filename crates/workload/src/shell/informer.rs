//! List and watch one kind into its cache, for as long as the process lives.
//!
//! One loop serves every kind: only taking an object in knows its type ([`Feed`]).

use super::{Resource, cache::Feed};
use futures::StreamExt;
use kube::{
    Client,
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Objects per list request: bounds the memory that a relist takes.
const PAGE: u32 = 500;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Which objects to follow.
#[derive(Clone, Debug)]
pub struct Source {
    pub resource: Resource,
    pub field_selector: Option<&'static str>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: kube::core::ListMeta,
    #[serde(default)]
    items: Vec<Box<RawValue>>,
}

/// Keeps `cache` equal to the server's objects until `shutdown`. Errors are retried with a growing pause.
pub async fn follow(client: Client, cache: Arc<dyn Feed>, source: Source, shutdown: CancellationToken) {
    let mut pause = FIRST_RETRY;
    let mut revision = None;
    loop {
        let round = async {
            let from = match revision.take() {
                Some(revision) => revision,
                None => list(&client, &*cache, &source).await?,
            };
            watch(&client, &*cache, &source, from).await
        };
        let outcome = tokio::select! {
            outcome = round => outcome,
            () = shutdown.cancelled() => return,
        };
        match outcome {
            // The server ended the watch in the ordinary way: go on where it stopped.
            Ok(next) => {
                revision = next;
                pause = FIRST_RETRY;
            }
            Err(error) => {
                tracing::warn!(resource = %source.resource.plural, %error, "watch failed; listing again");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shutdown.cancelled() => return,
                }
                pause = (pause * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn list(client: &Client, cache: &dyn Feed, source: &Source) -> kube::Result<String> {
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    params.field_selector = source.field_selector.map(str::to_owned);
    let mut listing = cache.relist();
    loop {
        let request = Request::new(source.resource.path("", "", ""));
        let page: Page = client.request(request.list(&params).map_err(kube::Error::BuildRequest)?).await?;
        for item in &page.items {
            listing.add(item.get()).map_err(kube::Error::SerdeError)?;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                let revision = page.metadata.resource_version.unwrap_or_else(|| "0".into());
                listing.done(revision.parse().unwrap_or(0));
                return Ok(revision);
            }
        }
    }
}

/// Follows the watch until the server ends it. `Ok(None)` asks for a new list.
async fn watch(
    client: &Client,
    cache: &dyn Feed,
    source: &Source,
    from: String,
) -> kube::Result<Option<String>> {
    let params =
        WatchParams { field_selector: source.field_selector.map(str::to_owned), ..Default::default() };
    let mut revision = from;
    let request = Request::new(source.resource.path("", "", ""));
    let request = request.watch(&params, &revision).map_err(kube::Error::BuildRequest)?;
    let stream = client.request_events::<Box<RawValue>>(request).await?;
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        let at = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                cache.apply(object.get()).map_err(kube::Error::SerdeError)?
            }
            WatchEvent::Deleted(object) => cache.remove(object.get()).map_err(kube::Error::SerdeError)?,
            WatchEvent::Bookmark(bookmark) => {
                let at = bookmark.metadata.resource_version.parse().unwrap_or(0);
                cache.bookmark(at);
                at
            }
            WatchEvent::Error(status) if status.code == 410 => return Ok(None),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        if at > 0 {
            revision = at.to_string();
        }
    }
    Ok(Some(revision))
}
