//! Where Service `default/kubernetes` leads: the addresses that the servers of this store listen on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use serde_json::{Value, json};
use tombolo_store::{Expect, Range, StoreError};

use crate::http::status::{Failure, Result};
use crate::registry::write;
use crate::server::App;

const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";

/// The address to publish for a listener: its own, or for a wildcard that of the way out of this machine.
pub fn reachable(listening: SocketAddr) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    SocketAddr::new(outside().unwrap_or(IpAddr::from([127, 0, 0, 1])), listening.port())
}

/// The address other machines reach this one at, if it has a network.
pub fn outside() -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing; it only asks which address would be used.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// The label of slices beside the first one, by which we know them again.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "apiserver.tombolo.dev";

/// Makes `default/kubernetes` lead to exactly these servers, each at its own port.
pub async fn publish(app: &App, servers: &BTreeSet<SocketAddr>) -> Result<()> {
    let slices = slices(servers);
    let Some(first) = slices.first() else { return Ok(()) };
    let mut by_port: BTreeMap<u16, Vec<Value>> = BTreeMap::new();
    for server in servers {
        by_port.entry(server.port()).or_default().push(json!({"ip": server.ip()}));
    }
    let subsets: Vec<Value> = by_port
        .into_iter()
        .map(|(port, addresses)| json!({"addresses": addresses, "ports": ports(port)}))
        .collect();
    ensure(app, "", "endpoints", NAME, |_| {
        json!({
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": subsets,
        })
    })
    .await?;
    for slice in &slices {
        ensure(app, "discovery.k8s.io", "endpointslices", &slice.name, |_| slice.object()).await?;
    }
    forget_others(app, &slices).await?;
    let port = first.port;
    ensure(app, "", "services", NAME, |old| {
        let mut service = old.clone();
        service["spec"]["ports"][0]["targetPort"] = port.into();
        service
    })
    .await
}

/// Servers of one port and one kind of address: an EndpointSlice holds no more.
#[derive(Debug, PartialEq)]
struct Slice {
    name: String,
    port: u16,
    addresses: Vec<IpAddr>,
}

/// The first slice has the Service's own name, where clients look for it.
fn slices(servers: &BTreeSet<SocketAddr>) -> Vec<Slice> {
    let mut groups: BTreeMap<(bool, u16), Vec<IpAddr>> = BTreeMap::new();
    for server in servers {
        groups.entry((server.is_ipv6(), server.port())).or_default().push(server.ip());
    }
    let name = |position: usize, ipv6: bool, port: u16| match (position, ipv6) {
        (0, _) => NAME.to_owned(),
        (_, false) => format!("{NAME}-{port}"),
        (_, true) => format!("{NAME}-{port}-ipv6"),
    };
    let numbered = groups.into_iter().enumerate();
    numbered
        .map(|(n, ((ipv6, port), addresses))| Slice { name: name(n, ipv6, port), port, addresses })
        .collect()
}

impl Slice {
    fn object(&self) -> Value {
        let endpoints: Vec<Value> = self
            .addresses
            .iter()
            .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
            .collect();
        let mut labels = json!({"kubernetes.io/service-name": NAME});
        if self.name != NAME {
            labels[MANAGED_BY] = MANAGER.into();
        }
        json!({
            "metadata": {"name": self.name, "namespace": NAMESPACE, "labels": labels},
            "addressType": if self.addresses.iter().all(IpAddr::is_ipv4) { "IPv4" } else { "IPv6" },
            "endpoints": endpoints, "ports": ports(self.port),
        })
    }
}

fn ports(port: u16) -> Value {
    json!([{"name": "https", "port": port, "protocol": "TCP"}])
}

/// Removes slices of ports that no server has any more.
async fn forget_others(app: &App, wanted: &[Slice]) -> Result<()> {
    let resource =
        app.registry.built_in.find("discovery.k8s.io", "v1", "endpointslices").expect("the kind is built in");
    let prefix = resource.key(NAMESPACE, &format!("{NAME}-"));
    let page = app.store.range(Range::all(&prefix)).await.map_err(|e| app.store_failure(e))?;
    for record in page.records {
        let slice = resource.decode(&record.value, record.revision).unwrap_or_default();
        let ours = slice["metadata"]["labels"][MANAGED_BY] == MANAGER;
        if !ours || wanted.iter().any(|w| slice["metadata"]["name"] == w.name) {
            continue;
        }
        match app.store.delete(&record.key, Expect::Revision(record.revision), resource.durability).await {
            // Who changed it meanwhile wants it; the next round looks again.
            Ok(_) | Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(app.store_failure(error)),
        }
    }
    Ok(())
}

/// Creates or changes an object in namespace `default`; writes only on a difference.
async fn ensure(
    app: &App,
    group: &str,
    plural: &str,
    name: &str,
    wanted: impl Fn(&Value) -> Value,
) -> Result<()> {
    let resource = app.registry.built_in.find(group, "v1", plural).expect("bootstrap kinds are built in");
    let key = resource.key(NAMESPACE, name);
    loop {
        let stored = app.get(&key).await?;
        let old = match &stored {
            Some(record) => resource.decode(&record.value, record.revision).map_err(Failure::internal)?,
            None => Value::Null,
        };
        let mut new = wanted(&old);
        let expect = stored.as_ref().map_or(Expect::Absent, |r| Expect::Revision(r.revision));
        new["apiVersion"] = resource.api_version().into();
        new["kind"] = resource.kind.as_str().into();
        if old.is_null() {
            let metadata = write::metadata(&mut new);
            metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
            metadata.insert("creationTimestamp".into(), write::now().into());
            if resource.rules.generation {
                metadata.insert("generation".into(), 1.into());
            }
        } else {
            new["metadata"] = old["metadata"].clone();
        }
        resource.schema.default(&mut new);
        if new == old {
            return Ok(());
        }
        match app.store.put(&key, resource.encode(&new), expect, resource.durability).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(app.store_failure(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(servers: &[&str]) -> BTreeSet<SocketAddr> {
        servers.iter().map(|s| s.parse().unwrap()).collect()
    }

    #[test]
    fn servers_of_one_port_share_the_slice_with_the_services_name() {
        let slices = slices(&set(&["10.0.0.2:6443", "10.0.0.1:6443"]));
        let brief: Vec<_> = slices.iter().map(|s| (s.name.as_str(), s.port, s.addresses.len())).collect();
        assert_eq!(brief, [("kubernetes", 6443, 2)]);
    }

    #[test]
    fn other_ports_and_other_kinds_of_addresses_have_slices_of_their_own() {
        let slices = slices(&set(&["10.0.0.1:6443", "10.0.0.2:7443", "[fd00::1]:6443", "10.0.0.1:7443"]));
        let brief: Vec<_> = slices.iter().map(|s| (s.name.as_str(), s.port, s.addresses.len())).collect();
        assert_eq!(
            brief,
            [("kubernetes", 6443, 1), ("kubernetes-7443", 7443, 2), ("kubernetes-6443-ipv6", 6443, 1)]
        );
        assert_eq!(slices[2].object()["addressType"], "IPv6");
    }
}
