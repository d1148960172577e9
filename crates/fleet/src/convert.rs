//! Sites and Placements as the placement engine wants them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tombolo_api::{
    DivideBy, NodeShape, Offer, PlacementSpec, ReplicasMode, Site, SiteGroup, SiteSpec, SpreadBy, Tier,
};
use tombolo_placement::sites as engine;
use tombolo_placement::{Effect, Operator, Requirement, Resources, Taint, Toleration, TolerationOperator};

use crate::object::{Nature, template_pointer, text};

/// How long silence lasts before anything moves, where the placement does not say.
pub const DEFAULT_WAIT: i64 = 60;

/// What one replica of the root asks for.
pub fn asks(root: &Value) -> Resources {
    let spec = template_pointer(text(root, "/kind")).and_then(|p| root.pointer(&format!("{p}/spec")));
    let parsed = spec.and_then(|s| serde_json::from_value(s.clone()).ok());
    parsed.map_or_else(Resources::default, |spec| tombolo_placement::pods::requests_of_pod(&spec))
}

/// Names of the groups that a site is in.
pub fn groups_of(name: &str, site: &Site, groups: &BTreeMap<String, SiteGroup>) -> Vec<String> {
    let labels = site.metadata.labels.clone().unwrap_or_default();
    let member = |group: &SiteGroup| {
        group.spec.sites.iter().any(|s| s == name)
            || group.spec.selector.as_ref().is_some_and(|s| s.matches(name, &site.spec, &labels, &[]))
    };
    groups.iter().filter(|(_, group)| member(group)).map(|(name, _)| name.clone()).collect()
}

/// A site as the engine sees it. `silent`: seconds since it was last heard, if that is too long.
/// `taken`: replicas placed there that the reported capacity does not know yet.
pub fn site_view(
    name: &str,
    site: &Site,
    groups: Vec<String>,
    silent: Option<u64>,
    taken: &[(Resources, u32)],
) -> engine::SiteView {
    let status = site.status.clone().unwrap_or_default();
    // A hub below whose sites are all away offers nothing, whatever nodes it shows.
    let mut parts = if site.spec.hubs.is_empty() && status.offers.is_empty() {
        vec![engine::Part {
            name: String::new(),
            locality: locality(site.spec.tier, &site.spec),
            capacity: capacity(&status.shapes, status.nodes.is_some() || !status.shapes.is_empty()),
        }]
    } else {
        status.offers.iter().map(|offer| part(offer, &site.spec)).collect()
    };
    for (each, replicas) in taken {
        take(&mut parts, each, *replicas);
    }
    engine::SiteView {
        name: name.to_owned(),
        labels: site.metadata.labels.clone().unwrap_or_default(),
        groups: groups.into_iter().collect(),
        taints: site.spec.taints.iter().filter_map(taint).collect(),
        condition: match silent {
            Some(seconds) => engine::Condition::Silent { seconds },
            None if site.spec.unschedulable => engine::Condition::Cordoned,
            None => engine::Condition::Ready,
        },
        fences: site.spec.fences,
        excluded: None,
        parts,
    }
}

/// Has the site a node that takes pods, as far as it has said?
pub fn takes_pods(site: &Site) -> bool {
    site.status.as_ref().is_none_or(|status| status.nodes.is_none() || !status.shapes.is_empty())
}

fn part(offer: &Offer, site: &SiteSpec) -> engine::Part {
    let spec = SiteSpec {
        tier: offer.tier,
        location: offer.location.clone(),
        provider: offer.provider.clone().or_else(|| site.provider.clone()),
        ..Default::default()
    };
    engine::Part {
        name: crate::parts::name(offer),
        locality: locality(offer.tier, &spec),
        capacity: capacity(&offer.shapes, true),
    }
}

fn locality(at: Tier, spec: &SiteSpec) -> engine::Locality {
    let location = &spec.location;
    let own = |text: &Option<String>| text.clone().unwrap_or_default();
    let point = location.latitude.zip(location.longitude);
    engine::Locality {
        tier: tier(at).to_owned(),
        region: own(&location.region),
        zone: own(&location.zone),
        provider: own(&spec.provider),
        jurisdiction: own(&location.jurisdiction),
        point: point.map(|(latitude, longitude)| engine::Point { latitude, longitude }),
    }
}

pub fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Cloud => "cloud",
        Tier::Fog => "fog",
        Tier::Edge => "edge",
    }
}

fn capacity(shapes: &[NodeShape], known: bool) -> engine::Capacity {
    if !known {
        return engine::Capacity::Unknown;
    }
    let nodes = shapes.iter().map(|shape| engine::FreeNodes {
        free: resources(&shape.free),
        nodes: u32::try_from(shape.count).unwrap_or(0),
    });
    engine::Capacity::Nodes(nodes.collect())
}

