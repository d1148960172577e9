//! The Works of this site as the hub has them: one long watch through the tunnel.
//!
//! After a short cut the watch goes on where it stopped. After a long one it would tell every step of the way since then, and
//! the hub may no longer know that point: versions are compared (metadata only), and only what differs is fetched.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::{ObjectList, PartialObjectMeta, Request};
use kube::{Client, Error, ResourceExt};
use tombolo_api::{Work, names};

use crate::ledger::Ledger;
use crate::observe::Shared;

/// Where a watch goes on; kept over reconnects.
#[derive(Clone, Debug, Default)]
pub struct Position {
    version: String,
    /// The hub's highest revision so far.
    seen: u64,
    /// Since when nothing was heard.
    left: Option<Instant>,
}

impl Position {
    /// The hub is not heard from now on.
    pub fn leave(&mut self) {
        self.left = Some(Instant::now());
    }

    /// The watch cannot go on where it stopped.
    fn lose(&mut self) {
        self.seen = self.seen.max(self.version.parse().unwrap_or_default());
        self.version.clear();
    }
}

/// kube refuses a longer one; renewing it costs a few hundred bytes.
const LONG: u32 = 294;
const PAGE: u32 = 100;
/// A cut that lasts longer is a long one.
const LONG_CUT: Duration = Duration::from_secs(60);
/// Works fetched at once: over a slow link the answer to one comes long after it was asked for.
const AT_ONCE: usize = 16;

