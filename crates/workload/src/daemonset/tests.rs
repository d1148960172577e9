use super::*;
use crate::model::Model;
use proptest::prelude::*;
use serde_json::Value;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn build(nodes: usize, rolling: Value) -> Model {
    let mut model = Model::default();
    model.add::<DaemonSet>(json!({
        "metadata": {"name": "d", "namespace": "n", "uid": "d"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}}, "template": template("a:1"),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        },
    }));
    for number in 0..nodes {
        model.add::<Node>(json!({"metadata": {"name": format!("n{number}")}}));
    }
    model
}

fn snapshot(model: &Model) -> Snapshot {
    Snapshot {
        set: model.get::<DaemonSet>("d").unwrap(),
        pods: model.list::<Pod>(),
        nodes: model.list::<Node>(),
        revisions: model.list::<ControllerRevision>(),
        now: Timestamp::from_second(100_000).unwrap(),
    }
}

fn serving(model: &Model) -> usize {
    let pods = model.list::<Pod>();
    let nodes: BTreeSet<_> =
        pods.iter().filter(|pod| pod::is_ready(pod)).filter_map(|pod| nodes::of(pod)).collect();
    nodes.len()
}

/// The scheduler and the nodes: pods go where they are meant to, and up to `pace` become ready.
fn live(model: &mut Model, pace: usize) {
    let waiting: Vec<_> =
        model.list::<Pod>().into_iter().filter(|pod| !pod::is_ready(pod)).take(pace).collect();
    for pod in waiting {
        let running = json!({
            "spec": {"nodeName": nodes::of(&pod)},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        model.merge::<Pod>(meta::name(&pod.metadata), running);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_update_reaches_every_node_within_its_limits(nodes in 1..6usize, missing in 0..3usize, surge in 0..3usize, pace in 1..4usize) {
        let missing = if surge == 0 { missing.max(1) } else { 0 };
        let mut model = build(nodes, json!({"maxUnavailable": missing, "maxSurge": surge}));
        for _ in 0..20 {
            plan(&snapshot(&model)).iter().for_each(|action| model.apply(action));
            live(&mut model, nodes);
        }
        prop_assert_eq!(serving(&model), nodes);
        model.merge::<DaemonSet>("d", json!({"spec": {"template": template("a:2")}}));
        for _ in 0..60 {
            plan(&snapshot(&model)).iter().for_each(|action| model.apply(action));
            prop_assert!(serving(&model) + missing >= nodes, "{} of {nodes} serve", serving(&model));
            prop_assert!(model.list::<Pod>().len() <= nodes + surge);
            live(&mut model, pace);
        }
        let pods = model.list::<Pod>();
        prop_assert_eq!(pods.len(), nodes);
        prop_assert!(pods.iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("a:2")));
        let status = model.get::<DaemonSet>("d").unwrap().status.clone().unwrap();
        prop_assert_eq!(status.updated_number_scheduled, Some(nodes as i32));
        prop_assert_eq!(status.number_available, Some(nodes as i32));
    }

    #[test]
    fn whatever_is_there_becomes_one_pod_of_the_newest_template_per_node(
        nodes in 0..5usize,
        surge in 0..2usize,
        found in prop::collection::vec((0..7usize, 0..4usize, any::<bool>(), any::<bool>()), 0..14),
        pace in 1..4usize,
    ) {
        let mut model = build(nodes, json!({"maxUnavailable": 1 - surge, "maxSurge": surge}));
        for (node, phase, ready, leaving) in found {
            let phase = ["Pending", "Running", "Failed", "Succeeded"][phase];
            model.add::<Pod>(json!({
                "metadata": {
                    "generateName": "d-", "namespace": "n", "labels": {"app": "d", revision::HASH: "before"},
                    "deletionTimestamp": leaving.then_some("2026-01-01T00:00:00Z"),
                },
                "spec": {"nodeName": format!("n{node}"), "containers": [{"name": "c", "image": "a:0"}]},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
            }));
        }
        let mut quiet = false;
        for _ in 0..100 {
            let actions = plan(&snapshot(&model));
            actions.iter().for_each(|action| model.apply(action));
            for pod in model.list::<Pod>().iter().filter(|pod| pod::is_deleting(pod)) {
                model.remove::<Pod>(meta::name(&pod.metadata));
            }
            quiet = actions.is_empty();
            if quiet {
                break;
            }
            live(&mut model, pace);
        }
        prop_assert!(quiet, "does not settle");
        let pods = model.list::<Pod>();
        prop_assert_eq!((pods.len(), serving(&model)), (nodes, nodes));
        prop_assert!(pods.iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("a:1")));
    }
}

#[test]
fn a_tainted_node_gets_no_pod_but_keeps_one_unless_it_must_leave() {
    for (effect, before, after) in [("NoSchedule", 0, 1), ("NoExecute", 0, 0)] {
        let taint = json!({"spec": {"taints": [{"key": "k", "effect": effect}]}});
        let mut fresh = build(1, json!({}));
        fresh.merge::<Node>("n0", taint.clone());
        let mut running = build(1, json!({}));
        for (model, late) in [(&mut fresh, false), (&mut running, true)] {
            for round in 0..6 {
                if late && round == 3 {
                    model.merge::<Node>("n0", taint.clone());
                }
                plan(&snapshot(model)).iter().for_each(|action| model.apply(action));
                live(model, 9);
            }
        }
        assert_eq!(fresh.list::<Pod>().len(), before);
        assert_eq!(running.list::<Pod>().len(), after);
    }
}