/// Takes room for replicas that are on their way, one node at a time, where most is free. To which part of a hub below they go
/// is not known here; but what it has in all is not given away twice.
fn take(parts: &mut [engine::Part], each: &Resources, mut replicas: u32) {
    let mut rooms: Vec<&mut Vec<engine::FreeNodes>> = parts
        .iter_mut()
        .filter_map(|part| match &mut part.capacity {
            engine::Capacity::Nodes(nodes) => Some(nodes),
            engine::Capacity::Unknown => None,
        })
        .collect();
    while replicas > 0 {
        let all = rooms
            .iter()
            .enumerate()
            .flat_map(|(room, nodes)| nodes.iter().enumerate().map(move |(at, n)| (room, at, n)));
        let roomiest = all
            .filter(|(.., n)| n.nodes > 0 && n.free.holds(each))
            .max_by_key(|(.., n)| n.free.times(each).unwrap_or(u64::MAX));
        let Some((room, at, node)) = roomiest else { return };
        let fits = node.free.times(each).unwrap_or(u64::MAX).min(u64::from(replicas)) as u32;
        let mut free = node.free.clone();
        for _ in 0..fits {
            free.sub(each);
        }
        rooms[room][at].nodes -= 1;
        rooms[room].push(engine::FreeNodes { free, nodes: 1 });
        replicas -= fits.max(1);
    }
}

pub fn resources(quantities: &BTreeMap<String, String>) -> Resources {
    let mut all = Resources::default();
    for (name, value) in tombolo_api::quantity::amounts(quantities) {
        match name.as_str() {
            "cpu" => all.cpu = value,
            "memory" => all.memory = value,
            "ephemeral-storage" => all.storage = value,
            "pods" => all.pods = value,
            other => all.set_extended(other, value),
        }
    }
    all
}

