//! Services as this node serves them: from API objects to address translation rules. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::address::Subnet;
use crate::nft::{AffinitySet, Chain, Expr, Hook, Protocol, Transaction};

/// Packets whose source must become the node's.
const MASQUERADE: u32 = 0x4000;

/// One port of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServicePort {
    /// `namespace/name:port`, for humans.
    pub name: String,
    pub protocol: Protocol,
    pub addresses: Vec<Ipv4Addr>,
    pub port: u16,
    pub node_port: Option<u16>,
    /// Chosen for connections from inside.
    pub endpoints: Vec<(Ipv4Addr, u16)>,
    /// Chosen for connections from outside; differs when the service asks for local ones.
    pub external_endpoints: Vec<(Ipv4Addr, u16)>,
    pub keep_source: bool,
    /// Seconds a client stays with its endpoint.
    pub affinity: Option<u32>,
}

fn local(endpoint: &Endpoint, node: &str) -> bool {
    endpoint.node_name.as_deref() == Some(node)
}

/// Ready endpoints; where there are none, those that still serve while they end.
fn usable(endpoints: &[(&Endpoint, u16)], fits: impl Fn(&Endpoint) -> bool) -> Vec<(Ipv4Addr, u16)> {
    let condition = |e: &Endpoint,
                     pick: fn(&k8s_openapi::api::discovery::v1::EndpointConditions) -> Option<bool>,
                     default| { e.conditions.as_ref().and_then(pick).unwrap_or(default) };
    let list = |good: &dyn Fn(&Endpoint) -> bool| -> Vec<(Ipv4Addr, u16)> {
        let mut list: Vec<(Ipv4Addr, u16)> = endpoints
            .iter()
            .filter(|(e, _)| fits(e) && good(e))
            .flat_map(|(e, port)| e.addresses.iter().filter_map(|a| a.parse().ok()).map(|a| (a, *port)))
            .collect();
        list.sort_unstable();
        list.dedup();
        list
    };
    let ready = list(&|e| condition(e, |c| c.ready, true));
    if !ready.is_empty() {
        return ready;
    }
    list(&|e| condition(e, |c| c.serving, false) && condition(e, |c| c.terminating, false))
}

/// Every service port, in a stable order.
pub(crate) fn service_ports(services: &[Service], slices: &[EndpointSlice], node: &str) -> Vec<ServicePort> {
    let mut by_service: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in slices.iter().filter(|s| s.address_type == "IPv4") {
        let label = slice.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
        if let (Some(service), Some(namespace)) = (label, &slice.metadata.namespace) {
            by_service.entry((namespace, service)).or_default().push(slice);
        }
    }
    let mut ports = Vec::new();
    for service in services {
        let (Some(name), Some(namespace), Some(spec)) =
            (&service.metadata.name, &service.metadata.namespace, &service.spec)
        else {
            continue;
        };
        let mut addresses: Vec<Ipv4Addr> = spec
            .cluster_ips
            .iter()
            .flatten()
            .chain(&spec.cluster_ip)
            .filter_map(|ip| ip.parse().ok())
            .collect();
        addresses.dedup();
        if addresses.is_empty() {
            continue;
        }
        addresses.extend(spec.external_ips.iter().flatten().filter_map(|ip| ip.parse::<Ipv4Addr>().ok()));
        let slices = by_service.get(&(namespace.as_str(), name.as_str())).cloned().unwrap_or_default();
        for port in spec.ports.iter().flatten() {
            let protocol = protocol_of(port.protocol.as_deref().unwrap_or("TCP"));
            let Ok(number) = u16::try_from(port.port) else { continue };
            let endpoints: Vec<(&Endpoint, u16)> = slices
                .iter()
                .flat_map(|slice| {
                    let wanted = port.name.clone().unwrap_or_default();
                    let target =
                        slice.ports.iter().flatten().find(|p| p.name.clone().unwrap_or_default() == wanted);
                    let target = target.and_then(|p| u16::try_from(p.port?).ok());
                    slice.endpoints.iter().flatten().filter_map(move |e| Some((e, target?)))
                })
                .collect();
            let only_here = |policy: &Option<String>| policy.as_deref() == Some("Local");
            let internal_local = only_here(&spec.internal_traffic_policy);
            let keep_source = only_here(&spec.external_traffic_policy);
            let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
                let config =
                    spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
                config.and_then(|s| u32::try_from(s).ok()).unwrap_or(10_800)
            });
            ports.push(ServicePort {
                name: format!("{namespace}/{name}:{}", port.name.clone().unwrap_or_default()),
                protocol,
                addresses: addresses.clone(),
                port: number,
                node_port: port.node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0),
                endpoints: usable(&endpoints, |e| !internal_local || local(e, node)),
                external_endpoints: usable(&endpoints, |e| !keep_source || local(e, node)),
                keep_source,
                affinity,
            });
        }
    }
    ports.sort_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
    ports
}

