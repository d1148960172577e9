//! Hubs below, which offer several places.

use super::*;
use tombolo_api::{Location, Offer, ReplicasMode, Tier};

/// A hub below with a site in each of these zones.
fn hub_below(zones: &[&str]) -> Site {
    let mut hub = site("below", "8");
    hub.spec.hubs = vec!["lower".into()];
    let status = hub.status.get_or_insert_default();
    let offer = |zone: &&str| Offer {
        tier: Tier::Edge,
        location: Location { zone: Some((*zone).to_owned()), ..Default::default() },
        sites: 1,
        shapes: status.shapes.clone(),
        ..Default::default()
    };
    status.offers = zones.iter().map(offer).collect();
    hub
}

fn given(copies: Option<i64>) -> (Option<i64>, usize) {
    let mut spec = PlacementSpec::default();
    spec.replicas.mode = ReplicasMode::Duplicate;
    spec.replicas.copies = copies;
    let mut index = fleet(&[], spec);
    index.put_site(hub_below(&["north", "south"]), at(NOW));
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    let work = index.works_of(&key()).map(whole).next().expect("a Work");
    let below: PlacementSpec =
        serde_json::from_value(work.spec.delegate.expect("a delegate")).expect("valid");
    (work.spec.replicas, below.sites.zones.len())
}

#[test]
fn a_copy_has_as_many_replicas_at_each_place_of_a_hub_below_as_everywhere() {
    assert_eq!(given(None), (Some(2), 2));
}

#[test]
fn what_a_hub_below_has_no_place_for_overflows() {
    let below = tombolo_api::SiteSelector { names: vec!["below".into()], ..Default::default() };
    let mut index = fleet(&["z"], PlacementSpec { prefer: vec![below], ..Default::default() });
    index.put_site(hub_below(&["north", "south"]), at(NOW));
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("below".into(), 3)]));
    let mut work = index.works_of(&key()).map(whole).next().expect("a Work");
    let parts = r#"[["edge:/north/",2],["edge:/south/",1]]"#;
    work.metadata.annotations = Some([(PARTS_ANNOTATION.to_owned(), parts.to_owned())].into());
    let no_room = json!([{"type": "Placed", "status": "False", "reason": "NoRoom"}]);
    let status = work.status.get_or_insert_default();
    status.object = Some(json!({"replicas": 1, "conditions": no_room}));
    status.observed_generation = work.metadata.generation.unwrap_or(0);
    status.conditions =
        vec![Condition { r#type: "Applied".into(), status: "True".into(), ..Default::default() }];
    index.put_work(written(work));
    for (later, at_z) in [(1, None), (10, None), (11, Some(2))] {
        for site in ["z", "below"] {
            index.heard(site, 0, at(NOW + later));
        }
        step(&mut index, NOW + later);
        assert_eq!(shares(&index).get("z").copied(), at_z, "after {later} s");
    }
}

#[test]
fn one_copy_goes_to_one_place_of_a_hub_below() {
    assert_eq!(given(Some(1)), (Some(2), 1));
    assert_eq!(given(Some(2)), (Some(2), 2));
}
