//! From pods to slices: group by address type and port numbers, at most a hundred endpoints each, change few slices.

use super::{Snapshot, has_endpoint, target_port};
use crate::{
    meta::{self, controller_reference},
    pod,
    shell::{Action, Json, Object},
};
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const US: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
const MOST: usize = 100;

pub fn is_ours(slice: &EndpointSlice, service: &str) -> bool {
    meta::label(&slice.metadata, SERVICE_NAME) == Some(service)
        && meta::label(&slice.metadata, MANAGED_BY) == Some(US)
}

/// Endpoints of one address type that share all port numbers.
struct Group {
    address_type: &'static str,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let labels = labels(&snapshot.service);
    let mut actions = Vec::new();
    let mut spare: Vec<Arc<EndpointSlice>> = snapshot.slices.clone();
    for group in groups(snapshot) {
        let (fitting, rest) = spare.into_iter().partition::<Vec<_>, _>(|slice| {
            slice.address_type == group.address_type
                && same_ports(slice.ports.as_deref().unwrap_or(&[]), &group.ports)
        });
        spare = rest;
        fill(snapshot, &labels, group, fitting, &mut actions);
    }
    actions.extend(spare.iter().map(|slice| meta::delete::<EndpointSlice>(&slice.metadata)));
    actions
}

fn same_ports(a: &[EndpointPort], b: &[EndpointPort]) -> bool {
    let key = |ports: &[EndpointPort]| {
        let mut keys: Vec<_> = ports
            .iter()
            .map(|p| (p.name.clone().unwrap_or_default(), p.protocol.clone(), p.port, p.app_protocol.clone()))
            .collect();
        keys.sort();
        keys
    };
    key(a) == key(b)
}

/// Puts a group's endpoints into its slices: those that are there stay where they are.
fn fill(
    snapshot: &Snapshot,
    labels: &BTreeMap<String, String>,
    group: Group,
    slices: Vec<Arc<EndpointSlice>>,
    actions: &mut Vec<Action>,
) {
    let mut wanted: BTreeMap<String, Endpoint> = BTreeMap::new();
    for endpoint in group.endpoints {
        wanted.insert(endpoint_key(&endpoint), endpoint);
    }
    let mut kept: Vec<(Arc<EndpointSlice>, Vec<Endpoint>)> = slices
        .into_iter()
        .map(|slice| {
            let endpoints =
                slice.endpoints.iter().flatten().filter_map(|e| wanted.remove(&endpoint_key(e))).collect();
            (slice, endpoints)
        })
        .collect();
    let mut new: Vec<Endpoint> = wanted.into_values().collect();
    for (_, endpoints) in &mut kept {
        let room = MOST.saturating_sub(endpoints.len()).min(new.len());
        endpoints.extend(new.drain(..room));
    }
    let mut have = 0;
    for (slice, endpoints) in kept {
        if endpoints.is_empty() && (have > 0 || !new.is_empty()) {
            actions.push(meta::delete::<EndpointSlice>(&slice.metadata));
            continue;
        }
        have += 1;
        let same_labels = labels.iter().all(|(key, value)| meta::label(&slice.metadata, key) == Some(value));
        if same_labels && meta::semantically_equal(&slice.endpoints.clone().unwrap_or_default(), &endpoints) {
            continue;
        }
        let mut replaced = (*slice).clone();
        replaced.metadata.labels = Some(labels.clone());
        replaced.endpoints = Some(endpoints);
        actions.push(Action::Replace {
            resource: EndpointSlice::RESOURCE,
            namespace: meta::namespace(&slice.metadata).to_owned(),
            name: meta::name(&slice.metadata).to_owned(),
            subresource: "",
            body: Json::of(&replaced),
        });
    }
    while have == 0 || !new.is_empty() {
        have += 1;
        let endpoints = Some(new.drain(..new.len().min(MOST)).collect());
        let service = &snapshot.service.metadata;
        actions.push(meta::create(&EndpointSlice {
            metadata: ObjectMeta {
                namespace: service.namespace.clone(),
                generate_name: Some(format!("{}-", meta::name(service))),
                labels: Some(labels.clone()),
                owner_references: Some(vec![controller_reference::<Service>(service)]),
                ..ObjectMeta::default()
            },
            address_type: group.address_type.into(),
            endpoints,
            ports: Some(group.ports.clone()),
        }));
    }
}

fn endpoint_key(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref()).unwrap_or_default();
    format!("{uid}/{}", endpoint.addresses.join(","))
}

/// Groups in a stable order; every address type of the Service has at least one, if only an empty one.
fn groups(snapshot: &Snapshot) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for address_type in address_types(&snapshot.service) {
        let first = groups.len();
        for pod in snapshot.pods.iter().filter(|pod| has_endpoint(pod)) {
            let addresses = addresses(pod, address_type);
            if addresses.is_empty() {
                continue;
            }
            let ports = ports(&snapshot.service, pod);
            let endpoint = endpoint(snapshot, pod, addresses);
            match groups[first..].iter_mut().find(|group| same_ports(&group.ports, &ports)) {
                Some(group) => group.endpoints.push(endpoint),
                None => groups.push(Group { address_type, ports, endpoints: vec![endpoint] }),
            }
        }
        if groups.len() == first {
            groups.push(Group { address_type, ports: Vec::new(), endpoints: Vec::new() });
        }
    }
    groups
}

fn address_types(service: &Service) -> Vec<&'static str> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
    let types: Vec<_> = families.iter().map(|f| if f == "IPv6" { "IPv6" } else { "IPv4" }).collect();
    if types.is_empty() { vec!["IPv4"] } else { types }
}

fn addresses(pod: &Pod, address_type: &str) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).chain(status.pod_ip.clone());
    let fits = |ip: &String| match ip.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => address_type == "IPv4",
        Ok(IpAddr::V6(_)) => address_type == "IPv6",
        Err(_) => false,
    };
    let mut found: Vec<String> = all.filter(fits).collect();
    found.dedup();
    found.truncate(1);
    found
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let declared = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    declared
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(target_port(port, pod)?),
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn endpoint(snapshot: &Snapshot, pod: &Pod, addresses: Vec<String>) -> Endpoint {
    let service = &snapshot.service;
    let publish = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true);
    let (serving, terminating) = (pod::is_ready(pod), pod::is_deleting(pod));
    let node = pod::node(pod).map(str::to_owned);
    let spec = pod.spec.as_ref();
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref());
    let hostname =
        spec.and_then(|spec| spec.hostname.clone()).filter(|_| subdomain == service.metadata.name.as_deref());
    Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(publish || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname,
        zone: node.as_ref().and_then(|node| snapshot.zones.get(node).cloned()),
        node_name: node,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.into(), meta::name(&service.metadata).into());
    labels.insert(MANAGED_BY.into(), US.into());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}
