//! What every name of the site means. Pure: built from services and endpoint slices, asked by name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// What a name has to offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub addresses: Vec<Ipv4Addr>,
    pub alias: Option<String>,
    /// Port and target name.
    pub services: Vec<(u16, String)>,
    pub text: Option<String>,
    pub pointer: Vec<String>,
}

/// All names of a site, in lower case and without the final dot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    domain: String,
    entries: BTreeMap<String, Entry>,
    /// Names that exist only because something below them does.
    parents: BTreeSet<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Entry(std::borrow::Cow<'a, Entry>),
    /// The name exists, but has nothing itself.
    Empty,
    /// A name of this site that does not exist.
    Missing,
    /// Not a name of this site.
    Elsewhere,
}

fn dashed(address: Ipv4Addr) -> String {
    address.to_string().replace('.', "-")
}

fn reverse(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{d}.{c}.{b}.{a}.in-addr.arpa")
}

impl Zone {
    pub fn build(domain: &str, services: &[Service], slices: &[EndpointSlice]) -> Zone {
        let mut zone = Zone { domain: domain.to_lowercase(), ..Zone::default() };
        zone.entry(format!("dns-version.{domain}")).text = Some("1.1.0".into());
        for service in services {
            zone.add_service(service, slices);
        }
        let suffix = format!(".{}", zone.domain);
        let names: Vec<String> = zone.entries.keys().filter(|n| n.ends_with(&suffix)).cloned().collect();
        for name in names {
            let mut rest = name.as_str();
            while let Some((_, parent)) = rest.split_once('.') {
                if parent.len() < zone.domain.len() || !zone.parents.insert(parent.to_owned()) {
                    break;
                }
                rest = parent;
            }
        }
        zone
    }

    fn entry(&mut self, name: String) -> &mut Entry {
        self.entries.entry(name.to_lowercase()).or_default()
    }

