//! When to plan a root again although nothing was heard of it: waits end, and nobody says so.
//!
//! All else that a plan is made from marks its roots when it changes ([`crate::index`]). A hub that has lost a site therefore
//! plans what is there twice: when the site is lost, and when its replicas may move.

use std::sync::Arc;

use crate::decide::rested_at;
use crate::index::Index;
use crate::kept::Kept;
use crate::object::Key;
use crate::plan::FENCED;

/// What waits for room, or for others to move first, is looked at this often (in seconds) in any case: room is also freed by
/// what is taken away before its site had counted it, and of that the site says nothing.
const PATROL: i64 = 10;

/// `wait`: seconds of silence after which replicas move, where something places the root. `waits`: for room, or for others.
/// `None`: not before something changes.
pub fn again(
    index: &Index,
    key: &Key,
    works: &[(String, Arc<Kept>)],
    wait: Option<i64>,
    waits: bool,
    now: i64,
) -> Option<i64> {
    let mut times = Vec::new();
    for (site, work) in works {
        let Some(silence) = index.silent(site, now).and_then(|s| i64::try_from(s).ok()) else { continue };
        let heard = now - silence;
        times.extend(wait.map(|wait| heard + wait));
        times.extend(work.stops_after().map(|seconds| heard + seconds + FENCED + index.unheard + 1));
        times.push(index.nobody_lost_before);
    }
    times.extend(index.stuck_at(key));
    times.extend(index.stuck.over_at(key));
    if waits {
        times.extend([now + PATROL, rested_at(index, key), index.nothing_once_before]);
        times.extend(index.room_counted_at(now));
    }
    times.into_iter().filter(|time| *time > now).min()
}
