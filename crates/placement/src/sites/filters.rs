//! The conditions a place must meet to get (more) replicas.

use super::decision::Reason;
use super::types::{
    Condition, Domain, Held, Mode, Part, Request, Rule, SiteSelector, SiteView, Stay, Weight,
};
use crate::pipeline::Filter;
use crate::{Effect, untolerated};

/// What is asked, for all places the same.
pub(super) struct Ask<'a> {
    pub rule: &'a Rule,
    pub request: &'a Request,
}

/// A part of a site: the candidate of the pipeline.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub site: &'a SiteView,
    pub part: &'a Part,
    pub held: Option<&'a Held>,
    /// How many more replicas fit; `None`: not known or without limit.
    pub fits: Option<u32>,
    /// In all places, ordered by (site, part).
    pub at: usize,
}

impl<'a> Place<'a> {
    /// Site and part; no two places share it.
    pub fn name(&self) -> (&'a str, &'a str) {
        (&self.site.name, &self.part.name)
    }
}

/// Why a place takes nothing new, and what becomes of what it has.
pub(super) struct Refusal {
    pub reason: Reason,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// What is there stays.
    Keep,
    /// What is there leaves as soon as there is another place, within the bound on moves.
    Leave,
    /// What is there is no longer wanted there, now.
    Evict,
}

type PlaceFilter<'a> = Filter<Ask<'a>, Place<'a>, Refusal>;

pub(super) fn filters<'a>() -> [PlaceFilter<'a>; 9] {
    [
        Filter(not_surely_stopped),
        Filter(excluded),
        Filter(selected),
        Filter(jurisdiction),
        Filter(distance),
        Filter(fencing),
        Filter(taints),
        Filter(condition),
        Filter(shares),
    ]
}

impl Ask<'_> {
    /// Whether replicas wait for a lost or draining site.
    pub fn stays(&self) -> bool {
        match self.rule.failover.stay {
            Stay::Nobody => false,
            Stay::WithLocalVolumes => self.request.local_volumes,
            Stay::Everybody => true,
        }
    }

    /// Whether replicas may be moved merely to have them in a better place.
    pub fn pinned(&self) -> bool {
        self.request.local_volumes && self.rule.failover.stay != Stay::Nobody
    }

    pub fn duplicates(&self) -> bool {
        self.rule.mode == Mode::Duplicate
    }
}

/// With at-most-once, a silent site may still run its replicas: whatever the rule says, they count as
/// running there until the wait is over.
fn not_surely_stopped(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    let wait = ask.rule.failover.wait_seconds;
    match place.site.condition {
        Condition::Silent { seconds } if ask.rule.failover.at_most_once && seconds < wait => {
            refuse(Then::Keep, Reason::SilentKept { seconds, wait, stays: false })
        }
        _ => Ok(()),
    }
}

fn excluded(_: &Ask, place: &Place) -> Result<(), Refusal> {
    match &place.site.excluded {
        Some(reason) => refuse(Then::Evict, Reason::Excluded(reason.clone())),
        None => Ok(()),
    }
}

fn selected(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    let selectors = &ask.rule.sites;
    if selectors.is_empty() || selectors.iter().any(|s| s.matches(place.site, place.part)) {
        return Ok(());
    }
    refuse(Then::Evict, Reason::NotSelected)
}

fn jurisdiction(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    let allowed = &ask.rule.limits.jurisdictions;
    let has = &place.part.locality.jurisdiction;
    if allowed.is_empty() || (!has.is_empty() && allowed.contains(has)) {
        return Ok(());
    }
    let allowed = allowed.iter().cloned().collect();
    refuse(Then::Evict, Reason::Jurisdiction { has: has.clone(), allowed })
}

fn distance(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    let Some(within) = ask.rule.limits.within else { return Ok(()) };
    let km = place.part.locality.point.map(|point| point.km_to(&within.point));
    match km {
        Some(km) if km <= within.km => Ok(()),
        km => refuse(Then::Evict, Reason::TooFar { km, limit: within.km }),
    }
}

