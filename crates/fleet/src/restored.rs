//! A hub whose store is an old copy, and workloads that may run at most once.
//!
//! Such a hub does not know where they went since the copy was made. What it takes for the place of one may be the place
//! of yesterday, while another site runs it. But none of them runs for longer than its lease without a hub that is heard,
//! and after that only where a Work of this hub speaks of it. So the hub lets one lease pass before any site hears of it.

use std::path::Path;
use std::time::{Duration, Instant};

use kube::api::{Api, ListParams};
use kube::{Client, Error};
use tombolo_api::{Placement, Work};

use crate::decide::FENCE_MARGIN;
use crate::render::LEASE_SECONDS;

/// Seconds that sites may take to come back to a hub that did not let them in.
pub const RETURN: i64 = 60;

/// What must pass before the past is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet {
    pub until: Instant,
    /// Workloads that may run at most once are known here: their sites must not hear of them before.
    pub doors: bool,
}

/// How long to be quiet, by the longest lease known. Nobody knows what was placed since the copy was made: at least the
/// lease that every workload gets which asks for none.
fn quiet(leases: impl Iterator<Item = i64>, began: Instant) -> Quiet {
    let longest = leases.max();
    let seconds = longest.unwrap_or(0).max(LEASE_SECONDS) + FENCE_MARGIN;
    Quiet { until: began + Duration::from_secs(seconds.unsigned_abs()), doors: longest.is_some() }
}

/// For a hub that was just started from an old copy.
pub async fn look(client: &Client, began: Instant) -> Result<Quiet, Error> {
    let mut leases = Vec::new();
    for placement in Api::<Placement>::all(client.clone()).list(&ListParams::default()).await? {
        let failover = placement.spec.failover;
        leases.extend(failover.at_most_once.then(|| failover.lease_seconds.unwrap_or(LEASE_SECONDS)));
    }
    let works: Api<Work> = Api::all(client.clone());
    let mut params = ListParams::default().limit(200);
    loop {
        let page = works.list(&params).await?;
        leases.extend(page.items.iter().filter_map(|work| Some(work.spec.lease.as_ref()?.seconds)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(quiet(leases.into_iter(), began)),
        }
    }
}

/// The past is over: the next start of this hub is an ordinary one.
pub async fn forget(mark: &Path, quiet: Quiet) {
    tokio::time::sleep_until(quiet.until.into()).await;
    if let Err(error) = std::fs::remove_file(mark)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, file = %mark.display(), "the next start will be taken for one from a backup again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_hub_is_quiet_for_the_longest_lease_and_closes_its_doors_only_if_there_is_one() {
        let began = Instant::now();
        let seconds = |leases: &[i64]| {
            let quiet = quiet(leases.iter().copied(), began);
            ((quiet.until - began).as_secs(), quiet.doors)
        };
        assert_eq!(seconds(&[]), (55, false));
        assert_eq!(seconds(&[11, 30]), (55, true));
        assert_eq!(seconds(&[11, 300]), (315, true));
    }
}
