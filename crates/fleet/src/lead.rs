//! Which of several hub replicas acts: a Lease.
//!
//! The clocks of two replicas need not agree: a lease is over when this replica has seen the same version of it for its
//! whole duration, on its own steady clock. One that stops in order gives it up, so that another need not wait for that.
//! Whoever leads next takes no site for lost before a whole lease of its own ([`crate::index::Index::since`]), however the
//! lease came to it.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tombolo_api::names;

const DURATION: i64 = 15;
const RETRY: Duration = Duration::from_secs(3);
/// A replica that stops does not wait longer for an API that does not answer.
const FAREWELL: Duration = Duration::from_secs(2);

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

/// Gives the lease up, if this replica has it. Only for one that has stopped to act.
pub async fn give_up(client: &Client, me: &str) {
    match tokio::time::timeout(FAREWELL, release(client, me)).await {
        Ok(Ok(true)) => tracing::info!(replica = me, "no longer leading: the lease is given up"),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the leader's lease is not given up, and ends by itself"),
        Err(_) => tracing::warn!("the leader's lease is not given up in time, and ends by itself"),
    }
}

async fn release(client: &Client, me: &str) -> Result<bool, Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let Some(mut lease) = api.get_opt(names::LEADER_LEASE).await? else { return Ok(false) };
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() != Some(me) {
        return Ok(false);
    }
    spec.holder_identity = None;
    // As with taking it, the resource version keeps this from undoing what another replica did.
    match api.replace(names::LEADER_LEASE, &PostParams::default(), &lease).await {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
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
    use std::sync::Arc;

    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;

    /// An API that has one Lease.
    fn api() -> Client {
        let kept: Arc<Mutex<Option<Value>>> = Arc::default();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let kept = kept.clone();
            async move {
                let method = request.method().to_string();
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut kept = kept.lock();
                let version = kept.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
                let failure = |code: u16, reason: &str| {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "reason": reason, "message": reason, "code": code});
                    (code, status)
                };
                let (code, answer) = match (method.as_str(), kept.as_ref()) {
                    ("GET", Some(lease)) => (200, lease.clone()),
                    ("GET", None) => failure(404, "NotFound"),
                    _ => {
                        let mut lease: Value = serde_json::from_slice(&body).expect("a Lease");
                        if version.as_ref().is_some_and(|v| *v != lease["metadata"]["resourceVersion"]) {
                            failure(409, "Conflict")
                        } else {
                            let next = version.and_then(|v| v.as_str()?.parse::<u64>().ok()).unwrap_or(0) + 1;
                            lease["metadata"]["resourceVersion"] = json!(next.to_string());
                            *kept = Some(lease.clone());
                            (200, lease)
                        }
                    }
                };
                http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_leader_that_stops_gives_its_lease_up_and_another_one_leads_at_once() {
        let api = api();
        let (mut seen_by_a, mut seen_by_b) = (Seen::default(), Seen::default());
        assert!(try_lead(&api, "a", &mut seen_by_a).await.expect("an answer"));
        assert!(!try_lead(&api, "b", &mut seen_by_b).await.expect("an answer"));
        give_up(&api, "b").await;
        assert!(!try_lead(&api, "b", &mut seen_by_b).await.expect("an answer"), "it was not b's to give up");
        give_up(&api, "a").await;
        assert!(try_lead(&api, "b", &mut seen_by_b).await.expect("an answer"));
        give_up(&api, "a").await;
        assert!(!try_lead(&api, "a", &mut seen_by_a).await.expect("an answer"), "b leads now");
    }

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
