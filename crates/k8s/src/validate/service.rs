//! Services, Endpoints and EndpointSlices.

use std::collections::HashSet;

use std::net::IpAddr;

use serde_json::{Value, json};

use super::addresses::looks_like_ip;
use super::at::{At, Errors, same};
use super::meta;
use super::parts::PROTOCOLS;
use crate::names;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

fn is_headless(spec: &At<'_, '_>) -> bool {
    spec.get("clusterIP").str() == "None"
}

/// The addresses; a client may name only the first, in `clusterIP`.
fn addresses(spec: &At<'_, '_>) -> Value {
    let (one, all) = (spec.get("clusterIP"), spec.get("clusterIPs"));
    if all.is_empty() && !one.is_empty() { json!([one.value]) } else { all.value.clone() }
}

pub(super) fn service_status(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let (status, kind) = (object.get("status"), object.get("spec").get("type").str());
    let balancer = status.get("loadBalancer");
    let ingress = balancer.get("ingress");
    // What is left from when the type was another may stay.
    if kind != "LoadBalancer"
        && !ingress.is_empty()
        && old.pointer("/status/loadBalancer") != Some(balancer.value)
    {
        e.forbidden(&ingress, "may only be used when `spec.type` is 'LoadBalancer'");
    }
    if kind == "LoadBalancer" {
        balancer_points(e, &ingress, &old["status"]["loadBalancer"]["ingress"]);
    }
}

/// The points where a load balancer takes traffic. Those that the stored status has may stay as they are.
pub(super) fn balancer_points(e: &mut Errors, points: &At<'_, '_>, old: &Value) {
    let known: HashSet<&Value> = old.as_array().into_iter().flatten().collect();
    for point in points.items().filter(|point| !known.contains(point.value)) {
        let (ip, mode, host) = (point.get("ip"), point.get("ipMode"), point.get("hostname"));
        if !ip.is_empty() {
            e.ip(&ip);
        }
        if mode.is_set() && ip.is_empty() {
            e.forbidden(&mode, "may not be specified when `ip` is not set");
        } else {
            e.set_one_of(&mode, &["Proxy", "VIP"]);
        }
        if !host.is_empty() {
            e.complaints(&host, names::dns_subdomain(host.str()));
            if looks_like_ip(host.str()) {
                e.invalid(&host, "must be a DNS name, not an IP address");
            }
        }
    }
}

pub(super) fn service(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let (ports, kind, named) = (spec.get("ports"), spec.get("type"), addresses(&spec));
    let ips = spec.get("clusterIPs").with(&named);
    let headless = is_headless(&spec);
    if ports.is_empty() && !headless && kind.str() != "ExternalName" {
        e.required(&ports, "");
    }
    match kind.str() {
        "LoadBalancer" | "NodePort" if headless => {
            e.invalid(&ips.index(0), format!("may not be set to 'None' for {} services", kind.str()));
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !spec.get(field).is_empty() {
                    e.forbidden(&spec.get(field), "may not be set for ExternalName services");
                }
            }
            let name = spec.get("externalName");
            match name.str().trim_end_matches('.') {
                "" => e.required(&name, ""),
                host => e.complaints(&name.with(&Value::from(host)), names::dns_subdomain(host)),
            }
        }
        _ => {}
    }
    service_ports(e, &ports, kind.str());
    meta::labels(e, &spec.get("selector"));
    let affinity = spec.get("sessionAffinity");
    e.one_of(&affinity, &["ClientIP", "None"]);
    let config = spec.get("sessionAffinityConfig");
    match affinity.str() {
        "ClientIP" => {
            let client = config.get("clientIP");
            let timeout = client.get("timeoutSeconds");
            let missing = [&config, &client, &timeout].into_iter().find(|at| !at.is_set());
            match missing {
                Some(at) => e.required(at, "when session affinity type is ClientIP"),
                None => {
                    if timeout.int().is_some_and(|t| !(1..=86400).contains(&t)) {
                        e.invalid(&timeout, "must be greater than 0 and less than 86400");
                    }
                }
            }
        }
        "None" if config.is_set() => {
            e.forbidden(&config, "must not be set when session affinity is None");
        }
        _ => {}
    }
    if kind.str() != "ExternalName" {
        cluster_ips(e, &spec, &ips);
    }
    for ip in spec.get("externalIPs").items() {
        if e.ip(&ip) {
            e.endpoint_ip(&ip);
        }
    }
    e.one_of(&kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    load_balancer(e, object, &spec);
    traffic_policies(e, &spec);
}

