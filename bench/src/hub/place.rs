//! How many placement decisions a second the engine makes.

use std::time::{Duration, Instant};

use tombolo_placement::Resources;
use tombolo_placement::sites::{
    Capacity, Domain, FreeNodes, Locality, Request, Rule, SiteView, Spread, place,
};

use crate::report::{Figure, Goal};

const TIME: Duration = Duration::from_secs(2);

fn fleet(count: usize) -> Vec<SiteView> {
    (0..count)
        .map(|n| {
            let locality = Locality {
                tier: ["edge", "fog", "cloud"][n % 3].into(),
                region: format!("r{}", n % 10),
                zone: format!("z{}", n % 30),
                ..Default::default()
            };
            let free = Resources::replica(4000 + 10 * (n as i64 % 7), 8 << 30).with_pods(110);
            SiteView::new(&format!("s{n:04}"), locality, Capacity::Nodes(vec![FreeNodes { free, nodes: 3 }]))
        })
        .collect()
}

pub fn measure() -> Vec<Figure> {
    let rule = Rule {
        spread: vec![Spread {
            by: Domain::Zone,
            max_skew: Some(1),
            min_domains: None,
            max_domains: None,
            required: true,
        }],
        ..Default::default()
    };
    let request = Request { replicas: 10, each: Resources::replica(100, 64 << 20), ..Default::default() };
    [(100, Some(Goal::AtLeast(2000.0))), (1000, None)]
        .into_iter()
        .map(|(sites, goal)| {
            let views = fleet(sites);
            let began = Instant::now();
            let mut decisions = 0u32;
            while began.elapsed() < TIME {
                assert_eq!(place(&views, &rule, &request).unplaced, 0, "there is room for all");
                decisions += 1;
            }
            let rate = f64::from(decisions) / began.elapsed().as_secs_f64();
            let what = format!("placement decisions: 10 replicas over {sites} sites, spread by zone");
            Figure::new(what, "/s", vec![rate], goal)
        })
        .collect()
}
