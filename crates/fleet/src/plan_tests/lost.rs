//! Sites that are silent, come back, or were never lost.

use super::*;

#[test]
fn a_lost_site_s_replicas_move_after_the_wait_and_not_before() {
    let mut spec = PlacementSpec::default();
    spec.failover.wait_seconds = Some(120);
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    let before = shares(&index);
    assert_eq!(before.values().sum::<i64>(), 4);
    let lost = before.keys().next().cloned().expect("a site");
    let other = if lost == "a" { "b" } else { "a" };
    for (later, moved) in [(60, false), (130, true)] {
        index.heard(other, 0, at(NOW + later));
        index.topology += 1;
        step(&mut index, NOW + later);
        let now = shares(&index);
        assert_eq!(now.values().sum::<i64>(), 4, "a replica was lost");
        assert_eq!(!now.contains_key(&lost), moved, "after {later} s: {now:?}");
    }
}

#[test]
fn a_site_that_comes_back_keeps_what_it_ran_where_it_is_wanted_there() {
    let mut spec = PlacementSpec::default();
    spec.failover.wait_seconds = Some(10);
    spec.replicas.divide_by = tombolo_api::DivideBy::Weight;
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2), ("b".into(), 2)]));
    all_run(&mut index);
    index.heard("b", 0, at(NOW + 100));
    index.topology += 1;
    step(&mut index, NOW + 100);
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 4)]), "the lost site's share moves");
    all_run(&mut index);
    // It is heard again: two too many run, and those that go are not all of the ones that came back.
    index.heard("a", 0, at(NOW + 200));
    index.heard("b", 0, at(NOW + 200));
    index.topology += 1;
    let actions = step(&mut index, NOW + 200);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2), ("b".into(), 2)]));
    let touched = actions.iter().any(|a| matches!(a, Action::UpdateWork { site, .. } if site == "a"));
    assert!(!touched, "what ran at the returned site was changed: {actions:?}");
}

#[test]
fn a_hub_that_did_not_listen_gives_no_site_up() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    index.nobody_lost_before = NOW + 120;
    for (later, at_site) in [(119, "a"), (121, "b")] {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([(at_site.into(), 1)]), "{later} s later");
    }
}

#[test]
fn a_clock_that_jumps_loses_no_site() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    let jumped = crate::clock::Moment { steady: NOW + 10, wall: NOW + 100_000 };
    assert_eq!(index.silent("a", jumped.steady), None);
    index.heard("a", 0, jumped);
    // And back again: what was heard then is not in the future for long.
    assert_eq!(index.silent("a", NOW + 40), None);
    assert_eq!(index.silent("a", NOW + 60), Some(50));
    // Written by another replica, whose clock may be anything: what counts is that it wrote again.
    index.read_lease("a", "1", 0, at(NOW + 61));
    assert!(index.silent("a", NOW + 61).is_some(), "a lease that was there before is no sign of life");
    index.read_lease("a", "2", 3, at(NOW + 70));
    assert_eq!(index.silent("a", NOW + 106), None);
    assert_eq!(index.silent("a", NOW + 107), Some(40), "the lease is over");
    assert_eq!(index.silent("a", NOW + 108), Some(41));
    index.read_lease("a", "2", 3, at(NOW + 108));
    assert_eq!(index.silent("a", NOW + 108), Some(41), "the same version again is no news");
}

#[test]
fn with_a_bound_on_moves_the_next_replica_leaves_a_lost_site_when_the_last_one_is_up() {
    let spec = PlacementSpec {
        prefer: vec![tombolo_api::SiteSelector { names: vec!["a".into()], ..Default::default() }],
        failover: tombolo_api::Failover { wait_seconds: Some(1), max_at_once: Some(1), ..Default::default() },
        ..Default::default()
    };
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index), [("a".to_owned(), 3)].into());
    let at_b = |index: &Index| shares(index).get("b").copied().unwrap_or(0);
    for moved in 1..=3 {
        let now = NOW + 100 * moved;
        index.heard("b", 0, at(now));
        step(&mut index, now);
        assert_eq!(at_b(&index), moved);
        step(&mut index, now + 1);
        assert_eq!(at_b(&index), moved, "the one that moved is not up yet");
        all_run(&mut index);
    }
}

