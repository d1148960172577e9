//! Status on its way to the hub: at once, and coalesced while one report per Work is under way.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tombolo_api::{Site, SiteStatus, Work, names};

use crate::difference::merge_patch;
use crate::observe::Shared;

/// Reports under way at once, over all Works.
const AT_ONCE: usize = 32;
/// Capacity changes with every pod; the hub hears of it at most this often.
const SITE_PAUSE: Duration = Duration::from_secs(2);

/// Sends reports until the hub does not answer.
pub async fn reports(hub: Client, site: String, shared: Arc<Shared>) -> Error {
    let api: Api<Work> = Api::namespaced(hub, &names::site_namespace(&site));
    shared.ledger.lock().reconnected();
    let mut sending = JoinSet::new();
    loop {
        let reports = shared.ledger.lock().reports(AT_ONCE - sending.len().min(AT_ONCE));
        for report in reports {
            let api = api.clone();
            sending.spawn(async move {
                let done = api
                    .patch_status(&report.work, &PatchParams::default(), &Patch::Merge(&report.patch))
                    .await;
                (report, done.map(drop))
            });
        }
        tokio::select! {
            () = shared.report.notified(), if sending.len() < AT_ONCE => {}
            Some(done) = sending.join_next(), if !sending.is_empty() => {
                let Ok((report, result)) = done else { continue };
                match result {
                    Ok(()) => shared.ledger.lock().acked(&report.work, Some(report.sent)),
                    // The Work is gone meanwhile; the watch says so too.
                    Err(Error::Api(status)) if status.code == 404 => {
                        shared.ledger.lock().acked(&report.work, Some(report.sent));
                    }
                    Err(Error::Api(status)) if status.code >= 400 && status.code < 500 && status.code != 429 => {
                        tracing::warn!(work = report.work, reason = status.message, "the hub does not take a status");
                        shared.ledger.lock().acked(&report.work, Some(report.sent));
                    }
                    Err(error) => {
                        shared.ledger.lock().acked(&report.work, None);
                        return error;
                    }
                }
            }
        }
    }
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
        status.offers = crate::offers::offers(&shared.below.lock());
        status.orphans = shared.orphans();
        let now = ours(&status);
        if let Some(patch) = merge_patch(&sent, &now) {
            let patch = json!({ "status": patch });
            match api.patch_status(&site, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => sent = now,
                Err(error) => return error,
            }
        }
        tokio::time::sleep(SITE_PAUSE).await;
        shared.site.notified().await;
    }
}

/// The fields written from here; empty ones too, so that they are cleared at the hub.
fn ours(status: &SiteStatus) -> Value {
    json!({
        "version": status.version,
        "agent": status.agent,
        "nodes": status.nodes,
        "capacity": status.capacity,
        "allocatable": status.allocatable,
        "used": status.used,
        "shapes": status.shapes,
        "offers": status.offers,
        "hubEpoch": status.hub_epoch,
        "orphans": status.orphans,
    })
}
