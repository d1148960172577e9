use proptest::prelude::*;
use serde_json::json;
use tombolo_api::{Condition, PodSummary, Work, WorkSpec, WorkStatus};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pod {
    Runs,
    Waits,
    /// It has a node, and is on its way out of it.
    Leaves,
    /// So does one that never had a node.
    WaitsAndLeaves,
    Ended,
}

fn work(kind: &str, replicas: Option<i64>, pods: &[(i64, Pod)]) -> Kept {
    let mut spec = WorkSpec { replicas, object: json!({}), ..Default::default() };
    spec.root.kind = kind.into();
    let summary = |pod: Pod| {
        let waits = matches!(pod, Pod::Waits | Pod::WaitsAndLeaves);
        PodSummary {
            node: if waits { String::new() } else { "n".into() },
            phase: if pod == Pod::Ended { "Failed" } else { "" }.into(),
            reason: if waits { "Unschedulable" } else { "" }.into(),
            leaving: matches!(pod, Pod::Leaves | Pod::WaitsAndLeaves),
            ..Default::default()
        }
    };
    let mut work = Work::new("w", spec);
    work.metadata.generation = Some(1);
    work.status = Some(WorkStatus {
        observed_generation: 1,
        conditions: vec![Condition { r#type: "Applied".into(), status: "True".into(), ..Default::default() }],
        pods: pods.iter().map(|(n, pod)| (format!("web-{n}"), summary(*pod))).collect(),
        ..Default::default()
    });
    Kept::new(work, None)
}

/// What counts as stuck when the site has said this for long.
fn counted(work: Kept) -> usize {
    let (key, id) = (Key::new("apps/v1", &work.root.kind, "shop", "web"), ("a".to_owned(), "w".to_owned()));
    let works = BTreeMap::from([(id.clone(), Arc::new(work))]);
    let mut stuck = Stuck::default();
    stuck.note(&key, "", &works, 0);
    stuck.note(&key, "", &works, STUCK);
    stuck.count(&id, &works[&id], STUCK)
}

#[test]
fn what_waits_is_stuck_and_what_only_leaves_or_has_ended_takes_no_place() {
    use Pod::*;
    let pods = [(0, Runs), (1, Waits), (2, Waits), (3, WaitsAndLeaves), (4, Leaves), (5, Ended)];
    assert_eq!(counted(work("Deployment", Some(3), &pods)), 2);
    assert_eq!(counted(work("Deployment", Some(2), &pods)), 1, "one more waits than was given");
    assert_eq!(counted(work("Deployment", Some(1), &pods)), 0);
}

#[test]
fn what_a_site_refused_tells_nothing_about_room() {
    let mut refused = work("Deployment", Some(2), &[(0, Pod::Waits), (1, Pod::Waits)]);
    refused.status.conditions[0].status = "False".into();
    assert_eq!(counted(refused), 0);
}

#[test]
fn a_low_number_of_a_stateful_set_that_waits_takes_no_higher_one_from_its_node() {
    use Pod::*;
    assert_eq!(counted(work("StatefulSet", Some(3), &[(0, Waits), (1, Runs), (2, Runs)])), 0);
    assert_eq!(counted(work("StatefulSet", Some(3), &[(0, Runs), (1, Waits)])), 1);
}

#[test]
fn a_site_without_a_number_gives_up_all_or_nothing() {
    use Pod::*;
    for kind in ["Job", "Deployment"] {
        assert_eq!(counted(work(kind, None, &[(0, Runs), (1, Waits)])), 0);
        assert_eq!(counted(work(kind, None, &[(0, Ended), (1, Waits)])), 1);
    }
}

fn any_pod() -> impl Strategy<Value = Pod> {
    use Pod::*;
    prop::sample::select(vec![Runs, Waits, Leaves, WaitsAndLeaves, Ended])
}

proptest! {
    /// A site that gets as many less as are stuck need not stop one that runs. What it was given less already is another matter.
    #[test]
    fn nothing_that_runs_is_taken_away_for_what_is_stuck(
        pods in prop::collection::btree_map(0i64..8, any_pod(), 0..8), replicas in prop::option::of(0i64..8), stateful: bool,
    ) {
        let pods: Vec<(i64, Pod)> = pods.into_iter().collect();
        let kind = if stateful { "StatefulSet" } else { "Deployment" };
        let count = counted(work(kind, replicas, &pods)) as i64;
        let running = || pods.iter().filter(|(_, pod)| *pod == Pod::Runs).map(|(n, _)| *n);
        prop_assert!(count <= pods.iter().filter(|(_, pod)| *pod == Pod::Waits).count() as i64);
        match replicas {
            Some(given) if stateful => {
                let lost = |given: i64| running().filter(|n| *n >= given).count();
                prop_assert_eq!(lost(given - count), lost(given));
            }
            Some(given) => prop_assert!(count == 0 || count + running().count() as i64 <= given),
            None => prop_assert!(count == 0 || running().count() == 0),
        }
    }
}