fn fencing(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    if ask.rule.failover.at_most_once && !place.site.fences {
        return refuse(Then::Evict, Reason::CannotFence);
    }
    Ok(())
}

fn taints(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    let find = |effect| untolerated(&place.site.taints, &ask.rule.tolerations, &[effect]).cloned();
    if let Some(taint) = find(Effect::NoExecute) {
        return refuse(Then::Evict, Reason::Taint(taint));
    }
    match find(Effect::NoSchedule) {
        Some(taint) => refuse(Then::Keep, Reason::Taint(taint)),
        None => Ok(()),
    }
}

fn condition(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    let (wait, stays) = (ask.rule.failover.wait_seconds, ask.stays());
    match place.site.condition {
        Condition::Ready => Ok(()),
        Condition::Cordoned => refuse(Then::Keep, Reason::Cordoned),
        Condition::Silent { seconds } if stays || seconds < wait => {
            refuse(Then::Keep, Reason::SilentKept { seconds, wait, stays })
        }
        Condition::Silent { seconds } => refuse(Then::Leave, Reason::Silent { seconds, wait }),
        Condition::Draining if stays => refuse(Then::Keep, Reason::Draining { stays }),
        // A copy of a duplicated workload has nowhere to go: every other site has its own.
        Condition::Draining if ask.duplicates() => refuse(Then::Evict, Reason::Draining { stays }),
        Condition::Draining => refuse(Then::Leave, Reason::Draining { stays }),
    }
}

/// Whether the place has a weight, where weights are used, and a domain for every spread that needs one.
fn shares(ask: &Ask, place: &Place) -> Result<(), Refusal> {
    if ask.rule.weights().is_some_and(|weights| weight_of(weights, place.site, place.part) == 0) {
        return refuse(Then::Leave, Reason::NoWeight);
    }
    let nowhere = ask.rule.spread.iter().find(|s| s.required && s.by.of(place.site, place.part).is_empty());
    match nowhere {
        Some(spread) => refuse(Then::Leave, Reason::NoDomain { by: spread.by.clone() }),
        None => Ok(()),
    }
}

fn refuse(then: Then, reason: Reason) -> Result<(), Refusal> {
    Err(Refusal { reason, then })
}

/// The weight of a place: that of the first selector that matches, 0 when none does.
pub(super) fn weight_of(weights: &[Weight], site: &SiteView, part: &Part) -> u32 {
    weights.iter().find(|weight| weight.sites.matches(site, part)).map_or(0, |weight| weight.weight)
}

impl Rule {
    pub(super) fn weights(&self) -> Option<&[Weight]> {
        match &self.mode {
            Mode::Divide(super::Divide::Weights(weights)) => Some(weights),
            _ => None,
        }
    }
}

impl SiteSelector {
    /// Whether this part of the site is meant.
    pub fn matches(&self, site: &SiteView, part: &Part) -> bool {
        let named = (self.names.is_empty() && self.groups.is_empty())
            || self.names.contains(&site.name)
            || !self.groups.is_disjoint(&site.groups);
        let any =
            |set: &std::collections::BTreeSet<String>, value: &String| set.is_empty() || set.contains(value);
        let place = &part.locality;
        named
            && !self.except.contains(&site.name)
            && self.except.is_disjoint(&site.groups)
            && any(&self.tiers, &place.tier)
            && any(&self.regions, &place.region)
            && any(&self.zones, &place.zone)
            && any(&self.providers, &place.provider)
            && any(&self.jurisdictions, &place.jurisdiction)
            && self.labels.iter().all(|requirement| requirement.matches(&site.labels))
    }
}

impl Domain {
    /// The domain a place is in; empty when it is in none.
    pub(super) fn of<'a>(&self, site: &'a SiteView, part: &'a Part) -> &'a str {
        match self {
            Domain::Site => &site.name,
            Domain::Zone => &part.locality.zone,
            Domain::Region => &part.locality.region,
            Domain::Provider => &part.locality.provider,
            Domain::Tier => &part.locality.tier,
            Domain::Label(key) => site.labels.get(key).map_or("", String::as_str),
        }
    }
}
