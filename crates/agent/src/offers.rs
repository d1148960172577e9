//! What a site that is itself a hub offers: histograms of what fits, per place and law, not one sum.

use std::collections::BTreeMap;

use tombolo_api::{Offer, Site};

use crate::capacity::few;

/// Ready sites of the hub below, grouped by where they are. What leads through hub `to` is not offered back to it. Of a site
/// that is cordoned, or has a taint that keeps replicas away, the place is offered without room: the hub above knows no taints of
/// parts, and would give its room to what does not tolerate them, but what runs there may stay.
pub fn offers(sites: &[Site], to: &str) -> Vec<Offer> {
    let mut groups: BTreeMap<String, Offer> = BTreeMap::new();
    let back = |hubs: &[String]| hubs.iter().any(|hub| hub == to);
    let closed =
        |s: &Site| s.spec.taints.iter().any(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"));
    for site in sites.iter().filter(|s| s.is_ready() && !back(&s.spec.hubs)) {
        let open = !site.spec.unschedulable && !closed(site);
        let status = site.status.clone().unwrap_or_default();
        // A hub below the hub below has its own offers; they pass through.
        let parts = if site.spec.hubs.is_empty() {
            let location = site.spec.location.clone();
            vec![Offer {
                tier: site.spec.tier,
                location,
                provider: site.spec.provider.clone(),
                sites: 1,
                shapes: status.shapes,
                hubs: Vec::new(),
            }]
        } else {
            status.offers
        };
        for mut part in parts.into_iter().filter(|part| !back(&part.hubs)) {
            part.hubs.extend(site.spec.hubs.iter().cloned());
            part.hubs.sort();
            part.hubs.dedup();
            let place = (
                &part.tier,
                &part.location.region,
                &part.location.zone,
                &part.location.jurisdiction,
                &part.provider,
                &part.hubs,
            );
            let offer = groups.entry(format!("{place:?}")).or_insert_with(|| Offer {
                sites: 0,
                shapes: Vec::new(),
                ..part.clone()
            });
            if open {
                offer.sites += part.sites;
                offer.shapes.extend(part.shapes);
            }
        }
    }
    let mut all: Vec<Offer> = groups.into_values().collect();
    for offer in &mut all {
        offer.shapes = few(&offer.shapes);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_api::{Condition, Location, NodeShape, SiteSpec, SiteStatus, Taint};

    fn site(zone: &str, free: &str, ready: &str) -> Site {
        let location = Location { zone: Some(zone.into()), ..Default::default() };
        let mut site = Site::new(zone, SiteSpec { location, ..Default::default() });
        site.status = Some(SiteStatus {
            conditions: vec![Condition {
                r#type: "Ready".into(),
                status: ready.into(),
                ..Default::default()
            }],
            shapes: vec![NodeShape {
                count: 2,
                free: [("cpu".into(), free.into())].into(),
                ..Default::default()
            }],
            ..Default::default()
        });
        site
    }

    #[test]
    fn sites_of_one_place_are_offered_together_and_lost_ones_not_at_all() {
        let offers = offers(
            &[
                site("a", "1", "True"),
                site("a", "1", "True"),
                site("b", "2", "True"),
                site("b", "9", "False"),
            ],
            "above",
        );
        let found: Vec<(i64, i64)> =
            offers.iter().map(|o| (o.sites, o.shapes.iter().map(|s| s.count).sum())).collect();
        assert_eq!(found, [(2, 4), (1, 2)]);
    }

    #[test]
    fn many_sites_that_are_used_differently_are_all_offered_and_no_more_than_they_have() {
        let sites: Vec<Site> = (0..100).map(|n| site("a", &format!("{}m", 1000 + 37 * n), "True")).collect();
        let offers = offers(&sites, "above");
        let shapes = &offers[0].shapes;
        assert!(shapes.len() <= 32, "{}", shapes.len());
        assert_eq!((offers[0].sites, shapes.iter().map(|s| s.count).sum::<i64>()), (100, 200));
        let room = |s: &NodeShape| s.count * tombolo_api::quantity::amounts(&s.free)["cpu"];
        let (offered, had) =
            (shapes.iter().map(room).sum::<i64>(), (0..100).map(|n| 2 * (1000 + 37 * n)).sum());
        assert!(offered <= had && offered > had * 9 / 10, "{offered} of {had}");
    }

    #[test]
    fn a_site_that_keeps_replicas_away_offers_its_place_without_room() {
        let tainted = |effect: &str| {
            let mut site = site("a", "1", "True");
            site.spec.taints = vec![Taint { key: "k".into(), effect: effect.into(), ..Default::default() }];
            site
        };
        let sites = [tainted("NoSchedule"), tainted("NoExecute"), tainted("PreferNoSchedule")];
        let mut cordoned = site("a", "1", "True");
        cordoned.spec.unschedulable = true;
        for closed in [&sites[..2], &[cordoned]] {
            let offers = offers(closed, "above");
            assert_eq!((offers.len(), offers[0].sites, offers[0].shapes.len()), (1, 0, 0));
        }
        let offers = offers(&sites, "above");
        assert_eq!(
            (offers.len(), offers[0].sites, offers[0].shapes.len()),
            (1, 1, 1),
            "one of them only asks"
        );
    }

    #[test]
    fn what_came_from_a_hub_is_not_offered_back_to_it() {
        let below = |hubs: &[&str]| {
            let mut site = site("a", "1", "True");
            site.spec.hubs = vec!["below".into()];
            let hubs = hubs.iter().map(|h| (*h).to_owned()).collect();
            site.status.get_or_insert_default().offers = vec![Offer { sites: 1, hubs, ..Default::default() }];
            site
        };
        assert_eq!(offers(&[below(&[])], "below"), []);
        assert_eq!(offers(&[below(&["above"])], "above"), []);
        assert_eq!(offers(&[below(&["deep"])], "above")[0].hubs, ["below", "deep"]);
    }
}