/// From which second on the root is looked at although nothing was heard of it.
fn due(index: &mut Index, from: i64) -> Option<i64> {
    (from..from + 1000).find(|now| {
        index.take_told();
        index.mark_due(*now);
        index.take_told().contains(&key())
    })
}

#[test]
fn what_a_lost_site_has_is_planned_when_its_wait_is_over_and_not_every_second() {
    let mut spec = prefer_a();
    spec.failover.wait_seconds = Some(120);
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    step(&mut index, NOW);
    assert_eq!(due(&mut index, NOW + 1), None, "nothing waits");
    index.heard("b", 0, at(NOW + 41));
    step(&mut index, NOW + 41);
    assert_eq!(due(&mut index, NOW + 42), Some(NOW + 120));
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 4)]));
    index.heard("b", 0, at(NOW + 120));
    step(&mut index, NOW + 120);
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 4)]));
    all_run(&mut index);
}

#[test]
fn what_stays_at_a_lost_site_waits_for_nothing_but_the_site() {
    let mut spec = prefer_a();
    (spec.failover.stay, spec.failover.wait_seconds) = (true, Some(60));
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    for later in [70, 71] {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(due(&mut index, NOW + later + 1), None);
    }
    index.take_told();
    assert!(index.heard("a", 0, at(NOW + 80)) && index.take_told().contains(&key()), "it is back");
}

#[test]
fn what_has_no_room_is_planned_when_room_returns_and_looked_at_now_and_then() {
    let mut index = fleet(&[], PlacementSpec::default());
    index.put_site(site("a", "100m"), at(NOW));
    index.since = at(NOW - 10_000);
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
    assert_eq!(due(&mut index, NOW + 1), Some(NOW + 10));
    index.take_told();
    index.put_site(site("a", "8"), at(NOW));
    assert!(index.take_told().contains(&key()));
}

#[test]
fn a_new_leader_takes_nobody_for_lost_before_a_whole_lease_of_its_own() {
    let mut spec = prefer_a();
    spec.failover.wait_seconds = Some(1);
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    // Another replica led until now; what this one knows of the site's last word is old.
    index.since = at(NOW + 500);
    for (later, at_site) in [(500, "a"), (539, "a"), (540, "b")] {
        index.heard("b", 0, at(NOW + later));
        index.topology += 1;
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([(at_site.into(), 4)]), "{later} s later");
    }
}

#[test]
fn a_site_that_returns_beside_the_one_that_took_over_numbers_its_pods_anew() {
    let sts = Key::new("apps/v1", "StatefulSet", "shop", "db");
    let root: Object = Arc::new(json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "shop", "uid": "u2", "generation": 1, "resourceVersion": "1"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}));
    let mut index = fleet(&["a", "b"], PlacementSpec::default());
    index.put_object(sts.clone(), root);
    let first = plan(&mut index, &sts, NOW, "now");
    let spec = |action: &Action| match action {
        Action::CreateWork { name, spec, .. } => Some((name.clone(), spec.clone())),
        _ => None,
    };
    let (name, spec) = first.actions.iter().find_map(spec).expect("a Work");
    // Both have the numbers from 0: b took over while a was lost, and a is wanted again.
    for (site, left) in [("a", true), ("b", false)] {
        let mut work = Work::new(&name, (*spec).clone());
        work.spec.object["spec"]["ordinals"] = json!({"start": 0});
        work.metadata.namespace = Some(names::site_namespace(site));
        work.metadata.uid = Some(site.into());
        work.metadata.annotations = left.then(|| [(names::LEFT_ANNOTATION.into(), "then".into())].into());
        index.put_work(written(work));
    }
    let start = |site: &str, actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::UpdateWork { site: to, spec, .. } if to == site => {
                spec.object.pointer("/spec/ordinals/start").and_then(Value::as_i64)
            }
            _ => None,
        })
    };
    let then = plan(&mut index, &sts, NOW, "now").actions;
    assert_eq!(start("a", &then), Some(1000), "{then:?}");
    assert_eq!(start("b", &then).unwrap_or(0), 0, "its pods keep their names");
}
