//! The older Endpoints object: one per Service, at most a thousand addresses.

use super::{Snapshot, has_endpoint, target_port};
use crate::{
    meta, pod,
    shell::{Action, Json, Object},
};
use k8s_openapi::{
    api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

const HEADLESS: &str = "service.kubernetes.io/headless";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const US: &str = "endpoint-controller";
const MOST: usize = 1000;

/// Whether we made it, and not somebody by hand.
pub fn is_ours(endpoints: &Endpoints) -> bool {
    meta::label(&endpoints.metadata, MANAGED_BY) == Some(US)
}

pub fn plan(snapshot: &Snapshot) -> Option<Action> {
    let service = &snapshot.service;
    let subsets = subsets(snapshot);
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(MANAGED_BY.into(), US.into());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.into(), String::new());
    }
    let Some(found) = &snapshot.endpoints else {
        return Some(meta::create(&Endpoints {
            metadata: ObjectMeta {
                namespace: service.metadata.namespace.clone(),
                name: service.metadata.name.clone(),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            subsets: Some(subsets),
        }));
    };
    let same_labels = labels.iter().all(|(key, value)| meta::label(&found.metadata, key) == Some(value));
    if same_labels && meta::semantically_equal(&found.subsets.clone().unwrap_or_default(), &subsets) {
        return None;
    }
    let mut replaced = (**found).clone();
    replaced.metadata.labels = Some(labels);
    replaced.subsets = Some(subsets);
    Some(Action::Replace {
        resource: Endpoints::RESOURCE,
        namespace: meta::namespace(&found.metadata).to_owned(),
        name: meta::name(&found.metadata).to_owned(),
        subresource: "",
        body: Json::of(&replaced),
    })
}

/// In the order in which the server repacks them: by ports, then by address.
fn subsets(snapshot: &Snapshot) -> Vec<EndpointSubset> {
    let service = &snapshot.service;
    let spec = service.spec.clone().unwrap_or_default();
    let publish = spec.publish_not_ready_addresses == Some(true);
    let mut subsets: Vec<EndpointSubset> = Vec::new();
    let mut pods: Vec<_> =
        snapshot.pods.iter().filter(|pod| has_endpoint(pod) && !pod::is_deleting(pod)).collect();
    pods.sort_by_key(|pod| pod.status.as_ref().and_then(|s| s.pod_ip.clone()));
    for pod in pods.into_iter().take(MOST) {
        let Some(ip) = pod.status.as_ref().and_then(|status| status.pod_ip.clone()) else { continue };
        let declared = spec.ports.iter().flatten();
        let mut ports: Vec<EndpointPort> = declared
            .filter_map(|port| {
                Some(EndpointPort {
                    name: port.name.clone(),
                    port: target_port(port, pod)?,
                    protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                    app_protocol: port.app_protocol.clone(),
                })
            })
            .collect();
        ports.sort_by_key(|port| (port.name.clone(), port.port, port.protocol.clone()));
        if ports.is_empty() && spec.ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
            continue;
        }
        let pod_spec = pod.spec.as_ref();
        let subdomain = pod_spec.and_then(|spec| spec.subdomain.as_deref());
        let address = EndpointAddress {
            ip,
            hostname: pod_spec
                .and_then(|s| s.hostname.clone())
                .filter(|_| subdomain == service.metadata.name.as_deref()),
            node_name: pod::node(pod).map(str::to_owned),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".into()),
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
        };
        let ports = Some(ports).filter(|ports| !ports.is_empty());
        let at = subsets.iter().position(|subset| subset.ports == ports).unwrap_or_else(|| {
            subsets.push(EndpointSubset { ports, ..EndpointSubset::default() });
            subsets.len() - 1
        });
        let subset = &mut subsets[at];
        if publish || pod::is_ready(pod) {
            subset.addresses.get_or_insert_default().push(address);
        } else {
            subset.not_ready_addresses.get_or_insert_default().push(address);
        }
    }
    subsets
}
