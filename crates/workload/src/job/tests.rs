use super::*;
use crate::model::Model;
use proptest::prelude::*;
use serde_json::Value;

const NOW: i64 = 1_000_000;

fn build(spec: Value) -> Model {
    let mut model = Model::default();
    let mut job = json!({
        "metadata": {"name": "j", "namespace": "n", "uid": "j"},
        "spec": {
            "selector": {"matchLabels": {"job-name": "j"}},
            "template": {"metadata": {"labels": {"job-name": "j"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}},
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    model.add::<Job>(job);
    model
}

fn snapshot(model: &Model, now: i64) -> Snapshot {
    Snapshot {
        job: model.get::<Job>("j").unwrap(),
        pods: model.list::<Pod>(),
        now: Timestamp::from_second(now).unwrap(),
    }
}

fn step(model: &mut Model, now: i64) -> Vec<Action> {
    let actions = plan(&snapshot(model, now));
    actions.iter().for_each(|action| model.apply(action));
    actions
}

fn end(model: &mut Model, pod: &Pod, phase: &str) {
    let status = json!({"status": {"phase": phase, "conditions": [
        {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}});
    model.merge::<Pod>(meta::name(&pod.metadata), status);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_ended_pod_is_counted_once_even_when_someone_deletes_it(
        completions in 0..6i32, parallelism in 1..5i32, indexed in any::<bool>(),
        // For every step of the world: which pod, and what happens to it.
        fate in prop::collection::vec((any::<prop::sample::Index>(), 0..10u8), 100),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut model = build(json!({
            "completions": completions, "parallelism": parallelism, "completionMode": mode, "backoffLimit": 1000,
        }));
        let (mut succeeded, mut failed) = (0, 0);
        for (turn, (pick, what)) in fate.iter().enumerate() {
            step(&mut model, NOW + turn as i64 * 1000);
            let pods = model.list::<Pod>();
            let active = pods.iter().filter(|pod| pod::is_active(pod)).count() as i32;
            prop_assert!(active <= parallelism, "{active} pods at once");
            let status = model.get::<Job>("j").unwrap().status.clone().unwrap_or_default();
            prop_assert!(status.succeeded.unwrap_or(0) <= succeeded);
            prop_assert!(status.failed.unwrap_or(0) <= failed);
            if pods.is_empty() {
                continue;
            }
            let pod = &pods[pick.index(pods.len())];
            match what {
                0..=3 if pod::is_active(pod) => {
                    end(&mut model, pod, "Succeeded");
                    succeeded += 1;
                }
                4..=5 if pod::is_active(pod) => {
                    end(&mut model, pod, "Failed");
                    failed += 1;
                }
                6..=8 if pod::is_finished(pod) => model.remove::<Pod>(meta::name(&pod.metadata)),
                _ => {}
            }
        }
        for turn in 0..60i64 {
            step(&mut model, NOW * 2 + turn * 1000);
            for pod in model.list::<Pod>().iter().filter(|pod| pod::is_active(pod)) {
                end(&mut model, pod, "Succeeded");
            }
        }
        let job = model.get::<Job>("j").unwrap();
        let status = job.status.clone().unwrap();
        prop_assert_eq!(finished_condition(&job).map(|c| c.type_.as_str()), Some("Complete"), "{:?}", status);
        prop_assert_eq!(status.succeeded.unwrap_or(0), completions);
        prop_assert_eq!(status.failed.unwrap_or(0), failed);
        prop_assert!(model.list::<Pod>().iter().all(|pod| !meta::has_finalizer(&pod.metadata, TRACKING)));
    }

    #[test]
    fn index_sets_survive_being_written(set in prop::collection::btree_set(0..200i32, 0..40)) {
        let indexes = Indexes(set);
        prop_assert_eq!(indexes.to_string().parse::<Indexes>().unwrap(), indexes);
    }
}

#[test]
fn failures_beyond_the_limit_end_the_job_and_pause_before_each_try() {
    let mut model = build(json!({"completions": 1, "parallelism": 1, "backoffLimit": 1}));
    step(&mut model, NOW);
    let pod = model.list::<Pod>()[0].clone();
    let status = json!({"status": {"phase": "Failed", "conditions": [{
        "type": "Ready", "status": "False", "lastTransitionTime": Timestamp::from_second(NOW).unwrap().to_string()}]}});
    model.merge::<Pod>(meta::name(&pod.metadata), status);
    let actions = step(&mut model, NOW + 1);
    assert!(!actions.iter().any(|action| matches!(action, Action::Create { .. })), "too early");
    assert!(actions.iter().any(|action| matches!(action, Action::After(left) if left.as_secs() == 9)));
    step(&mut model, NOW + 11);
    let second = model.list::<Pod>().iter().find(|pod| pod::is_active(pod)).cloned().expect("a second try");
    end(&mut model, &second, "Failed");
    for turn in 0..6 {
        step(&mut model, NOW + 100 + turn);
    }
    let job = model.get::<Job>("j").unwrap();
    assert_eq!(finished_condition(&job).unwrap().reason.as_deref(), Some("BackoffLimitExceeded"));
    assert_eq!(job.status.as_ref().unwrap().failed, Some(2));
}

#[test]
fn a_failure_policy_can_ignore_a_pod_or_end_the_job() {
    for (action, ends) in [("Ignore", false), ("FailJob", true)] {
        let mut model = build(json!({
            "completions": 1, "parallelism": 1, "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]},
        }));
        step(&mut model, NOW);
        let pod = model.list::<Pod>()[0].clone();
        let status = json!({"status": {"phase": "Failed", "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 42, "finishedAt": "1970-01-01T00:00:00Z"}}}]}});
        model.merge::<Pod>(meta::name(&pod.metadata), status);
        for turn in 0..6 {
            step(&mut model, NOW + turn);
        }
        let job = model.get::<Job>("j").unwrap();
        let reason = finished_condition(&job).and_then(|condition| condition.reason.clone());
        assert_eq!(reason.as_deref(), ends.then_some("PodFailurePolicy"));
    }
}

#[test]
fn a_failing_index_is_given_up_alone() {
    let mut model = build(json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "backoffLimit": 1000,
    }));
    step(&mut model, NOW);
    for pod in model.list::<Pod>() {
        let phase = if index_of(&pod) == Some(0) { "Failed" } else { "Succeeded" };
        end(&mut model, &pod, phase);
    }
    for turn in 0..8 {
        step(&mut model, NOW + turn);
    }
    let job = model.get::<Job>("j").unwrap();
    let status = job.status.as_ref().unwrap();
    assert_eq!(finished_condition(&job).unwrap().reason.as_deref(), Some("FailedIndexes"));
    assert_eq!(
        (status.completed_indexes.as_deref(), status.failed_indexes.as_deref()),
        (Some("1"), Some("0"))
    );
}
