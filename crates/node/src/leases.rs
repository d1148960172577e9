//! Follows the leases of the hubs this site is tied to, for the pods that may run at most once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombolo_api::names;

use crate::context::Context;
use crate::fence::{self, Clocks, Terms};
use crate::machine;

/// What each hub acknowledged.
pub(crate) type Renewals = BTreeMap<String, Renewed>;

/// When the newest renewals that one hub acknowledged were sent, on the boot clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Renewed {
    /// For all its Works.
    all: Option<i64>,
    /// For single ones. What a hub has forgotten is not renewed any more, though others are.
    works: BTreeMap<String, i64>,
}

impl Renewed {
    fn of(&self, work: Option<&String>) -> Option<i64> {
        match work {
            Some(work) => self.all.max(self.works.get(work).copied()),
            None => self.all.max(self.works.values().max().copied()),
        }
    }

    /// Says whether it is news.
    fn note(&mut self, works: Option<&str>, sent: i64) -> bool {
        let newer = |old: Option<i64>| old.is_none_or(|old| old < sent);
        let Some(works) = works else {
            let news = newer(self.all);
            self.all = self.all.max(Some(sent));
            return news;
        };
        let mut news = false;
        for work in works.split_whitespace() {
            if newer(self.works.get(work).copied()) {
                self.works.insert(work.to_owned(), sent);
                news = true;
            }
        }
        news
    }
}

/// When the renewal that counts for a pod was sent.
pub(crate) fn renewal(renewals: &Renewals, terms: &Terms) -> Option<i64> {
    let of = |renewed: &Renewed| renewed.of(terms.work.as_ref());
    match &terms.hub {
        Some(hub) => of(renewals.get(hub)?),
        None => renewals.values().map(of).min()?,
    }
}

fn clocks() -> Clocks {
    Clocks {
        machine: machine::machine_id(),
        boot: machine::boot_id(),
        millis: machine::boot_millis(),
        wall: jiff::Timestamp::now(),
    }
}

pub(crate) async fn follow(ctx: Arc<Context>, shutdown: CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => return,
        () = ctx.fenced.notified() => {}
    }
    let api: Api<Lease> = Api::namespaced(ctx.client.clone(), names::SYSTEM_NAMESPACE);
    let leases = watcher(api, watcher::Config::default());
    tokio::pin!(leases);
    let mut first: BTreeMap<String, Option<String>> = BTreeMap::new();
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = leases.next() => event,
        };
        match event {
            None => return,
            // What was known stays: it runs out by itself.
            Some(Err(error)) => {
                tracing::debug!(%error, "the watch on the hubs' leases broke");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Some(Ok(watcher::Event::InitApply(lease) | watcher::Event::Apply(lease))) => {
                note(&ctx.renewals, &mut first, &lease, &clocks());
            }
            Some(Ok(_)) => {}
        }
    }
}

/// A renewal never makes an earlier one undone. One that was sent by another machine counts from the first change on
/// that we see: with no clock in common, what was there before us may be of any age.
fn note(
    renewals: &watch::Sender<Renewals>,
    first: &mut BTreeMap<String, Option<String>>,
    lease: &Lease,
    now: &Clocks,
) {
    let name = lease.name_any();
    let Some(hub) = name.strip_prefix("hub-") else { return };
    let told = lease.annotations().get(names::RENEWAL_ANNOTATION).cloned();
    let ours = told.as_ref().is_some_and(|t| t.contains(&now.boot));
    let seen = first.entry(hub.to_owned()).or_insert_with(|| told.clone());
    if !ours && *seen == told {
        return;
    }
    let Some(sent) = fence::sent(lease, now) else { return };
    let works = lease.annotations().get(names::RENEWED_FOR_ANNOTATION).map(String::as_str);
    renewals.send_if_modified(|all| all.entry(hub.to_owned()).or_default().note(works, sent));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tombolo_api::RenewalSent;

    fn lease(machine: &str, boot: &str, millis: i64) -> Lease {
        let sent = RenewalSent { machine: machine.into(), boot: boot.into(), millis };
        let wall = jiff::Timestamp::from_millisecond(1_000_000_000 + millis).expect("a time");
        serde_json::from_value(json!({
            "metadata": {"name": "hub-north", "annotations": {names::RENEWAL_ANNOTATION: sent.to_string()}},
            "spec": {"renewTime": wall.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()}
        }))
        .expect("lease")
    }

    fn now(millis: i64) -> Clocks {
        let wall = jiff::Timestamp::from_millisecond(1_000_000_000 + millis).expect("a time");
        Clocks { machine: "here".into(), boot: "now".into(), millis, wall }
    }

    #[test]
    fn an_older_renewal_never_shortens_a_lease() {
        let (renewals, mut first) = (watch::Sender::new(Renewals::new()), BTreeMap::new());
        for millis in [5_000, 9_000, 7_000] {
            note(&renewals, &mut first, &lease("here", "now", millis), &now(10_000));
        }
        assert_eq!(renewals.borrow()["north"].of(None), Some(9_000));
    }

    #[test]
    fn what_another_machine_sent_before_we_looked_does_not_count() {
        let (renewals, mut first) = (watch::Sender::new(Renewals::new()), BTreeMap::new());
        note(&renewals, &mut first, &lease("there", "other", 9_000), &now(10_000));
        note(&renewals, &mut first, &lease("there", "other", 9_000), &now(11_000));
        assert!(renewals.borrow().is_empty());
        note(&renewals, &mut first, &lease("there", "other", 12_000), &now(13_000));
        assert_eq!(renewals.borrow()["north"].of(None), Some(10_000));
    }

    #[test]
    fn a_pod_follows_its_own_hub_and_without_one_the_oldest_lease() {
        let all = |sent: i64| Renewed { all: Some(sent), ..Default::default() };
        let renewals = Renewals::from([("north".into(), all(9)), ("south".into(), all(5))]);
        let terms = |hub: Option<&str>| Terms { lease: 1, stop: 0, hub: hub.map(str::to_owned), work: None };
        assert_eq!(renewal(&renewals, &terms(Some("north"))), Some(9));
        assert_eq!(renewal(&renewals, &terms(None)), Some(5));
        assert_eq!(renewal(&renewals, &terms(Some("west"))), None);
    }

    #[test]
    fn a_pod_of_a_work_that_the_hub_no_longer_has_is_not_renewed_with_the_others() {
        let (renewals, mut first) = (watch::Sender::new(Renewals::new()), BTreeMap::new());
        let mut renew = |works: &str, millis: i64| {
            let mut lease = lease("here", "now", millis);
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(names::RENEWED_FOR_ANNOTATION.into(), works.into());
            note(&renewals, &mut first, &lease, &now(10_000));
        };
        renew("web db", 4_000);
        renew("web", 9_000);
        // The same renewal, for one more.
        renew("web mail", 9_000);
        let sent = |work: Option<&str>| {
            let hub = Some("north".to_owned());
            let terms = Terms { lease: 1, stop: 0, hub, work: work.map(str::to_owned) };
            renewal(&renewals.borrow(), &terms)
        };
        assert_eq!(sent(Some("web")), Some(9_000));
        assert_eq!(sent(Some("mail")), Some(9_000));
        assert_eq!(sent(Some("db")), Some(4_000));
        assert_eq!(sent(Some("unknown")), None);
        assert_eq!(sent(None), Some(9_000));
    }
}