    fn add_service(&mut self, service: &Service, slices: &[EndpointSlice]) {
        let (Some(name), Some(namespace), Some(spec)) =
            (&service.metadata.name, &service.metadata.namespace, &service.spec)
        else {
            return;
        };
        let base = format!("{name}.{namespace}.svc.{}", self.domain);
        if spec.type_.as_deref() == Some("ExternalName") {
            self.entry(base).alias = spec.external_name.clone();
            return;
        }
        let protocol = |p: &Option<String>| p.clone().unwrap_or_else(|| "TCP".into()).to_lowercase();
        if let Some(address) = spec.cluster_ip.as_ref().and_then(|ip| ip.parse::<Ipv4Addr>().ok()) {
            self.entry(base.clone()).addresses.push(address);
            self.entry(reverse(address)).pointer.push(base.clone());
            for port in spec.ports.iter().flatten() {
                if let (Some(port_name), Ok(number)) = (&port.name, u16::try_from(port.port)) {
                    let name = format!("_{port_name}._{}.{base}", protocol(&port.protocol));
                    self.entry(name).services.push((number, base.clone()));
                }
            }
            return;
        }
        // Headless: the endpoints themselves.
        let publish_all = spec.publish_not_ready_addresses == Some(true);
        self.entry(base.clone());
        for slice in slices
            .iter()
            .filter(|s| s.address_type == "IPv4" && s.metadata.namespace.as_ref() == Some(namespace))
        {
            let owner = slice.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
            if owner != Some(name) {
                continue;
            }
            for endpoint in slice.endpoints.iter().flatten() {
                let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
                if !ready && !publish_all {
                    continue;
                }
                for address in endpoint.addresses.iter().filter_map(|a| a.parse::<Ipv4Addr>().ok()) {
                    let label = endpoint
                        .hostname
                        .clone()
                        .filter(|h| !h.is_empty())
                        .unwrap_or_else(|| dashed(address));
                    let own = format!("{label}.{base}");
                    self.entry(base.clone()).addresses.push(address);
                    self.entry(own.clone()).addresses.push(address);
                    if endpoint.hostname.is_some() {
                        self.entry(reverse(address)).pointer.push(own.clone());
                    }
                    for port in slice.ports.iter().flatten() {
                        if let (Some(port_name), Some(Ok(number))) =
                            (port.name.as_ref().filter(|n| !n.is_empty()), port.port.map(u16::try_from))
                        {
                            let name = format!("_{port_name}._{}.{base}", protocol(&port.protocol));
                            self.entry(name).services.push((number, own.clone()));
                        }
                    }
                }
            }
        }
    }

    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    /// Looks up a name without its final dot.
    pub(super) fn find(&self, name: &str) -> Found<'_> {
        let name = name.to_lowercase();
        if let Some(entry) = self.entries.get(&name) {
            return Found::Entry(std::borrow::Cow::Borrowed(entry));
        }
        if name != self.domain && !name.ends_with(&format!(".{}", self.domain)) {
            return Found::Elsewhere;
        }
        if name == self.domain || self.parents.contains(&name) {
            return Found::Empty;
        }
        match self.pod_address(&name) {
            Some(address) => {
                Found::Entry(std::borrow::Cow::Owned(Entry { addresses: vec![address], ..Entry::default() }))
            }
            None => Found::Missing,
        }
    }

    /// `10-1-0-7.namespace.pod.domain` says its own address.
    fn pod_address(&self, name: &str) -> Option<Ipv4Addr> {
        let rest = name.strip_suffix(&self.domain)?.strip_suffix(".pod.")?;
        let (label, namespace) = rest.split_once('.')?;
        if namespace.is_empty() || namespace.contains('.') {
            return None;
        }
        label.replace('-', ".").parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone() -> Zone {
        let object = |value| serde_json::from_value(value).expect("object");
        let services = [
            object(
                serde_json::json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]}}),
            ),
            object(
                serde_json::json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": {"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]}}),
            ),
            object(
                serde_json::json!({"metadata": {"name": "out", "namespace": "shop"}, "spec": {"type": "ExternalName", "externalName": "example.com"}}),
            ),
        ];
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({"metadata": {"name": "db-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4", "ports": [{"name": "sql", "port": 5432}],
            "endpoints": [{"addresses": ["10.1.0.5"], "hostname": "db-0", "conditions": {"ready": true}}, {"addresses": ["10.1.0.6"], "conditions": {"ready": false}}]}))
        .expect("slice");
        Zone::build("cluster.local", &services, &[slice])
    }

    fn addresses(zone: &Zone, name: &str) -> Vec<String> {
        match zone.find(name) {
            Found::Entry(entry) => entry.addresses.iter().map(ToString::to_string).collect(),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn services_headless_services_and_pods_have_addresses() {
        let zone = zone();
        assert_eq!(addresses(&zone, "web.shop.svc.cluster.local"), ["10.96.0.10"]);
        assert_eq!(addresses(&zone, "WEB.shop.SVC.cluster.local"), ["10.96.0.10"]);
        assert_eq!(addresses(&zone, "db.shop.svc.cluster.local"), ["10.1.0.5"], "only the ready one");
        assert_eq!(addresses(&zone, "db-0.db.shop.svc.cluster.local"), ["10.1.0.5"]);
        assert_eq!(addresses(&zone, "10-1-0-9.shop.pod.cluster.local"), ["10.1.0.9"]);
    }

    #[test]
    fn ports_aliases_and_reverse_names_are_known() {
        let zone = zone();
        let Found::Entry(entry) = zone.find("_sql._tcp.db.shop.svc.cluster.local") else { panic!("srv") };
        assert_eq!(entry.services, [(5432, "db-0.db.shop.svc.cluster.local".to_owned())]);
        let Found::Entry(entry) = zone.find("out.shop.svc.cluster.local") else { panic!("alias") };
        assert_eq!(entry.alias.as_deref(), Some("example.com"));
        let Found::Entry(entry) = zone.find("10.0.96.10.in-addr.arpa") else { panic!("pointer") };
        assert_eq!(entry.pointer, ["web.shop.svc.cluster.local"]);
    }

    #[test]
    fn unknown_names_are_missing_here_and_elsewhere_otherwise() {
        let zone = zone();
        assert_eq!(zone.find("nope.shop.svc.cluster.local"), Found::Missing);
        assert_eq!(zone.find("shop.svc.cluster.local"), Found::Empty);
        assert_eq!(zone.find("example.com"), Found::Elsewhere);
        assert_eq!(zone.find("evilcluster.local"), Found::Elsewhere);
    }
}
