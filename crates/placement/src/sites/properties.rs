//! Laws of placing, tried on fleets, rules and histories made at random.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Effect, Resources, Taint};

const EACH: i64 = 100;

fn capacity() -> impl Strategy<Value = Capacity> {
    let node = (0i64..8, 1u32..3).prop_map(|(fits, nodes)| FreeNodes {
        free: Resources::replica(fits * EACH + 50, 0).with_pods(100),
        nodes,
    });
    prop_oneof![1 => Just(Capacity::Unknown), 9 => vec(node, 0..4).prop_map(Capacity::Nodes)]
}

fn locality() -> impl Strategy<Value = Locality> {
    (0..3usize, 0..3usize, 0..3usize, any::<bool>()).prop_map(|(tier, region, law, known)| Locality {
        tier: ["edge", "fog", "cloud"][tier].to_owned(),
        region: ["north", "south", ""][region].to_owned(),
        zone: ["z1", "z2", "z3"][(tier + region) % 3].to_owned(),
        provider: ["p", "q"][tier % 2].to_owned(),
        jurisdiction: ["EU", "US", ""][law].to_owned(),
        point: known.then_some(Point { latitude: 10.0 * tier as f64, longitude: 10.0 * region as f64 }),
    })
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        6 => Just(Condition::Ready),
        1 => Just(Condition::Cordoned),
        1 => Just(Condition::Draining),
        1 => Just(Condition::Silent { seconds: 10 }),
        1 => Just(Condition::Silent { seconds: 100 }),
    ]
}

fn fleet() -> impl Strategy<Value = Vec<SiteView>> {
    let taint = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Effect::NoSchedule)),
        1 => Just(Some(Effect::PreferNoSchedule)),
        1 => Just(Some(Effect::NoExecute)),
    ];
    let parts = vec((locality(), capacity()), 1..3);
    vec((parts, condition(), taint, any::<bool>()), 1..9).prop_map(|sites| {
        let build =
            |(at, (parts, condition, taint, fences)): (usize, (Vec<_>, _, Option<Effect>, bool))| SiteView {
                name: format!("s{at}"),
                labels: [("n".to_owned(), (at % 3).to_string())].into(),
                groups: if at % 2 == 0 { ["even".to_owned()].into() } else { BTreeSet::new() },
                taints: taint
                    .map(|effect| Taint { key: "k".into(), value: "v".into(), effect })
                    .into_iter()
                    .collect(),
                condition,
                fences,
                excluded: (at == 7).then(|| "not this one".to_owned()),
                parts: (parts.into_iter().enumerate())
                    .map(|(n, (locality, capacity))| Part { name: format!("p{n}"), locality, capacity })
                    .collect(),
            };
        sites.into_iter().enumerate().map(build).collect()
    })
}

fn selector() -> impl Strategy<Value = SiteSelector> {
    prop_oneof![
        Just(SiteSelector::default()),
        Just(SiteSelector { groups: ["even".to_owned()].into(), ..SiteSelector::default() }),
        Just(SiteSelector { tiers: ["edge".to_owned()].into(), ..SiteSelector::default() }),
        Just(SiteSelector { except: ["s0".to_owned()].into(), ..SiteSelector::default() }),
    ]
}

fn spread() -> impl Strategy<Value = Spread> {
    let by =
        prop_oneof![Just(Domain::Site), Just(Domain::Zone), Just(Domain::Region), Just(Domain::Provider)];
    let bound = |range: std::ops::Range<u32>| proptest::option::of(range);
    (by, bound(1..4), bound(1..4), bound(1..4), any::<bool>()).prop_map(
        |(by, max_skew, min_domains, max_domains, required)| {
            // A rule that wants more domains than it allows contradicts itself.
            let min_domains = min_domains.map(|min| min.min(max_domains.unwrap_or(min)));
            Spread { by, max_skew, min_domains, max_domains, required }
        },
    )
}

