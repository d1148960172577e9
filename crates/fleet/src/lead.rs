//! Which of several hub replicas acts: a Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tombolo_api::names;

const DURATION: i64 = 15;
const RETRY: Duration = Duration::from_secs(3);

/// May `me` take or keep the lease, at `now`?
pub fn may_lead(holder: &str, renewed: i64, duration: i64, me: &str, now: i64) -> bool {
    holder.is_empty() || holder == me || now > renewed + duration
}

/// Waits until this replica leads.
pub async fn wait(client: &Client, me: &str) {
    loop {
        match try_lead(client, me).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot read or write the leader's lease"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Keeps the lease; returns when it is lost.
pub async fn keep(client: &Client, me: &str) {
    let mut last = std::time::Instant::now();
    loop {
        tokio::time::sleep(RETRY).await;
        match try_lead(client, me).await {
            Ok(true) => last = std::time::Instant::now(),
            Ok(false) => return,
            Err(error) => tracing::warn!(%error, "cannot renew the leader's lease"),
        }
        // Stop before another replica may start.
        if last.elapsed() > Duration::from_secs(DURATION as u64 - 4) {
            return;
        }
    }
}

async fn try_lead(client: &Client, me: &str) -> Result<bool, Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let now = jiff::Timestamp::now();
    let text = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
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
    let renewed = held.renew_time.map_or(0, |t| t.0.as_second());
    let duration = i64::from(held.lease_duration_seconds.unwrap_or(DURATION as i32));
    if !may_lead(held.holder_identity.as_deref().unwrap_or_default(), renewed, duration, me, now.as_second())
    {
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
    fn a_lease_is_taken_only_when_it_is_free_or_over() {
        assert!(may_lead("", 0, 15, "a", 100));
        assert!(may_lead("a", 99, 15, "a", 100));
        assert!(!may_lead("b", 90, 15, "a", 100));
        assert!(may_lead("b", 84, 15, "a", 100));
    }
}
