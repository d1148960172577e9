use super::*;
use crate::model::Model;
use proptest::prelude::*;
use serde_json::{Value, json};

const NAME: &str = "web";

#[derive(Clone, Debug)]
struct Start {
    replicas: i32,
    surge: i32,
    missing: i32,
    /// Old sets: size and how many of those are available.
    old: Vec<(i32, i32)>,
    new: Option<(i32, i32)>,
}

fn start() -> impl Strategy<Value = Start> {
    let set = || (0..8i32).prop_flat_map(|size| (Just(size), 0..=size));
    (0..9i32, 0..4i32, 0..4i32, prop::collection::vec(set(), 0..4), prop::option::of(set())).prop_map(
        |(replicas, surge, missing, old, new)| {
            let missing = if surge == 0 && missing == 0 { 1 } else { missing };
            Start { replicas, surge, missing, old, new }
        },
    )
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": NAME}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn build(start: &Start, strategy: &str) -> Model {
    let mut model = Model::default();
    model.add::<Deployment>(json!({
        "metadata": {"name": NAME, "namespace": "n", "uid": "d"},
        "spec": {
            "replicas": start.replicas,
            "selector": {"matchLabels": {"app": NAME}},
            "template": template("new"),
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 2,
            "strategy": if strategy == "Recreate" { json!({"type": "Recreate"}) } else {
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": start.surge, "maxUnavailable": start.missing}})
            },
        },
    }));
    let mut add = |number: usize, image: String, (size, available): (i32, i32)| {
        model.add::<ReplicaSet>(json!({
            "metadata": {
                "name": format!("{NAME}-{number}"), "namespace": "n", "labels": {"app": NAME, HASH: image},
                "annotations": {
                    DESIRED: start.replicas.to_string(), MAX: (start.replicas + start.surge).to_string(),
                    REVISION: number.to_string(),
                },
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME, "uid": "d", "controller": true}],
            },
            "spec": {"replicas": size, "selector": {"matchLabels": {"app": NAME, HASH: image}}, "template": template(&image)},
            "status": {"replicas": size, "readyReplicas": available, "availableReplicas": available, "observedGeneration": 1},
        }));
    };
    for (number, set) in start.old.iter().enumerate() {
        add(number + 1, format!("old-{number}"), *set);
    }
    if let Some(set) = start.new {
        add(start.old.len() + 1, "new".into(), set);
    }
    model
}

fn snapshot(model: &Model, now: i64) -> Snapshot {
    let deployment = model.get::<Deployment>(NAME).unwrap();
    let mut sets = model.list::<ReplicaSet>();
    sets.sort_by_key(|set| (meta::created(&set.metadata), set.metadata.name.clone()));
    let same_name = model.get::<ReplicaSet>(&revision::new_set_name(&deployment));
    let mut snapshot = Snapshot {
        deployment,
        sets,
        same_name,
        old_pods_running: false,
        now: Timestamp::from_second(now).unwrap(),
        new_at: OnceCell::new(),
    };
    snapshot.old_pods_running =
        snapshot.old_sets().iter().any(|set| set.status.as_ref().is_some_and(|status| status.replicas > 0));
    snapshot
}

/// What ReplicaSets and nodes do between two plans: sizes are followed, and up to `more` pods become available.
fn live(model: &mut Model, mut more: i32) {
    for set in model.list::<ReplicaSet>() {
        let size = set_replicas(&set);
        // Pods that are not available go first, so a shrinking set keeps what serves.
        let mut serving = available(&set).min(size);
        let gain = (size - serving).min(more);
        serving += gain;
        more -= gain;
        let status = json!({"status": {
            "replicas": size, "readyReplicas": serving, "availableReplicas": serving,
            "observedGeneration": set.metadata.generation,
        }});
        model.merge::<ReplicaSet>(meta::name(&set.metadata), status);
    }
}

fn totals(model: &Model) -> (i32, i32) {
    let sets = model.list::<ReplicaSet>();
    let size = sets.iter().map(|set| set_replicas(set)).sum();
    // What is surely serving after the sizes are followed.
    let serving = sets.iter().map(|set| available(set).min(set_replicas(set))).sum();
    (size, serving)
}

