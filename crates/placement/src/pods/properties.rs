//! Laws of scheduling, tried on clusters and histories made at random.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Effect, Requirement, Resources, Taint, Toleration, TolerationOperator};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

fn nodes() -> impl Strategy<Value = Vec<NodeView>> {
    let one = (1i64..8, 0..4usize, proptest::bool::weighted(0.2), proptest::bool::weighted(0.1));
    vec(one, 1..8).prop_map(|list| {
        let build = |(at, (cores, zone, tainted, unschedulable))| {
            let name = format!("n{at}");
            let mut labels = BTreeMap::from([(HOST.to_owned(), name.clone())]);
            // Some nodes are in no zone.
            if zone < 3 {
                labels.insert(ZONE.to_owned(), format!("z{zone}"));
            }
            let taint = Taint { key: "k".into(), value: "v".into(), effect: Effect::NoSchedule };
            NodeView {
                name,
                labels,
                taints: if tainted { vec![taint] } else { Vec::new() },
                unschedulable,
                allocatable: Resources::replica(cores * 1000, 8 << 30).with_pods(6),
                ..NodeView::default()
            }
        };
        list.into_iter().enumerate().map(build).collect()
    })
}

fn pods() -> impl Strategy<Value = Vec<PodView>> {
    let one = (0i64..30, 0..3usize, 0..6usize, any::<bool>(), 0i32..3);
    vec(one, 0..25).prop_map(|list| {
        let build = |(at, (cpu, app, wish, tolerant, priority)): (usize, (i64, usize, usize, bool, i32))| {
            let app = format!("app{app}");
            let selector = Some(vec![Requirement::equals("app", &app)]);
            let term = |key: &str| PodTerm {
                namespaces: ["ns".to_owned()].into(),
                selector: selector.clone(),
                topology_key: key.to_owned(),
                ..PodTerm::default()
            };
            let spread = |required| SpreadConstraint {
                topology_key: ZONE.to_owned(),
                max_skew: 1,
                min_domains: 1,
                required,
                selector: selector.clone(),
                honor_affinity: true,
                honor_taints: false,
            };
            let toleration = Toleration { operator: TolerationOperator::Exists, ..Toleration::default() };
            let mut pod = PodView {
                namespace: "ns".to_owned(),
                name: format!("p{at}"),
                labels: BTreeMap::from([("app".to_owned(), app.clone())]),
                requests: Resources::replica(cpu * 100, 1 << 28),
                tolerations: if tolerant { vec![toleration] } else { Vec::new() },
                may_preempt: true,
                priority,
                ..PodView::default()
            };
            match wish {
                0 => pod.affinity = Affinity { apart: vec![term(HOST)], ..Affinity::default() }.into(),
                1 => pod.affinity = Affinity { near: vec![term(ZONE)], ..Affinity::default() }.into(),
                2 => {
                    pod.affinity =
                        Affinity { preferred: vec![(-10, term(ZONE))], ..Affinity::default() }.into()
                }
                3 => pod.spread = vec![spread(true)],
                4 => pod.spread = vec![spread(false)],
                _ => pod.siblings = selector.clone(),
            }
            pod
        };
        list.into_iter().enumerate().map(build).collect()
    })
}

fn cluster_of<'n>(nodes: impl IntoIterator<Item = &'n NodeView>) -> Cluster {
    let mut cluster = Cluster::new();
    nodes.into_iter().for_each(|node| cluster.set_node(node.clone()));
    cluster
}

