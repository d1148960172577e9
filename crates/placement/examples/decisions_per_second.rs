//! How many placement decisions one core makes in a second.
//!
//! `cargo run --release -p tombolo-placement --example decisions_per_second`

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tombolo_placement::pods::{
    Affinity, Cluster, Decision, NodeView, PodTerm, PodView, SpreadConstraint, schedule,
};
use tombolo_placement::sites::{
    Capacity, Divide, Domain, FreeNodes, Held, Locality, Mode, Request, Rule, SiteSelector, SiteView, Spread,
    Weight, place,
};
use tombolo_placement::{Requirement, Resources};

const GI: i64 = 1 << 30;

fn main() {
    for nodes in [10, 100, 1000] {
        pods("plain", nodes, |_| {});
        pods("siblings", nodes, |pod| {
            pod.siblings = Some(vec![Requirement::equals("app", &pod.labels["app"])])
        });
        pods("hard spread by zone", nodes, |pod| pod.spread = vec![by_zone(pod)]);
        pods("anti-affinity by host", nodes, |pod| pod.affinity = apart(pod).into());
    }
    for sites in [10, 100, 1000] {
        let rule = Rule::default();
        replicas("free capacity, new", sites, &rule, 10, false);
        replicas("free capacity, again", sites, &rule, 10, true);
        let spread = Spread {
            by: Domain::Region,
            max_skew: Some(1),
            min_domains: None,
            max_domains: None,
            required: true,
        };
        let prefer = vec![SiteSelector { tiers: ["edge".to_owned()].into(), ..SiteSelector::default() }];
        let edge_first = Rule { prefer, spread: vec![spread], ..Rule::default() };
        replicas("edge first, spread, new", sites, &edge_first, 10, false);
        replicas("edge first, spread, again", sites, &edge_first, 10, true);
        let all = vec![Weight { sites: SiteSelector::default(), weight: 1 }];
        let weights = Rule { mode: Mode::Divide(Divide::Weights(all)), ..Rule::default() };
        replicas("weights, 1000 replicas, new", sites, &weights, 1000, false);
        replicas("weights, 1000 replicas, again", sites, &weights, 1000, true);
        let duplicate = Rule { mode: Mode::Duplicate, ..Rule::default() };
        replicas("duplicate, new", sites, &duplicate, 3, false);
        replicas("duplicate, again", sites, &duplicate, 3, true);
    }
}

/// Schedules pods of many Deployments until the time is up; the cluster is emptied when it is full.
fn pods(what: &str, nodes: usize, shape: impl Fn(&mut PodView)) {
    let mut empty = Cluster::new();
    for at in 0..nodes {
        let labels = [
            ("kubernetes.io/hostname".to_owned(), format!("node-{at:04}")),
            ("topology.kubernetes.io/zone".to_owned(), format!("zone-{}", at % 3)),
        ];
        let allocatable = Resources::replica(16_000, 64 * GI).with_pods(110);
        empty.set_node(NodeView {
            name: format!("node-{at:04}"),
            labels: labels.into(),
            allocatable,
            ..NodeView::default()
        });
    }
    let mut cluster = empty.clone();
    let mut number = 0;
    measure(&format!("pods, {nodes} nodes, {what}"), || {
        let app = format!("app-{}", number / 10 % 500);
        let mut pod = PodView {
            namespace: "default".to_owned(),
            name: format!("pod-{number}"),
            labels: BTreeMap::from([("app".to_owned(), app)]),
            requests: Resources::replica(100, GI / 8),
            ..PodView::default()
        };
        shape(&mut pod);
        number += 1;
        match schedule(&cluster, &pod) {
            Decision::Node(choice) => cluster.assume(&pod, &choice.node),
            Decision::None(_) => cluster = empty.clone(),
        }
    });
}

fn by_zone(pod: &PodView) -> SpreadConstraint {
    SpreadConstraint {
        topology_key: "topology.kubernetes.io/zone".to_owned(),
        max_skew: 1,
        min_domains: 1,
        required: true,
        selector: Some(vec![Requirement::equals("app", &pod.labels["app"])]),
        honor_affinity: true,
        honor_taints: false,
    }
}

fn apart(pod: &PodView) -> Affinity {
    let term = PodTerm {
        namespaces: [pod.namespace.clone()].into(),
        namespace_selector: None,
        selector: Some(vec![Requirement::equals("app", &pod.labels["app"])]),
        topology_key: "kubernetes.io/hostname".to_owned(),
    };
    Affinity { apart: vec![term], ..Affinity::default() }
}

fn replicas(what: &str, sites: usize, rule: &Rule, replicas: u32, again: bool) {
    let fleet: Vec<SiteView> = (0..sites)
        .map(|at| {
            let locality = Locality {
                tier: ["cloud", "fog", "edge"][at % 3].to_owned(),
                region: format!("region-{}", at % 7),
                ..Locality::default()
            };
            let node = |n: i64| FreeNodes {
                free: Resources::replica(n * 1000, n * 2 * GI).with_pods(100),
                nodes: 3,
            };
            SiteView::new(
                &format!("site-{at:04}"),
                locality,
                Capacity::Nodes(vec![node(4), node(16), node(32)]),
            )
        })
        .collect();
    let mut request =
        Request { replicas, each: Resources::replica(500, GI), may_return: true, ..Request::default() };
    if again {
        let chosen = place(&fleet, rule, &request).sites.into_iter().filter(|e| e.chosen);
        request.held = chosen
            .map(|e| Held {
                site: e.site,
                part: e.part,
                assigned: e.replicas,
                ready: e.replicas,
                counted: e.replicas,
                stuck: 0,
            })
            .collect();
    }
    measure(&format!("replicas, {sites} sites, {what}"), || {
        std::hint::black_box(place(&fleet, rule, &request));
    });
}

fn measure(what: &str, mut decide: impl FnMut()) {
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut decisions = 0u32;
    while start.elapsed() < Duration::from_millis(300) {
        decide();
        decisions += 1;
    }
    // Time on the processor where the system tells it, so that a busy machine does not spoil the figure.
    let spent = cpu_time().zip(cpu).map_or(start.elapsed(), |(end, start)| end - start);
    println!("{what:<55} {:>10.0} decisions/s", f64::from(decisions) / spent.as_secs_f64());
}

fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
