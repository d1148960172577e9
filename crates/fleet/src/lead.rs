//! Which of several hub replicas acts: a Lease.
//!
//! The clocks of two replicas need not agree: a lease is over when this replica has seen the same version of it for its
//! whole duration, on its own steady clock.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tombolo_api::names;

const DURATION: i64 = 15;
const RETRY: Duration = Duration::from_secs(3);

/// The version of the lease that was last seen, and when it was first seen.
#[derive(Default)]
pub struct Seen(Option<(String, Instant)>);

impl Seen {
    /// How long this version of the lease has been the same.
    fn unchanged(&mut self, version: &str, now: Instant) -> Duration {
        match &self.0 {
            Some((seen, since)) if seen == version => now.saturating_duration_since(*since),
            _ => {
                self.0 = Some((version.to_owned(), now));
                Duration::ZERO
            }
        }
    }
}

/// May `me` take or keep a lease that nobody has renewed for `unchanged`?
pub fn may_lead(holder: &str, unchanged: Duration, duration: Duration, me: &str) -> bool {
    holder.is_empty() || holder == me || unchanged > duration
}

/// Waits until this replica leads.
pub async fn wait(client: &Client, me: &str) {
    let mut seen = Seen::default();
    loop {
        match try_lead(client, me, &mut seen).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot read or write the leader's lease"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Keeps the lease; returns when it is lost.
pub async fn keep(client: &Client, me: &str) {
    let mut seen = Seen::default();
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(RETRY).await;
        match try_lead(client, me, &mut seen).await {
            Ok(true) => last = Instant::now(),
            Ok(false) => return,
            Err(error) => tracing::warn!(%error, "cannot renew the leader's lease"),
        }
        // Stop before another replica may start.
        if last.elapsed() > Duration::from_secs(DURATION as u64 - 4) {
            return;
        }
    }
}

async fn try_lead(client: &Client, me: &str, seen: &mut Seen) -> Result<bool, Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let text = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let parse = |value| serde_json::from_value::<Lease>(value).map_err(Error::SerdeError);
    let spec = json!({"holderIdentity": me, "leaseDurationSeconds": DURATION, "renewTime": text});
    let Some(mut lease) = api.get_opt(names::LEADER_LEASE).await? else {
        let new = parse(json!({"metadata": {"name": names::LEADER_LEASE}, "spec": spec}))?;
        return match api.create(&PostParams::default(), &new).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        };
    };
    let held = lease.spec.clone().unwrap_or_default();
    let unchanged =
        seen.unchanged(lease.metadata.resource_version.as_deref().unwrap_or_default(), Instant::now());
    let duration = u64::try_from(held.lease_duration_seconds.unwrap_or_default()).unwrap_or(DURATION as u64);
    let holder = held.holder_identity.as_deref().unwrap_or_default();
    if !may_lead(holder, unchanged, Duration::from_secs(duration.max(1)), me) {
        return Ok(false);
    }
    lease.spec = parse(json!({"spec": spec, "metadata": {}}))?.spec;
    // The resource version makes this fail if another replica was faster.
    match api.replace(names::LEADER_LEASE, &PostParams::default(), &lease).await {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_it_is_free_or_was_not_renewed_while_we_looked_on() {
        let seconds = Duration::from_secs;
        assert!(may_lead("", seconds(0), seconds(15), "a"));
        assert!(may_lead("a", seconds(0), seconds(15), "a"));
        let (mut seen, start) = (Seen::default(), Instant::now());
        let mut look = |version: &str, after: u64| {
            may_lead("b", seen.unchanged(version, start + seconds(after)), seconds(15), "a")
        };
        // However old it says it is: what counts is what we saw.
        assert!(!look("1", 0));
        assert!(!look("1", 14));
        assert!(!look("2", 16));
        assert!(!look("2", 31));
        assert!(look("2", 32));
    }
}
