//! What the site has and how it is broken up over nodes: a plain struct fed by watches.

use std::collections::{BTreeMap, HashMap};

use kube::core::Object;
use serde::{Deserialize, Serialize};
use tombolo_api::quantity::{Amounts, amounts, texts};
use tombolo_api::{NodeShape, SiteStatus};

use crate::pods::{Pod, add, asks};

pub type Node = Object<NodeSpec, NodeStatus>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    pub unschedulable: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    pub capacity: BTreeMap<String, String>,
    pub allocatable: BTreeMap<String, String>,
    pub conditions: Vec<crate::pods::Condition>,
    pub node_info: NodeInfo,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    pub architecture: String,
    pub operating_system: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Have {
    capacity: Amounts,
    allocatable: Amounts,
    usable: bool,
    arch: String,
    os: String,
}

/// More shapes than this are made coarser: amounts are rounded down until few enough are left.
const SHAPES: usize = 32;
/// Nothing but the highest bit of an amount is left.
const COARSEST: u32 = 8;

#[derive(Default)]
pub struct Capacity {
    nodes: BTreeMap<String, Have>,
    /// All nodes are known: that there is none means something.
    listed: bool,
    /// By pod uid: its node and what it takes there.
    pods: HashMap<String, (String, Amounts)>,
}

impl Capacity {
    /// Says whether anything changed.
    pub fn put_node(&mut self, node: &Node) -> bool {
        let status = node.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True");
        let have = Have {
            capacity: amounts(&status.capacity),
            allocatable: amounts(&status.allocatable),
            usable: ready && !node.spec.unschedulable,
            arch: status.node_info.architecture,
            os: status.node_info.operating_system,
        };
        let name = node.metadata.name.clone().unwrap_or_default();
        self.nodes.insert(name, have.clone()) != Some(have)
    }

    pub fn drop_node(&mut self, name: &str) -> bool {
        self.nodes.remove(name).is_some()
    }

    pub fn put_pod(&mut self, pod: &Pod) -> bool {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let takes = asks(pod);
        if pod.spec.node_name.is_empty() || takes.is_empty() {
            return self.pods.remove(&uid).is_some();
        }
        let entry = (pod.spec.node_name.clone(), takes);
        self.pods.insert(uid, entry.clone()) != Some(entry)
    }

    pub fn drop_pod(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// Forgets what a new list does not have.
    pub fn retain_nodes(&mut self, keep: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| keep(name));
        self.listed = true;
    }

    pub fn retain_pods(&mut self, keep: impl Fn(&str) -> bool) {
        self.pods.retain(|uid, _| keep(uid));
    }

    /// Writes what is known into a status.
    pub fn fill(&self, status: &mut SiteStatus) {
        let mut used_by: HashMap<&str, Amounts> = HashMap::new();
        let mut used = Amounts::new();
        for (node, takes) in self.pods.values() {
            add(&mut used, takes);
            add(used_by.entry(node.as_str()).or_default(), takes);
        }
        let (mut capacity, mut allocatable) = (Amounts::new(), Amounts::new());
        let mut free = Vec::new();
        for (name, have) in &self.nodes {
            add(&mut capacity, &have.capacity);
            if !have.usable {
                continue;
            }
            add(&mut allocatable, &have.allocatable);
            let taken = used_by.get(name.as_str());
            let left = |(resource, total): (&String, &i64)| {
                let taken = taken.and_then(|t| t.get(resource)).copied().unwrap_or(0);
                (resource.clone(), (total - taken).max(0))
            };
            let shape = Shape {
                arch: Some(have.arch.clone()).filter(|arch| !arch.is_empty()),
                os: Some(have.os.clone()).filter(|os| !os.is_empty()),
                allocatable: have.allocatable.clone(),
                free: have.allocatable.iter().map(left).collect(),
            };
            free.push((shape, 1));
        }
        status.nodes = self.listed.then_some(self.nodes.len() as i64);
        status.capacity = texts(&capacity);
        status.allocatable = texts(&allocatable);
        status.used = texts(&used);
        status.shapes = shapes(&free);
    }
}

/// What nodes that are alike have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    arch: Option<String>,
    os: Option<String>,
    allocatable: Amounts,
    free: Amounts,
}

impl Shape {
    fn of(shape: &NodeShape) -> Self {
        Self {
            arch: shape.arch.clone(),
            os: shape.os.clone(),
            allocatable: amounts(&shape.allocatable),
            free: amounts(&shape.free),
        }
    }

    fn coarser(&self, coarseness: u32) -> Self {
        let round = |amounts: &Amounts| -> Amounts {
            amounts.iter().map(|(name, value)| (name.clone(), round_down(*value, coarseness))).collect()
        };
        Self { allocatable: round(&self.allocatable), free: round(&self.free), ..self.clone() }
    }

    /// What both have.
    fn common(&self, other: &Self) -> Option<Self> {
        let same =
            (&self.arch, &self.os) == (&other.arch, &other.os) && self.free.keys().eq(other.free.keys());
        let least = |one: &Amounts, other: &Amounts| -> Amounts {
            let both = |(name, value): (&String, &i64)| Some((name.clone(), *value.min(other.get(name)?)));
            one.iter().filter_map(both).collect()
        };
        same.then(|| Self {
            allocatable: least(&self.allocatable, &other.allocatable),
            free: least(&self.free, &other.free),
            ..self.clone()
        })
    }
}

/// The same nodes in few shapes, none of which promises more than there is.
pub fn few(shapes: &[NodeShape]) -> Vec<NodeShape> {
    self::shapes(&shapes.iter().map(|shape| (Shape::of(shape), shape.count)).collect::<Vec<_>>())
}

