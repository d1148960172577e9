//! One behaviour of placing a test; the general laws are in `properties`.

use std::collections::BTreeMap;

use super::*;
use crate::{Effect, Resources, Taint, Toleration, TolerationOperator};

/// A ready site with one node on which `fits` replicas of [`ask`] fit.
fn site(name: &str, fits: i64) -> SiteView {
    SiteView::new(name, Locality::default(), nodes(&[fits]))
}

fn nodes(fits: &[i64]) -> Capacity {
    let node = |fits: &i64| FreeNodes { free: Resources::replica(fits * 100, 0).with_pods(1000), nodes: 1 };
    Capacity::Nodes(fits.iter().map(node).collect())
}

fn at(name: &str, fits: i64, tier: &str, region: &str) -> SiteView {
    let mut site = site(name, fits);
    site.parts[0].locality.tier = tier.to_owned();
    site.parts[0].locality.region = region.to_owned();
    site
}

fn ask(replicas: u32) -> Request {
    Request { replicas, each: Resources::replica(100, 0), may_return: true, ..Request::default() }
}

/// The same request after `decision` was carried out and all its replicas run.
fn after(request: &Request, decision: &Decision) -> Request {
    let held = decision.sites.iter().filter(|e| e.chosen).map(|e| Held {
        site: e.site.clone(),
        part: e.part.clone(),
        assigned: e.replicas,
        ready: e.replicas,
        counted: e.replicas,
        stuck: 0,
    });
    Request { held: held.collect(), ..request.clone() }
}

fn held(request: Request, places: &[(&str, u32)]) -> Request {
    let one = |(site, n): &(&str, u32)| Held {
        site: (*site).to_owned(),
        assigned: *n,
        ready: *n,
        counted: *n,
        ..Held::default()
    };
    Request { held: places.iter().map(one).collect(), ..request }
}

fn counts(decision: &Decision) -> BTreeMap<String, u32> {
    decision.sites.iter().filter(|e| e.replicas > 0).map(|e| (e.place(), e.replicas)).collect()
}