fn effect(text: &str) -> Option<Effect> {
    match text {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

fn taint(taint: &tombolo_api::Taint) -> Option<Taint> {
    Some(Taint { key: taint.key.clone(), value: taint.value.clone(), effect: effect(&taint.effect)? })
}

/// Does every chosen site get a copy, rather than a share?
pub fn duplicates(spec: &PlacementSpec, nature: Nature) -> bool {
    spec.replicas.mode == ReplicasMode::Duplicate || matches!(nature, Nature::PerNode | Nature::Shared)
}

/// The rule of a placement for one kind of object.
pub fn rule(spec: &PlacementSpec, nature: Nature, groups: &BTreeSet<String>) -> engine::Rule {
    let selector = |s: &tombolo_api::SiteSelector| selector(s, groups);
    let toleration = |t: &tombolo_api::Toleration| Toleration {
        key: t.key.clone(),
        operator: if t.operator == "Exists" { TolerationOperator::Exists } else { TolerationOperator::Equal },
        value: t.value.clone(),
        effect: effect(&t.effect),
    };
    let duplicate = duplicates(spec, nature);
    let mode = if duplicate {
        engine::Mode::Duplicate
    } else {
        engine::Mode::Divide(match spec.replicas.divide_by {
            _ if nature == Nature::Unit => engine::Divide::Packed,
            DivideBy::FreeCapacity => engine::Divide::FreeCapacity,
            DivideBy::Pack => engine::Divide::Packed,
            DivideBy::Weight => engine::Divide::Weights(weights(spec, groups)),
        })
    };
    let positive = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok());
    let mut spread: Vec<engine::Spread> = spec
        .spread
        .iter()
        .map(|s| engine::Spread {
            by: domain(s.by),
            max_skew: positive(s.max_skew),
            min_domains: positive(s.min),
            max_domains: positive(s.max),
            required: true,
        })
        .collect();
    if duplicate && let Some(copies) = positive(spec.replicas.copies) {
        let by = engine::Domain::Site;
        spread.push(engine::Spread {
            by,
            max_skew: None,
            min_domains: None,
            max_domains: Some(copies),
            required: true,
        });
    }
    let limits = &spec.limits;
    engine::Rule {
        sites: if spec.sites == Default::default() { Vec::new() } else { vec![selector(&spec.sites)] },
        tolerations: spec.tolerations.iter().map(toleration).collect(),
        mode,
        prefer: spec.prefer.iter().map(selector).collect(),
        come_back: engine::ComeBack::default(),
        spread,
        limits: engine::Limits {
            within: limits.max_distance_km.zip(limits.near).map(|(km, near)| engine::Within {
                point: engine::Point { latitude: near.latitude, longitude: near.longitude },
                km,
            }),
            jurisdictions: limits.jurisdictions.iter().cloned().collect(),
        },
        failover: engine::Failover {
            wait_seconds: u64::try_from(spec.failover.wait_seconds.unwrap_or(DEFAULT_WAIT)).unwrap_or(0),
            max_moves: positive(spec.failover.max_at_once),
            stay: match (spec.failover.stay, spec.failover.move_local_volumes) {
                (true, _) => engine::Stay::Everybody,
                (false, true) => engine::Stay::Nobody,
                (false, false) => engine::Stay::WithLocalVolumes,
            },
            at_most_once: spec.failover.at_most_once,
        },
    }
}

/// Ours gives a site that no weight names the weight 1; the engine gives it nothing.
fn weights(spec: &PlacementSpec, groups: &BTreeSet<String>) -> Vec<engine::Weight> {
    let stated = spec.replicas.weights.iter().map(|w| engine::Weight {
        sites: selector(&w.sites, groups),
        weight: u32::try_from(w.weight).unwrap_or(0),
    });
    stated.chain([engine::Weight { sites: engine::SiteSelector::default(), weight: 1 }]).collect()
}

fn selector(selector: &tombolo_api::SiteSelector, groups: &BTreeSet<String>) -> engine::SiteSelector {
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    let labels = selector.labels.clone().unwrap_or_default();
    let exact = labels.match_labels.iter().map(|(k, v)| Requirement::equals(k, v));
    let expressions = labels.match_expressions.iter().map(|r| {
        let values: Vec<&str> = r.values.iter().map(String::as_str).collect();
        match r.operator.as_str() {
            "In" => Requirement::new(&r.key, Operator::In, &values),
            "NotIn" => Requirement::new(&r.key, Operator::NotIn, &values),
            "Exists" => Requirement::new(&r.key, Operator::Exists, &values),
            "DoesNotExist" => Requirement::new(&r.key, Operator::DoesNotExist, &values),
            // Unknown operators select nothing.
            _ => Requirement::new(&r.key, Operator::In, &[]),
        }
    });
    engine::SiteSelector {
        names: set(&selector.names),
        groups: selector.names.iter().filter(|n| groups.contains(*n)).cloned().collect(),
        except: set(&selector.exclude),
        labels: exact.chain(expressions).collect(),
        tiers: selector.tiers.iter().map(|t| tier(*t).to_owned()).collect(),
        regions: set(&selector.regions),
        zones: set(&selector.zones),
        providers: set(&selector.providers),
        jurisdictions: set(&selector.jurisdictions),
    }
}

fn domain(by: SpreadBy) -> engine::Domain {
    match by {
        SpreadBy::Site => engine::Domain::Site,
        SpreadBy::Zone => engine::Domain::Zone,
        SpreadBy::Region => engine::Domain::Region,
        SpreadBy::Provider => engine::Domain::Provider,
        SpreadBy::Tier => engine::Domain::Tier,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shape(cpu: &str) -> NodeShape {
        let free = [("cpu", cpu), ("pods", "10"), ("memory", "1Gi")];
        let free = free.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        NodeShape { count: 1, free, ..Default::default() }
    }

    /// What is left of each node, by part.
    fn left(site: &Site, taken: &[(Resources, u32)]) -> Vec<Vec<i64>> {
        let view = site_view("s", site, Vec::new(), None, taken);
        let left = |part: &engine::Part| {
            let engine::Capacity::Nodes(nodes) = &part.capacity else { panic!("known") };
            let mut free: Vec<i64> = nodes.iter().filter(|n| n.nodes > 0).map(|n| n.free.cpu).collect();
            free.sort_unstable();
            free
        };
        view.parts.iter().map(left).collect()
    }

    #[test]
    fn what_is_on_its_way_takes_room_where_most_is_free() {
        let mut site = Site::new("s", SiteSpec::default());
        site.status.get_or_insert_default().shapes = vec![shape("1"), shape("4")];
        assert_eq!(left(&site, &[(Resources::replica(1000, 0), 3)]), [[1000, 1000]]);
    }

    #[test]
    fn room_of_a_hub_below_is_not_given_away_twice() {
        let mut site = Site::new("s", SiteSpec { hubs: vec!["below".into()], ..Default::default() });
        let offer = |zone: &str, cpu: &str| Offer {
            location: tombolo_api::Location { zone: Some(zone.into()), ..Default::default() },
            shapes: vec![shape(cpu)],
            ..Default::default()
        };
        site.status.get_or_insert_default().offers = vec![offer("a", "2"), offer("b", "3")];
        let on_their_way = |replicas| [(Resources::replica(1000, 0), replicas)];
        assert_eq!(left(&site, &[]), [[2000], [3000]]);
        assert_eq!(left(&site, &on_their_way(2)), [[2000], [1000]]);
        assert_eq!(left(&site, &on_their_way(4)), [[1000], [0]]);
        assert_eq!(left(&site, &on_their_way(9)), [[0], [0]], "and no more than there is");
    }

    #[test]
    fn a_replica_asks_for_what_its_template_requests() {
        let root = json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]}}}});
        let asked = asks(&root);
        assert_eq!((asked.cpu, asked.memory, asked.pods), (250, 64 << 20, 1));
    }

    #[test]
    fn configuration_is_duplicated_whatever_the_mode() {
        let spec = PlacementSpec::default();
        assert_eq!(rule(&spec, Nature::Shared, &BTreeSet::new()).mode, engine::Mode::Duplicate);
        assert_eq!(
            rule(&spec, Nature::Unit, &BTreeSet::new()).mode,
            engine::Mode::Divide(engine::Divide::Packed)
        );
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod spread_tests;
