//! Replicas onto the sites of a fleet: [`place`].
//!
//! ```text
//! sites ──> places (one per part) ──filter──> open │ refused: keep, leave, evict
//!                                               │            │
//!                                             score          │
//!                                               v            v
//!                                    board: keep what may stay, drop the surplus, fill what is missing,
//!                                           then move: leave, repair the spread, improve
//!                                               │
//!                                               v
//!                                    Decision: replicas and one explanation per place
//! ```
//!
//! Hysteresis comes from inputs alone: what a place has it keeps until the site itself reports it stuck
//! ([`Held::stuck`]); replicas come back to a preferred place only with the caller's leave
//! ([`Request::may_return`]) and only while room to spare remains there ([`ComeBack`]); moves under way
//! count against the bound on moves ([`Request::moving`]).

mod board;
mod decision;
mod explain;
mod filters;
mod moves;
mod place;
mod room;
mod scores;
mod spread;
mod types;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use decision::{Decision, Explanation, Note, Reason};
pub use place::place;
pub use types::{
    Capacity, ComeBack, Condition, Divide, Domain, Failover, FreeNodes, Held, Limits, Locality, Mode, Part,
    Point, Request, Rule, SiteSelector, SiteView, Spread, Stay, Weight, Within,
};
