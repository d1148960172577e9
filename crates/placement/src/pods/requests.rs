//! What a pod asks for, from the resources of its containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{Resources, quantity};

type Amounts = BTreeMap<String, Quantity>;

/// The effective request of a pod, one pod included: containers and sidecars together, or the largest
/// moment of initialisation if that is more; where the pod states its own total, that; plus the overhead.
pub fn of_pod(spec: &PodSpec) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of_container(container));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut moment = of_container(container);
        moment.add(&sidecars);
        // A sidecar goes on running beside everything that starts after it.
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = moment.clone();
        }
        starting.max_with(&moment);
    }
    running.add(&sidecars);
    running.max_with(&starting);
    if let Some(stated) = spec.resources.as_ref().and_then(requests) {
        overwrite(&mut running, stated);
    }
    if let Some(overhead) = &spec.overhead {
        running.add(&amounts(overhead));
    }
    running.pods = 1;
    running
}

/// Amounts as Kubernetes writes them. What is not a quantity counts as nothing: the API server validates.
pub fn amounts(named: &Amounts) -> Resources {
    let mut resources = Resources::default();
    overwrite(&mut resources, named);
    resources
}

fn overwrite(resources: &mut Resources, named: &Amounts) {
    for (name, Quantity(text)) in named {
        let units = || quantity::units(text).unwrap_or(0);
        match name.as_str() {
            "cpu" => resources.cpu = quantity::milli(text).unwrap_or(0),
            "memory" => resources.memory = units(),
            "ephemeral-storage" => resources.storage = units(),
            "pods" => resources.pods = units(),
            _ => resources.set_extended(name, units()),
        }
    }
}

fn of_container(container: &Container) -> Resources {
    container.resources.as_ref().and_then(requests).map(amounts).unwrap_or_default()
}

fn requests(resources: &ResourceRequirements) -> Option<&Amounts> {
    resources.requests.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cpu_of(spec: serde_json::Value) -> i64 {
        of_pod(&serde_json::from_value(spec).expect("a pod spec")).cpu
    }

    fn container(cpu: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    fn sidecar(cpu: &str) -> serde_json::Value {
        json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn containers_add_up() {
        assert_eq!(cpu_of(json!({"containers": [container("100m"), container("0.2")]})), 300);
    }

    #[test]
    fn the_largest_init_container_counts_when_it_is_more() {
        let spec =
            |init: &str| json!({"containers": [container("300m")], "initContainers": [container(init)]});
        assert_eq!(cpu_of(spec("500m")), 500);
        assert_eq!(cpu_of(spec("100m")), 300);
    }

    #[test]
    fn sidecars_count_with_what_starts_after_them() {
        let spec = json!({
            "containers": [container("300m")],
            "initContainers": [container("500m"), sidecar("100m"), container("450m")],
        });
        assert_eq!(cpu_of(spec), 550);
        let spec =
            json!({"containers": [container("300m")], "initContainers": [sidecar("100m"), sidecar("50m")]});
        assert_eq!(cpu_of(spec), 450);
    }

    #[test]
    fn a_total_stated_by_the_pod_and_the_overhead_win() {
        let spec = json!({
            "containers": [container("300m")],
            "resources": {"requests": {"cpu": "1"}},
            "overhead": {"cpu": "50m"},
        });
        assert_eq!(cpu_of(spec), 1050);
    }
}
