//! How long a site may be silent before it counts as lost.
//!
//! Sites send heartbeats at the hub's pace, whatever lease a Site asks for, and the hub's other replicas tell of them not
//! much later. A lease that is shorter than a few of these would lose a site that is well.

use std::time::Duration;

use tombolo_api::Site;

/// Heartbeats in one lease of the hub.
const BEATS: u32 = 4;
/// Heartbeats that every site may miss before it is lost.
const MISSED: i64 = 3;
/// No Site's own lease is shorter, in seconds.
const SHORTEST: i64 = 5;

/// How often sites send a heartbeat to a hub with this lease.
pub fn interval(lease: Duration) -> Duration {
    lease / BEATS
}

/// The lease of a site in seconds: what it asks for or what the hub gives, and never less than heartbeats and the measured
/// round trip allow.
pub fn of(site: &Site, hub: i64) -> i64 {
    let asked = site.spec.lease_seconds.map_or(hub, |own| i64::from(own).max(SHORTEST));
    let beats = (MISSED * hub + i64::from(BEATS) - 1) / i64::from(BEATS);
    asked.max(beats + round_trips(site))
}

/// Two measured round trips, in seconds.
fn round_trips(site: &Site) -> i64 {
    let latency = site.status.as_ref().and_then(|status| status.latency.as_deref());
    let milliseconds: Option<f64> = latency.and_then(|text| text.trim_end_matches("ms").parse().ok());
    (2.0 * milliseconds.unwrap_or(0.0) / 1000.0).ceil() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::index::Index;
    use tombolo_api::{SiteSpec, SiteStatus};

    fn site(lease: Option<u32>, latency: &str) -> Site {
        let mut site = Site::new("a", SiteSpec { lease_seconds: lease, ..Default::default() });
        site.status = Some(SiteStatus { latency: Some(latency.into()), ..Default::default() });
        site
    }

    #[test]
    fn a_site_asks_for_a_longer_lease_or_for_one_that_heartbeats_allow() {
        assert_eq!(of(&site(None, "20ms"), 40), 40);
        assert_eq!(of(&site(Some(300), "20ms"), 40), 300);
        assert_eq!(of(&site(Some(35), "20ms"), 40), 35);
        assert_eq!(of(&site(Some(3), "20ms"), 40), 31, "three heartbeats, and the way there and back");
        assert_eq!(of(&site(Some(1), "20ms"), 4), 5);
    }

    #[test]
    fn a_long_way_makes_a_lease_longer() {
        assert_eq!(of(&site(Some(5), "1500ms"), 8), 9);
        assert_eq!(of(&site(None, "9000ms"), 8), 24);
        assert_eq!(of(&site(None, "what"), 8), 8);
    }

    #[test]
    fn a_site_that_asks_for_less_than_a_heartbeat_does_not_flap() {
        let at = |seconds: i64| Moment { steady: seconds, wall: seconds };
        let mut index = Index::new(Default::default(), false, at(0), 40);
        index.put_site(site(Some(5), "20ms"), at(0));
        let beat = i64::try_from(interval(Duration::from_secs(40)).as_secs()).expect("small");
        for second in 1..=200 {
            if second % beat == 0 {
                index.heard("a", 0, at(second));
            }
            assert_eq!(index.silent("a", second), None, "lost after {second} s");
        }
        assert!(index.silent("a", 232).is_some(), "silence is still noticed");
    }
}