/// A port of this machine that leads to a port of one of its pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Only on this address of the machine; `None`: on all.
    pub address: Option<Ipv4Addr>,
    pub port: u16,
    pub pod: Ipv4Addr,
    pub pod_port: u16,
}

/// What the rules know of the node.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub table: String,
    /// This node's pods.
    pub pods: Subnet,
    /// Where pods of any node have their addresses: never masqueraded.
    pub cluster: Subnet,
}

/// The whole table as one transaction.
pub(crate) fn transaction(
    around: &Surroundings,
    ports: &[ServicePort],
    host_ports: &[HostPort],
) -> Transaction {
    let mut t = Transaction::replace(&around.table);
    let base =
        |name: &str, hook, priority, nat| Chain { name: name.into(), hook: Some((hook, priority)), nat };
    let plain = |name: String| Chain { name, hook: None, nat: false };
    const DNAT: i32 = -100;
    const SNAT: i32 = 100;
    t.chain(&plain("services".into()));
    t.chain(&plain("no-endpoints".into()));
    t.chain(&base("nat-prerouting", Hook::Prerouting, DNAT, true));
    t.chain(&base("nat-output", Hook::Output, DNAT, true));
    t.chain(&base("nat-postrouting", Hook::Postrouting, SNAT, true));
    t.chain(&base("filter-forward", Hook::Forward, 0, false));
    t.chain(&base("filter-output", Hook::Output, 0, false));
    for chain in ["nat-prerouting", "nat-output"] {
        t.rule(chain, &[Expr::Jump("services".into())]);
    }
    for chain in ["filter-forward", "filter-output"] {
        t.rule(chain, &[Expr::Jump("no-endpoints".into())]);
    }
    t.rule("nat-postrouting", &[Expr::HasMark(MASQUERADE), Expr::Masquerade]);
    // Pods speak to the world with the node's address.
    let from_pods =
        Expr::SourceIn { network: around.pods.address(), prefix: around.pods.prefix(), negate: false };
    let to_world = Expr::DestinationIn {
        network: around.cluster.address(),
        prefix: around.cluster.prefix(),
        negate: true,
    };
    t.rule("nat-postrouting", &[from_pods, to_world, Expr::Masquerade]);
    for (index, port) in ports.iter().enumerate() {
        service_rules(&mut t, index, port);
    }
    for (index, port) in host_ports.iter().enumerate() {
        host_port_rules(&mut t, index, port);
    }
    t
}