fn is_done(model: &Model, replicas: i32) -> bool {
    let snapshot = snapshot(model, 0);
    let status = snapshot.deployment.status.clone().unwrap_or_default();
    snapshot.new_set().is_some_and(|set| set_replicas(set) == replicas && available(set) == replicas)
        && snapshot.old_sets().iter().all(|set| set_replicas(set) == 0)
        && status.updated_replicas.unwrap_or(0) == replicas
        && status.replicas.unwrap_or(0) == replicas
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_rollout_keeps_to_its_limits_and_ends_from_any_state(start in start(), pace in 1..4i32) {
        let mut model = build(&start, "RollingUpdate");
        let least = start.replicas - start.missing.min(start.replicas);
        for round in 0..200 {
            for action in plan(&snapshot(&model, 5_000 + round)) {
                let (size, serving) = totals(&model);
                model.apply(&action);
                let (new_size, new_serving) = totals(&model);
                prop_assert!(new_size <= size.max(start.replicas + start.surge), "{size} -> {new_size} by {action:?}");
                prop_assert!(new_serving >= serving.min(least), "{serving} -> {new_serving} by {action:?}");
            }
            live(&mut model, pace);
            if is_done(&model, start.replicas) && plan(&snapshot(&model, 5_000 + round)).iter().all(|a| matches!(a, Action::After(_) | Action::Tell(_))) {
                break;
            }
        }
        prop_assert!(is_done(&model, start.replicas), "{:?}", model.list::<ReplicaSet>());
        let old = model.list::<ReplicaSet>().len() - 1;
        prop_assert!(old <= 2, "history is cut to its limit, {old} left");
        let deployment = model.get::<Deployment>(NAME).unwrap();
        let progressing = deployment.status.as_ref().unwrap().conditions.iter().flatten().find(|c| c.type_ == "Progressing").cloned();
        prop_assert_eq!(progressing.unwrap().reason.unwrap(), "NewReplicaSetAvailable");
    }

    #[test]
    fn recreate_never_runs_old_and_new_together(start in start(), pace in 1..4i32) {
        let start = Start { new: None, ..start };
        let mut model = build(&start, "Recreate");
        for round in 0..40 {
            for action in plan(&snapshot(&model, 5_000 + round)) {
                model.apply(&action);
            }
            let now = snapshot(&model, 0);
            let new = now.new_set().map_or(0, |set| set_replicas(set));
            let old: i32 = now.old_sets().iter().map(|set| set.status.as_ref().map_or(0, |s| s.replicas)).sum();
            prop_assert!(new == 0 || old == 0);
            live(&mut model, pace);
        }
        prop_assert!(is_done(&model, start.replicas));
    }

    #[test]
    fn scaling_in_the_middle_of_a_rollout_ends_at_the_new_size(start in start(), wanted in 0..12i32) {
        let mut model = build(&start, "RollingUpdate");
        model.merge::<Deployment>(NAME, json!({"spec": {"replicas": wanted}}));
        for round in 0..80 {
            for action in plan(&snapshot(&model, 5_000 + round)) {
                model.apply(&action);
            }
            live(&mut model, 2);
        }
        prop_assert!(is_done(&model, wanted), "{:?}", model.list::<ReplicaSet>());
    }
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let start = Start { replicas: 3, surge: 1, missing: 0, old: vec![(3, 3)], new: None };
    let mut model = build(&start, "RollingUpdate");
    model.merge::<Deployment>(NAME, json!({"spec": {"paused": true, "replicas": 5}}));
    for round in 0..20 {
        for action in plan(&snapshot(&model, 5_000 + round)) {
            model.apply(&action);
        }
        live(&mut model, 9);
    }
    let sets = model.list::<ReplicaSet>();
    assert_eq!(sets.len(), 1);
    assert_eq!(set_replicas(&sets[0]), 5);
}

#[test]
fn a_rollout_that_stands_still_is_told_after_its_deadline() {
    let start = Start { replicas: 2, surge: 1, missing: 0, old: vec![], new: None };
    let mut model = build(&start, "RollingUpdate");
    let mut told = false;
    for second in [5_000, 5_001, 5_002, 5_003, 5_700] {
        for action in plan(&snapshot(&model, second)) {
            told |= matches!(&action, Action::Tell(note) if note.reason == "ProgressDeadlineExceeded");
            model.apply(&action);
        }
        live(&mut model, 0);
        assert!(!told || second == 5_700);
    }
    assert!(told);
}

#[test]
fn going_back_to_an_old_template_gives_its_set_the_next_revision() {
    let start = Start { replicas: 1, surge: 1, missing: 0, old: vec![(1, 1)], new: Some((0, 0)) };
    let mut model = build(&start, "RollingUpdate");
    model.merge::<Deployment>(NAME, json!({"spec": {"template": template("old-0")}}));
    for round in 0..20 {
        for action in plan(&snapshot(&model, 5_000 + round)) {
            model.apply(&action);
        }
        live(&mut model, 9);
    }
    let set = model.get::<ReplicaSet>("web-1").unwrap();
    assert_eq!(meta::annotation(&set.metadata, REVISION), Some("3"));
    assert_eq!(meta::annotation(&set.metadata, REVISION_HISTORY), Some("1"));
    assert_eq!(meta::annotation(&model.get::<Deployment>(NAME).unwrap().metadata, REVISION), Some("3"));
}
