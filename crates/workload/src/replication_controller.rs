//! ReplicationController: what ReplicaSets grew out of. Planned as a ReplicaSet whose selector is a plain map.

use crate::{
    meta::{self, claim, controller_of},
    replicaset::{self, Snapshot},
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus},
        core::v1::{Pod, ReplicationController, ReplicationControllerCondition},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use std::sync::Arc;

const COMPONENT: &str = "replication-controller";

/// The same wish, said as a ReplicaSet. An empty selector selects nothing, unlike a ReplicaSet's.
fn as_replica_set(controller: &ReplicationController) -> Option<ReplicaSet> {
    let spec = controller.spec.as_ref()?;
    let selector = spec.selector.clone().filter(|labels| !labels.is_empty())?;
    let status = controller.status.as_ref().map(|status| ReplicaSetStatus {
        replicas: status.replicas,
        fully_labeled_replicas: status.fully_labeled_replicas,
        ready_replicas: status.ready_replicas,
        available_replicas: status.available_replicas,
        observed_generation: status.observed_generation,
        conditions: status.conditions.as_ref().map(|all| all.iter().map(condition).collect()),
        ..ReplicaSetStatus::default()
    });
    Some(ReplicaSet {
        metadata: controller.metadata.clone(),
        spec: Some(ReplicaSetSpec {
            replicas: spec.replicas,
            min_ready_seconds: spec.min_ready_seconds,
            selector: LabelSelector { match_labels: Some(selector), match_expressions: None },
            template: spec.template.clone(),
        }),
        status,
    })
}

fn condition(own: &ReplicationControllerCondition) -> ReplicaSetCondition {
    ReplicaSetCondition {
        type_: own.type_.clone(),
        status: own.status.clone(),
        reason: own.reason.clone(),
        message: own.message.clone(),
        last_transition_time: own.last_transition_time.clone(),
    }
}

pub struct ReplicationControllers;

impl Controller for ReplicationControllers {
    fn name(&self) -> &'static str {
        "replication-controller"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::ReplicationControllers, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (pods, there) = (enqueue.clone(), Arc::downgrade(world));
        world.replication_controllers.on_change(move |old, new| match (old, new) {
            (_, Some(controller)) => enqueue.add(Key::of(&controller.metadata)),
            (Some(gone), None) => {
                if let Some(world) = there.upgrade() {
                    world.refusals.forget(meta::uid(&gone.metadata));
                }
            }
            (None, None) => {}
        });
        let controllers = world.replication_controllers.clone();
        world.pods.on_change(move |old, new| {
            let mut owned = false;
            for pod in [old, new].into_iter().flatten() {
                if let Some(owner) = controller_of(&pod.metadata) {
                    owned = true;
                    if owner.kind == "ReplicationController" {
                        pods.add(Key::new(meta::namespace(&pod.metadata), &owner.name));
                    }
                }
            }
            if !owned && let Some(pod) = new {
                for controller in controllers.in_namespace(meta::namespace(&pod.metadata)) {
                    let selector =
                        as_replica_set(&controller).and_then(|set| set.spec).map(|spec| spec.selector);
                    if selector.is_some_and(|s| meta::selects(&s, pod.metadata.labels.as_ref())) {
                        pods.add(Key::of(&controller.metadata));
                    }
                }
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(set) = world.replication_controllers.get(key).and_then(|c| as_replica_set(&c)) else {
            return Vec::new();
        };
        let Some(selector) = set.spec.as_ref().map(|spec| spec.selector.clone()) else { return Vec::new() };
        let claim = claim::<ReplicationController, Pod>(
            &set.metadata,
            &selector,
            world.pods.owned_by(meta::uid(&set.metadata)),
            world.pods.without_controller(&key.namespace),
        );
        if !claim.actions.is_empty() {
            return claim.actions;
        }
        let refused = world.refusals.of(meta::uid(&set.metadata));
        let related = claim.mine.clone();
        let snapshot = Snapshot { set: Arc::new(set), related, pods: claim.mine, refused, now };
        replicaset::plan_as::<ReplicationController>(&snapshot, COMPONENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn controller(replicas: i32) -> ReplicationController {
        serde_json::from_value(json!({
            "metadata": {"name": "old", "namespace": "ns", "uid": "u", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"app": "old"},
                "template": {"metadata": {"labels": {"app": "old"}}, "spec": {"containers": []}}},
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_made_in_the_name_of_the_replication_controller() {
        let set = Arc::new(as_replica_set(&controller(2)).unwrap());
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let snapshot = Snapshot { set, pods: Vec::new(), related: Vec::new(), refused: None, now };
        let actions = replicaset::plan_as::<ReplicationController>(&snapshot, COMPONENT);
        let made: Vec<Pod> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Create { body, .. } => Some(body.read().unwrap()),
                _ => None,
            })
            .collect();
        assert_eq!(made.len(), 2);
        assert!(made.iter().all(|pod| controller_of(&pod.metadata).unwrap().kind == "ReplicationController"));
    }

    #[test]
    fn an_empty_selector_selects_nothing() {
        let mut controller = controller(1);
        controller.spec.as_mut().unwrap().selector = None;
        assert!(as_replica_set(&controller).is_none());
    }
}
