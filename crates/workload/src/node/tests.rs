use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node(ready: &str, taints: Value) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": "a"},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pod(seconds: Option<i64>) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"nodeName": "a", "containers": [], "tolerations": [
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds},
        ]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn look(node: Arc<Node>, heard: i64, now: i64, any_ready: bool, pods: Vec<Arc<Pod>>) -> Vec<Action> {
    plan(&Snapshot { node, heard: at(heard), pods, any_ready, now: at(now) })
}

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

#[test]
fn a_node_that_was_heard_in_time_is_left_alone() {
    let plan = look(node("True", json!([])), 100, 120, true, vec![]);
    assert!(matches!(plan.as_slice(), [Action::After(left)] if left.as_secs() == 20), "{plan:?}");
}

#[test]
fn a_silent_node_becomes_unknown() {
    let plan = look(node("True", json!([])), 100, 141, true, vec![]);
    let Some(Action::Patch { body, subresource: "status", .. }) = plan.first() else { panic!("{plan:?}") };
    let body: Value = body.read().unwrap();
    assert_eq!(body["status"]["conditions"][0]["status"], "Unknown");
}

#[test]
fn an_unknown_node_is_tainted_and_evicts_only_while_another_is_ready() {
    for (any_ready, effects) in [(true, vec!["NoSchedule", "NoExecute"]), (false, vec!["NoSchedule"])] {
        let plan = look(node("Unknown", json!([])), 0, 1000, any_ready, vec![]);
        let Some(Action::Patch { body, .. }) = plan.first() else { panic!("{plan:?}") };
        let body: Value = body.read().unwrap();
        let taints = body["spec"]["taints"].as_array().unwrap();
        assert_eq!(taints.iter().map(|taint| taint["effect"].as_str().unwrap()).collect::<Vec<_>>(), effects);
    }
}

#[test]
fn a_node_that_comes_back_loses_our_taints_and_keeps_others() {
    let taints = json!([
        {"key": UNREACHABLE, "effect": "NoExecute"}, {"key": UNREACHABLE, "effect": "NoSchedule"},
        {"key": "mine", "effect": "NoSchedule"},
    ]);
    let plan = look(node("True", taints), 100, 101, true, vec![]);
    let Some(Action::Patch { body, .. }) = plan.first() else { panic!("{plan:?}") };
    let body: Value = body.read().unwrap();
    assert_eq!(body["spec"]["taints"], json!([{"key": "mine", "effect": "NoSchedule"}]));
}

#[test]
fn pods_leave_when_their_patience_is_over() {
    let taints = json!([
        {"key": UNREACHABLE, "effect": "NoSchedule"},
        {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": "1970-01-01T00:16:40Z"},
    ]);
    let deletes =
        |plan: &[Action]| plan.iter().filter(|action| matches!(action, Action::Delete { .. })).count();
    let patient = look(node("Unknown", taints.clone()), 0, 1100, true, vec![pod(Some(300))]);
    assert_eq!(deletes(&patient), 0);
    assert!(patient.iter().any(|action| matches!(action, Action::After(left) if left.as_secs() == 200)));
    assert_eq!(deletes(&look(node("Unknown", taints.clone()), 0, 1301, true, vec![pod(Some(300))])), 1);
    assert_eq!(
        deletes(&look(node("Unknown", taints), 0, 99_999, true, vec![pod(None)])),
        0,
        "tolerates for good"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_nodes_taints_are_those_its_state_asks_for_and_those_of_others(
        ready in 0..4usize,
        conditions in prop::collection::vec(any::<bool>(), 4),
        cordoned in any::<bool>(),
        any_ready in any::<bool>(),
        found in prop::collection::btree_set((0..9usize, 0..3usize), 0..12),
    ) {
        let keys = [
            "node.kubernetes.io/not-ready", UNREACHABLE, "node.kubernetes.io/memory-pressure",
            "node.kubernetes.io/disk-pressure", "node.kubernetes.io/pid-pressure",
            "node.kubernetes.io/network-unavailable", "node.kubernetes.io/unschedulable", "mine",
            "node.kubernetes.io/out-of-service",
        ];
        let effects = ["NoSchedule", "NoExecute", "PreferNoSchedule"];
        let taints: Vec<Value> = found.iter().map(|(key, effect)| json!({"key": keys[*key], "effect": effects[*effect]})).collect();
        let kinds = ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];
        let mut told: Vec<Value> = kinds.iter().zip(&conditions)
            .map(|(kind, on)| json!({"type": kind, "status": if *on { "True" } else { "False" }})).collect();
        if ready < 3 {
            let status = ["True", "False", "Unknown"][ready];
            told.push(json!({"type": "Ready", "status": status}));
        }
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "a"}, "spec": {"taints": taints, "unschedulable": cordoned}, "status": {"conditions": told},
        })).unwrap();
        let snapshot = |node: Node| Snapshot { node: Arc::new(node), heard: at(100), pods: vec![], any_ready, now: at(101) };
        let mut changed = node.clone();
        if let Some(body) = taints::change(&snapshot(node.clone())) {
            changed.spec.as_mut().unwrap().taints = serde_json::from_value(body["spec"]["taints"].clone()).unwrap();
        }
        prop_assert_eq!(taints::change(&snapshot(changed.clone())), None, "once is enough");
        let have = |node: &Node| {
            let all = node.spec.as_ref().unwrap().taints.clone().unwrap_or_default();
            all.into_iter().map(|taint| (taint.key, taint.effect)).collect::<Vec<_>>()
        };
        let after = have(&changed);
        let wanted: Vec<_> = wanted_taints(&node, any_ready).into_iter().map(|(key, effect)| (key, effect.to_owned())).collect();
        for taint in &wanted {
            prop_assert_eq!(after.iter().filter(|have| *have == taint).count(), 1, "{:?}", taint);
        }
        // Nothing of others is touched: neither their keys nor effects that this controller never uses.
        let others = |(key, effect): &(String, String)| key == "mine" || key.ends_with("out-of-service") || effect == "PreferNoSchedule";
        let kept = |list: Vec<(String, String)>| list.into_iter().filter(others).collect::<Vec<_>>();
        prop_assert_eq!(kept(after), kept(have(&node)));
    }
}
