use super::*;
use crate::model::Model;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn build(spec: Value) -> Model {
    let mut model = Model::default();
    let mut cron = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "c"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {}}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        cron["spec"][key] = value.clone();
    }
    model.add::<CronJob>(cron);
    model
}

fn step(model: &mut Model, now: i64) -> Vec<Action> {
    let cron = model.get::<CronJob>("c").unwrap();
    let actions =
        plan(&Snapshot { cron, jobs: model.list::<Job>(), now: Timestamp::from_second(now).unwrap() });
    actions.iter().for_each(|action| model.apply(action));
    actions
}

fn finish(model: &mut Model, name: &str) {
    let status = json!({"status": {
        "completionTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Complete", "status": "True"}],
    }});
    model.merge::<Job>(name, status);
}

#[test]
fn one_job_per_due_time_and_none_twice() {
    let mut model = build(json!({}));
    // The model's objects are created at second 1001.
    let early = step(&mut model, 1010);
    assert!(matches!(early.last(), Some(Action::After(left)) if left.as_secs() == 10), "{early:?}");
    assert!(model.list::<Job>().is_empty());
    step(&mut model, 1020);
    step(&mut model, 1021);
    let jobs = model.list::<Job>();
    assert_eq!(jobs.len(), 1);
    assert_eq!(meta::name(&jobs[0].metadata), "c-17");
    step(&mut model, 1080);
    assert_eq!(model.list::<Job>().len(), 2);
}

#[test]
fn a_running_job_is_waited_for_or_replaced_as_told() {
    for (policy, left) in [("Allow", 2), ("Forbid", 1), ("Replace", 1)] {
        let mut model = build(json!({"concurrencyPolicy": policy}));
        step(&mut model, 1020);
        step(&mut model, 1080);
        let jobs = model.list::<Job>();
        assert_eq!(jobs.len(), left, "{policy}");
        let newest = meta::name(&jobs[left - 1].metadata).to_owned();
        assert_eq!(newest, if policy == "Forbid" { "c-17" } else { "c-18" });
    }
}

#[test]
fn old_results_are_kept_to_the_limit() {
    let mut model = build(json!({"successfulJobsHistoryLimit": 2}));
    for minute in 17..24 {
        step(&mut model, minute * 60);
        finish(&mut model, &format!("c-{minute}"));
        step(&mut model, minute * 60 + 1);
    }
    assert_eq!(model.list::<Job>().len(), 2);
    let status = model.get::<CronJob>("c").unwrap().status.clone().unwrap();
    assert!(status.active.is_none() && status.last_successful_time.is_some());
}

#[test]
fn a_suspended_one_and_one_that_cannot_be_read_start_nothing() {
    for spec in [json!({"suspend": true}), json!({"schedule": "never"})] {
        let mut model = build(spec);
        step(&mut model, 5000);
        assert!(model.list::<Job>().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_often_it_is_interrupted_no_time_has_two_jobs_and_what_is_forbidden_does_not_run_twice(
        policy in 0..3usize,
        steps in prop::collection::vec((1..200i64, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let policy = ["Allow", "Forbid", "Replace"][policy];
        let mut model = build(json!({"schedule": "*/2 * * * *", "concurrencyPolicy": policy}));
        let (mut now, mut times) = (1001, BTreeSet::new());
        for (pause, ends, killed) in steps {
            now += pause;
            let cron = model.get::<CronJob>("c").unwrap();
            let snapshot = Snapshot { cron, jobs: model.list::<Job>(), now: Timestamp::from_second(now).unwrap() };
            for action in plan(&snapshot) {
                if let Action::Create { body, .. } = &action {
                    let job: Job = body.read().unwrap();
                    let due = meta::annotation(&job.metadata, SCHEDULED_AT).unwrap().to_owned();
                    prop_assert!(due.parse::<Timestamp>().unwrap() <= snapshot.now, "{due} is not yet");
                    prop_assert!(times.insert(due.clone()), "a second job for {due}");
                }
                // Killed before it could write down what it did.
                if !(killed && action.is_status()) {
                    model.apply(&action);
                }
            }
            let running: Vec<_> = model.list::<Job>().into_iter().filter(|job| !job::is_finished(job)).collect();
            prop_assert!(policy == "Allow" || running.len() <= 1, "{} run at once", running.len());
            if ends && let Some(job) = running.first() {
                let started = json!({"status": {"startTime": job.metadata.creation_timestamp}});
                model.merge::<Job>(meta::name(&job.metadata), started);
                finish(&mut model, meta::name(&job.metadata));
            }
        }
    }
}
