use super::*;
use crate::model::Model;
use proptest::prelude::*;
use serde_json::Value;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn build(replicas: i32, policy: &str, partition: i32) -> Model {
    let mut model = Model::default();
    model.add::<StatefulSet>(json!({
        "metadata": {"name": "db", "namespace": "n", "uid": "s"},
        "spec": {
            "replicas": replicas, "serviceName": "db", "podManagementPolicy": policy, "revisionHistoryLimit": 2,
            "selector": {"matchLabels": {"app": "db"}}, "template": template("a:1"),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        },
    }));
    model
}

fn snapshot(model: &Model) -> Snapshot {
    let pods = model.list::<Pod>();
    Snapshot {
        set: model.get::<StatefulSet>("db").unwrap(),
        pods: pods.into_iter().map(|pod| (ordinal("db", meta::name(&pod.metadata)).unwrap(), pod)).collect(),
        revisions: model.list::<ControllerRevision>(),
        claims: model
            .list::<PersistentVolumeClaim>()
            .into_iter()
            .map(|c| (meta::name(&c.metadata).to_owned(), c))
            .collect(),
        now: Timestamp::from_second(100_000).unwrap(),
    }
}

fn ready(model: &Model) -> Vec<i32> {
    let snapshot = snapshot(model);
    snapshot.pods.iter().filter(|(_, pod)| snapshot.is_healthy(pod)).map(|(ordinal, _)| *ordinal).collect()
}

fn make_ready(model: &mut Model, name: &str) {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    model.merge::<Pod>(name, status);
}

fn settle(model: &mut Model) {
    for _ in 0..200 {
        let actions = plan(&snapshot(model));
        actions.iter().for_each(|action| model.apply(action));
        for pod in model.list::<Pod>() {
            make_ready(model, meta::name(&pod.metadata));
        }
        if actions.is_empty() {
            return;
        }
    }
    panic!("does not settle");
}

fn images(model: &Model) -> Vec<String> {
    let image = |pod: &Arc<Pod>| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
    snapshot(model).pods.values().map(image).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ordered_pods_come_one_after_the_other_and_go_from_the_top(
        first in 0..6i32, second in 0..6i32, luck in prop::collection::vec(any::<bool>(), 200),
    ) {
        let mut model = build(first, "OrderedReady", 0);
        let mut luck = luck.into_iter().cycle();
        for round in 0..80 {
            if round == 40 {
                model.merge::<StatefulSet>("db", json!({"spec": {"replicas": second}}));
            }
            let before: Vec<i32> = snapshot(&model).pods.keys().copied().collect();
            let well = ready(&model);
            let actions = plan(&snapshot(&model));
            actions.iter().for_each(|action| model.apply(action));
            let after: Vec<i32> = snapshot(&model).pods.keys().copied().collect();
            for new in after.iter().filter(|ordinal| !before.contains(ordinal)) {
                prop_assert!((0..*new).all(|lower| well.contains(&lower)), "{new} came before all below it were well");
            }
            let gone: Vec<_> = before.iter().filter(|ordinal| !after.contains(ordinal)).collect();
            prop_assert!(gone.len() <= 1);
            prop_assert!(gone.iter().all(|ordinal| **ordinal == *before.last().unwrap()), "not from the top");
            for pod in model.list::<Pod>() {
                if luck.next().unwrap() {
                    make_ready(&mut model, meta::name(&pod.metadata));
                }
            }
        }
        settle(&mut model);
        let left: Vec<i32> = snapshot(&model).pods.keys().copied().collect();
        prop_assert_eq!(left, (0..second).collect::<Vec<_>>());
    }

    #[test]
    fn an_update_replaces_only_pods_from_the_partition_up_one_at_a_time(replicas in 1..6i32, partition in 0..7i32, parallel in any::<bool>()) {
        let mut model = build(replicas, if parallel { "Parallel" } else { "OrderedReady" }, partition);
        settle(&mut model);
        model.merge::<StatefulSet>("db", json!({"spec": {"template": template("a:2")}}));
        for _ in 0..40 {
            let actions = plan(&snapshot(&model));
            let deletes = actions.iter().filter(|a| matches!(a, Action::Delete { resource, .. } if resource.plural == "pods")).count();
            prop_assert!(deletes <= 1);
            if deletes == 1 {
                prop_assert_eq!(ready(&model).len() as i32, replicas, "a pod was taken while another was missing");
            }
            actions.iter().for_each(|action| model.apply(action));
            for pod in model.list::<Pod>() {
                make_ready(&mut model, meta::name(&pod.metadata));
            }
        }
        let wanted: Vec<String> = (0..replicas).map(|o| if o < partition { "a:1" } else { "a:2" }.to_owned()).collect();
        prop_assert_eq!(images(&model), wanted);
        let status = model.get::<StatefulSet>("db").unwrap().status.clone().unwrap();
        prop_assert_eq!(status.current_revision == status.update_revision, partition == 0);
    }

    #[test]
    fn whatever_is_there_becomes_the_numbered_pods_of_the_newest_template(
        replicas in 0..5i32,
        parallel in any::<bool>(),
        found in prop::collection::btree_map(0..9i32, (0..4usize, any::<bool>(), any::<bool>()), 0..9),
        luck in prop::collection::vec(any::<bool>(), 50),
    ) {
        let mut model = build(replicas, if parallel { "Parallel" } else { "OrderedReady" }, 0);
        for (ordinal, (phase, ready, leaving)) in found {
            let phase = ["Pending", "Running", "Failed", "Succeeded"][phase];
            model.add::<Pod>(json!({
                "metadata": {
                    "name": format!("db-{ordinal}"), "namespace": "n", "labels": {"app": "db", revision::HASH: "db-before"},
                    "deletionTimestamp": leaving.then_some("2026-01-01T00:00:00Z"),
                },
                "spec": {"containers": [{"name": "c", "image": "a:0"}]},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
            }));
        }
        let mut luck = luck.into_iter().chain([true]).cycle();
        let mut quiet = false;
        for _ in 0..400 {
            let actions = plan(&snapshot(&model));
            actions.iter().for_each(|action| model.apply(action));
            let pods = model.list::<Pod>();
            let well = pods.iter().all(|pod| snapshot(&model).is_healthy(pod));
            for pod in &pods {
                match (pod::is_deleting(pod), pod::is_finished(pod)) {
                    (true, _) => model.remove::<Pod>(meta::name(&pod.metadata)),
                    (false, false) if luck.next().unwrap() => make_ready(&mut model, meta::name(&pod.metadata)),
                    _ => {}
                }
            }
            quiet = actions.is_empty() && well;
            if quiet {
                break;
            }
        }
        prop_assert!(quiet, "does not settle");
        let left: Vec<i32> = snapshot(&model).pods.keys().copied().collect();
        prop_assert_eq!(left, (0..replicas).collect::<Vec<_>>());
        prop_assert!(images(&model).iter().all(|image| image == "a:1"));
    }
}

