//! Acting on Works: one task per Work at a time, a bounded number in all. Goes on while the hub is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::ledger::{Key, Outcome};
use crate::observe::Shared;
use crate::remove::Removed;

/// Works acted on at once.
const AT_ONCE: usize = 16;
/// A deletion that the watch does not confirm is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The highest epoch seen of the hub.
pub struct Epoch {
    highest: AtomicI64,
    risen: Notify,
}

impl Epoch {
    pub fn new(epoch: i64) -> Self {
        Self { highest: AtomicI64::new(epoch), risen: Notify::new() }
    }

    pub fn get(&self) -> i64 {
        self.highest.load(Ordering::Relaxed)
    }

    /// Says whether it is news.
    pub fn see(&self, epoch: i64) -> bool {
        let news = self.highest.fetch_max(epoch, Ordering::Relaxed) < epoch;
        if news {
            self.risen.notify_one();
        }
        news
    }

    pub async fn rises(&self) {
        self.risen.notified().await;
    }
}

pub async fn run(shared: Arc<Shared>, epoch: Arc<Epoch>, hub_identity: Option<String>) {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.len() >= AT_ONCE {
            tasks.join_next().await;
        }
        while tasks.try_join_next().is_some() {}
        let work = shared.todo.next().await;
        let (shared, epoch, hub_identity) = (shared.clone(), epoch.clone(), hub_identity.clone());
        tasks.spawn(async move {
            act(&shared, &epoch, hub_identity.as_deref(), &work).await;
            shared.todo.done(&work);
            shared.report.notify_one();
        });
    }
}

async fn act(shared: &Arc<Shared>, epoch: &Epoch, hub_identity: Option<&str>, work: &str) {
    let entry = shared.ledger.lock().get(work).map(|e| (e.uid.clone(), e.generation, e.spec.clone()));
    let Some((uid, generation, spec)) = entry else { return };
    let owner = shared.applier.owner(work, &uid);
    let refuse = |reason: &str, message: String| {
        tracing::warn!(work, reason, message, "refused");
        let outcome = Outcome { refused: Some((reason.to_owned(), message)), ..Default::default() };
        shared.ledger.lock().applied(work, &uid, generation, outcome, &now());
    };
    let seen = epoch.get();
    if epoch.see(spec.hub.epoch) {
        shared.site.notify_one();
    }
    if spec.hub.id != shared.applier.hub {
        let message =
            format!("the Work is of hub {}, this site is tied to {}", spec.hub.id, shared.applier.hub);
        return refuse("OtherHub", message);
    }
    if let Some(tombstone) = &spec.tombstone {
        // Each pod that goes brings us here; what it was made from is gone for long.
        let before = shared.ledger.lock().how_emptied(work);
        let done = match before.filter(|_| !shared.sees_any(&owner, &spec)) {
            Some(before) => Ok(before),
            None => shared.applier.remove(&owner, &spec, tombstone, seen, &|key| shared.sight(key)).await,
        };
        if let Ok(how @ (Removed::Gone | Removed::Kept(_))) = &done {
            shared.ledger.lock().emptied(work, &spec, how.clone());
        }
        let pods_left = shared.ledger.lock().get(work).map_or(0, |e| e.status.pods.len());
        let removed = |message: &str| {
            shared.ledger.lock().removed(work, &uid, generation, message, &now());
            shared.todo.succeeded(work);
            shared.todo.hurry();
        };
        match done {
            Ok(Removed::LetGo) => removed(&tombstone.reason),
            Ok(Removed::Gone) if pods_left == 0 || tombstone.keep => removed(&tombstone.reason),
            Ok(Removed::Kept(why)) if pods_left == 0 => removed(&format!("{}; {why}", tombstone.reason)),
            Ok(_) => shared.todo.later(work, Instant::now() + LOOK_AGAIN),
            Err(refusal) => {
                refuse(&refusal.reason(), refusal.to_string());
                shared.todo.retry(work, Instant::now());
            }
        }
        return;
    }
    if let Some(me) = hub_identity
        && spec.hub.path.iter().any(|hub| hub == me)
    {
        let message = format!(
            "this hub ({me}) already had the object; it came back through {}",
            spec.hub.path.join(" > ")
        );
        return refuse("Loop", message);
    }
    let as_it_should_be = shared.ledger.lock().is_applied(work) && shared.untouched(&owner, &spec);
    if !as_it_should_be {
        let mut outcome = shared.applier.apply(&owner, &spec, &shared.ledger, &|key| shared.sight(key)).await;
        let failed = outcome.refused.is_some();
        if let Some((reason, message)) = &outcome.refused {
            tracing::warn!(work, reason, message, "not applied");
        }
        shared.made(std::mem::take(&mut outcome.made));
        shared.ledger.lock().applied(work, &uid, generation, outcome, &now());
        if failed {
            return shared.todo.retry(work, Instant::now());
        }
    }
    shared.todo.succeeded(work);
    for key in shared.surplus(&owner) {
        if let Err(error) = shared.applier.let_go(&owner, &key).await {
            tracing::warn!(work, object = %key, %error, "not given up");
        }
    }
    // Custom resources may have waited for this definition.
    if Key::of(&spec.object).is_some_and(|k| k.kind == "CustomResourceDefinition") {
        shared.todo.hurry();
    }
}

pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use tombolo_api::{HubRef, PodSummary, Tombstone, Work, WorkSpec};

    use super::*;
    use crate::inside::tests::{Pretend, object, space};
    use crate::keep::Keep;

    #[tokio::test]
    async fn why_a_namespace_is_kept_is_still_said_when_the_last_pod_has_gone() {
        let site = Pretend::new(&[space(), object("ConfigMap", "theirs")]);
        let shared = Shared::new(site.applier(), Keep::new(None), CancellationToken::new());
        let hub = HubRef { id: shared.applier.hub.clone(), epoch: 1, ..Default::default() };
        let tombstone =
            Tombstone { hub: hub.id.clone(), epoch: 1, reason: "deleted".into(), ..Default::default() };
        let spec = WorkSpec { object: space(), hub, tombstone: Some(tombstone), ..Default::default() };
        let mut work = Work::new("a", spec);
        (work.metadata.uid, work.metadata.generation) = (Some("1".into()), Some(1));
        shared.ledger.lock().put(&work);
        shared.ledger.lock().see_pod("a", "last", Some(PodSummary::default()));
        let said = || {
            let ledger = shared.ledger.lock();
            let conditions = &ledger.get("a").expect("known").status.conditions;
            conditions.iter().find(|c| c.r#type == "Removed").map(|c| c.message.clone())
        };
        let epoch = Epoch::new(1);
        act(&shared, &epoch, None, "a").await;
        assert_eq!(said(), None, "a pod is left");
        shared.ledger.lock().see_pod("a", "last", None);
        act(&shared, &epoch, None, "a").await;
        let why = "deleted; Namespace/shop stays: ConfigMap/theirs in it is not this hub's";
        assert_eq!(said().as_deref(), Some(why));
        assert_eq!(site.done(), ["PATCH Namespace/shop"], "it was let go once");
    }
}