/// Schedules all pods one after the other; where each went.
fn run(cluster: &mut Cluster, pods: &[PodView]) -> BTreeMap<String, String> {
    let mut placed = BTreeMap::new();
    for pod in pods {
        if let Decision::Node(choice) = schedule(cluster, pod) {
            cluster.assume(pod, &choice.node);
            placed.insert(pod.name.clone(), choice.node);
        }
    }
    placed
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_node_is_overcommitted_and_no_taint_ignored(nodes in nodes(), pods in pods()) {
        let mut cluster = cluster_of(&nodes);
        let placed = run(&mut cluster, &pods);
        for node in &nodes {
            let free = cluster.free(&node.name).expect("the node exists");
            prop_assert!(free.cpu >= 0 && free.memory >= 0 && free.pods >= 0, "{} {free:?}", node.name);
        }
        for pod in pods.iter().filter(|pod| pod.tolerations.is_empty()) {
            let node = placed.get(&pod.name).and_then(|name| cluster.node(name));
            prop_assert!(node.is_none_or(|node| node.taints.is_empty() && !node.unschedulable));
        }
    }

    #[test]
    fn the_order_in_which_nodes_became_known_does_not_matter(nodes in nodes(), pods in pods()) {
        let forward = run(&mut cluster_of(&nodes), &pods);
        let backward = run(&mut cluster_of(nodes.iter().rev()), &pods);
        prop_assert_eq!(forward, backward);
    }

    #[test]
    fn pods_that_must_be_apart_are_apart(nodes in nodes(), pods in pods()) {
        let placed = run(&mut cluster_of(&nodes), &pods);
        for pod in pods.iter().filter(|pod| !pod.affinity.apart.is_empty()) {
            let Some(node) = placed.get(&pod.name) else { continue };
            let same = pods.iter().filter(|other| other.name != pod.name && other.labels == pod.labels);
            prop_assert!(same.into_iter().all(|other| placed.get(&other.name) != Some(node)));
        }
    }

    #[test]
    fn a_cluster_kept_up_to_date_equals_one_built_anew(
        nodes in nodes(), pods in pods(), removed in vec(any::<bool>(), 25), lost in 0usize..8, probe in pods(),
    ) {
        let mut kept = cluster_of(&nodes);
        let placed = run(&mut kept, &pods);
        let gone = |at: usize| removed[at];
        for (at, pod) in pods.iter().enumerate().filter(|(at, _)| gone(*at)) {
            prop_assert_eq!(kept.remove_pod(&pod.key()).is_some(), placed.contains_key(&pods[at].name));
        }
        let lost = &nodes[lost % nodes.len()];
        kept.remove_node(&lost.name);
        kept.set_node(lost.clone());

        let mut anew = cluster_of(&nodes);
        for (at, pod) in pods.iter().enumerate().filter(|(at, _)| !gone(*at)) {
            if let Some(node) = placed.get(&pods[at].name) {
                anew.assume(pod, node);
            }
        }
        prop_assert_eq!(kept.pod_count(), anew.pod_count());
        for pod in &probe {
            prop_assert_eq!(schedule(&kept, pod), schedule(&anew, pod));
        }
    }

    #[test]
    fn schedule_and_check_agree(nodes in nodes(), pods in pods()) {
        let mut cluster = cluster_of(&nodes);
        run(&mut cluster, &pods);
        for pod in &pods {
            cluster.remove_pod(&pod.key());
            match schedule(&cluster, pod) {
                Decision::Node(choice) => prop_assert!(check(&cluster, pod, &choice.node).is_ok()),
                Decision::None(refused) => {
                    prop_assert_eq!(refused.per_node.len(), nodes.len());
                    for (node, whys) in &refused.per_node {
                        prop_assert_eq!(&check(&cluster, pod, node), &Err(whys.clone()));
                    }
                }
            }
        }
    }

    #[test]
    fn preemption_makes_room_from_lower_priorities_only(nodes in nodes(), pods in pods(), probe in pods()) {
        let mut cluster = cluster_of(&nodes);
        run(&mut cluster, &pods);
        for mut pod in probe {
            pod.priority += 1;
            pod.name = format!("new-{}", pod.name);
            let Decision::None(refused) = schedule(&cluster, &pod) else { continue };
            let Some(preemption) = preempt(&cluster, &pod, &refused) else { continue };
            let mut after = cluster.clone();
            for victim in &preemption.victims {
                let victim = after.remove_pod(victim).expect("victims exist");
                prop_assert!(victim.priority < pod.priority);
            }
            prop_assert!(check(&after, &pod, &preemption.node).is_ok());
            // None of the victims is removed for nothing.
            for victim in &preemption.victims {
                let mut fewer = after.clone();
                let kept = pods.iter().find(|pod| pod.key() == *victim).expect("victims are known");
                fewer.assume(kept, &preemption.node);
                prop_assert!(check(&fewer, &pod, &preemption.node).is_err());
            }
        }
    }
}
