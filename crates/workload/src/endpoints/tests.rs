use super::*;
use crate::model::Model;
use proptest::prelude::*;
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn endpoints_are_the_pods_that_have_an_address_whatever_was_there_before(
        before in prop::collection::btree_map(0..260usize, 0..5usize, 0..200),
        after in prop::collection::btree_map(0..260usize, 0..5usize, 0..200),
        strange in prop::collection::vec(0..100usize, 0..3),
    ) {
        let mut model = build(0);
        // What somebody else, or an older version of us, left behind.
        for (number, size) in strange.into_iter().enumerate() {
            let endpoints: Vec<Value> = (0..size).map(|n| json!({"addresses": [format!("10.9.{number}.{n}")]})).collect();
            model.add::<EndpointSlice>(json!({
                "metadata": {"generateName": "web-", "namespace": "n"}, "addressType": "IPv4", "endpoints": endpoints,
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            }));
        }
        for pods in [before, after] {
            for pod in model.list::<Pod>() {
                model.remove::<Pod>(meta::name(&pod.metadata));
            }
            let mut wanted = Vec::new();
            for (number, kind) in pods {
                let mut one = pod(number, kind % 2 == 0);
                match kind {
                    2 => one["status"]["podIP"] = Value::Null,
                    3 => one["status"]["phase"] = json!("Failed"),
                    4 => one["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(9090),
                    _ => {}
                }
                let address = one["status"]["podIPs"][0]["ip"].as_str().unwrap().to_owned();
                if !matches!(kind, 2 | 3) {
                    wanted.push((address, if kind == 4 { 9090 } else { 8080 }, kind % 2 == 0));
                }
                model.add::<Pod>(one);
            }
            settle(&mut model);
            let slices = model.list::<EndpointSlice>();
            prop_assert!(slices.iter().all(|slice| slice.endpoints.as_ref().is_none_or(|e| e.len() <= 100)));
            let mut told: Vec<_> = slices
                .iter()
                .flat_map(|slice| {
                    let port = slice.ports.iter().flatten().next().and_then(|port| port.port).unwrap_or(0);
                    slice.endpoints.iter().flatten().map(move |e| {
                        (e.addresses[0].clone(), port, e.conditions.as_ref().unwrap().ready.unwrap())
                    })
                })
                .collect();
            told.sort();
            wanted.sort();
            prop_assert_eq!(told, wanted);
            prop_assert_eq!(settle(&mut model), 0, "the second plan has something to do");
        }
    }
}
