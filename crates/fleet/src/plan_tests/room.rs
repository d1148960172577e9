//! Room that is taken, given back, and not given away twice.

use super::*;

#[test]
fn room_is_given_away_once_while_a_site_has_not_reported_what_is_left() {
    let mut index = fleet(&["b"], prefer_a());
    index.put_site(site("a", "400m"), at(NOW));
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]));
    // The pods are shown, the room is still that of before.
    all_run(&mut index);
    index.note_news(at(NOW));
    index.put_object(key(), deployment(7, 2));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 4), ("b".into(), 3)]));
    all_run(&mut index);
    index.note_news(at(NOW));
    index.put_site(site("a", "0"), at(NOW));
    for later in [1, 10, 100, 1000] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(
            shares(&index),
            BTreeMap::from([("a".into(), 4), ("b".into(), 3)]),
            "it is full, and stays so"
        );
    }
}

#[test]
fn a_changed_placement_is_followed_at_once_and_returned_room_only_after_a_rest() {
    let mut index = fleet(&["a", "b"], PlacementSpec::default());
    let placement = |index: &mut Index, spec: PlacementSpec| {
        let mut placement = Placement::new("default", spec);
        placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
        index.put_placement(placement);
    };
    index.since = at(NOW);
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index).len(), 2);
    placement(&mut index, prefer_a());
    step(&mut index, NOW + 1);
    step(&mut index, NOW + 1);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2)]));
    removed(&mut index, "b");
    step(&mut index, NOW + 1);
    // Full for a while: what came goes elsewhere, and comes back only when things have been calm.
    index.put_site(site("a", "0"), at(NOW));
    index.put_object(key(), deployment(3, 2));
    step(&mut index, NOW + 2);
    all_run(&mut index);
    assert_eq!(shares(&index)["b"], 1);
    index.put_site(site("a", "8"), at(NOW));
    for later in [3, 30] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(shares(&index)["b"], 1, "{later} s are too early");
    }
    all_heard(&mut index, NOW + 90);
    step(&mut index, NOW + 90);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]));
}

/// A site as it says itself: so many nodes, of which none is ready.
fn bare(name: &str, nodes: Option<i64>) -> Site {
    let mut site = site(name, "8");
    let status = site.status.get_or_insert_default();
    (status.nodes, status.shapes) = (nodes, Vec::new());
    site
}

#[test]
fn a_site_without_a_ready_node_gets_no_pods_and_one_that_has_not_said_so_does() {
    for (nodes, gets) in [(Some(0), 0), (Some(2), 0), (None, 3)] {
        let mut index = fleet(&[], PlacementSpec::default());
        index.put_site(bare("a", nodes), at(NOW));
        index.put_object(key(), deployment(3, 1));
        step(&mut index, NOW);
        assert_eq!(shares(&index).get("a").copied().unwrap_or(0), gets, "{nodes:?}");
    }
}

#[test]
fn what_runs_at_a_site_stays_when_its_nodes_are_not_ready() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    for nodes in [1, 0] {
        index.put_site(bare("a", Some(nodes)), at(NOW));
        for later in [1, 100] {
            all_heard(&mut index, NOW + later);
            assert_eq!(about_works(&step(&mut index, NOW + later)), 0);
        }
    }
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]));
    // What comes on top goes where it can run.
    index.put_object(key(), deployment(5, 2));
    step(&mut index, NOW + 100);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3), ("b".into(), 2)]));
}

#[test]
fn what_has_no_pods_needs_no_node_and_a_daemon_set_comes_with_the_first_one() {
    let kinds = [("v1", "ConfigMap"), ("sea.example.com/v1", "Ship"), ("apps/v1", "DaemonSet")];
    let mut index = fleet(&["b"], PlacementSpec::default());
    index.put_site(bare("a", Some(0)), at(NOW));
    for (_, kind) in kinds {
        let selects = tombolo_api::ObjectSelector { kind: Some(kind.into()), ..Default::default() };
        let mut placement =
            Placement::new(kind, PlacementSpec { objects: vec![selects], ..Default::default() });
        placement.metadata.namespace = Some("shop".into());
        // A DaemonSet has a place at the other site, so that nothing waits.
        if kind != "DaemonSet" {
            placement.spec.sites.names = vec!["a".into()];
        }
        index.put_placement(placement);
    }
    let sent = |index: &mut Index, (api_version, kind): (&str, &str)| {
        let key = Key::new(api_version, kind, "shop", "web");
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": 1}});
        index.put_object(key.clone(), Arc::new(object));
        let plan = plan(index, &key, NOW, "now");
        index.decided.extend(plan.decided.map(|decided| (key, decided)));
        plan.actions.iter().any(|action| matches!(action, Action::CreateWork { site, .. } if site == "a"))
    };
    assert_eq!(kinds.map(|kind| sent(&mut index, kind)), [true, true, false]);
    index.put_site(site("a", "8"), at(NOW));
    assert!(sent(&mut index, kinds[2]), "the site has a node now");
}

