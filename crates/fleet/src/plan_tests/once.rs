//! Workloads that may run at most once.

use super::*;

#[test]
fn at_most_once_replicas_grow_elsewhere_only_when_they_are_gone_where_they_were() {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    spec.replicas.divide_by = tombolo_api::DivideBy::Weight;
    let weigh = |spec: &mut PlacementSpec, a: i64, b: i64| {
        let one = |site: &str, weight| tombolo_api::Weight {
            sites: tombolo_api::SiteSelector { names: vec![site.into()], ..Default::default() },
            weight,
        };
        spec.replicas.weights = vec![one("a", a), one("b", b)];
    };
    weigh(&mut spec, 3, 1);
    let mut index = fleet(&["a", "b"], spec.clone());
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
    weigh(&mut spec, 1, 3);
    let mut placement = Placement::new("default", spec);
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
    index.since = at(NOW - 10_000);
    for _ in 0..3 {
        step(&mut index, NOW);
        assert_eq!(shares(&index)["b"], 1, "they may still run at a");
    }
    assert_eq!(shares(&index)["a"], 1, "a was told");
    all_run(&mut index);
    step(&mut index, NOW);
    assert_eq!(shares(&index)["b"], 3);
}

#[test]
fn an_at_most_once_workload_waits_until_the_old_site_says_it_is_gone() {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    spec.sites.names = vec!["a".into()];
    let mut index = fleet(&["a", "b"], spec.clone());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
    spec.sites.names = vec!["b".into()];
    let mut placement = Placement::new("default", spec);
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
    for _ in 0..3 {
        step(&mut index, NOW);
        assert_eq!(shares(&index), BTreeMap::new(), "it may still run at a");
    }
    removed(&mut index, "a");
    for _ in 0..3 {
        step(&mut index, NOW);
    }
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 1)]));
}

fn lost_with_at_most_once() -> Index {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    spec.failover.lease_seconds = Some(1);
    spec.prefer = prefer_a().prefer;
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
    index
}

#[test]
fn what_may_run_at_most_once_moves_when_its_lease_is_over() {
    let mut index = lost_with_at_most_once();
    // 30 s to stop and 10 more: a lease is never shorter, and the hub waits longer than the lease.
    for later in [41, 54] {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]), "{later} s are too early");
    }
    index.heard("b", 0, at(NOW + 60));
    step(&mut index, NOW + 60);
    assert_eq!(shares(&index), BTreeMap::new(), "first the old place is told");
    step(&mut index, NOW + 61);
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 1)]));
}

#[test]
fn a_restored_hub_starts_nothing_that_may_run_at_most_once_before_it_has_stopped_everywhere() {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    let mut index = fleet(&["a"], spec);
    index.nothing_once_before = NOW + 55;
    index.put_object(key(), deployment(1, 1));
    for later in [0, 54] {
        index.heard("a", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::new(), "{later} s are too early");
    }
    index.heard("a", 0, at(NOW + 55));
    step(&mut index, NOW + 55);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
}

#[test]
fn a_site_that_speaks_up_while_its_work_is_buried_is_not_taken_for_silent() {
    let mut index = lost_with_at_most_once();
    index.heard("b", 0, at(NOW + 60));
    step(&mut index, NOW + 60);
    assert_eq!(shares(&index), BTreeMap::new());
    // The answer to the tombstone has in it that the site is back and holds the workload under a new tie.
    let mut work = index.works_of(&key()).map(whole).next().expect("the buried Work");
    work.status.get_or_insert_default().tie = Some("new".into());
    work.metadata.resource_version = Some("100".into());
    index.put_work(work);
    index.note_news(at(NOW + 61));
    for later in 61..100 {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::new(), "it may run at a");
    }
    removed(&mut index, "a");
    for _ in 0..3 {
        step(&mut index, NOW + 100);
    }
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
}

fn placed(index: &mut Index, spec: PlacementSpec) {
    let mut placement = Placement::new("default", spec);
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
}

fn once_at_a(lease_seconds: Option<i64>) -> PlacementSpec {
    let mut spec = prefer_a();
    spec.failover.at_most_once = lease_seconds.is_some();
    spec.failover.lease_seconds = lease_seconds;
    spec
}

/// One replica at a, by these terms; other terms are wished for, of which a hears nothing any more.
fn lost_before_it_heard_of(terms: Option<i64>, other: Option<i64>) -> Index {
    let mut index = fleet(&["a", "b"], once_at_a(terms));
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    placed(&mut index, once_at_a(other));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
    index
}

fn runs_at_b(index: &mut Index, later: i64) -> bool {
    index.heard("b", 0, at(NOW + later));
    for _ in 0..3 {
        step(index, NOW + later);
    }
    shares(index).contains_key("b")
}

#[test]
fn a_lease_that_a_lost_site_never_heard_of_counts_for_nothing() {
    let mut index = lost_before_it_heard_of(Some(300), Some(50));
    for later in [66, 100, 305] {
        assert!(!runs_at_b(&mut index, later), "{later} s are too early: a may run it for 300");
    }
    assert!(runs_at_b(&mut index, 306));
    // It heard of it, and the new pod never came up: the old one goes by its own terms.
    let mut rolling = lost_before_it_heard_of(Some(300), Some(50));
    all_run(&mut rolling);
    let mut work = rolling.works_of(&key()).map(whole).next().expect("a Work");
    work.status.get_or_insert_default().object = Some(json!({"replicas": 2, "updatedReplicas": 1}));
    rolling.put_work(written(work));
    assert!(!runs_at_b(&mut rolling, 66) && !runs_at_b(&mut rolling, 305));
    assert!(runs_at_b(&mut rolling, 306));
    let mut heard = lost_before_it_heard_of(Some(300), Some(50));
    all_run(&mut heard);
    assert!(!runs_at_b(&mut heard, 64));
    assert!(runs_at_b(&mut heard, 66), "a knew the shorter one");
}

#[test]
fn a_site_that_never_heard_of_any_lease_may_run_the_workload_for_ever() {
    let mut index = lost_before_it_heard_of(None, Some(50));
    for later in [66, 1000, 100_000] {
        assert!(!runs_at_b(&mut index, later));
    }
    removed(&mut index, "a");
    assert!(runs_at_b(&mut index, 100_001));
}

#[test]
fn another_replica_may_hear_a_site_for_a_while_without_having_said_so() {
    let mut index = lost_with_at_most_once();
    index.unheard = 24;
    assert!(!runs_at_b(&mut index, 60) && !runs_at_b(&mut index, 78));
    assert!(runs_at_b(&mut index, 79));
}

#[test]
fn a_removed_site_is_gone_only_when_nothing_can_run_there_any_more() {
    let mut index = lost_with_at_most_once();
    assert_eq!(index.fenced_at("a"), Some(NOW + 45), "40 s of lease, and 5 more");
    assert_eq!(index.fenced_at("b"), None);
    removed(&mut index, "a");
    assert_eq!(index.fenced_at("a"), None);
}