/// Follows the Works until the hub does not answer any more.
pub async fn follow(
    hub: &Client,
    site: &str,
    shared: &Arc<Shared>,
    position: &mut Position,
) -> Result<(), Error> {
    let api: Api<Work> = Api::namespaced(hub.clone(), &names::site_namespace(site));
    if position.left.take().is_some_and(|left| left.elapsed() > LONG_CUT) {
        position.lose();
    }
    loop {
        if position.version.is_empty() {
            position.version = list(hub, &api, shared, position.seen).await?;
            position.seen = position.version.parse().unwrap_or_default();
        }
        let params = WatchParams::default().timeout(LONG).disable_bookmarks();
        // Our own reports would come back as whole Works, and who wrote what is nothing to us.
        let mut request = Request::new(api.resource_url())
            .watch(&params, &position.version)
            .map_err(Error::BuildRequest)?;
        if let Ok(uri) =
            format!("{}&generationChangesOnly=true&omitManagedFields=true", request.uri()).parse()
        {
            *request.uri_mut() = uri;
        }
        let mut events = match hub.request_events::<Work>(request).await {
            Ok(events) => events.boxed(),
            Err(Error::Api(status)) if status.code == 410 => {
                position.lose();
                continue;
            }
            Err(error) => return Err(error),
        };
        while let Some(event) = events.next().await {
            match event {
                Ok(WatchEvent::Added(work) | WatchEvent::Modified(work)) => {
                    position.version = work.resource_version().unwrap_or_default();
                    take(shared, &work, Ledger::follow);
                }
                Ok(WatchEvent::Deleted(work)) => {
                    position.version = work.resource_version().unwrap_or_default();
                    shared.ledger.lock().forget(&work.name_any());
                    shared.keep.forget(&work.name_any());
                    shared.todo.hurry();
                    shared.site.notify_one();
                }
                Ok(WatchEvent::Bookmark(bookmark)) => position.version = bookmark.metadata.resource_version,
                Ok(WatchEvent::Error(status)) if status.code == 410 => {
                    position.lose();
                    break;
                }
                Ok(WatchEvent::Error(status)) => return Err(Error::Api(status)),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether this site knows every Work in the hub's present version, has carried out the tombstones of workloads that may
/// run at most once, and keeps none of those that the hub has forgotten.
pub async fn caught_up(hub: &Client, site: &str, shared: &Arc<Shared>) -> Result<bool, Error> {
    let api: Api<Work> = Api::namespaced(hub.clone(), &names::site_namespace(site));
    let mut params = ListParams::default().limit(500);
    let mut there: HashSet<(String, String)> = HashSet::new();
    loop {
        let page = api.list_metadata(&params).await?;
        there.extend(page.items.iter().map(|item| (item.name_any(), item.uid().unwrap_or_default())));
        let ledger = shared.ledger.lock();
        let known = page.items.iter().all(|item| {
            ledger.get(&item.name_any()).is_some_and(|entry| {
                Some(&entry.uid) == item.metadata.uid.as_ref()
                    && entry.generation >= item.metadata.generation.unwrap_or_default()
            })
        });
        if !known || ledger.fences_pending() {
            return Ok(false);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(500).continue_token(&token),
            None => {
                let known = |(name, uid): (&String, &String)| there.contains(&(name.clone(), uid.clone()));
                return Ok(ledger.leased().all(known));
            }
        }
    }
}

fn take(shared: &Arc<Shared>, work: &Work, how: fn(&mut Ledger, &Work) -> bool) {
    let name = work.name_any();
    let news = how(&mut shared.ledger.lock(), work);
    if news {
        shared.keep.put(work);
        shared.watch_kinds(&work.spec);
        shared.todo.add(&name);
        if work.spec.adopt {
            shared.recount.notify_one();
        }
    }
}

/// What an earlier run of this agent was told: acted on until the hub says otherwise.
pub fn recall(shared: &Arc<Shared>) {
    let works = shared.keep.load(&shared.applier.hub);
    if works.is_empty() {
        return;
    }
    tracing::info!(works = works.len(), "works of an earlier run are kept right until the hub is heard");
    for work in &works {
        shared.ledger.lock().recall(work);
        shared.watch_kinds(&work.spec);
        shared.todo.add(&work.name_any());
    }
}

/// Names and versions of Works. Who wrote what is most of their metadata, and nothing to us.
async fn versions(
    hub: &Client,
    api: &Api<Work>,
    params: &ListParams,
) -> Result<ObjectList<PartialObjectMeta<Work>>, Error> {
    let mut request = Request::new(api.resource_url()).list_metadata(params).map_err(Error::BuildRequest)?;
    if let Ok(uri) = format!("{}&omitManagedFields=true", request.uri()).parse() {
        *request.uri_mut() = uri;
    }
    hub.request(request).await
}

/// Whether a hub that was last heard at revision `seen` and is at `now` was restored in between: it skips revisions, or (where
/// somebody copied files by hand) is behind. One that was merely busy costs reading everything once.
fn was_restored(seen: u64, now: &str) -> bool {
    let now = now.parse().unwrap_or(seen);
    seen > 0 && (now < seen || now - seen >= names::RESTORED_SKIP)
}

/// All Works the first time, and after the hub was restored, for what the hub shows of them too; otherwise only those whose
/// version differs from what is held.
async fn list(hub: &Client, api: &Api<Work>, shared: &Arc<Shared>, seen: u64) -> Result<String, Error> {
    let held: HashMap<String, (String, i64)> =
        shared.ledger.lock().versions().map(|(n, uid, g)| (n.clone(), (uid.to_owned(), g))).collect();
    let mut all = held.is_empty() || shared.ledger.lock().recalls_any();
    let mut params = ListParams::default().limit(PAGE);
    let mut there: Vec<String> = Vec::new();
    let mut version = String::new();
    loop {
        let next = if all {
            let page = api.list(&params).await?;
            for work in &page.items {
                there.push(work.name_any());
                take(shared, work, Ledger::put);
            }
            page.metadata
        } else {
            let page = versions(hub, api, &params).await?;
            if page.metadata.resource_version.as_ref().is_some_and(|now| was_restored(seen, now)) {
                tracing::info!("the hub was restored from a backup: all works are read again");
                shared.ledger.lock().doubt_all();
                (all, params, there) = (true, ListParams::default().limit(PAGE), Vec::new());
                continue;
            }
            let differs = |item: &&PartialObjectMeta<Work>| {
                held.get(&item.name_any()).is_none_or(|(uid, generation)| {
                    item.metadata.uid.as_ref() != Some(uid) || item.metadata.generation != Some(*generation)
                })
            };
            let different: Vec<String> = page.items.iter().filter(differs).map(|i| i.name_any()).collect();
            let ask = |name: String| {
                let api = api.clone();
                async move { api.get_opt(&name).await }.boxed()
            };
            let asked: Vec<_> = different.into_iter().map(ask).collect();
            let mut fetched = futures::stream::iter(asked).buffered(AT_ONCE);
            while let Some(work) = fetched.next().await {
                if let Some(work) = work? {
                    take(shared, &work, Ledger::put);
                }
            }
            there.extend(page.items.iter().map(|item| item.name_any()));
            page.metadata
        };
        version = next.resource_version.unwrap_or(version);
        match next.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(PAGE).continue_token(&token),
            None => break,
        }
    }
    // Absent is not deleted: the objects stay, and show as orphans.
    for name in held.keys().filter(|name| !there.contains(name)) {
        tracing::warn!(work = name, "the hub no longer has this work; what it made stays");
        shared.ledger.lock().forget(name);
        shared.keep.forget(name);
    }
    shared.site.notify_one();
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_hub_is_known_by_its_revision() {
        assert!(!was_restored(0, "5"), "never heard before");
        assert!(!was_restored(500, "500") && !was_restored(500, "900000"));
        assert!(was_restored(500, "1000500") && was_restored(500, "1800000000000"));
        assert!(was_restored(500, "400"), "copied by hand");
    }
}
