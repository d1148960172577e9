//! Status on its way to the hub: at once, without waiting for the answers to what was sent before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{Api, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Request};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tombolo_api::{Site, SiteStatus, Work, names};

use crate::difference::merge_patch;
use crate::observe::Shared;
use crate::offers::offers;
use crate::told::REST;

/// Reports under way at once, over all Works; below the number of streams that the hub accepts.
const AT_ONCE: usize = 80;
/// One step at the site shows in several places (the answer, the object, its pods); they travel together.
const GATHER: Duration = Duration::from_millis(3);
/// Before a hub that is overloaded is asked again; a tie that was broken off for it would cost it more.
const OVERLOADED: Duration = Duration::from_secs(1);
/// Capacity changes with every pod; the hub hears of it at most this often.
const SITE_PAUSE: Duration = Duration::from_secs(2);

/// Sends reports until the hub does not answer.
pub async fn reports(hub: Client, site: String, shared: Arc<Shared>) -> Error {
    let api: Api<Work> = Api::namespaced(hub.clone(), &names::site_namespace(&site));
    let url = api.resource_url().to_owned();
    shared.ledger.lock().reconnected();
    let mut sending = JoinSet::new();
    loop {
        let now = Instant::now();
        let rush = shared.todo.is_rush(now);
        let (reports, resting) = {
            let mut ledger = shared.ledger.lock();
            (ledger.reports(AT_ONCE - sending.len().min(AT_ONCE), now, rush), ledger.resting(now))
        };
        for report in reports {
            shared.todo.reported(&report.work, now);
            let sent = send(hub.clone(), format!("{url}/{}", report.work), report.patch);
            sending.spawn(async move {
                let result = sent.await;
                if is_overload(&result) {
                    tokio::time::sleep(OVERLOADED).await;
                }
                (report.work, report.id, result)
            });
        }
        tokio::select! {
            () = shared.report.notified(), if sending.len() < AT_ONCE => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(REST), if resting => {}
            Some(done) = sending.join_next(), if !sending.is_empty() => {
                let Ok((work, id, result)) = done else { continue };
                match result {
                    Ok(revision) => shared.ledger.lock().landed(&work, id, revision),
                    Err(Error::Api(status)) if status.code == 429 => shared.ledger.lock().unknown(&work),
                    // The Work is gone meanwhile; the watch says so too.
                    Err(Error::Api(status)) if status.code == 404 => {
                        shared.ledger.lock().landed(&work, id, 0);
                    }
                    Err(Error::Api(status)) if status.code >= 400 && status.code < 500 => {
                        tracing::warn!(work, reason = status.message, "the hub does not take a status");
                        shared.ledger.lock().landed(&work, id, 0);
                    }
                    Err(error) => return error,
                }
            }
        }
    }
}

fn is_overload<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Api(status)) if status.code == 429)
}

/// Patches a status and gives the revision. The answer is asked for as metadata only: the rest is known here already.
async fn send(hub: Client, url: String, patch: Value) -> Result<u64, Error> {
    let request = Request::new(url)
        .patch_metadata("status", &PatchParams::default(), &Patch::Merge(&patch))
        .map_err(Error::BuildRequest)?;
    let answer: PartialObjectMeta<Work> = hub.request(request).await?;
    Ok(answer.metadata.resource_version.and_then(|v| v.parse().ok()).unwrap_or(0))
}

/// What only the agent knows of the site; the hub's own fields (conditions, latency) are left alone.
pub async fn site_status(
    hub: Client,
    site: String,
    shared: Arc<Shared>,
    version: String,
    epoch: impl Fn() -> i64,
) -> Error {
    let api: Api<Site> = Api::all(hub);
    let mut sent = json!({});
    loop {
        let mut status =
            SiteStatus { version: Some(version.clone()).filter(|v| !v.is_empty()), ..Default::default() };
        status.agent = Some(env!("CARGO_PKG_VERSION").into());
        status.hub_epoch = Some(epoch());
        shared.capacity.lock().fill(&mut status);
        let offers = shared.below.lock().as_ref().map(|sites| offers(sites, &shared.applier.hub));
        status.offers = offers.clone().unwrap_or_default();
        status.orphans = shared.orphans();
        let now = ours(&status, offers.is_some());
        if let Some(patch) = merge_patch(&sent, &now) {
            let patch = json!({ "status": patch });
            match api.patch_status(&site, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => sent = now,
                result if is_overload(&result) => {
                    tokio::time::sleep(OVERLOADED).await;
                    continue;
                }
                Err(error) => return error,
            }
        }
        tokio::time::sleep(SITE_PAUSE).await;
        shared.site.notified().await;
    }
}

/// The fields written from here; empty ones too, so that they are cleared at the hub. What has not been looked at yet is left as
/// the hub last heard it: an agent that has just started must not say that there is no room.
fn ours(status: &SiteStatus, sites_known: bool) -> Value {
    let mut ours = json!({
        "version": status.version,
        "agent": status.agent,
        "hubEpoch": status.hub_epoch,
        "orphans": status.orphans,
    });
    if status.nodes.is_some() {
        ours["nodes"] = json!(status.nodes);
        ours["capacity"] = json!(status.capacity);
        ours["allocatable"] = json!(status.allocatable);
        ours["used"] = json!(status.used);
        ours["shapes"] = json!(status.shapes);
    }
    if sites_known {
        ours["offers"] = json!(status.offers);
    }
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_looked_at_yet_is_not_reported() {
        let said = |nodes, sites| {
            let status = SiteStatus { nodes, ..Default::default() };
            let ours = ours(&status, sites);
            ["nodes", "shapes", "allocatable", "offers"].map(|field| ours.get(field).is_some())
        };
        assert_eq!(said(None, false), [false; 4]);
        assert_eq!(said(Some(0), false), [true, true, true, false]);
        assert_eq!(said(Some(0), true), [true; 4]);
    }
}
