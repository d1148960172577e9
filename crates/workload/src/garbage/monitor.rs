//! Watches of the kinds that no other controller follows: metadata only, straight into the graph.

use super::Collector;
use crate::shell::Resource;
use futures::StreamExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PAGE: u32 = 500;
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Follows one kind until `stop`. `listed` turns true after the first attempt, successful or not: a kind that
/// cannot be listed must not hold up all others.
pub async fn follow(
    client: Client,
    resource: Resource,
    collector: Arc<Collector>,
    listed: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let api_resource = ApiResource {
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        api_version: resource.api_version(),
        kind: resource.kind.to_string(),
        plural: resource.plural.to_string(),
    };
    let api = Api::<DynamicObject>::all_with(client, &api_resource);
    let mut pause = FIRST_RETRY;
    let mut revision = None;
    loop {
        let round = async {
            let from = match revision.take() {
                Some(revision) => revision,
                None => list(&api, &resource, &collector).await?,
            };
            listed.send_replace(true);
            watch_from(&api, &resource, &collector, from).await
        };
        let outcome = tokio::select! {
            outcome = round => outcome,
            () = stop.cancelled() => return,
        };
        listed.send_replace(true);
        match outcome {
            Ok(next) => {
                revision = next;
                pause = FIRST_RETRY;
            }
            Err(error) => {
                tracing::debug!(resource = %resource.plural, group = %resource.group, %error, "metadata watch failed");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => return,
                }
                pause = (pause * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn list(api: &Api<DynamicObject>, resource: &Resource, collector: &Collector) -> kube::Result<String> {
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    let mut present = HashSet::new();
    loop {
        let page = api.list_metadata(&params).await?;
        for object in page.items {
            present.extend(object.metadata.uid.clone());
            collector.observe(resource, &object.metadata);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                collector.keep_only(resource, &present);
                return Ok(page.metadata.resource_version.unwrap_or_else(|| "0".into()));
            }
        }
    }
}

async fn watch_from(
    api: &Api<DynamicObject>,
    resource: &Resource,
    collector: &Collector,
    from: String,
) -> kube::Result<Option<String>> {
    let mut revision = from;
    let stream = api.watch_metadata(&WatchParams::default(), &revision).await?;
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        let at = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                collector.observe(resource, &object.metadata);
                object.metadata.resource_version
            }
            WatchEvent::Deleted(object) => {
                collector.forget(resource, &object.metadata);
                object.metadata.resource_version
            }
            WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
            WatchEvent::Error(status) if status.code == 410 => return Ok(None),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        revision = at.unwrap_or(revision);
    }
    Ok(Some(revision))
}
