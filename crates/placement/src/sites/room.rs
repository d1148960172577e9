//! How much fits where.

use super::types::{Capacity, FreeNodes, Point};
use crate::{Resources, Shortage};

impl Capacity {
    /// How many more replicas fit, node by node; `None` when that is not known or without limit.
    pub fn fits(&self, each: &Resources) -> Option<u32> {
        let Capacity::Nodes(nodes) = self else { return None };
        let mut sum: u64 = 0;
        for entry in nodes {
            sum = sum.saturating_add(entry.free.times(each)?.saturating_mul(u64::from(entry.nodes)));
        }
        // A site without nodes takes nothing, however little is asked.
        Some(u32::try_from(sum).unwrap_or(u32::MAX))
    }

    /// Is it known that no node is there to take anything?
    pub fn is_without_nodes(&self) -> bool {
        matches!(self, Capacity::Nodes(nodes) if nodes.iter().all(|entry| entry.nodes == 0))
    }

    /// What the node that comes closest lacks for one replica, and the number of nodes.
    pub fn lacks(&self, each: &Resources) -> (Vec<Shortage>, u32) {
        let Capacity::Nodes(nodes) = self else { return (Vec::new(), 0) };
        let all = nodes.iter().fold(0u32, |sum, entry| sum.saturating_add(entry.nodes));
        let closest = (nodes.iter().filter(|entry| entry.nodes > 0))
            .map(|entry: &FreeNodes| entry.free.shortages(each))
            .min_by_key(|short| (short.len(), short.iter().map(missing_permille).sum::<i64>()));
        (closest.unwrap_or_default(), all)
    }
}

/// How much of what is asked is missing, in thousandths.
fn missing_permille(short: &Shortage) -> i64 {
    let missing = i128::from(short.asked) - i128::from(short.free.max(0));
    (missing * 1000 / i128::from(short.asked.max(1))) as i64
}

impl Point {
    /// The great-circle distance on a sphere of the Earth's mean radius.
    pub fn km_to(&self, other: &Point) -> f64 {
        const EARTH_KM: f64 = 6371.0;
        let (lat1, lat2) = (self.latitude.to_radians(), other.latitude.to_radians());
        let (dlat, dlon) = (lat2 - lat1, (other.longitude - self.longitude).to_radians());
        let h = (dlat / 2.0).sin().powi(2) + lat1.cos() * lat2.cos() * (dlon / 2.0).sin().powi(2);
        2.0 * EARTH_KM * h.sqrt().min(1.0).asin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_counted_node_by_node() {
        let nodes = Capacity::Nodes(vec![
            FreeNodes { free: Resources::replica(900, 1 << 30).with_pods(10), nodes: 3 },
            FreeNodes { free: Resources::replica(2500, 1 << 30).with_pods(10), nodes: 1 },
        ]);
        assert_eq!(nodes.fits(&Resources::replica(1000, 0)), Some(2), "the sum, 5.2 cores, would say 5");
        assert_eq!(nodes.fits(&Resources::default()), None, "nothing asked, no limit");
        assert_eq!(Capacity::Unknown.fits(&Resources::replica(1000, 0)), None);
        assert_eq!(Capacity::Nodes(Vec::new()).fits(&Resources::default()), Some(0));
    }

    #[test]
    fn distances_are_right_within_a_percent() {
        let vienna = Point { latitude: 48.21, longitude: 16.37 };
        let sydney = Point { latitude: -33.87, longitude: 151.21 };
        assert!((vienna.km_to(&sydney) - 15_990.0).abs() < 160.0);
        assert!(vienna.km_to(&vienna) < 0.001);
    }
}