fn mode() -> impl Strategy<Value = Mode> {
    let weights = vec((selector(), 0u32..5), 1..4)
        .prop_map(|list| list.into_iter().map(|(sites, weight)| Weight { sites, weight }).collect());
    prop_oneof![
        Just(Mode::Duplicate),
        weights.prop_map(|weights| Mode::Divide(Divide::Weights(weights))),
        Just(Mode::Divide(Divide::FreeCapacity)),
        Just(Mode::Divide(Divide::Packed)),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let limits =
        (proptest::option::of(Just("EU")), proptest::option::of(500.0..3000.0f64)).prop_map(|(law, km)| {
            Limits {
                jurisdictions: law.map(str::to_owned).into_iter().collect(),
                within: km.map(|km| Within { point: Point { latitude: 0.0, longitude: 0.0 }, km }),
            }
        });
    let failover = (proptest::option::of(0u32..4), 0..3usize, proptest::bool::weighted(0.2)).prop_map(
        |(max_moves, stay, at_most_once)| Failover {
            wait_seconds: 60,
            max_moves,
            stay: [Stay::Nobody, Stay::WithLocalVolumes, Stay::Everybody][stay],
            at_most_once,
        },
    );
    let limits = prop_oneof![3 => Just(Limits::default()), 1 => limits];
    (vec(selector(), 0..2), mode(), vec(selector(), 0..3), vec(spread(), 0..3), limits, failover).prop_map(
        |(sites, mode, prefer, spread, limits, failover)| Rule {
            sites,
            mode,
            prefer,
            spread,
            limits,
            failover,
            ..Rule::default()
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let held =
        (0..10usize, 0..2usize, 0u32..6, 0u32..6, 0u32..3).prop_map(|(site, part, n, counted, stuck)| Held {
            site: format!("s{site}"),
            part: format!("p{part}"),
            assigned: n,
            ready: counted.min(n),
            counted: counted.min(n),
            stuck: if stuck == 2 { 1.min(n - counted.min(n)) } else { 0 },
        });
    (0u32..20, proptest::bool::weighted(0.2), vec(held, 0..6), any::<bool>(), 0u32..2).prop_map(
        |(replicas, local_volumes, held, may_return, moving)| {
            let unique: BTreeMap<_, _> =
                held.into_iter().map(|h| ((h.site.clone(), h.part.clone()), h)).collect();
            Request {
                replicas,
                each: Resources::replica(EACH, 0),
                local_volumes,
                held: unique.into_values().collect(),
                moving,
                may_return,
            }
        },
    )
}

/// The request once the decision is carried out, with everything running.
fn carried_out(request: &Request, decision: &Decision) -> Request {
    let held = decision.sites.iter().filter(|e| e.chosen).map(|e| {
        let was = request.held.iter().find(|h| h.site == e.site && h.part == e.part);
        Held {
            site: e.site.clone(),
            part: e.part.clone(),
            assigned: e.replicas,
            ready: e.replicas,
            // The sites' reports are the same as before, so the same replicas are counted.
            counted: was.map_or(0, |h| h.counted).min(e.replicas),
            // Those that could not run were the ones to go.
            stuck: was.map_or(0, |h| h.stuck.saturating_sub(h.assigned.saturating_sub(e.replicas))),
        }
    });
    Request { held: held.collect(), moving: 0, ..request.clone() }
}

fn replicas(decision: &Decision) -> BTreeMap<(String, String), u32> {
    decision
        .sites
        .iter()
        .map(|e| ((e.site.clone(), e.part.clone()), e.replicas))
        .filter(|(_, n)| *n > 0)
        .collect()
}

fn part<'a>(sites: &'a [SiteView], e: &Explanation) -> Option<(&'a SiteView, &'a Part)> {
    let site = sites.iter().find(|site| site.name == e.site)?;
    Some((site, site.parts.iter().find(|part| part.name == e.part)?))
}

/// Decides until nothing changes any more; how many rounds that took.
fn settle(sites: &[SiteView], rule: &Rule, request: &Request) -> (Request, Decision, usize) {
    let mut request = request.clone();
    for round in 0.. {
        let decision = place(sites, rule, &request);
        let next = carried_out(&request, &decision);
        if round > 200 || replicas(&decision) == replicas(&place(sites, rule, &next)) {
            return (next, decision, round);
        }
        request = next;
    }
    unreachable!("the loop ends after 200 rounds")
}

/// Nothing is left to wish for.
fn is_met(decision: &Decision) -> bool {
    decision.unplaced == 0 && decision.waiting == 0 && decision.notes.is_empty()
}

fn all_running(request: &Request) -> Request {
    let running =
        |held: &Held| Held { ready: held.assigned, counted: held.assigned, stuck: 0, ..held.clone() };
    Request { held: request.held.iter().map(running).collect(), ..request.clone() }
}

/// The same fleet with other room: `change` says how many replicas fit, by index of the site and what fit before.
fn with_room(sites: &[SiteView], change: impl Fn(usize, u32) -> u32) -> Vec<SiteView> {
    let mut sites = sites.to_vec();
    for (at, site) in sites.iter_mut().enumerate() {
        for part in &mut site.parts {
            if let Some(fits) = part.capacity.fits(&Resources::replica(EACH, 0)) {
                let free = Resources::replica(i64::from(change(at, fits)) * EACH, 0).with_pods(100);
                part.capacity = Capacity::Nodes(vec![FreeNodes { free, nodes: 1 }]);
            }
        }
    }
    sites
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 100_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_replica_is_placed_or_reported(sites in fleet(), rule in rule(), request in request()) {
        let decision = place(&sites, &rule, &request);
        let placed: u32 = decision.sites.iter().map(|e| e.replicas).sum();
        prop_assert_eq!(placed + decision.unplaced, decision.wanted);
        if rule.mode != Mode::Duplicate {
            prop_assert_eq!(decision.wanted, request.replicas);
        }
    }

    #[test]
    fn every_place_is_explained_once(sites in fleet(), rule in rule(), request in request()) {
        let decision = place(&sites, &rule, &request);
        let explained: Vec<_> = decision.sites.iter().map(|e| (e.site.clone(), e.part.clone())).collect();
        let unique: BTreeSet<_> = explained.iter().cloned().collect();
        prop_assert_eq!(unique.len(), explained.len());
        for site in &sites {
            for part in &site.parts {
                prop_assert!(unique.contains(&(site.name.clone(), part.name.clone())));
            }
        }
        for e in &decision.sites {
            let empty = matches!(e.reason, Reason::Full { .. } | Reason::NotNeeded | Reason::LessPreferred);
            prop_assert!(!(empty && e.chosen), "{:?}", e);
            prop_assert!(e.chosen || e.replicas == 0, "{:?}", e);
            prop_assert!(!e.reason.to_string().is_empty());
        }
        prop_assert_eq!(decision.table().lines().count() , decision.sites.len() + 3 + decision.notes.len());
    }

    #[test]
    fn no_limit_is_ever_broken(sites in fleet(), rule in rule(), request in request()) {
        let decision = place(&sites, &rule, &request);
        for e in decision.sites.iter().filter(|e| e.replicas > 0) {
            let (site, part) = part(&sites, e).expect("replicas only at places that exist");
            let unsure = rule.failover.at_most_once && matches!(site.condition, Condition::Silent { seconds: 10 });
            if unsure {
                continue;
            }
            let laws = &rule.limits.jurisdictions;
            prop_assert!(laws.is_empty() || laws.contains(&part.locality.jurisdiction));
            if let Some(within) = rule.limits.within {
                prop_assert!(part.locality.point.is_some_and(|p| p.km_to(&within.point) <= within.km));
            }
            prop_assert!(rule.sites.is_empty() || rule.sites.iter().any(|s| s.matches(site, part)));
            prop_assert!(!rule.failover.at_most_once || site.fences);
            prop_assert!(site.excluded.is_none());
            prop_assert!(site.taints.iter().all(|t| t.effect != Effect::NoExecute));
            if e.replicas > e.before {
                prop_assert!(site.condition == Condition::Ready);
                prop_assert!(site.taints.iter().all(|t| t.effect != Effect::NoSchedule));
            }
        }
    }

    #[test]
    fn no_place_gets_more_than_fits(sites in fleet(), rule in rule(), request in request()) {
        for e in place(&sites, &rule, &request).sites {
            if let Some(fits) = e.fits {
                prop_assert!(e.replicas <= fits.max(e.before), "{:?}", e);
            }
        }
    }

    #[test]
    fn the_order_of_inputs_does_not_matter(sites in fleet(), rule in rule(), request in request(), turn in 0usize..9) {
        let decision = place(&sites, &rule, &request);
        let (mut other_sites, mut other) = (sites.clone(), request.clone());
        let (n, m) = (other_sites.len(), other.held.len().max(1));
        other_sites.rotate_left(turn % n);
        other_sites.iter_mut().for_each(|site| site.parts.reverse());
        if !other.held.is_empty() {
            other.held.rotate_left(turn % m);
        }
        prop_assert_eq!(place(&other_sites, &rule, &other), decision);
    }

    #[test]
    fn what_was_decided_stays_decided(sites in fleet(), mut rule in rule(), mut request in request()) {
        rule.failover.max_moves = None;
        // A site that was full a moment ago and no longer says so looks like any other.
        request.held.iter_mut().for_each(|held| held.stuck = 0);
        let decision = place(&sites, &rule, &request);
        let again = place(&sites, &rule, &carried_out(&request, &decision));
        prop_assert_eq!(replicas(&again), replicas(&decision));
        prop_assert_eq!(again.moved, 0);
    }

    #[test]
    fn bounded_moves_settle(sites in fleet(), mut rule in rule(), request in request()) {
        rule.failover.max_moves = Some(1);
        let (_, _, rounds) = settle(&sites, &rule, &request);
        prop_assert!(rounds < 100, "{} rounds", rounds);
    }

    #[test]
    fn moves_are_bounded(sites in fleet(), mut rule in rule(), mut request in request(), max in 0u32..4) {
        rule.failover.max_moves = Some(max);
        request.moving = 1;
        prop_assert!(place(&sites, &rule, &request).moved <= max.saturating_sub(1));
    }

    #[test]
    fn a_site_that_is_not_meant_changes_nothing(sites in fleet(), mut rule in rule(), request in request()) {
        rule.sites = vec![SiteSelector { except: ["new".to_owned()].into(), ..SiteSelector::default() }];
        let decision = place(&sites, &rule, &request);
        let mut more = sites.clone();
        more.push(SiteView::new("new", Locality::default(), Capacity::Unknown));
        prop_assert_eq!(replicas(&place(&more, &rule, &request)), replicas(&decision));
    }

    #[test]
    fn a_new_site_draws_nothing_away_unless_weights_or_spread_say_so(sites in fleet(), mut rule in rule(), request in request()) {
        rule.spread.clear();
        rule.prefer.clear();
        if rule.weights().is_some() {
            rule.mode = Mode::default();
        }
        let (request, decision, _) = settle(&sites, &rule, &request);
        prop_assume!(decision.unplaced == 0 && decision.waiting == 0 && rule.mode != Mode::Duplicate);
        let mut more = sites.clone();
        more.push(SiteView::new("new", Locality::default(), Capacity::Unknown));
        let with = place(&more, &rule, &request);
        prop_assert_eq!(replicas(&with), replicas(&decision));
    }

    #[test]
    fn one_replica_more_or_less_of_room_moves_nothing(
        sites in fleet(), mut rule in rule(), request in request(), noise in vec((0u32..2, 0u32..40), 9),
    ) {
        rule.prefer.clear();
        let (request, decision, _) = settle(&sites, &rule, &request);
        prop_assume!(is_met(&decision) && rule.weights().is_none() && rule.mode != Mode::Duplicate);
        let (settled, noisy) = (all_running(&request), with_room(&sites, |site, free| {
            let (more, less) = noise[site];
            free.saturating_sub(less) + more
        }));
        prop_assert_eq!(place(&noisy, &rule, &settled).moved, 0);
    }

    #[test]
    fn what_came_back_does_not_bounce_when_the_room_is_gone(sites in fleet(), rule in rule(), request in request()) {
        prop_assume!(rule.weights().is_none());
        let (request, decision, _) = settle(&sites, &rule, &request);
        prop_assume!(is_met(&decision));
        let more = with_room(&sites, |_, free| free + 3);
        let (back, decision, _) = settle(&more, &rule, &all_running(&request));
        prop_assume!(is_met(&decision));
        let none = with_room(&sites, |_, _| 0);
        let after = place(&none, &rule, &all_running(&back));
        prop_assert_eq!((after.moved, replicas(&after)), (0, replicas(&decision)));
    }

    #[test]
    fn nothing_goes_to_and_fro_while_room_comes_and_goes(
        sites in fleet(), rule in rule(), request in request(), room in vec((0u32..4, 0u32..4), 9),
    ) {
        prop_assume!(rule.mode != Mode::Duplicate);
        let tides = [with_room(&sites, |site, _| room[site].0), with_room(&sites, |site, _| room[site].1)];
        let mut request = Request { may_return: true, moving: 0, ..all_running(&request) };
        let mut moved = Vec::new();
        for tide in tides.iter().cycle().take(80) {
            let decision = place(tide, &rule, &request);
            request = all_running(&carried_out(&request, &decision));
            moved.push(decision.moved);
        }
        prop_assert!(moved.iter().rev().take(6).all(|moved| *moved == 0), "{:?}", moved);
    }

    #[test]
    fn a_required_skew_holds_for_new_workloads(sites in fleet(), mut rule in rule(), mut request in request(), max in 1u32..4) {
        prop_assume!(rule.mode != Mode::Duplicate);
        request.held.clear();
        let by = Domain::Zone;
        rule.spread = vec![Spread { by: by.clone(), max_skew: Some(max), min_domains: None, max_domains: None, required: true }];
        let decision = place(&sites, &rule, &request);
        let mut zones: BTreeMap<&str, u32> = BTreeMap::new();
        for e in decision.sites.iter().filter(|e| e.preference.is_some()) {
            let (_, part) = part(&sites, e).expect("a candidate exists");
            *zones.entry(&part.locality.zone).or_default() += e.replicas;
        }
        let (most, fewest) = (zones.values().max().copied().unwrap_or(0), zones.values().min().copied().unwrap_or(0));
        prop_assert!(most - fewest <= max, "{:?}", zones);
    }

    #[test]
    fn a_required_spread_never_gets_worse(sites in fleet(), mut rule in rule(), request in request(), max in 1u32..4) {
        prop_assume!(rule.mode != Mode::Duplicate);
        rule.spread = vec![Spread { by: Domain::Site, max_skew: None, min_domains: None, max_domains: Some(max), required: true }];
        let used = |counts: &BTreeMap<(String, String), u32>| counts.keys().map(|k| k.0.clone()).collect::<BTreeSet<_>>();
        let decision = place(&sites, &rule, &request);
        let before = decision.sites.iter().filter(|e| e.before > 0).map(|e| e.site.clone()).collect::<BTreeSet<_>>();
        let after = used(&replicas(&decision));
        prop_assert!(after.len() <= before.len().max(max as usize), "{:?} to {:?}", before, after);
    }

    #[test]
    fn weights_are_met_within_one(weights in vec(1u32..20, 1..8), replicas in 0u32..200) {
        let sites: Vec<_> = (0..weights.len())
            .map(|n| SiteView::new(&format!("s{n}"), Locality::default(), Capacity::Unknown)).collect();
        let list = weights.iter().enumerate().map(|(n, weight)| Weight {
            sites: SiteSelector { names: [format!("s{n}")].into(), ..SiteSelector::default() },
            weight: *weight,
        });
        let rule = Rule { mode: Mode::Divide(Divide::Weights(list.collect())), ..Rule::default() };
        let request = Request { replicas, each: Resources::replica(EACH, 0), ..Request::default() };
        let whole: u32 = weights.iter().sum();
        for (e, weight) in place(&sites, &rule, &request).sites.iter().zip(&weights) {
            let exact = replicas * weight;
            prop_assert!((e.replicas * whole).abs_diff(exact) < whole, "{} of {exact}/{whole}", e.replicas);
        }
    }

    #[test]
    fn nothing_overflows_while_a_preferred_place_has_room(sites in fleet(), mut rule in rule(), mut request in request()) {
        prop_assume!(rule.mode != Mode::Duplicate);
        request.held.clear();
        rule.spread.clear();
        let decision = place(&sites, &rule, &request);
        let open = || decision.sites.iter().filter_map(|e| e.preference.map(|rank| (rank, e)));
        let last = open().filter(|(_, e)| e.replicas > 0).map(|(rank, _)| rank).max();
        for (rank, e) in open() {
            if last.is_some_and(|last| rank < last) {
                prop_assert_eq!(Some(e.replicas), e.fits, "{:?} has room left", e);
            }
        }
        prop_assert!(decision.unplaced == 0 || open().all(|(_, e)| e.fits == Some(e.replicas)));
    }

    #[test]
    fn failing_over_loses_no_replica(mut sites in fleet(), mut rule in rule(), request in request(), lost in 0usize..9) {
        prop_assume!(rule.mode != Mode::Duplicate);
        rule.failover.at_most_once = false;
        sites.iter_mut().for_each(|site| site.condition = Condition::Ready);
        let before = place(&sites, &rule, &request);
        let lost = lost % sites.len();
        sites[lost].condition = Condition::Silent { seconds: 1000 };
        let after = place(&sites, &rule, &carried_out(&request, &before));
        prop_assert_eq!(after.unplaced.min(before.unplaced), after.unplaced);
    }
}