fn protocol_of(name: &str) -> Protocol {
    match name {
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

fn host_port_rules(t: &mut Transaction, index: usize, port: &HostPort) {
    let chain = format!("host{index}");
    t.chain(&Chain { name: chain.clone(), hook: None, nat: false });
    // The pod itself, and programs that use the loopback address, must get their answers through the node.
    let loopback = (Ipv4Addr::new(127, 0, 0, 0), 8);
    for (network, prefix) in [(port.pod, 32), loopback] {
        t.rule(&chain, &[Expr::SourceIn { network, prefix, negate: false }, Expr::SetMark(MASQUERADE)]);
    }
    t.rule(&chain, &[Expr::Dnat { address: port.pod, port: port.pod_port }]);
    let mut rule = vec![match port.address {
        Some(address) => Expr::DestinationIn { network: address, prefix: 32, negate: false },
        None => Expr::DestinationIsLocal,
    }];
    rule.extend([
        Expr::Protocol(protocol_of(&port.protocol)),
        Expr::DestinationPort(port.port),
        Expr::Goto(chain),
    ]);
    t.rule("services", &rule);
}

fn service_rules(t: &mut Transaction, index: usize, port: &ServicePort) {
    let one = |address: Ipv4Addr| Expr::DestinationIn { network: address, prefix: 32, negate: false };
    let at = |number: u16| [Expr::Protocol(port.protocol), Expr::DestinationPort(number)];
    let tcp = port.protocol == Protocol::Tcp;
    let internal = format!("svc{index}");
    balance(t, &internal, index, "i", &port.endpoints, port.affinity);
    for address in &port.addresses {
        let mut rule = vec![one(*address)];
        rule.extend(at(port.port));
        if port.endpoints.is_empty() {
            rule.push(Expr::Reject { tcp });
            t.rule("no-endpoints", &rule);
        } else {
            rule.push(Expr::Goto(internal.clone()));
            t.rule("services", &rule);
        }
    }
    let Some(node_port) = port.node_port else { return };
    let external = format!("ext{index}");
    balance(t, &external, index, "e", &port.external_endpoints, port.affinity);
    if port.external_endpoints.is_empty() {
        return;
    }
    let mut rule = vec![Expr::DestinationIsLocal];
    rule.extend(at(node_port));
    if !port.keep_source {
        // The answer must come back through this node.
        rule.push(Expr::SetMark(MASQUERADE));
    }
    rule.push(Expr::Goto(external));
    t.rule("services", &rule);
}

/// A chain that picks one endpoint, each equally often, or the one the client had before.
fn balance(
    t: &mut Transaction,
    chain: &str,
    index: usize,
    side: &str,
    endpoints: &[(Ipv4Addr, u16)],
    affinity: Option<u32>,
) {
    t.chain(&Chain { name: chain.into(), hook: None, nat: false });
    let set = |number: usize| {
        affinity.map(|seconds| AffinitySet {
            name: format!("aff{index}{side}{number}"),
            number: (index * 10_000 + number * 2 + usize::from(side == "e")) as u32 + 1,
            seconds,
        })
    };
    let name = |number: usize| format!("{chain}-{number}");
    for (number, (address, port)) in endpoints.iter().enumerate() {
        t.chain(&Chain { name: name(number), hook: None, nat: false });
        // A pod that reaches itself through the service would see its own address as the source.
        let itself = Expr::SourceIn { network: *address, prefix: 32, negate: false };
        t.rule(&name(number), &[itself, Expr::SetMark(MASQUERADE)]);
        if let Some(set) = set(number) {
            t.affinity_set(&set);
            t.rule(&name(number), &[Expr::RememberSource(set)]);
        }
        t.rule(&name(number), &[Expr::Dnat { address: *address, port: *port }]);
    }
    for number in 0..endpoints.len() {
        if let Some(set) = set(number) {
            t.rule(chain, &[Expr::SourceKnown(set), Expr::Goto(name(number))]);
        }
    }
    for number in 0..endpoints.len() {
        let left = (endpoints.len() - number) as u32;
        let pick = Expr::Goto(name(number));
        if left == 1 {
            t.rule(chain, &[pick]);
        } else {
            t.rule(chain, &[Expr::Random { of: left, less_than: 1 }, pick]);
        }
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
