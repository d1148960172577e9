//! What comes out of a decision about sites.

use super::types::Domain;
use crate::{Shortage, Taint};

/// Where every replica goes, and for every part of every site why so many and no more.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// One per part of every site given, in order of (site, part), plus one per held place that no longer
    /// exists. An ordinary site has one.
    pub sites: Vec<Explanation>,
    /// Wanted, over all sites. For a divided workload the request's replicas; for a duplicated one that
    /// many per chosen place.
    pub wanted: u32,
    /// Replicas that have no place. Zero when all is well.
    pub unplaced: u32,
    /// Replicas that leave one place for another in this decision.
    pub moved: u32,
    /// Replicas that should move but wait, for [`super::Failover::max_moves`] or for room elsewhere.
    pub waiting: u32,
    /// Wishes that were not met.
    pub notes: Vec<Note>,
}

/// One line of `tombolo explain place`.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub site: String,
    /// Empty for an ordinary site.
    pub part: String,
    /// The workload goes here, or stays. Also true with no replicas: for a copy of a duplicated workload, and
    /// for a workload that was here and is scaled to nothing now.
    pub chosen: bool,
    /// What it gets.
    pub replicas: u32,
    /// What it had.
    pub before: u32,
    /// How many replicas this place can hold, those it has included; `None`: not known, or without limit.
    pub fits: Option<u32>,
    /// Its rank in the order of preference, from 0; `None` for a site that is no candidate.
    pub preference: Option<u32>,
    /// The score that ordered it among its equals, 0 to 100; 0 for a site that is no candidate.
    pub score: u32,
    pub reason: Reason,
}

/// Why a place has the number of replicas it has.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// It has replicas, and more would fit.
    Chosen,
    /// It has replicas, as many as fit.
    ChosenFull,
    /// A candidate with room that was not needed: all replicas found a better place.
    NotNeeded,
    /// A candidate with room, but more preferred places took everything.
    LessPreferred,
    /// What the caller said, see [`super::SiteView::excluded`].
    Excluded(String),
    /// No selector of the rule matches.
    NotSelected,
    /// At most once was asked for, and the site's nodes cannot stop a replica by themselves.
    CannotFence,
    /// A divided workload with weights of which none is for this site.
    NoWeight,
    Taint(Taint),
    /// What the place has, and what is allowed.
    Jurisdiction {
        has: String,
        allowed: Vec<String>,
    },
    /// `None`: where the place is is not known.
    TooFar {
        km: Option<f64>,
        limit: f64,
    },
    /// Silent for less than the wait, or with replicas that stay: it keeps what it has, takes nothing new.
    SilentKept {
        seconds: u64,
        wait: u64,
        stays: bool,
    },
    /// Silent for longer than the wait: what it had is placed elsewhere, as room and moves allow.
    Silent {
        seconds: u64,
        wait: u64,
    },
    /// It keeps what it has, takes nothing new.
    Cordoned,
    /// Draining; `stays` when the replicas are bound to it.
    Draining {
        stays: bool,
    },
    /// Not one more replica fits. The most that any single node lacks the least of, with numbers.
    Full {
        short: Vec<Shortage>,
        nodes: u32,
    },
    /// No node there takes pods: there is none, or none that is ready and not cordoned.
    NoNode,
    /// One more here would break a required spread.
    Skew {
        by: Domain,
        domain: String,
        has: u32,
        fewest: u32,
        max: u32,
    },
    /// As many domains as allowed are in use already.
    DomainLimit {
        by: Domain,
        max: u32,
    },
    /// The place does not say which domain it is in, and a required spread needs it.
    NoDomain {
        by: Domain,
    },
    /// The site offers no place at all.
    NoParts,
    /// It is no longer in the fleet.
    Gone,
}

/// A wish that was not met, or something the user should know.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// Replicas are in fewer domains than asked for: there are no more, or no more with room.
    FewDomains { by: Domain, wanted: u32, used: u32 },
    /// Replicas are in more domains than allowed and could not be moved.
    ManyDomains { by: Domain, allowed: u32, used: u32 },
    /// The skew that came out: more was wished for, or could not be had.
    SkewExceeded { by: Domain, skew: u32, max: u32 },
    /// What the caller found: a site that keeps what it has, and gets no more although it says that it has room.
    Shunned { site: String },
}
