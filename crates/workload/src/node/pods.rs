//! Every node's part of the pod network: `spec.podCIDR`, given once and never changed.

use crate::{
    meta,
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::{collections::BTreeSet, net::Ipv4Addr, str::FromStr, sync::Arc};

/// A node's part, as kubeadm's clusters have it: room for the 110 pods of a node.
const NODE_BITS: u8 = 24;

/// The network of all pods of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    base: u32,
    bits: u8,
}

impl FromStr for PodNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text} is not an IPv4 network such as 10.42.0.0/16");
        let (base, bits) = text.split_once('/').ok_or_else(bad)?;
        let base: Ipv4Addr = base.parse().map_err(|_| bad())?;
        let bits: u8 = bits.parse().map_err(|_| bad())?;
        if !(8..=26).contains(&bits) {
            return Err(format!("{text}: the pod network needs between 8 and 26 bits"));
        }
        Ok(Self { base: u32::from(base) & (u32::MAX << (32 - bits)), bits })
    }
}

impl PodNetwork {
    fn node_bits(self) -> u8 {
        NODE_BITS.max(self.bits + 2)
    }

    fn parts(self) -> impl Iterator<Item = (u32, u8)> {
        let bits = self.node_bits();
        (0..1u32 << (bits - self.bits)).map(move |n| (self.base + (n << (32 - bits)), bits))
    }
}

fn part_of(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty())
}

/// First and last address of a network.
fn range(cidr: &str) -> Option<(u32, u32)> {
    let (base, bits) = cidr.split_once('/')?;
    let (base, bits): (Ipv4Addr, u32) = (base.parse().ok()?, bits.parse().ok()?);
    let size = u32::MAX.checked_shr(bits).unwrap_or(0);
    let first = u32::from(base) & !size;
    Some((first, first | size))
}

/// Gives each node that has no part the first that overlaps nobody's.
pub fn plan(nodes: &[Arc<Node>], network: PodNetwork) -> Vec<Action> {
    let mut taken: Vec<(u32, u32)> = nodes.iter().filter_map(|node| range(part_of(node)?)).collect();
    let waiting: BTreeSet<&str> =
        nodes.iter().filter(|n| part_of(n).is_none()).map(|n| meta::name(&n.metadata)).collect();
    let mut actions = Vec::new();
    for name in waiting {
        let free = network.parts().find(|(base, bits)| {
            let last = base | u32::MAX.checked_shr(u32::from(*bits)).unwrap_or(0);
            !taken.iter().any(|(first, end)| *base <= *end && *first <= last)
        });
        let Some((base, bits)) = free else {
            tracing::warn!(node = name, "the pod network has no part left for this node; see --pod-cidr");
            continue;
        };
        let cidr = format!("{}/{bits}", Ipv4Addr::from(base));
        taken.extend(range(&cidr));
        if let Some(node) = nodes.iter().find(|n| meta::name(&n.metadata) == name) {
            let body = json!({"spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
            actions.push(meta::patch::<Node>(&node.metadata, "", &body));
        }
    }
    actions
}

pub struct NodePods {
    pub network: PodNetwork,
}

impl Controller for NodePods {
    fn name(&self) -> &'static str {
        "node-pods"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Nodes]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        world.nodes.on_change(move |_, new| {
            if new.is_some_and(|node| part_of(node).is_none()) {
                // One key for all: two nodes planned side by side would be given the same part.
                enqueue.add(Key::new("", "all"));
            }
        });
    }

    fn plan(&self, _: &Key, world: &World, _: Timestamp) -> Vec<Action> {
        plan(&world.nodes.list(), self.network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Json;
    use proptest::prelude::*;

    fn node(name: &str, cidr: Option<&str>) -> Arc<Node> {
        let node = json!({"metadata": {"name": name}, "spec": {"podCIDR": cidr}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn given(actions: &[Action]) -> Vec<(String, String)> {
        let read = |body: &Json| body.read::<serde_json::Value>().unwrap()["spec"]["podCIDR"].clone();
        let one = |action: &Action| match action {
            Action::Patch { name, body, .. } => Some((name.clone(), read(body).as_str().unwrap().to_owned())),
            _ => None,
        };
        actions.iter().filter_map(one).collect()
    }

    #[test]
    fn each_new_node_gets_the_first_part_that_nobody_has() {
        let network = "10.42.0.0/16".parse().unwrap();
        let nodes = [node("a", Some("10.42.0.0/24")), node("c", None), node("b", None)];
        let pairs = given(&plan(&nodes, network));
        let wanted = [("b", "10.42.1.0/24"), ("c", "10.42.2.0/24")];
        assert_eq!(pairs, wanted.map(|(n, c)| (n.to_owned(), c.to_owned())));
        assert!(plan(&[node("a", Some("10.42.0.0/24"))], network).is_empty(), "a part is never changed");
    }

    #[test]
    fn a_full_network_gives_nothing_rather_than_the_same_twice() {
        let network: PodNetwork = "10.42.0.0/26".parse().unwrap();
        let nodes: Vec<_> = (0..6).map(|n| node(&format!("n{n}"), None)).collect();
        assert_eq!(given(&plan(&nodes, network)).len(), 4);
        assert!("10.42.0.0/30".parse::<PodNetwork>().is_err() && "10.42.0.0".parse::<PodNetwork>().is_err());
    }

    proptest! {
        #[test]
        fn parts_never_overlap(taken in prop::collection::vec((0u32..256, 20u32..28), 0..6), new in 0usize..20) {
            let network = "10.42.0.0/16".parse().unwrap();
            let base = u32::from(Ipv4Addr::new(10, 42, 0, 0));
            let mut nodes: Vec<_> = taken
                .iter()
                .enumerate()
                .map(|(n, (at, bits))| {
                    let cidr = format!("{}/{bits}", Ipv4Addr::from(base + (at << 8)));
                    node(&format!("old{n}"), Some(&cidr))
                })
                .collect();
            nodes.extend((0..new).map(|n| node(&format!("new{n}"), None)));
            let mut ranges: Vec<(u32, u32)> =
                given(&plan(&nodes, network)).iter().map(|(_, cidr)| range(cidr).unwrap()).collect();
            prop_assert_eq!(ranges.len(), new);
            let old: Vec<_> = nodes.iter().filter_map(|n| range(part_of(n)?)).collect();
            for one in &ranges {
                prop_assert!(old.iter().all(|o| one.1 < o.0 || o.1 < one.0));
            }
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
