//! What goes into a decision about sites, and the shape of the rule.
//!
//! Nothing here knows Kubernetes: the hub's controllers turn `Site` and `Placement` objects into these.

use std::collections::BTreeSet;

use crate::{Labels, Requirement, Resources, Taint, Toleration};

/// One site of the fleet as the hub knows it now.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteView {
    /// Unique in the fleet.
    pub name: String,
    pub labels: Labels,
    /// Names of the groups this site belongs to.
    pub groups: BTreeSet<String>,
    pub taints: Vec<Taint>,
    pub condition: Condition,
    /// Whether its nodes stop a replica by themselves when a deadline passes ([`Failover::at_most_once`]).
    pub fences: bool,
    /// Set by the caller when something only it knows speaks against this site (its owner does not allow
    /// the kind, a path of hubs would loop, no node of the right architecture). Shown as the reason.
    pub excluded: Option<String>,
    /// An ordinary site has exactly one part. A nested hub has one per combination of locality it offers
    /// (zone, jurisdiction, …); replicas are placed on parts, and the per-part numbers are what travels to
    /// that hub as the portion of the placement it decides itself. A site without parts takes nothing.
    pub parts: Vec<Part>,
}

/// A portion of a site that is in one place. The name is unique within the site, empty for an ordinary site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    pub name: String,
    pub locality: Locality,
    pub capacity: Capacity,
}

/// Where something is. Empty strings and `None` mean "not known", which never satisfies a limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Locality {
    /// `cloud`, `fog` or `edge`.
    pub tier: String,
    pub region: String,
    pub zone: String,
    pub provider: String,
    pub jurisdiction: String,
    pub point: Option<Point>,
}

/// Degrees; south and west are negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub latitude: f64,
    pub longitude: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Ready,
    /// Not heard from. `seconds` since the last sign of life, measured by the caller.
    Silent {
        seconds: u64,
    },
    /// Nothing new comes; what is there stays.
    Cordoned,
    /// Its replicas are asked to leave; nothing new comes.
    Draining,
}

/// What is free, in the pieces it is free in.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Capacity {
    /// The site does not report capacity. It takes any number, but only what no site of known capacity in
    /// the same order of preference can take.
    #[default]
    Unknown,
    /// `nodes` nodes that each have `free` left. A histogram rather than a list: a nested hub of a
    /// thousand nodes sends a few lines.
    Nodes(Vec<FreeNodes>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct FreeNodes {
    pub free: Resources,
    pub nodes: u32,
}

/// What is to be placed, and where it is now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Wanted in total (divide), or at every chosen site (duplicate). Objects without replicas
    /// (ConfigMaps, custom resources) are placed as one replica that asks for nothing.
    pub replicas: u32,
    /// What one replica asks for; see [`Resources::replica`].
    pub each: Resources,
    /// The replicas keep data on the node's own disk: they are never moved, whatever would be nicer,
    /// unless the failover rule says [`Stay::Nobody`].
    pub local_volumes: bool,
    /// The present assignment: every place that has the workload, also with no replicas. Places that no
    /// longer exist may be listed: their replicas are placed anew.
    pub held: Vec<Held>,
    /// Replicas of this workload that an earlier decision moved and that are not ready yet. They use up
    /// [`Failover::max_moves`].
    pub moving: u32,
    /// Whether replicas may now be moved merely to be in a nicer place: back to a more preferred one, or
    /// closer to the weights. The caller withholds this for a while after a move and after a replica was
    /// stuck; this function has no clock.
    pub may_return: bool,
}

/// What one part of a site has of the workload now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub site: String,
    /// Empty for an ordinary site.
    pub part: String,
    /// Replicas the last decision gave it.
    pub assigned: u32,
    /// How many of them are ready.
    pub ready: u32,
    /// How many of them sit on a node, so that the reported free capacity is already less by them.
    pub counted: u32,
    /// How many of them the site itself says it has no room for (pending, unschedulable). These are
    /// placed elsewhere when there is an elsewhere; all others never lose their place to a lack of room,
    /// because reports of capacity and of pods do not arrive at the same moment.
    pub stuck: u32,
}

/// The placement rule. `Rule::default()` divides over all sites by free capacity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// A site is a candidate when one of these matches. Empty: every site.
    pub sites: Vec<SiteSelector>,
    pub tolerations: Vec<Toleration>,
    pub mode: Mode,
    /// Order of preference: sites that match the first are filled first, then those that match the
    /// second, and so on; candidates that match none come last. Empty: all are equal.
    pub prefer: Vec<SiteSelector>,
    pub come_back: ComeBack,
    pub spread: Vec<Spread>,
    pub limits: Limits,
    pub failover: Failover,
}