#[test]
fn a_pod_that_is_not_well_halts_shrinking_but_one_alone_does_not_prevent_it() {
    let unwell = |model: &mut Model, name: &str, ready: &str| {
        model.merge::<Pod>(name, json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}}));
    };
    let step = |model: &mut Model, left: usize| {
        plan(&snapshot(model)).iter().for_each(|action| model.apply(action));
        assert_eq!(model.list::<Pod>().len(), left);
    };
    let mut model = build(4, "OrderedReady", 0);
    settle(&mut model);
    unwell(&mut model, "db-2", "False");
    unwell(&mut model, "db-3", "False");
    model.merge::<StatefulSet>("db", json!({"spec": {"replicas": 1}}));
    step(&mut model, 4);
    step(&mut model, 4);
    // One of them will never be well.
    unwell(&mut model, "db-3", "True");
    for left in [3, 2, 1, 1] {
        step(&mut model, left);
    }
}

#[test]
fn claims_stay_unless_the_policy_says_otherwise() {
    for (policy, left) in [("Retain", 3), ("Delete", 3)] {
        let mut model = build(3, "Parallel", 0);
        let retention = json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": policy, "whenDeleted": "Retain"}}});
        model.merge::<StatefulSet>("db", retention);
        settle(&mut model);
        model.merge::<StatefulSet>("db", json!({"spec": {"replicas": 1}}));
        let pods: Vec<_> = model.list::<Pod>().iter().map(|pod| pod.metadata.uid.clone()).collect();
        settle(&mut model);
        let claims = model.list::<PersistentVolumeClaim>();
        assert_eq!(claims.len(), left);
        // With `Delete` a claim belongs to the pod that was taken away; garbage collection does the rest.
        let owned = claims.iter().filter(|claim| {
            claim
                .metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| pods.contains(&Some(owner.uid.clone())))
        });
        assert_eq!(owned.count(), if policy == "Delete" { 2 } else { 0 });
    }
}

#[test]
fn ordinals_are_read_only_from_names_that_the_set_would_give() {
    assert_eq!(ordinal("web", "web-3"), Some(3));
    assert_eq!(ordinal("web", "web-03"), None);
    assert_eq!(ordinal("web", "web-x"), None);
    assert_eq!(ordinal("web", "other-3"), None);
}
