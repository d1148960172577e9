use super::*;
use crate::model::Model;
use serde_json::{Value, json};

fn pod(number: usize, ready: bool) -> Value {
    let ip = format!("10.0.{}.{}", number / 250, number % 250 + 1);
    json!({
        "metadata": {"name": format!("p{number}"), "namespace": "n", "labels": {"app": "web"}},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    })
}

fn build(pods: usize) -> Model {
    let mut model = Model::default();
    model.add::<Service>(json!({
        "metadata": {"name": "web", "namespace": "n"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }));
    for number in 0..pods {
        model.add::<Pod>(pod(number, true));
    }
    model
}

fn snapshot(model: &Model) -> Snapshot {
    Snapshot {
        service: model.get::<Service>("web").unwrap(),
        pods: model.list::<Pod>(),
        zones: HashMap::from([("a".to_owned(), "z1".to_owned())]),
        slices: model.list::<EndpointSlice>(),
        endpoints: model.get::<Endpoints>("web"),
    }
}

fn settle(model: &mut Model) -> usize {
    let snapshot = snapshot(model);
    let mut actions = plan(&snapshot);
    actions.extend(legacy::plan(&snapshot));
    actions.iter().for_each(|action| model.apply(action));
    actions.len()
}

#[test]
fn a_service_without_pods_has_one_empty_slice() {
    let mut model = build(0);
    assert_eq!(settle(&mut model), 2);
    let slices = model.list::<EndpointSlice>();
    assert_eq!(slices.len(), 1);
    assert!(slices[0].endpoints.clone().unwrap_or_default().is_empty());
    assert_eq!(settle(&mut model), 0);
}

#[test]
fn endpoints_are_split_over_slices_of_a_hundred_and_a_change_touches_one() {
    let mut model = build(250);
    settle(&mut model);
    let mut sizes: Vec<usize> =
        model.list::<EndpointSlice>().iter().map(|s| s.endpoints.as_ref().unwrap().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
    model.merge::<Pod>("p7", pod(7, false));
    let changes = plan(&snapshot(&model));
    assert!(matches!(changes.as_slice(), [Action::Replace { .. }]), "{changes:?}");
    settle(&mut model);
    assert_eq!(settle(&mut model), 0);
}

#[test]
fn readiness_termination_port_and_zone_are_told() {
    let mut model = build(1);
    model.add::<Pod>(pod(1, false));
    let mut leaving = pod(2, true);
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    model.add::<Pod>(leaving);
    settle(&mut model);
    let slice = model.list::<EndpointSlice>()[0].clone();
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
    let told: Vec<_> = slice
        .endpoints
        .iter()
        .flatten()
        .map(|e| {
            let conditions = e.conditions.as_ref().unwrap();
            (
                e.zone.as_deref().unwrap(),
                conditions.ready.unwrap(),
                conditions.serving.unwrap(),
                conditions.terminating.unwrap(),
            )
        })
        .collect();
    assert_eq!(told.len(), 3);
    assert!(told.contains(&("z1", true, true, false)));
    assert!(told.contains(&("z1", false, false, false)));
    assert!(told.contains(&("z1", false, true, true)));
    let old = model.get::<Endpoints>("web").unwrap();
    let subset = &old.subsets.as_ref().unwrap()[0];
    assert_eq!(subset.addresses.as_ref().unwrap().len(), 1);
    assert_eq!(subset.not_ready_addresses.as_ref().unwrap().len(), 1);
}