#[test]
fn a_site_that_schedules_in_the_end_what_was_stuck_is_as_good_as_before() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    stuck(&mut index, "a", 1);
    for later in [0, 20] {
        index.heard("a", 0, at(NOW + later));
        step(&mut index, NOW + later);
    }
    index.put_object(key(), deployment(3, 2));
    step(&mut index, NOW + 21);
    assert_eq!(shares(&index)["a"], 2, "it has no room, whatever it says");
    stuck(&mut index, "a", 0);
    step(&mut index, NOW + 22);
    assert_eq!(shares(&index)["a"], 3);
}

#[test]
fn what_a_site_cannot_schedule_overflows_and_does_not_come_back_at_once() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.since = at(NOW);
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    step(&mut index, NOW);
    // Its numbers say that all fit. A node is gone, or another selector is in the way: the site knows better.
    stuck(&mut index, "a", 2);
    for later in [100, 105] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]), "they may only wait for others to end");
    }
    assert_eq!(index.unsettled.get(&key()), Some(&(NOW + 110)), "nobody else would say when to look again");
    all_heard(&mut index, NOW + 110);
    step(&mut index, NOW + 110);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1), ("b".into(), 2)]));
    all_run(&mut index);
    for later in [111, 200, 500] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(
            shares(&index),
            BTreeMap::from([("a".into(), 1), ("b".into(), 2)]),
            "{later}: no flapping"
        );
    }
    all_heard(&mut index, NOW + 711);
    for _ in 0..3 {
        step(&mut index, NOW + 711);
        all_run(&mut index);
    }
    assert_eq!(shares(&index)["a"], 3, "it is tried again in the end");
}

/// What `explain place` says, which knows only what is in the API.
fn explained(index: &Index, now: i64) -> String {
    let mut fresh = fleet(&["a", "b"], prefer_a());
    all_heard(&mut fresh, now);
    for work in index.works_of(&key()).map(whole) {
        fresh.put_work(work);
    }
    let root = (*index.objects[&key()]).clone();
    crate::explain::explained(&mut fresh, &key(), root, now).to_string()
}

/// The site has taken all of it away.
fn removed(index: &mut Index, site: &str) {
    let mut work = index.works_of(&key()).find(|(s, _)| *s == site).map(whole).expect("a Work");
    let removed = Condition { r#type: "Removed".into(), status: "True".into(), ..Default::default() };
    let observed_generation = work.metadata.generation.unwrap_or(0);
    work.status = Some(tombolo_api::WorkStatus {
        observed_generation,
        conditions: vec![removed],
        ..Default::default()
    });
    index.put_work(written(work));
}

#[test]
fn explain_place_says_which_sites_get_no_more_because_they_could_not_schedule_it() {
    let overflowed = |count: usize| {
        let mut index = fleet(&["a", "b"], prefer_a());
        index.put_object(key(), deployment(3, 1));
        step(&mut index, NOW);
        all_run(&mut index);
        stuck(&mut index, "a", count);
        for later in [0, 10] {
            all_heard(&mut index, NOW + later);
            step(&mut index, NOW + later);
        }
        index
    };
    let keeps_one = overflowed(2);
    assert_eq!(shares(&keeps_one), BTreeMap::from([("a".into(), 1), ("b".into(), 2)]));
    let said = explained(&keeps_one, NOW + 11);
    assert!(said.contains("a gets no more for now: it could not schedule what it was given."), "{said}");
    let mut has_none = overflowed(3);
    removed(&mut has_none, "a");
    step(&mut has_none, NOW + 11);
    assert_eq!(shares(&has_none), BTreeMap::from([("b".into(), 3)]));
    let said = explained(&has_none, NOW + 12);
    assert!(said.contains("it could not schedule this lately, whatever its free room says"), "{said}");
    // In the end it is as good as before; the hub looks then, and nobody says otherwise.
    let end = has_none.stuck.over_at(&key()).expect("an end");
    all_heard(&mut has_none, end);
    step(&mut has_none, end);
    let said = explained(&has_none, end + 1);
    assert!(!said.contains("could not schedule"), "{said}");
}

#[test]
fn a_hub_looks_again_when_a_site_is_as_good_as_before() {
    let mut index = fleet(&["a", "b"], PlacementSpec::default());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    let first = shares(&index).into_keys().next().expect("a site");
    stuck(&mut index, &first, 1);
    for later in [0, 10] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
    }
    removed(&mut index, &first);
    all_heard(&mut index, NOW + 11);
    step(&mut index, NOW + 11);
    let end = index.stuck.over_at(&key());
    assert!(end.is_some() && index.unsettled.get(&key()) == end.as_ref(), "{:?}", index.unsettled);
}
