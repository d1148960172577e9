//! Where Service `default/kubernetes` leads: the address this server listens on.

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

/// Writes the Endpoints and EndpointSlice. With several servers over one store each adds itself; a single one
/// replaces what an earlier run left.
pub async fn publish(app: &App, address: SocketAddr) -> Result<()> {
    let together = app.config.replicated;
    ensure(app, "", "endpoints", |old| {
        let mut ips = addresses(old.pointer("/subsets/0/addresses"), "ip", together);
        add(&mut ips, address.ip());
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let ports = json!([{"name": "https", "port": address.port(), "protocol": "TCP"}]);
        json!({
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": ips, "ports": ports}],
        })
    })
    .await?;
    ensure(app, "discovery.k8s.io", "endpointslices", |old| {
        let mut ips: Vec<String> = Vec::new();
        for endpoint in old["endpoints"].as_array().into_iter().flatten().filter(|_| together) {
            ips.extend(endpoint["addresses"].as_array().into_iter().flatten().filter_map(|a| a.as_str().map(str::to_owned)));
        }
        add(&mut ips, address.ip());
        let endpoints: Vec<Value> =
            ips.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
        json!({
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": endpoints, "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
        })
    })
    .await?;
    ensure(app, "", "services", |old| {
        let mut service = old.clone();
        service["spec"]["ports"][0]["targetPort"] = address.port().into();
        service
    })
    .await
}

fn addresses(list: Option<&Value>, key: &str, keep: bool) -> Vec<String> {
    let list = list.and_then(Value::as_array).filter(|_| keep);
    list.into_iter().flatten().filter_map(|a| a[key].as_str().map(str::to_owned)).collect()
}

fn add(ips: &mut Vec<String>, ip: IpAddr) {
    let text = ip.to_string();
    if !ips.contains(&text) {
        ips.push(text);
    }
    ips.sort();
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
