//! Several servers over one store: each keeps a Lease, and `default/kubernetes` leads to those whose Lease is alive.
//!
//! A Lease counts as dead when it was not renewed for a while by this server's own clock: clocks of machines need not
//! agree. A server that stops in order takes its Lease with it.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tombolo_store::{Expect, Range, StoreError};

use super::endpoints;
use crate::http::status::{Failure, Result};
use crate::registry::resource::Shared;
use crate::registry::write;
use crate::server::App;

/// As upstream's servers do: dead after three missed renewals.
const RENEW: Duration = Duration::from_secs(5);
const DEAD: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_secs(2);
const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "tombolo-apiserver-";

/// Publishes this server's address, for one that listens everywhere that of its machine. The only server of a store
/// replaces what an earlier run left; one of several adds itself, stays among them until it stops, and removes those
/// that are gone.
pub async fn announce(app: &Arc<App>, listening: SocketAddr) -> Result<()> {
    let address = endpoints::reachable(listening);
    if !app.config.replicated {
        if listening.ip().is_unspecified() {
            app.tracker.spawn(follow(app.clone(), listening, address));
        }
        return endpoints::publish(app, &BTreeSet::from([address])).await;
    }
    let mut others = Others::default();
    round(app, address, &mut others).await?;
    let (app, stop) = (app.clone(), app.stop.clone());
    app.tracker.clone().spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(RENEW) => {}
            }
            if let Err(error) = round(&app, address, &mut others).await {
                tracing::warn!(%error, "cannot renew this server's lease");
            }
        }
        if let Err(error) = leave(&app, address, &mut others).await {
            tracing::warn!(%error, "cannot withdraw this server's address");
        }
    });
    Ok(())
}

/// The machine may get its network, or another one, while the server runs.
async fn follow(app: Arc<App>, listening: SocketAddr, mut published: SocketAddr) {
    loop {
        tokio::select! {
            () = app.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = endpoints::reachable(listening);
        if now == published || now.ip().is_loopback() {
            continue;
        }
        match endpoints::publish(&app, &BTreeSet::from([now])).await {
            Ok(()) => published = now,
            Err(error) => tracing::warn!(%error, "cannot publish this server's new address"),
        }
    }
}

/// Renews the own Lease and puts right where the Service leads.
async fn round(app: &App, address: SocketAddr, others: &mut Others) -> Result<()> {
    renew(app, address).await?;
    let mut servers = living(app, address, others).await?;
    servers.insert(address);
    endpoints::publish(app, &servers).await
}

async fn leave(app: &App, address: SocketAddr, others: &mut Others) -> Result<()> {
    remove(app, &leases(app).key(NAMESPACE, &name(address)), Expect::Any).await?;
    let servers = living(app, address, others).await?;
    endpoints::publish(app, &servers).await
}

/// The other servers that are alive. Leases of dead ones are removed.
async fn living(app: &App, own: SocketAddr, others: &mut Others) -> Result<BTreeSet<SocketAddr>> {
    let prefix = leases(app).key(NAMESPACE, PREFIX);
    let page = app.store.range(Range::all(&prefix)).await.map_err(|e| app.store_failure(e))?;
    let own_key = leases(app).key(NAMESPACE, &name(own));
    let found: Vec<_> = page.records.iter().filter(|r| *r.key != *own_key).collect();
    let dead = others.dead(found.iter().map(|r| (&*r.key, r.revision)), Instant::now());
    let mut alive = BTreeSet::new();
    for record in found {
        if dead.contains(&*record.key) {
            remove(app, &record.key, Expect::Revision(record.revision)).await?;
            continue;
        }
        let lease = leases(app).decode(&record.value, record.revision).unwrap_or_default();
        alive.extend(lease["spec"]["holderIdentity"].as_str().and_then(|a| a.parse::<SocketAddr>().ok()));
    }
    Ok(alive)
}

/// When which Lease was last seen to change.
#[derive(Default)]
struct Others {
    seen: HashMap<String, (u64, Instant)>,
}

impl Others {
    /// Takes note of the Leases as they are now; names those that did not change for too long.
    fn dead<'a>(&mut self, leases: impl Iterator<Item = (&'a str, u64)>, now: Instant) -> BTreeSet<String> {
        let mut next = HashMap::new();
        let mut dead = BTreeSet::new();
        for (key, revision) in leases {
            let since = match self.seen.get(key) {
                Some((known, since)) if *known == revision => *since,
                _ => now,
            };
            if now.saturating_duration_since(since) >= DEAD {
                dead.insert(key.to_owned());
            }
            next.insert(key.to_owned(), (revision, since));
        }
        self.seen = next;
        dead
    }
}

async fn renew(app: &App, address: SocketAddr) -> Result<()> {
    let resource = leases(app);
    let key = resource.key(NAMESPACE, &name(address));
    let mut lease = match app.get(&key).await? {
        Some(record) => resource.decode(&record.value, record.revision).map_err(Failure::internal)?,
        None => fresh(&name(address)),
    };
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    lease["spec"] = json!({
        "holderIdentity": address.to_string(), "leaseDurationSeconds": DEAD.as_secs(), "renewTime": now,
    });
    let written = app.store.put(&key, resource.encode(&lease), Expect::Any, resource.durability).await;
    written.map(drop).map_err(|e| app.store_failure(e))
}

fn fresh(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": write::now(), "labels": {"apiserver.kubernetes.io/identity": "tombolo"},
        },
    })
}

async fn remove(app: &App, key: &str, expect: Expect) -> Result<()> {
    match app.store.delete(key, expect, leases(app).durability).await {
        Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
        Err(error) => Err(app.store_failure(error)),
    }
}

fn leases(app: &App) -> &Shared {
    app.registry.built_in.find("coordination.k8s.io", "v1", "leases").expect("the tables hold Lease")
}

/// A name that an object may have, the same after a restart.
fn name(address: SocketAddr) -> String {
    let host = address.ip().to_string().replace([':', '.'], "-");
    format!("{PREFIX}{}-{}", host.trim_matches('-'), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_dead_when_it_stands_still() {
        let mut others = Others::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(others.dead([("a", 1), ("b", 1)].into_iter(), at(0)).is_empty());
        assert!(others.dead([("a", 2), ("b", 1)].into_iter(), at(10)).is_empty());
        assert_eq!(others.dead([("a", 2), ("b", 1)].into_iter(), at(15)), BTreeSet::from(["b".to_owned()]));
        assert_eq!(others.dead([("a", 2)].into_iter(), at(25)), BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn every_server_has_a_lease_of_its_own() {
        assert_eq!(name("10.0.0.1:6443".parse().unwrap()), "tombolo-apiserver-10-0-0-1-6443");
        assert_eq!(name("[::1]:6443".parse().unwrap()), "tombolo-apiserver-1-6443");
    }
}
