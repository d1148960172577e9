//! Room that is taken, given back, and not given away twice.

use super::*;

fn all_heard(index: &mut Index, now: i64) {
    for name in ["a", "b"] {
        index.heard(name, 0, at(now));
    }
}

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