fn expect<'a>(places: impl IntoIterator<Item = (&'a str, u32)>) -> BTreeMap<String, u32> {
    places.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

fn reason(decision: &Decision, site: &str) -> String {
    decision.sites.iter().find(|e| e.place() == site).expect("explained").reason.to_string()
}

fn named(name: &str) -> SiteSelector {
    SiteSelector { names: [name.to_owned()].into(), ..SiteSelector::default() }
}

fn tier(name: &str) -> SiteSelector {
    SiteSelector { tiers: [name.to_owned()].into(), ..SiteSelector::default() }
}

fn weights(list: &[(&str, u32)]) -> Rule {
    let weights = list.iter().map(|(name, weight)| Weight { sites: named(name), weight: *weight }).collect();
    Rule { mode: Mode::Divide(Divide::Weights(weights)), ..Rule::default() }
}

fn spread(by: Domain) -> Spread {
    Spread { by, max_skew: None, min_domains: None, max_domains: None, required: true }
}

#[test]
fn free_capacity_divides_in_proportion_to_what_fits() {
    let decision = place(&[site("a", 10), site("b", 20), site("c", 0)], &Rule::default(), &ask(9));
    assert_eq!(counts(&decision), expect([("a", 3), ("b", 6)]));
    assert_eq!(reason(&decision, "c"), "full: closest node lacks cpu (asked 100m, free 0) of 1 nodes");
}

#[test]
fn what_fits_is_what_fits_on_single_nodes() {
    let mut broken_up = site("a", 0);
    broken_up.parts[0].capacity = nodes(&[1, 1, 1]);
    let mut request = ask(3);
    request.each = Resources::replica(200, 0);
    let decision = place(&[broken_up, site("b", 4)], &Rule::default(), &request);
    assert_eq!(counts(&decision), expect([("b", 2)]), "300m free on site a, but never 200m on one node");
    assert_eq!(decision.unplaced, 1);
    assert_eq!(decision.to_string(), "2 of 3 replicas placed: b 2; 1 without a place, of 2 sites: 2 full.");
    let nowhere = place(&[], &Rule::default(), &ask(3)).to_string();
    assert_eq!(nowhere, "0 of 3 replicas placed; 3 without a place: there is no site.");
}

#[test]
fn weights_are_met_by_largest_remainder_and_full_sites_pass_on_their_share() {
    let sites = [site("a", 100), site("b", 100), site("c", 100), site("d", 100)];
    let rule = weights(&[("a", 5), ("b", 3), ("c", 1)]);
    let decision = place(&sites, &rule, &ask(10));
    assert_eq!(counts(&decision), expect([("a", 6), ("b", 3), ("c", 1)]));
    assert_eq!(reason(&decision, "d"), "has no weight");
    let sites = [site("a", 2), site("b", 100), site("c", 100)];
    assert_eq!(counts(&place(&sites, &rule, &ask(10))), expect([("a", 2), ("b", 6), ("c", 2)]));
}

#[test]
fn changed_weights_move_replicas_within_the_bound() {
    let sites = [site("a", 100), site("b", 100)];
    let request = after(&ask(10), &place(&sites, &weights(&[("a", 1), ("b", 1)]), &ask(10)));
    let mut rule = weights(&[("a", 4), ("b", 1)]);
    rule.failover.max_moves = Some(2);
    let first = place(&sites, &rule, &request);
    assert_eq!((counts(&first), first.moved), (expect([("a", 7), ("b", 3)]), 2));
    assert!(first.waiting > 0);
    let second = place(&sites, &rule, &Request { moving: 2, ..after(&request, &first) });
    assert_eq!(second.moved, 0, "both moves are still under way");
    let third = place(&sites, &rule, &after(&request, &first));
    assert_eq!((counts(&third), third.waiting), (expect([("a", 8), ("b", 2)]), 0));
}

#[test]
fn packed_uses_as_few_sites_as_possible() {
    let rule = Rule { mode: Mode::Divide(Divide::Packed), ..Rule::default() };
    let sites = [site("a", 4), site("b", 10), site("c", 6), site("d", 5)];
    assert_eq!(counts(&place(&sites, &rule, &ask(5))), expect([("d", 5)]), "the tightest that takes all");
    assert_eq!(counts(&place(&sites, &rule, &ask(14))), expect([("a", 4), ("b", 10)]));
    let decision = place(&sites, &rule, &held(ask(3), &[("c", 1)]));
    assert_eq!(counts(&decision), expect([("c", 3)]), "a site in use comes first");
}

#[test]
fn duplicate_gives_every_site_all_replicas() {
    let rule = Rule { mode: Mode::Duplicate, ..Rule::default() };
    let sites = [site("a", 5), site("b", 2), site("c", 0)];
    let decision = place(&sites, &rule, &ask(3));
    assert_eq!(counts(&decision), expect([("a", 3), ("b", 2)]));
    assert_eq!((decision.wanted, decision.unplaced), (6, 1));

    let mut limited = rule.clone();
    limited.spread = vec![Spread { max_domains: Some(1), ..spread(Domain::Site) }];
    assert_eq!(counts(&place(&sites, &limited, &ask(3))), expect([("a", 3)]));
    assert_eq!(counts(&place(&sites, &limited, &held(ask(3), &[("b", 2)]))), expect([("b", 3)]), "it stays");
    let both = held(ask(2), &[("a", 2), ("b", 2)]);
    assert_eq!(place(&sites, &limited, &both).sites.iter().filter(|e| e.chosen).count(), 1);
}

#[test]
fn a_duplicated_object_without_replicas_is_still_chosen() {
    let rule = Rule { mode: Mode::Duplicate, ..Rule::default() };
    let request = Request { replicas: 0, ..ask(0) };
    let decision = place(&[site("a", 5)], &rule, &request);
    assert!(decision.sites[0].chosen && decision.sites[0].replicas == 0 && decision.unplaced == 0);
}

#[test]
fn a_workload_scaled_to_nothing_stays_where_it_was() {
    let sites = [site("a", 5), site("b", 5)];
    let asleep = place(&sites, &Rule::default(), &held(ask(0), &[("a", 3)]));
    let chosen = |decision: &Decision| decision.sites.iter().map(|e| e.chosen).collect::<Vec<_>>();
    assert_eq!((chosen(&asleep), counts(&asleep).len()), (vec![true, false], 0));
    assert_eq!(chosen(&place(&sites, &Rule::default(), &held(ask(0), &[("a", 0)]))), [true, false]);
    assert_eq!(
        chosen(&place(
            &sites,
            &Rule { sites: vec![named("b")], ..Rule::default() },
            &held(ask(0), &[("a", 0)])
        )),
        [false, false]
    );
}

fn edge_first() -> Rule {
    Rule { prefer: vec![tier("edge"), tier("cloud")], ..Rule::default() }
}

fn edge_and_cloud(edge_room: i64) -> [SiteView; 2] {
    [at("cloud", 100, "cloud", "x"), at("edge", edge_room, "edge", "x")]
}

#[test]
fn the_edge_is_filled_first_and_the_rest_overflows() {
    let decision = place(&edge_and_cloud(3), &edge_first(), &ask(5));
    assert_eq!(counts(&decision), expect([("edge", 3), ("cloud", 2)]));
    assert_eq!(reason(&decision, "edge"), "chosen, now full");
    let decision = place(&edge_and_cloud(9), &edge_first(), &ask(5));
    assert_eq!(reason(&decision, "cloud"), "has room, but more preferred sites took all replicas");
}

#[test]
fn replicas_come_back_only_with_room_to_spare_and_leave_to_do_so() {
    let request = after(&ask(5), &place(&edge_and_cloud(3), &edge_first(), &ask(5)));
    // The three at the edge are counted, so the room below is beyond them.
    for (room, expected) in [(0, 3), (1, 3), (2, 4), (3, 5), (50, 5)] {
        let decision = place(&edge_and_cloud(room), &edge_first(), &request);
        assert_eq!(counts(&decision).get("edge"), Some(&expected), "room {room}");
        let not_yet =
            place(&edge_and_cloud(room), &edge_first(), &Request { may_return: false, ..request.clone() });
        assert_eq!((counts(&not_yet).get("edge"), not_yet.moved), (Some(&3), 0));
    }
}

#[test]
fn a_required_skew_bounds_what_overflow_may_do() {
    let mut rule = edge_first();
    rule.spread = vec![Spread { max_skew: Some(1), ..spread(Domain::Region) }];
    let sites = [at("a", 10, "edge", "north"), at("b", 10, "edge", "south"), at("c", 10, "cloud", "west")];
    assert_eq!(counts(&place(&sites, &rule, &ask(6))), expect([("a", 2), ("b", 2), ("c", 2)]));
    let full = [at("a", 10, "edge", "north"), at("b", 1, "edge", "south")];
    let decision = place(&full, &rule, &ask(6));
    assert_eq!((counts(&decision), decision.unplaced), (expect([("a", 2), ("b", 1)]), 3));
}

#[test]
fn a_new_spread_rule_moves_what_breaks_it() {
    let sites = [at("a", 10, "edge", "north"), at("b", 10, "edge", "south")];
    let request = held(ask(6), &[("a", 6)]);
    let mut rule = Rule::default();
    assert_eq!(place(&sites, &rule, &request).moved, 0);
    rule.spread = vec![Spread { max_skew: Some(2), ..spread(Domain::Region) }];
    let decision = place(&sites, &rule, &request);
    assert_eq!((counts(&decision), decision.moved), (expect([("a", 4), ("b", 2)]), 2));
    rule.spread = vec![Spread { min_domains: Some(2), ..spread(Domain::Region) }];
    assert_eq!(counts(&place(&sites, &rule, &request)), expect([("a", 5), ("b", 1)]));
    rule.spread = vec![Spread { max_domains: Some(1), ..spread(Domain::Site) }];
    assert_eq!(counts(&place(&sites, &rule, &held(ask(5), &[("a", 2), ("b", 3)]))), expect([("b", 5)]));
}

#[test]
fn a_wished_spread_ranks_but_refuses_nothing() {
    let mut rule = Rule { mode: Mode::Divide(Divide::Packed), ..Rule::default() };
    rule.spread = vec![Spread { max_skew: Some(1), required: false, ..spread(Domain::Region) }];
    let sites = [at("a", 10, "edge", "north"), at("b", 1, "edge", "south")];
    let decision = place(&sites, &rule, &ask(5));
    assert_eq!(counts(&decision), expect([("a", 4), ("b", 1)]));
    assert_eq!(decision.notes, [Note::SkewExceeded { by: Domain::Region, skew: 3, max: 1 }]);
}

#[test]
fn limits_are_law_also_for_what_is_already_there() {
    let vienna = Point { latitude: 48.21, longitude: 16.37 };
    let mut sites = [site("a", 10), site("b", 10), site("nowhere", 10)];
    sites[0].parts[0].locality.jurisdiction = "EU".to_owned();
    sites[0].parts[0].locality.point = Some(vienna);
    sites[1].parts[0].locality.jurisdiction = "US".to_owned();
    sites[1].parts[0].locality.point = Some(Point { latitude: 40.71, longitude: -74.01 });
    let mut rule = Rule::default();
    rule.limits.jurisdictions = ["EU".to_owned()].into();
    let request = held(ask(4), &[("b", 4)]);
    let decision = place(&sites, &rule, &request);
    assert_eq!(counts(&decision), expect([("a", 4)]));
    assert_eq!(reason(&decision, "b"), "jurisdiction US, allowed EU");
    assert_eq!(reason(&decision, "nowhere"), "jurisdiction not known, allowed EU");
    rule.limits = Limits { within: Some(Within { point: vienna, km: 1000.0 }), ..Limits::default() };
    let decision = place(&sites, &rule, &request);
    assert_eq!(counts(&decision), expect([("a", 4)]));
    assert_eq!(reason(&decision, "b"), "6796 km away, limit 1000 km");
    assert_eq!(reason(&decision, "nowhere"), "position not known, limit 1000 km");
}

#[test]
fn taints_on_sites_work_as_on_nodes() {
    let tainted = |effect| {
        let mut site = site("b", 100);
        site.taints = vec![Taint { key: "k".into(), value: "v".into(), effect }];
        [self::site("a", 10), site]
    };
    let request = held(ask(4), &[("b", 2)]);
    let kept = place(&tainted(Effect::NoSchedule), &Rule::default(), &request);
    assert_eq!(counts(&kept), expect([("a", 2), ("b", 2)]));
    assert_eq!(reason(&kept, "b"), "untolerated taint {k: v}");
    assert_eq!(counts(&place(&tainted(Effect::NoExecute), &Rule::default(), &request)), expect([("a", 4)]));
    let toleration = Toleration { operator: TolerationOperator::Exists, ..Toleration::default() };
    let tolerant = Rule { tolerations: vec![toleration], ..Rule::default() };
    assert_eq!(counts(&place(&tainted(Effect::NoExecute), &tolerant, &request))["b"], 4);
}

fn silent(seconds: u64) -> [SiteView; 2] {
    let mut lost = site("lost", 10);
    lost.condition = Condition::Silent { seconds };
    [lost, site("other", 10)]
}

#[test]
fn a_silent_site_keeps_its_replicas_until_the_wait_is_over() {
    let request = held(ask(4), &[("lost", 4)]);
    let waiting = place(&silent(59), &Rule::default(), &request);
    assert_eq!(counts(&waiting), expect([("lost", 4)]));
    assert_eq!(reason(&waiting, "lost"), "silent for 59 s; its replicas move after 60 s");
    let moved = place(&silent(60), &Rule::default(), &request);
    assert_eq!((counts(&moved), moved.moved), (expect([("other", 4)]), 4));
}

#[test]
fn a_failover_without_room_loses_nothing() {
    let request = held(ask(14), &[("lost", 14)]);
    let decision = place(&silent(99), &Rule::default(), &request);
    assert_eq!(counts(&decision), expect([("lost", 4), ("other", 10)]));
    assert_eq!((decision.waiting, decision.unplaced), (4, 0));
}

#[test]
fn failover_moves_so_many_at_once_and_local_volumes_stay() {
    let mut rule = Rule::default();
    rule.failover.max_moves = Some(1);
    let request = held(ask(4), &[("lost", 4)]);
    let decision = place(&silent(99), &rule, &request);
    assert_eq!((decision.moved, decision.waiting), (1, 3));
    let with_volumes = Request { local_volumes: true, ..request.clone() };
    let decision = place(&silent(99), &Rule::default(), &with_volumes);
    assert_eq!(counts(&decision), expect([("lost", 4)]));
    assert_eq!(reason(&decision, "lost"), "silent for 99 s; its replicas stay, nothing new comes");
    rule.failover = Failover { stay: Stay::Nobody, ..Failover::default() };
    assert_eq!(counts(&place(&silent(99), &rule, &with_volumes)), expect([("other", 4)]));
    rule.failover.stay = Stay::Everybody;
    assert_eq!(counts(&place(&silent(99), &rule, &request)), expect([("lost", 4)]));
}

#[test]
fn at_most_once_needs_fences_and_never_doubts_a_silent_site_early() {
    let mut sites = silent(10);
    let mut rule = Rule { sites: vec![named("other")], ..Rule::default() };
    let request = held(ask(4), &[("lost", 4)]);
    assert_eq!(counts(&place(&sites, &rule, &request)), expect([("other", 4)]), "no longer selected");
    rule.failover.at_most_once = true;
    assert_eq!(counts(&place(&sites, &rule, &request)), expect([("lost", 4)]), "it may still run there");
    sites[0].condition = Condition::Silent { seconds: 60 };
    let decision = place(&sites, &rule, &request);
    assert_eq!(decision.unplaced, 4);
    assert!(reason(&decision, "other").starts_with("cannot stop replicas by itself"));
    sites[1].fences = true;
    assert_eq!(counts(&place(&sites, &rule, &request)), expect([("other", 4)]));
}

#[test]
fn draining_and_cordoned_sites_take_nothing_new() {
    let with = |condition| {
        let mut site = site("b", 100);
        site.condition = condition;
        [self::site("a", 10), site]
    };
    let request = held(ask(6), &[("b", 4)]);
    assert_eq!(counts(&place(&with(Condition::Draining), &Rule::default(), &request)), expect([("a", 6)]));
    let cordoned = place(&with(Condition::Cordoned), &Rule::default(), &request);
    assert_eq!(counts(&cordoned), expect([("a", 2), ("b", 4)]));
}

#[test]
fn replicas_that_a_site_cannot_run_go_elsewhere() {
    let mut request = held(ask(4), &[("a", 4)]);
    request.held[0].stuck = 3;
    let decision = place(&[site("a", 50), site("b", 2)], &Rule::default(), &request);
    assert_eq!(counts(&decision), expect([("a", 2), ("b", 2)]));
    assert_eq!((decision.moved, decision.waiting), (2, 1));
}

#[test]
fn scaling_down_takes_from_the_least_preferred_and_fullest() {
    let request = held(ask(4), &[("edge", 3), ("cloud", 4)]);
    let decision = place(&edge_and_cloud(0), &edge_first(), &request);
    assert_eq!(counts(&decision), expect([("edge", 3), ("cloud", 1)]));
    let sites = [site("a", 10), site("b", 10)];
    let decision = place(&sites, &Rule::default(), &held(ask(4), &[("a", 5), ("b", 1)]));
    assert_eq!((counts(&decision), decision.moved), (expect([("a", 3), ("b", 1)]), 0));
}

#[test]
fn a_nested_hub_is_placed_on_part_by_part() {
    let part = |name: &str, jurisdiction: &str, fits| Part {
        name: name.to_owned(),
        locality: Locality {
            jurisdiction: jurisdiction.to_owned(),
            zone: name.to_owned(),
            ..Locality::default()
        },
        capacity: nodes(&[fits]),
    };
    let mut hub = site("hub", 0);
    hub.parts = vec![part("z1", "EU", 3), part("z2", "US", 50), part("z3", "EU", 3)];
    let mut rule = Rule::default();
    rule.limits.jurisdictions = ["EU".to_owned()].into();
    rule.spread = vec![Spread { max_skew: Some(1), ..spread(Domain::Zone) }];
    let decision = place(&[hub.clone()], &rule, &ask(7));
    assert_eq!((counts(&decision), decision.unplaced), (expect([("hub/z1", 3), ("hub/z3", 3)]), 1));
    assert_eq!(reason(&decision, "hub/z2"), "jurisdiction US, allowed EU");
    hub.parts.clear();
    assert_eq!(reason(&place(&[hub], &rule, &ask(7)), "hub"), "offers nothing");
}

#[test]
fn sites_of_unknown_capacity_come_after_known_ones() {
    let unknown = SiteView::new("a", Locality::default(), Capacity::Unknown);
    let decision = place(&[unknown, site("b", 3)], &Rule::default(), &ask(5));
    assert_eq!(counts(&decision), expect([("a", 2), ("b", 3)]));
}

#[test]
fn a_site_without_a_ready_node_takes_nothing_new_says_so_and_keeps_what_it_has() {
    let bare = SiteView::new("a", Locality::default(), nodes(&[]));
    let sites = [bare.clone(), site("b", 9)];
    let copies = Rule { mode: Mode::Duplicate, ..Rule::default() };
    for rule in [Rule::default(), copies.clone(), weights(&[("a", 9), ("b", 1)])] {
        let decision = place(&sites, &rule, &ask(2));
        assert_eq!(counts(&decision), expect([("b", 2)]));
        assert_eq!(reason(&decision, "a"), "has no node that is ready for pods");
        // What runs there stays, and is what comes out when asked again.
        let request = held(Request { may_return: false, ..ask(2) }, &[("a", 2)]);
        let decision = place(&sites, &rule, &request);
        assert_eq!(counts(&decision).get("a"), Some(&2), "{rule:?}");
        assert_eq!(counts(&place(&sites, &rule, &after(&request, &decision))), counts(&decision));
    }
    let nowhere = place(&[bare], &Rule::default(), &ask(2)).to_string();
    assert_eq!(
        nowhere,
        "0 of 2 replicas placed; 2 without a place, of 1 sites: 1 without a node that is ready."
    );
}

#[test]
fn replicas_of_a_site_that_is_gone_are_placed_anew() {
    let decision = place(&[site("a", 9)], &Rule::default(), &held(ask(4), &[("a", 1), ("gone", 3)]));
    assert_eq!(counts(&decision), expect([("a", 4)]));
    assert_eq!(reason(&decision, "gone"), "no longer in the fleet");
}

#[test]
fn groups_names_and_labels_select() {
    let mut sites = [site("a", 9), site("b", 9), site("c", 9)];
    sites[1].groups = ["shops".to_owned()].into();
    sites[2].labels = [("gpu".to_owned(), "yes".to_owned())].into();
    let chosen = |selector: SiteSelector| {
        let rule = Rule { sites: vec![selector], ..Rule::default() };
        counts(&place(&sites, &rule, &ask(1))).into_keys().collect::<String>()
    };
    assert_eq!(chosen(named("c")), "c");
    assert_eq!(chosen(SiteSelector { groups: ["shops".to_owned()].into(), ..SiteSelector::default() }), "b");
    let gpu = vec![crate::Requirement::equals("gpu", "yes")];
    assert_eq!(chosen(SiteSelector { labels: gpu, ..SiteSelector::default() }), "c");
    let except = ["a".to_owned(), "shops".to_owned()].into();
    assert_eq!(chosen(SiteSelector { except, ..SiteSelector::default() }), "c");
}

#[test]
fn the_table_shows_every_site_with_numbers() {
    let mut sites = edge_and_cloud(3).to_vec();
    sites.push(at("far", 10, "fog", "y"));
    sites[2].condition = Condition::Draining;
    let decision = place(&sites, &edge_first(), &held(ask(5), &[("edge", 1)]));
    let expected = "\
SITE    REPLICAS    FITS   PREFERENCE   SCORE   WHY
cloud   1 (was 0)   100    2            100     chosen
edge    4 (was 1)   4      1            83      chosen, now full
far     0           10     -            -       draining: its replicas move

5 of 5 replicas placed: cloud 1, edge 4.
";
    assert_eq!(decision.table(), expected);
}
