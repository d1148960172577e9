//! Each replica writes that it hears the sites that are tied to it, for the others to read. A site of which it cannot write so, it lets
//! go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;

use crate::config::FleetConfig;
use crate::sites;
use crate::tunnels::Tied;

/// A replica that could not write for so long that it hears a site lets go of it: the others count it as silent by then.
const MUTE: Duration = Duration::from_secs(5);
/// A write that takes longer is tried again.
const WRITING: Duration = Duration::from_secs(10);
/// When many sites come at once, they are looked at together.
const GATHER: Duration = Duration::from_millis(50);

/// Between two writes of a site's lease.
fn pause(lease: Duration) -> Duration {
    (lease / 3).max(Duration::from_millis(500))
}

/// The longest that a site is heard without a word of it.
fn longest(lease: Duration) -> Duration {
    pause(lease) + MUTE
}

/// The same in seconds, for those who count silence; ties are looked at every second.
pub fn unheard(lease: Duration) -> i64 {
    i64::try_from(longest(lease).as_secs()).unwrap_or(i64::MAX / 4) + 2
}

/// When the lease of each tie was last written: the tie's age tells it from an earlier one of that site.
pub type Written = Arc<Mutex<HashMap<String, (Instant, Instant)>>>;

/// Every replica writes the leases of the sites that are tied to it: of new ties soon, of the others in turn.
pub async fn leases(config: Arc<FleetConfig>, written: Written) {
    let seconds = i64::try_from(config.lease.as_secs()).unwrap_or(40);
    let between = pause(config.lease);
    let mut ties = config.tunnels.changes();
    loop {
        let tied = config.tunnels.tied();
        let now = Instant::now();
        let due: Vec<_> = {
            let mut written = written.lock();
            written.retain(|site, (since, _)| tied.iter().any(|t| t.site == *site && t.since == *since));
            let is_due = |tie: &Tied| written.get(&tie.site).is_none_or(|(_, at)| now - *at >= between);
            tied.into_iter().filter(is_due).collect()
        };
        let renewals = due.into_iter().map(|tie| {
            let (config, written) = (config.clone(), written.clone());
            async move {
                let began = Instant::now();
                match tokio::time::timeout(WRITING, sites::renew(&config, &tie, seconds)).await {
                    Ok(Ok(())) => drop(written.lock().insert(tie.site, (tie.since, began))),
                    Ok(Err(error)) => tracing::debug!(site = tie.site, %error, "a lease was not renewed"),
                    Err(_) => tracing::debug!(site = tie.site, "a lease was not renewed in time"),
                }
            }
        });
        futures::stream::iter(renewals).buffer_unordered(32).collect::<Vec<()>>().await;
        // Leases fall due one by one after their ties were made; looking often enough keeps them all fresh.
        tokio::select! {
            () = tokio::time::sleep(between / 8) => {}
            _ = ties.changed() => tokio::time::sleep(GATHER).await,
        }
    }
}

/// Whoever cannot say that it hears a site must not be heard by it: the site would count on a lease that all others take for
/// over.
pub async fn let_go(config: Arc<FleetConfig>, written: Written) {
    let most = longest(config.lease);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let unwritten: Vec<Tied> = {
            let written = written.lock();
            let last = |tie: &Tied| {
                written
                    .get(&tie.site)
                    .filter(|(since, _)| *since == tie.since)
                    .map_or(tie.since, |(_, at)| *at)
            };
            config.tunnels.tied().into_iter().filter(|tie| last(tie).elapsed() > most).collect()
        };
        for tie in unwritten {
            tracing::warn!(site = tie.site, "this replica cannot write that it hears the site");
            config.tunnels.cut(&tie.site, "this replica of the hub has lost its store");
        }
    }
}
