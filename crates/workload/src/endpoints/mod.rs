//! EndpointSlices (and the older Endpoints) of Services that select pods, and mirrors of Endpoints written by hand.

mod legacy;
mod mirror;
mod slices;
#[cfg(test)]
mod tests;

pub use slices::plan;

use crate::{
    meta, pod,
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Endpoints, Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use std::{collections::HashMap, sync::Arc};

pub struct Snapshot {
    pub service: Arc<Service>,
    /// Pods of the namespace that the Service selects.
    pub pods: Vec<Arc<Pod>>,
    /// Zones by node.
    pub zones: HashMap<String, String>,
    /// The slices that we made for this Service.
    pub slices: Vec<Arc<EndpointSlice>>,
    pub endpoints: Option<Arc<Endpoints>>,
}

/// The numeric port a Service port means on this pod; `None` when the pod has no port of that name.
pub(crate) fn target_port(port: &k8s_openapi::api::core::v1::ServicePort, pod: &Pod) -> Option<i32> {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    match port.target_port.as_ref() {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) if name.is_empty() => Some(port.port),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let sidecars = spec
                .init_containers
                .iter()
                .flatten()
                .filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let ports =
                spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
            ports
                .filter(|p| {
                    p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol
                })
                .map(|p| p.container_port)
                .next()
        }
    }
}

/// Whether the pod belongs into endpoints at all: it has an address and has not ended.
pub(crate) fn has_endpoint(pod: &Pod) -> bool {
    let addressed = pod.status.as_ref().and_then(|s| s.pod_ip.as_deref()).is_some_and(|ip| !ip.is_empty());
    addressed && !pod::is_finished(pod)
}

pub struct EndpointSlices;

/// The fields of a pod that endpoints depend on.
fn same_for_endpoints(a: &Pod, b: &Pod) -> bool {
    let ips = |pod: &Pod| pod.status.as_ref().map(|s| (s.pod_ip.clone(), s.pod_ips.clone()));
    a.metadata.labels == b.metadata.labels
        && a.metadata.uid == b.metadata.uid
        && a.metadata.deletion_timestamp.is_some() == b.metadata.deletion_timestamp.is_some()
        && pod::node(a) == pod::node(b)
        && pod::is_ready(a) == pod::is_ready(b)
        && pod::is_finished(a) == pod::is_finished(b)
        && ips(a) == ips(b)
}

impl Controller for EndpointSlices {
    fn name(&self) -> &'static str {
        "endpointslice"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Services, Watch::Pods, Watch::Nodes, Watch::EndpointSlices, Watch::Endpoints]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (pods, slices, endpoints, services) =
            (enqueue.clone(), enqueue.clone(), enqueue.clone(), world.services.clone());
        world.services.on_change(move |old, new| {
            for service in [old, new].into_iter().flatten() {
                enqueue.add(Key::of(&service.metadata));
            }
        });
        world.pods.on_change(move |old, new| {
            if let (Some(old), Some(new)) = (old, new)
                && same_for_endpoints(old, new)
            {
                return;
            }
            let (Some(pod), relevant) =
                (new.or(old), [old, new].into_iter().flatten().any(|pod| has_endpoint(pod)))
            else {
                return;
            };
            if !relevant {
                return;
            }
            for service in services.in_namespace(meta::namespace(&pod.metadata)) {
                let Some(selector) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
                    continue;
                };
                let of = |pod: &Arc<Pod>| {
                    let labels = pod.metadata.labels.as_ref();
                    !selector.is_empty()
                        && selector.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
                };
                if [old, new].into_iter().flatten().any(of) {
                    pods.add(Key::of(&service.metadata));
                }
            }
        });
        world.endpoint_slices.on_change(move |old, new| {
            for slice in [old, new].into_iter().flatten() {
                if let Some(service) = meta::label(&slice.metadata, slices::SERVICE_NAME) {
                    slices.add(Key::new(meta::namespace(&slice.metadata), service));
                }
            }
        });
        world.endpoints.on_change(move |old, new| {
            for object in [old, new].into_iter().flatten() {
                endpoints.add(Key::of(&object.metadata));
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, _now: Timestamp) -> Vec<Action> {
        let endpoints = world.endpoints.get(key);
        let mirrors = || -> Vec<_> {
            let all = world.endpoint_slices.in_namespace(&key.namespace).into_iter();
            all.filter(|slice| {
                mirror::is_mirror(slice, &key.name) && slice.metadata.deletion_timestamp.is_none()
            })
            .collect()
        };
        let Some(service) = world.services.get(key) else {
            // Slices go with their owner; Endpoints have none.
            let ours = endpoints.filter(|endpoints| legacy::is_ours(endpoints));
            let mut actions: Vec<_> = ours.iter().map(|e| meta::delete::<Endpoints>(&e.metadata)).collect();
            actions.extend(mirror::plan(None, &mirrors()));
            return actions;
        };
        let Some(selector) =
            service.spec.as_ref().and_then(|spec| spec.selector.clone()).filter(|s| !s.is_empty())
        else {
            // The API server keeps the slices of its own Service.
            let own = key.namespace == "default" && key.name == "kubernetes";
            return if own { Vec::new() } else { mirror::plan(endpoints.as_deref(), &mirrors()) };
        };
        if service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName")
            || service.metadata.deletion_timestamp.is_some()
        {
            return Vec::new();
        }
        let selected = |pod: &Arc<Pod>| {
            let labels = pod.metadata.labels.as_ref();
            selector.iter().all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
        };
        let pods: Vec<_> = world
            .pods
            .in_namespace(&key.namespace)
            .into_iter()
            .filter(|pod| has_endpoint(pod) && selected(pod))
            .collect();
        let zone =
            |node: &Node| meta::label(&node.metadata, "topology.kubernetes.io/zone").map(str::to_owned);
        let zones = pods
            .iter()
            .filter_map(|pod| {
                let name = pod::node(pod)?;
                Some((name.to_owned(), zone(&*world.nodes.get(&Key::new("", name))?)?))
            })
            .collect();
        let slices = world
            .endpoint_slices
            .in_namespace(&key.namespace)
            .into_iter()
            .filter(|slice| slices::is_ours(slice, &key.name) && slice.metadata.deletion_timestamp.is_none())
            .collect();
        let snapshot = Snapshot { service, pods, zones, slices, endpoints };
        let mut actions = plan(&snapshot);
        actions.extend(legacy::plan(&snapshot));
        actions
    }
}