fn service_ports(e: &mut Errors, ports: &At<'_, '_>, kind: &str) {
    let mut names = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if name.is_empty() {
            if ports.len() > 1 {
                e.required(&name, "");
            }
        } else {
            e.complaints(&name, names::dns_label(name.str()));
            if !names.insert(name.str()) {
                e.duplicate(&name);
            }
        }
        e.port(&port.get("port"));
        e.one_of(&port.get("protocol"), &PROTOCOLS);
        e.port_or_name(&port.get("targetPort"));
        let app = port.get("appProtocol");
        if app.is_set() {
            e.complaints(&app, names::label_key(app.str()));
        }
    }
    if kind == "ClusterIP" {
        for port in ports.items().filter(|p| p.get("nodePort").int().is_some_and(|n| n != 0)) {
            e.forbidden(&port.get("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let (mut numbers, mut node_ports) = (HashSet::new(), HashSet::new());
    for port in ports.items() {
        let (protocol, node_port) = (port.get("protocol").str(), port.get("nodePort"));
        if node_port.int().is_some_and(|n| n != 0) && !node_ports.insert((node_port.int(), protocol)) {
            e.duplicate(&node_port);
        }
        if !numbers.insert((port.get("port").int(), protocol)) {
            // Upstream shows the key as a whole port of its internal form.
            let shown = json!({"Name": "", "Protocol": protocol, "AppProtocol": null,
                "Port": port.get("port").value, "TargetPort": 0, "NodePort": 0});
            e.duplicate(&port.with(&shown));
        }
    }
}

fn cluster_ips(e: &mut Errors, spec: &At<'_, '_>, ips: &At<'_, '_>) {
    let (ip, families) = (spec.get("clusterIP"), spec.get("ipFamilies"));
    if !ip.is_empty() && ips.index(0).str() != ip.str() {
        e.invalid(ips, "first value must match `clusterIP`");
    } else if ip.is_empty() && !ips.is_empty() {
        e.invalid(ips, "must be empty when `clusterIP` is not specified");
    }
    let mut seen = HashSet::new();
    for family in families.items() {
        e.optional_one_of(&family, &FAMILIES);
        if !seen.insert(family.str()) {
            e.duplicate(&family);
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    e.optional_one_of(&spec.get("ipFamilyPolicy"), &policies);
    let mut bad = false;
    for (i, address) in ips.items().enumerate() {
        if i == 0 && address.str() == "None" {
            if ips.len() > 1 {
                bad = true;
                e.invalid(ips, "'None' must be the first and only value");
            }
            continue;
        }
        bad |= !e.ip(&address);
    }
    if ips.len() > 2 {
        e.invalid(ips, "may only hold up to 2 values");
    }
    if bad {
        return;
    }
    let is_v6 = |text: &str| text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    if ips.len() > 1 && is_v6(ips.index(0).str()) == is_v6(ips.index(1).str()) {
        e.invalid(ips, "may specify no more than one IP for each IP family");
    }
    if !is_headless(spec) {
        for (i, (address, family)) in ips.items().zip(families.items()).enumerate() {
            let wrong = match family.str() {
                "IPv4" => is_v6(address.str()),
                "IPv6" => !is_v6(address.str()),
                _ => false,
            };
            if wrong {
                let detail = format!("expected an {} value as indicated by `ipFamilies[{i}]`", family.str());
                e.invalid(&address, detail);
            }
        }
    }
}

fn load_balancer(e: &mut Errors, object: &At<'_, '_>, spec: &At<'_, '_>) {
    let balanced = spec.get("type").str() == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    let ranges = spec.get("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // Upstream spells this one with a capital.
        let shown = spec.get("LoadBalancerSourceRanges").with(ranges.value);
        if !balanced {
            e.forbidden(&shown, only);
        }
        for range in shown.items() {
            e.cidr(&range.with(&Value::from(range.str().trim())));
        }
    }
    let allocate = spec.get("allocateLoadBalancerNodePorts");
    if allocate.is_set() && !balanced {
        e.forbidden(&allocate, only);
    }
    if balanced && !allocate.is_set() {
        e.required(&object.get("allocateLoadBalancerNodePorts"), "");
    }
    let class = spec.get("loadBalancerClass");
    if class.is_set() {
        if balanced {
            e.complaints(&class, names::label_key(class.str()));
        } else {
            e.forbidden(&class, only);
        }
    }
}

fn traffic_policies(e: &mut Errors, spec: &At<'_, '_>) {
    let kind = spec.get("type").str();
    let external = spec.get("externalTrafficPolicy");
    let reachable = matches!(kind, "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !spec.get("externalIPs").is_empty());
    if !reachable {
        if !external.is_empty() {
            e.invalid(&external, "may only be set for externally-accessible services");
        }
    } else {
        e.one_of(&external, &["Cluster", "Local"]);
    }
    let health = spec.get("healthCheckNodePort");
    let port = health.int().unwrap_or_default();
    if kind == "LoadBalancer" && external.str() == "Local" {
        // The server allocates one when the client names none.
        if port != 0 {
            e.port(&health);
        }
    } else if port != 0 {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        e.invalid(&health, detail);
    }
    let internal = spec.get("internalTrafficPolicy");
    if internal.is_set() {
        e.optional_one_of(&internal, &["Cluster", "Local"]);
    } else if matches!(kind, "NodePort" | "LoadBalancer" | "ClusterIP") {
        e.required(&internal, "");
    }
    let close = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    e.optional_one_of(&spec.get("trafficDistribution"), &close);
}

pub(super) fn service_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    let before = At::root(old);
    let old_spec = before.get("spec");
    let kinds = [spec.get("type").str(), old_spec.get("type").str()];
    let headless = is_headless(&spec) && is_headless(&old_spec);
    if !kinds.contains(&"ExternalName") && !headless {
        let named = addresses(&spec);
        let (ips, old_ips) = (spec.get("clusterIPs").with(&named), old_spec.get("clusterIPs"));
        if ips.len() == old_ips.len() {
            for (i, (new, old)) in ips.items().zip(old_ips.items()).enumerate() {
                if new.str() != old.str() {
                    e.invalid_value(&ips.index(i), ips.value, "may not change once set");
                }
            }
        } else if ips.is_empty() && !old_ips.is_empty() {
            let none = Value::Array(Vec::new());
            let shown = if ips.is_set() { ips.value } else { &none };
            e.invalid_value(&ips.index(0), shown, "primary clusterIP can not be unset");
        } else if !old_ips.is_empty() && ips.index(0).str() != old_ips.index(0).str() {
            e.invalid_value(&ips.index(0), ips.value, "may not change once set");
        }
    }
    if kinds == ["LoadBalancer", "LoadBalancer"] {
        let class = spec.get("loadBalancerClass");
        if !same(class.value, old_spec.get("loadBalancerClass").value) {
            e.invalid_value(&class, class.value, "may not change once set");
        }
    }
    service(e, object);
}

pub(super) fn endpoints(e: &mut Errors, object: &At<'_, '_>) {
    for subset in object.get("subsets").items() {
        let (ready, not_ready) = (subset.get("addresses"), subset.get("notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            e.required(&subset, "must specify `addresses` or `notReadyAddresses`");
        }
        for address in ready.items().chain(not_ready.items()) {
            let ip = address.get("ip");
            e.ip(&ip);
            let (host, node) = (address.get("hostname"), address.get("nodeName"));
            if !host.is_empty() {
                e.complaints(&host, names::dns_label(host.str()));
            }
            if node.is_set() {
                e.complaints(&node, names::dns_subdomain(node.str()));
            }
            e.endpoint_ip(&ip);
        }
        let ports = subset.get("ports");
        for port in ports.items() {
            let name = port.get("name");
            if !name.is_empty() {
                e.complaints(&name, names::dns_label(name.str()));
            } else if ports.len() > 1 {
                e.required(&name, "");
            }
            e.port(&port.get("port"));
            e.one_of(&port.get("protocol"), &PROTOCOLS);
        }
    }
}

pub(super) fn endpoint_slice(e: &mut Errors, object: &At<'_, '_>) {
    let kind = object.get("addressType");
    e.one_of(&kind, &["FQDN", "IPv4", "IPv6"]);
    let mut names = HashSet::new();
    for port in object.get("ports").items() {
        let name = port.get("name");
        if !name.is_empty() {
            e.complaints(&name, names::dns_label(name.str()));
        }
        if !names.insert(name.str()) {
            e.duplicate(&name.with(&Value::from(name.str())));
        }
        e.one_of(&port.get("protocol"), &PROTOCOLS);
    }
    let endpoints = object.get("endpoints");
    if endpoints.len() > 1000 {
        e.too_many(&endpoints, endpoints.len(), 1000);
        return;
    }
    for endpoint in endpoints.items() {
        let addresses = endpoint.get("addresses");
        if addresses.is_empty() {
            e.required(&addresses, "must contain at least 1 address");
        } else if addresses.len() > 100 {
            e.too_many(&addresses, addresses.len(), 100);
        }
        for address in addresses.items().filter(|_| matches!(kind.str(), "IPv4" | "IPv6")) {
            if !e.ip(&address) {
                continue;
            }
            let v6 = address.str().contains(':');
            if v6 != (kind.str() == "IPv6") {
                e.invalid_value(&addresses, address.value, format!("must be an {} address", kind.str()));
            }
            e.endpoint_ip(&address);
        }
        let (node, host) = (endpoint.get("nodeName"), endpoint.get("hostname"));
        if node.is_set() {
            e.complaints(&node, names::dns_subdomain(node.str()));
        }
        if host.is_set() {
            e.complaints(&host, names::dns_label(host.str()));
        }
    }
}

pub(super) fn endpoint_slice_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    endpoint_slice(e, object);
    e.immutable(&object.get("addressType"), &old["addressType"]);
}
