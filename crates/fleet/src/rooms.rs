//! What roots have at one site, against what the capacity that the site reported knows of it.
//!
//! A site says at once that a pod got a node, and how much room is left a little later. Until then the pod is on its way as
//! far as the reported room goes; counting it as gone from there already would give its room away twice.

use std::collections::HashMap;

use tombolo_placement::Resources;

use crate::object::Key;

/// A site reports its room at most this long (in seconds) after a change, a slow link included. A report that came before
/// the pod was shown is not missed for longer.
const AT_LAST: i64 = 5;

#[derive(Default)]
pub struct Rooms {
    roots: HashMap<Key, Room>,
    /// Roots of which something else was shown, and that have no time for it yet.
    undated: Vec<Key>,
}

struct Room {
    /// Uid and generation of the Work that `each` is of.
    said: (String, i64),
    each: Resources,
    assigned: i64,
    /// Pods with a node, by the Work's status.
    shown: i64,
    /// Of those, how many the reported capacity knows.
    counted: i64,
    /// When what is shown last changed.
    since: Option<i64>,
}

impl Room {
    fn counted(&self, now: i64) -> i64 {
        if self.since.is_some_and(|since| now - since >= AT_LAST) { self.shown } else { self.counted }
    }
}

impl Rooms {
    /// What a Work says; the answer is whether [`Rooms::date`] must be told the time. What was there before this hub looked
    /// is in the capacity already.
    pub fn put(
        &mut self,
        root: &Key,
        said: (&str, i64),
        assigned: i64,
        shown: i64,
        each: impl FnOnce() -> Resources,
    ) -> bool {
        match self.roots.get_mut(root) {
            Some(room) => {
                room.assigned = assigned;
                if (room.said.0.as_str(), room.said.1) != said {
                    (room.said, room.each) = ((said.0.to_owned(), said.1), each());
                }
                if room.shown != shown {
                    room.shown = shown;
                    room.since = None;
                    self.undated.push(root.clone());
                }
            }
            None => {
                let said = (said.0.to_owned(), said.1);
                let room = Room { said, each: each(), assigned, shown, counted: shown, since: None };
                self.roots.insert(root.clone(), room);
            }
        }
        !self.undated.is_empty()
    }

    pub fn forget(&mut self, root: &Key) {
        self.roots.remove(root);
    }

    /// The site reported its room: all that was shown before is in it.
    pub fn told(&mut self) {
        for room in self.roots.values_mut() {
            (room.counted, room.since) = (room.shown, None);
        }
        self.undated.clear();
    }

    pub fn date(&mut self, now: i64) {
        for root in std::mem::take(&mut self.undated) {
            if let Some(room) = self.roots.get_mut(&root) {
                room.since = Some(now);
            }
        }
    }

    /// When the next of what was shown counts although the site reported nothing.
    pub fn counted_at(&self, now: i64) -> Option<i64> {
        let times = self.roots.values().filter(|room| room.counted != room.shown);
        times.filter_map(|room| Some(room.since? + AT_LAST)).filter(|time| *time > now).min()
    }

    pub fn counted(&self, root: &Key, now: i64) -> i64 {
        self.roots.get(root).map_or(0, |room| room.counted(now))
    }

    /// What is not in the reported room yet, but for `but`.
    pub fn on_their_way(&self, but: &Key, now: i64) -> Vec<(Resources, u32)> {
        let waiting = |room: &Room| u32::try_from(room.assigned - room.counted(now)).ok().filter(|n| *n > 0);
        let others = self.roots.iter().filter(|(root, _)| *root != but);
        others.filter_map(|(_, room)| Some((room.each.clone(), waiting(room)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_counted_when_the_site_has_reported_its_room() {
        let (web, other) = (Key::new("apps/v1", "Deployment", "d", "web"), Key::new("", "", "", ""));
        let each = || Resources::replica(1000, 0);
        let mut rooms = Rooms::default();
        rooms.put(&web, ("w", 1), 2, 0, each);
        assert_eq!(rooms.on_their_way(&other, 0), [(each(), 2)]);
        rooms.put(&web, ("w", 1), 2, 2, each);
        rooms.date(10);
        assert_eq!(rooms.counted(&web, 11), 0, "the room is of before");
        assert_eq!((rooms.counted_at(11), rooms.counted_at(15)), (Some(15), None));
        assert_eq!(rooms.on_their_way(&other, 11), [(each(), 2)]);
        rooms.told();
        assert_eq!(rooms.counted(&web, 11), 2);
        assert_eq!(rooms.on_their_way(&other, 11), []);
        // A pod that is gone still takes its room until the site says otherwise.
        rooms.put(&web, ("w", 1), 2, 1, each);
        rooms.date(20);
        assert_eq!(rooms.counted(&web, 21), 2);
        assert_eq!(rooms.counted(&web, 25), 1, "its report came before");
        assert_eq!(rooms.on_their_way(&web, 25), []);
    }
}
