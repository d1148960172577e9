//! Parts of a hub below: what it offers in one place, under a name that says where, so that the hub below can be told
//! by selectors which of its sites are meant.

use tombolo_api::{Offer, SiteSelector, Tier};

use crate::convert::tier;

/// `tier:region/zone/jurisdiction@provider`; what is not known is empty.
pub fn name(offer: &Offer) -> String {
    let own = |text: &Option<String>| escaped(text.as_deref().unwrap_or_default());
    let place = &offer.location;
    let name = format!(
        "{}:{}/{}/{}",
        tier(offer.tier),
        own(&place.region),
        own(&place.zone),
        own(&place.jurisdiction)
    );
    match &offer.provider {
        Some(provider) => format!("{name}@{}", escaped(provider)),
        None => name,
    }
}

/// The sites of the hub below that are in the part. A name that is not ours selects nothing there.
pub fn selector(part: &str) -> Option<SiteSelector> {
    let (place, provider) = part.split_once('@').map_or((part, ""), |(place, provider)| (place, provider));
    let (at, rest) = place.split_once(':')?;
    let tier = match at {
        "cloud" => Tier::Cloud,
        "fog" => Tier::Fog,
        "edge" => Tier::Edge,
        _ => return None,
    };
    let mut places = rest.split('/').map(|text| vec![unescaped(text)]);
    Some(SiteSelector {
        tiers: vec![tier],
        regions: places.next()?,
        zones: places.next()?,
        jurisdictions: places.next()?,
        providers: vec![unescaped(provider)],
        ..Default::default()
    })
}

/// Sites in any of the parts, and maybe a few more: one selector cannot say which zone goes with which region.
pub fn union<'a>(parts: impl Iterator<Item = &'a str>) -> SiteSelector {
    let mut all = SiteSelector::default();
    for one in parts.filter_map(selector) {
        all.tiers.extend(one.tiers);
        all.regions.extend(one.regions);
        all.zones.extend(one.zones);
        all.jurisdictions.extend(one.jurisdictions);
        all.providers.extend(one.providers);
    }
    all.tiers.sort();
    all.tiers.dedup();
    for list in [&mut all.regions, &mut all.zones, &mut all.jurisdictions, &mut all.providers] {
        list.sort();
        list.dedup();
    }
    all
}

const SPECIAL: [(char, &str); 4] = [('%', "%25"), ('/', "%2F"), ('@', "%40"), (':', "%3A")];

fn escaped(text: &str) -> String {
    SPECIAL.iter().fold(text.to_owned(), |text, (from, to)| text.replace(*from, to))
}

fn unescaped(text: &str) -> String {
    SPECIAL.iter().rev().fold(text.to_owned(), |text, (to, from)| text.replace(from, &to.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tombolo_api::{Location, SiteSpec};

    fn place() -> impl Strategy<Value = Option<String>> {
        prop::option::of("[a-c/@:%]{1,3}")
    }

    prop_compose! {
        fn offer()(region in place(), zone in place(), jurisdiction in place(), provider in place(), at in 0..3usize) -> Offer {
            let tier = [Tier::Cloud, Tier::Fog, Tier::Edge][at];
            let location = Location { region, zone, jurisdiction, ..Default::default() };
            Offer { tier, location, provider, ..Default::default() }
        }
    }

    proptest! {
        /// A part's selector means exactly the sites that are in its place.
        #[test]
        fn a_part_selects_the_sites_of_its_place_and_no_others(part in offer(), other in offer()) {
            let at = |offer: &Offer| SiteSpec {
                tier: offer.tier, location: offer.location.clone(), provider: offer.provider.clone(), ..Default::default()
            };
            let selector = selector(&name(&part)).expect("a name of ours");
            let matches = |offer: &Offer| selector.matches("s", &at(offer), &BTreeMap::new(), &[]);
            prop_assert!(matches(&part));
            prop_assert_eq!(matches(&other), name(&part) == name(&other));
            let both = union([name(&part), name(&other)].iter().map(String::as_str));
            prop_assert!(both.matches("s", &at(&part), &BTreeMap::new(), &[]));
            prop_assert!(both.matches("s", &at(&other), &BTreeMap::new(), &[]));
        }
    }
}
