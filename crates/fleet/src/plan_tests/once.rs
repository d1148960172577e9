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
