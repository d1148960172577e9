//! Where Service `default/kubernetes` leads: the addresses that the servers of this store listen on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use serde_json::{Value, json};
use tombolo_store::{Expect, StoreError};

use crate::http::status::{Failure, Result};
use crate::registry::write;
use crate::server::App;

/// The address to publish for a listener: its own, or for a wildcard that of the way out of this machine.
pub fn reachable(listening: SocketAddr) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    // Connecting a datagram socket sends nothing; it only asks which address would be used.
    let probe = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    };
    let ip = probe().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    SocketAddr::new(ip, listening.port())
}

/// Makes `default/kubernetes` lead to exactly these servers.
pub async fn publish(app: &App, servers: &BTreeSet<SocketAddr>) -> Result<()> {
    let mut by_port: BTreeMap<u16, Vec<IpAddr>> = BTreeMap::new();
    for server in servers {
        by_port.entry(server.port()).or_default().push(server.ip());
    }
    // A slice and a Service have one port for all; Endpoints can say more.
    let Some((&port, ips)) = by_port.iter().next() else { return Ok(()) };
    let ports = |port: u16| json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let subsets: Vec<Value> = by_port
        .iter()
        .map(|(port, ips)| {
            let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"addresses": addresses, "ports": ports(*port)})
        })
        .collect();
    ensure(app, "", "endpoints", |_| {
        json!({
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": subsets,
        })
    })
    .await?;
    ensure(app, "discovery.k8s.io", "endpointslices", |_| {
        let endpoints: Vec<Value> =
            ips.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
        json!({
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": if ips.iter().all(IpAddr::is_ipv4) { "IPv4" } else { "IPv6" },
            "endpoints": endpoints, "ports": ports(port),
        })
    })
    .await?;
    ensure(app, "", "services", |old| {
        let mut service = old.clone();
        service["spec"]["ports"][0]["targetPort"] = port.into();
        service
    })
    .await
}

/// Creates or changes the object named `default/kubernetes` of a kind; writes only on a difference.
async fn ensure(app: &App, group: &str, plural: &str, wanted: impl Fn(&Value) -> Value) -> Result<()> {
    let resource = app.registry.built_in.find(group, "v1", plural).expect("bootstrap kinds are built in");
    let key = resource.key("default", "kubernetes");
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