fn shapes(nodes: &[(Shape, i64)]) -> Vec<NodeShape> {
    let mut groups: BTreeMap<Shape, i64> = BTreeMap::new();
    for coarseness in 0..=COARSEST {
        groups.clear();
        for (shape, count) in nodes {
            *groups.entry(shape.coarser(coarseness)).or_default() += count;
        }
        if groups.len() <= SHAPES {
            break;
        }
    }
    // Nodes that differ in many ways at once: neighbours count as the lesser of the two.
    let mut groups: Vec<(Shape, i64)> = groups.into_iter().collect();
    while groups.len() > SHAPES {
        let before = groups.len();
        groups = in_pairs(groups);
        if groups.len() == before {
            break;
        }
    }
    let shape = |(shape, count): (Shape, i64)| NodeShape {
        count,
        allocatable: texts(&shape.allocatable),
        free: texts(&shape.free),
        arch: shape.arch,
        os: shape.os,
    };
    groups.into_iter().map(shape).collect()
}

/// Different processors, systems and devices stay apart.
fn in_pairs(groups: Vec<(Shape, i64)>) -> Vec<(Shape, i64)> {
    let mut pairs = Vec::new();
    let mut groups = groups.into_iter().peekable();
    while let Some((shape, count)) = groups.next() {
        match groups.peek().and_then(|(next, more)| Some((shape.common(next)?, count + more))) {
            Some(pair) => {
                groups.next();
                pairs.push(pair);
            }
            None => pairs.push((shape, count)),
        }
    }
    pairs
}

/// Clears all but the highest bits; coarser clears more.
fn round_down(value: i64, coarseness: u32) -> i64 {
    if coarseness == 0 || value <= 0 {
        return value;
    }
    let kept = COARSEST.saturating_sub(coarseness);
    let low = (63 - value.leading_zeros()).saturating_sub(kept);
    (value >> low) << low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn node(name: &str, cpu: &str, ready: bool) -> Node {
        let status = if ready { "True" } else { "False" };
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}, "status": {
            "capacity": {"cpu": cpu, "pods": "110"}, "allocatable": {"cpu": cpu, "pods": "110"},
            "conditions": [{"type": "Ready", "status": status}]}}))
        .expect("a node")
    }

    fn pod(uid: &str, node: &str, cpu: i64) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": format!("{cpu}m")}}}]}, "status": {"phase": "Running"}}))
        .expect("a pod")
    }

    #[test]
    fn equal_nodes_are_counted_together_and_a_node_that_is_not_ready_offers_nothing() {
        let mut capacity = Capacity::default();
        for name in ["a", "b", "c"] {
            capacity.put_node(&node(name, "2", true));
        }
        capacity.put_node(&node("d", "2", false));
        capacity.put_pod(&pod("p", "c", 500));
        capacity.retain_nodes(|_| true);
        let mut status = SiteStatus::default();
        capacity.fill(&mut status);
        assert_eq!(
            (status.nodes, status.allocatable["cpu"].as_str(), status.used["cpu"].as_str()),
            (Some(4), "6000m", "500m")
        );
        let counts: Vec<(i64, &str)> =
            status.shapes.iter().map(|s| (s.count, s.free["cpu"].as_str())).collect();
        assert_eq!(counts, [(1, "1500m"), (2, "2000m")]);
    }

    #[test]
    fn a_site_says_that_it_has_no_node_only_when_it_has_looked() {
        let mut capacity = Capacity::default();
        let nodes = |capacity: &Capacity| {
            let mut status = SiteStatus::default();
            capacity.fill(&mut status);
            status.nodes
        };
        assert_eq!(nodes(&capacity), None);
        capacity.retain_nodes(|_| true);
        assert_eq!(nodes(&capacity), Some(0));
    }

    #[test]
    fn nodes_that_differ_in_everything_become_few_shapes_and_keep_their_devices_apart() {
        let shape = |n: i64| {
            let mut all = Amounts::from([("cpu".into(), 1 << (n % 20)), ("memory".into(), 1 << (n % 37))]);
            if n % 10 == 0 {
                all.insert("example.com/gpu".into(), 1);
            }
            NodeShape { count: 1, allocatable: texts(&all), free: texts(&all), ..Default::default() }
        };
        let all: Vec<NodeShape> = (0..300).map(shape).collect();
        let few = few(&all);
        assert!(few.len() <= SHAPES, "{}", few.len());
        assert_eq!(few.iter().map(|s| s.count).sum::<i64>(), 300);
        let with_device = few.iter().filter(|s| s.free.contains_key("example.com/gpu"));
        assert_eq!(with_device.map(|s| s.count).sum::<i64>(), 30);
        for resource in ["cpu", "memory"] {
            let room = |shapes: &[NodeShape]| -> i64 {
                shapes.iter().map(|s| s.count * amounts(&s.free)[resource]).sum()
            };
            assert!(room(&few) <= room(&all) && room(&few) > 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn many_nodes_become_few_shapes_that_never_promise_more(cpus in prop::collection::vec(0i64..64_000, 1..150)) {
            let mut capacity = Capacity::default();
            for (n, cpu) in cpus.iter().enumerate() {
                capacity.put_node(&node(&format!("n{n}"), "64", true));
                capacity.put_pod(&pod(&format!("p{n}"), &format!("n{n}"), *cpu));
            }
            let mut status = SiteStatus::default();
            capacity.fill(&mut status);
            prop_assert!(status.shapes.len() <= SHAPES);
            prop_assert_eq!(status.shapes.iter().map(|s| s.count).sum::<i64>(), cpus.len() as i64);
            let promised: i64 = status.shapes.iter().map(|s| s.count * amounts(&s.free)["cpu"]).sum();
            prop_assert!(promised <= cpus.iter().map(|c| 64_000 - c).sum());
        }
    }
}
