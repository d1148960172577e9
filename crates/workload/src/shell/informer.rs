//! List and watch one kind into its cache, for as long as the process lives.

use super::{Cache, Object};
use futures::StreamExt;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Objects per list request: bounds the memory that a relist takes.
const PAGE: u32 = 500;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Which objects of the kind to follow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    pub field_selector: Option<&'static str>,
}

/// Keeps `cache` equal to the server's objects until `shutdown`. Errors are retried with a growing pause.
pub async fn follow<K: Object>(
    client: Client,
    cache: Arc<Cache<K>>,
    source: Source,
    shutdown: CancellationToken,
) {
    let api = Api::<K>::all(client);
    let mut pause = FIRST_RETRY;
    let mut revision = None;
    loop {
        let round = async {
            let from = match revision.take() {
                Some(revision) => revision,
                None => list(&api, &cache, source).await?,
            };
            watch(&api, &cache, source, from).await
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
                tracing::warn!(resource = %K::RESOURCE.plural, %error, "watch failed; listing again");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shutdown.cancelled() => return,
                }
                pause = (pause * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn list<K: Object>(api: &Api<K>, cache: &Cache<K>, source: Source) -> kube::Result<String> {
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    params.field_selector = source.field_selector.map(str::to_owned);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                let revision = page.metadata.resource_version.unwrap_or_else(|| "0".into());
                cache.replace(objects, revision.parse().unwrap_or(0));
                return Ok(revision);
            }
        }
    }
}

/// Follows the watch until the server ends it. `Ok(None)` asks for a new list.
async fn watch<K: Object>(
    api: &Api<K>,
    cache: &Cache<K>,
    source: Source,
    from: String,
) -> kube::Result<Option<String>> {
    let params =
        WatchParams { field_selector: source.field_selector.map(str::to_owned), ..Default::default() };
    let mut revision = from;
    let stream = api.watch(&params, &revision).await?;
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        let at = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let at = object.meta().resource_version.clone();
                cache.apply(object);
                at
            }
            WatchEvent::Deleted(object) => {
                cache.remove(&object);
                object.meta().resource_version.clone()
            }
            WatchEvent::Bookmark(bookmark) => {
                cache.bookmark(bookmark.metadata.resource_version.parse().unwrap_or(0));
                Some(bookmark.metadata.resource_version)
            }
            WatchEvent::Error(status) if status.code == 410 => return Ok(None),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        revision = at.unwrap_or(revision);
    }
    Ok(Some(revision))
}