/// All that is given must hold; an empty selector matches every site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteSelector {
    /// The site is named here, or is in one of `groups`.
    pub names: BTreeSet<String>,
    pub groups: BTreeSet<String>,
    /// Never these, by name of site or group.
    pub except: BTreeSet<String>,
    pub labels: Vec<Requirement>,
    pub tiers: BTreeSet<String>,
    pub regions: BTreeSet<String>,
    pub zones: BTreeSet<String>,
    pub providers: BTreeSet<String>,
    pub jurisdictions: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// Every chosen site gets all replicas (every part of a nested hub does).
    Duplicate,
    /// The replicas are divided among the chosen sites.
    Divide(Divide),
}

impl Default for Mode {
    fn default() -> Self {
        Mode::Divide(Divide::FreeCapacity)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Divide {
    /// In proportion to stated weights. The first that matches a site counts; a site that matches none
    /// gets nothing (end the list with an empty selector to give the rest a weight). Weights are a
    /// statement of what the user wants, so replicas are moved to follow them.
    Weights(Vec<Weight>),
    /// In proportion to how many replicas fit. Applied to replicas that are placed anew; what runs stays.
    FreeCapacity,
    /// On as few sites as possible. Applied to replicas that are placed anew; what runs stays.
    Packed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    pub sites: SiteSelector,
    pub weight: u32,
}

/// How much room a site must have *left* after a replica moved there only because it would be nicer (more
/// preferred, closer to the weights). This is what keeps a site at the edge of full from flapping. The
/// larger of the two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComeBack {
    pub spare_replicas: u32,
    /// Of the workload's replicas, rounded up.
    pub spare_percent: u32,
}

impl Default for ComeBack {
    fn default() -> Self {
        Self { spare_replicas: 1, spare_percent: 10 }
    }
}

/// Even out, or bound the number of, the domains that replicas are in.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    pub by: Domain,
    /// Between the domain with the most replicas and the one with the fewest among the candidates.
    pub max_skew: Option<u32>,
    /// Use at least so many domains, as far as there are replicas to put into them. With fewer domains
    /// among the candidates, `max_skew` is counted from zero, as in Kubernetes.
    pub min_domains: Option<u32>,
    /// Use at most so many domains.
    pub max_domains: Option<u32>,
    /// `false`: a wish that only ranks sites; replicas are placed even when it cannot be met.
    pub required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    Site,
    Zone,
    Region,
    Provider,
    Tier,
    /// The value of a site label.
    Label(String),
}

/// What a candidate must satisfy; a site whose place is not known does not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub within: Option<Within>,
    /// One of these; empty: any.
    pub jurisdictions: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Within {
    pub point: Point,
    pub km: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover {
    /// How long a site may be silent before its replicas are placed elsewhere.
    pub wait_seconds: u64,
    /// Moves under way at one time; `None`: no bound. Applies to every move the rule would *rather* have
    /// (silent, draining, back to a preferred site, weights, spread). What the rule *forbids* (selector,
    /// limits, a `NoExecute` taint) leaves at once.
    pub max_moves: Option<u32>,
    pub stay: Stay,
    /// No replica may ever run twice: only sites that fence are candidates, and a silent site keeps its
    /// replicas until the wait is over even when the rule no longer selects it. The caller makes the wait
    /// long enough for the fence.
    pub at_most_once: bool,
}

impl Default for Failover {
    fn default() -> Self {
        Self { wait_seconds: 60, max_moves: None, stay: Stay::WithLocalVolumes, at_most_once: false }
    }
}

/// Which replicas wait for a lost or draining site instead of being placed elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stay {
    Nobody,
    #[default]
    WithLocalVolumes,
    Everybody,
}

impl SiteView {
    /// An ordinary, ready site: one place, no labels, no taints.
    pub fn new(name: &str, locality: Locality, capacity: Capacity) -> Self {
        Self {
            name: name.to_owned(),
            labels: Labels::new(),
            groups: BTreeSet::new(),
            taints: Vec::new(),
            condition: Condition::Ready,
            fences: false,
            excluded: None,
            parts: vec![Part { name: String::new(), locality, capacity }],
        }
    }
}

impl ComeBack {
    pub(super) fn spare(&self, replicas: u32) -> u32 {
        let percent = (u64::from(replicas) * u64::from(self.spare_percent)).div_ceil(100);
        self.spare_replicas.max(u32::try_from(percent).unwrap_or(u32::MAX))
    }
}
