//! Domains and how replicas are distributed over them.

use std::collections::HashMap;

use super::decision::{Note, Reason};
use super::filters::Place;
use super::types::{Domain, Spread};

const NOWHERE: u32 = u32::MAX;

/// One spread of the rule with the present count of every domain.
#[derive(Clone)]
pub(super) struct Domains<'a> {
    pub rule: &'a Spread,
    /// By place.
    domain_of: Vec<u32>,
    names: Vec<&'a str>,
    counts: Vec<u32>,
    /// Domains that have a place open to new replicas; only these make up the minimum.
    open: Vec<bool>,
    open_domains: u32,
    /// Domains with replicas.
    used: u32,
    /// The smallest count among the open domains, or 0 when they are fewer than wanted.
    fewest: u32,
}

impl<'a> Domains<'a> {
    /// `is_open` says for every place whether new replicas may come.
    pub fn new(rule: &'a Spread, places: &[Place<'a>], is_open: &[bool]) -> Self {
        let mut ids: HashMap<&str, u32> = HashMap::new();
        let (mut names, mut open): (Vec<&str>, Vec<bool>) = (Vec::new(), Vec::new());
        let mut domain_of = vec![NOWHERE; places.len()];
        // Neighbours are often in the same domain: all parts of a site are.
        let mut last = ("", NOWHERE);
        for (at, place) in places.iter().enumerate() {
            let name = rule.by.of(place.site, place.part);
            if name.is_empty() {
                continue;
            }
            if name != last.0 {
                let mut add = || {
                    names.push(name);
                    open.push(false);
                    names.len() as u32 - 1
                };
                // Places are ordered by site, so a site's name cannot come up again later.
                let id = if rule.by == Domain::Site { add() } else { *ids.entry(name).or_insert_with(add) };
                last = (name, id);
            }
            domain_of[at] = last.1;
            open[last.1 as usize] |= is_open[at];
        }
        let open_domains = open.iter().filter(|open| **open).count() as u32;
        let counts = vec![0; names.len()];
        Self { rule, domain_of, names, counts, open, open_domains, used: 0, fewest: 0 }
    }

    pub fn domain(&self, place: usize) -> Option<usize> {
        Some(self.domain_of[place]).filter(|id| *id != NOWHERE).map(|id| id as usize)
    }

    pub fn add(&mut self, place: usize, replicas: u32) {
        let Some(domain) = self.domain(place).filter(|_| replicas > 0) else { return };
        let was = self.counts[domain];
        self.used += u32::from(was == 0);
        self.counts[domain] += replicas;
        if was == self.fewest {
            self.find_fewest();
        }
    }

    pub fn remove(&mut self, place: usize) {
        let Some(domain) = self.domain(place) else { return };
        self.counts[domain] -= 1;
        self.used -= u32::from(self.counts[domain] == 0);
        if self.open[domain] {
            self.fewest = self.fewest.min(self.counts[domain]);
        }
    }

    fn find_fewest(&mut self) {
        let open = self.counts.iter().zip(&self.open).filter(|(_, open)| **open);
        let enough = self.open_domains >= self.rule.min_domains.unwrap_or(0);
        self.fewest = if enough { open.map(|(count, _)| *count).min().unwrap_or(0) } else { 0 };
    }

    /// Why one more replica at this place would break the spread, if it would.
    pub fn objection(&self, place: usize) -> Option<Reason> {
        let domain = self.domain(place)?;
        let (has, by) = (self.counts[domain], || self.rule.by.clone());
        if let Some(max) = self.rule.max_skew.filter(|max| has + 1 > self.fewest.saturating_add(*max)) {
            let name = self.names[domain].to_owned();
            return Some(Reason::Skew { by: by(), domain: name, has, fewest: self.fewest, max });
        }
        match self.rule.max_domains {
            Some(max) if has == 0 && self.used >= max => Some(Reason::DomainLimit { by: by(), max }),
            _ => None,
        }
    }

    /// The same as `objection(place).is_none()`, without building the reason.
    pub fn allows(&self, place: usize) -> bool {
        let Some(domain) = self.domain(place) else { return true };
        let has = self.counts[domain];
        let skewed = self.rule.max_skew.is_some_and(|max| has + 1 > self.fewest.saturating_add(max));
        let too_many = self.rule.max_domains.is_some_and(|max| has == 0 && self.used >= max);
        !skewed && !too_many
    }

    /// Whether more domains are wanted and this place is in one that is not used yet.
    pub fn opens_wanted(&self, place: usize) -> bool {
        self.wants_more_domains() && self.domain(place).is_some_and(|d| self.counts[d] == 0)
    }

    /// Whether another place would serve this spread better than this one.
    pub fn disappoints(&self, place: usize) -> bool {
        !self.allows(place) || (self.wants_more_domains() && !self.opens_wanted(place))
    }

    pub fn wants_more_domains(&self) -> bool {
        self.missing_domains(u32::MAX) > 0
    }

    /// Domains still wanted, as far as there are domains and replicas for them.
    fn missing_domains(&self, replicas: u32) -> u32 {
        let wanted = self.rule.min_domains.unwrap_or(0).min(self.open_domains).min(replicas);
        wanted.saturating_sub(self.used)
    }

    /// How far the present distribution is from the rule; 0 when it is met. Every single move that helps
    /// makes it smaller.
    pub fn excess(&self) -> u64 {
        let total: u32 = self.counts.iter().sum();
        self.overfull() + u64::from(self.missing_domains(total))
    }

    /// The part of the excess that taking replicas away can mend.
    pub fn overfull(&self) -> u64 {
        u64::from(self.skew_excess()) + u64::from(self.domain_excess())
    }

    fn skew_excess(&self) -> u32 {
        let Some(max) = self.rule.max_skew else { return 0 };
        let bound = self.fewest.saturating_add(max);
        self.counts.iter().map(|count| count.saturating_sub(bound)).sum()
    }

    /// Replicas in the smallest of the domains that are too many.
    fn domain_excess(&self) -> u32 {
        let Some(max) = self.rule.max_domains.filter(|max| self.used > *max) else { return 0 };
        let mut used: Vec<u32> = self.counts.iter().copied().filter(|count| *count > 0).collect();
        used.sort_unstable();
        used.iter().take((self.used - max) as usize).sum()
    }

    /// The difference between the fullest domain and the emptiest open one.
    fn skew(&self) -> u32 {
        self.counts.iter().copied().max().unwrap_or(0).saturating_sub(self.fewest)
    }

    /// What of the rule is not met.
    pub fn notes(&self) -> Vec<Note> {
        let (by, used) = (|| self.rule.by.clone(), self.used);
        let total: u32 = self.counts.iter().sum();
        let wanted = self.rule.min_domains.filter(|wanted| used < (*wanted).min(total));
        let allowed = self.rule.max_domains.filter(|allowed| used > *allowed);
        let max = self.rule.max_skew.filter(|max| self.skew() > *max);
        let few = wanted.map(|wanted| Note::FewDomains { by: by(), wanted, used });
        let many = allowed.map(|allowed| Note::ManyDomains { by: by(), allowed, used });
        let skewed = max.map(|max| Note::SkewExceeded { by: by(), skew: self.skew(), max });
        [few, many, skewed].into_iter().flatten().collect()
    }
}
