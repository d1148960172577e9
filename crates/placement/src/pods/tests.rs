//! The scheduler on real Kubernetes objects, one behaviour a test.

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::*;

fn node(name: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}},
    })
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}]},
    })
}

/// Sets the value at a path (dots between keys) of an object.
fn with(mut object: Value, path: &str, value: Value) -> Value {
    let place = path.split('.').fold(&mut object, |at, key| &mut at[key]);
    *place = value;
    object
}

fn node_view(value: Value) -> NodeView {
    NodeView::from(&serde_json::from_value::<core::Node>(value).expect("a node"))
}

fn pod_view(value: Value) -> PodView {
    PodView::from(&serde_json::from_value::<core::Pod>(value).expect("a pod"))
}

fn cluster(nodes: impl IntoIterator<Item = Value>) -> Cluster {
    let mut cluster = Cluster::new();
    nodes.into_iter().for_each(|node| cluster.set_node(node_view(node)));
    cluster
}

fn place(cluster: &mut Cluster, pod: Value) -> String {
    let pod = pod_view(pod);
    match schedule(cluster, &pod) {
        Decision::Node(choice) => {
            cluster.assume(&pod, &choice.node);
            choice.node
        }
        Decision::None(why) => why.to_string(),
    }
}

fn zoned(name: &str, zone: &str) -> Value {
    with(node(name, "4", "8Gi"), "metadata.labels", json!({"zone": zone, "kubernetes.io/hostname": name}))
}

#[test]
fn the_emptiest_node_is_chosen_and_ties_go_by_name() {
    let mut cluster = cluster([node("b", "4", "8Gi"), node("a", "4", "8Gi")]);
    assert_eq!(place(&mut cluster, pod("p1", "1")), "a");
    assert_eq!(place(&mut cluster, pod("p2", "1")), "b");
    assert_eq!(place(&mut cluster, pod("p3", "500m")), "a");
    assert_eq!(place(&mut cluster, pod("p4", "500m")), "b");
}

#[test]
fn the_message_has_upstreams_words_and_numbers() {
    let tainted = |name| {
        with(
            node(name, "4", "8Gi"),
            "spec.taints",
            json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]),
        )
    };
    let mut cluster = cluster([node("a", "120m", "8Gi"), tainted("b"), tainted("c")]);
    assert_eq!(
        place(&mut cluster, pod("p", "500m")),
        "0/3 nodes are available: 1 Insufficient cpu (asked 500m, free 120m), \
         2 node(s) had untolerated taint {k: v}."
    );
}

#[test]
fn several_short_nodes_are_told_with_the_best_of_them() {
    let mut cluster = cluster([node("a", "120m", "32Mi"), node("b", "400m", "8Gi")]);
    assert_eq!(
        place(&mut cluster, pod("p", "500m")),
        "0/2 nodes are available: 1 Insufficient memory (asked 64Mi, free 32Mi), \
         2 Insufficient cpu (asked 500m, most free 400m)."
    );
}

#[test]
fn without_nodes_the_message_says_so() {
    assert_eq!(place(&mut Cluster::new(), pod("p", "1")), "0/0 nodes are available.");
}

#[test]
fn extended_resources_and_the_number_of_pods_are_limits() {
    let mut allocatable = node("g", "4", "8Gi");
    allocatable["status"]["allocatable"]["example.com/gpu"] = json!("1");
    let mut cluster = cluster([node("a", "4", "8Gi"), allocatable]);
    let mut wants = pod("p1", "100m");
    wants["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
    let mut second = wants.clone();
    second["metadata"]["name"] = json!("p2");
    assert_eq!(place(&mut cluster, wants), "g");
    assert_eq!(
        place(&mut cluster, second),
        "0/2 nodes are available: 2 Insufficient example.com/gpu (asked 1, most free 0)."
    );

    let mut tiny = node("t", "4", "8Gi");
    tiny["status"]["allocatable"]["pods"] = json!("1");
    let mut cluster = self::cluster([tiny]);
    place(&mut cluster, pod("p1", "100m"));
    assert_eq!(place(&mut cluster, pod("p2", "100m")), "0/1 nodes are available: 1 Too many pods.");
}

#[test]
fn node_selectors_and_affinity_choose_nodes_with_every_operator() {
    let labelled = |name: &str, labels| with(node(name, "4", "8Gi"), "metadata.labels", labels);
    let nodes = || {
        [
            labelled("a", json!({"disk": "ssd", "cores": "8"})),
            labelled("b", json!({"disk": "hdd", "cores": "16"})),
        ]
    };
    let expression = |operator: &str, key: &str, values: &[&str]| {
        let term = json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": term}});
        with(pod("p", "1"), "spec.affinity.nodeAffinity", required)
    };
    let none = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.";
    for (operator, key, values, expected) in [
        ("In", "disk", &["hdd"][..], "b"),
        ("NotIn", "disk", &["ssd"], "b"),
        ("Exists", "disk", &[], "a"),
        ("DoesNotExist", "disk", &[], none),
        ("Gt", "cores", &["8"], "b"),
        ("Lt", "cores", &["16"], "a"),
        ("NotIn", "absent", &["x"], "a"),
        ("Gt", "disk", &["1"], none),
    ] {
        let placed = place(&mut cluster(nodes()), expression(operator, key, values));
        assert_eq!(placed, expected, "{operator} {key}");
    }
    assert_eq!(
        place(&mut cluster(nodes()), with(pod("p", "1"), "spec.nodeSelector", json!({"disk": "hdd"}))),
        "b"
    );
    let by_name = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}});
    assert_eq!(place(&mut cluster(nodes()), with(pod("p", "1"), "spec.affinity.nodeAffinity", by_name)), "b");
    let empty_term = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}});
    assert_eq!(
        place(&mut cluster(nodes()), with(pod("p", "1"), "spec.affinity.nodeAffinity", empty_term)),
        none
    );
}

#[test]
fn preferred_node_affinity_outweighs_a_little_load() {
    let mut cluster = cluster([node("a", "4", "8Gi"), node("b", "4", "8Gi")]);
    place(
        &mut cluster,
        with(pod("load", "500m"), "spec.nodeSelector", json!({"kubernetes.io/hostname": "b"})),
    );
    let prefer = json!([{"weight": 50, "preference": {"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}}]);
    let path = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(place(&mut cluster, with(pod("p", "100m"), path, prefer)), "b");
}

#[test]
fn taints_need_tolerations_and_preferences_are_only_preferences() {
    let tainted = |effect: &str| {
        with(node("t", "4", "8Gi"), "spec.taints", json!([{"key": "k", "value": "v", "effect": effect}]))
    };
    for effect in ["NoSchedule", "NoExecute"] {
        let refusal = "0/1 nodes are available: 1 node(s) had untolerated taint {k: v}.";
        assert_eq!(place(&mut cluster([tainted(effect)]), pod("p", "1")), refusal);
        for toleration in [json!({"operator": "Exists"}), json!({"key": "k", "value": "v", "effect": effect})]
        {
            let tolerant = with(pod("p", "1"), "spec.tolerations", json!([toleration]));
            assert_eq!(place(&mut cluster([tainted(effect)]), tolerant), "t");
        }
        let other = with(pod("p", "1"), "spec.tolerations", json!([{"key": "k", "value": "other"}]));
        assert_eq!(place(&mut cluster([tainted(effect)]), other), refusal);
    }
    let mut cluster = cluster([tainted("PreferNoSchedule"), node("z", "4", "8Gi")]);
    assert_eq!(place(&mut cluster, pod("p1", "3")), "z");
    assert_eq!(place(&mut cluster, pod("p2", "3")), "t");
}

#[test]
fn a_cordoned_node_takes_only_who_tolerates_it() {
    let cordoned = with(node("a", "4", "8Gi"), "spec.unschedulable", json!(true));
    let mut cluster = cluster([cordoned]);
    assert_eq!(place(&mut cluster, pod("p", "1")), "0/1 nodes are available: 1 node(s) were unschedulable.");
    let tolerant =
        json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]);
    assert_eq!(place(&mut cluster, with(pod("p", "1"), "spec.tolerations", tolerant)), "a");
}

#[test]
fn host_ports_are_had_once_per_node_and_address() {
    let on_port = |name: &str, ip: &str, protocol: &str| {
        let ports = json!([{"containerPort": 80, "hostPort": 80, "hostIP": ip, "protocol": protocol}]);
        with(pod(name, "100m"), "spec.containers", json!([{"name": "c", "ports": ports}]))
    };
    let mut cluster = cluster([node("a", "4", "8Gi")]);
    let taken = "0/1 nodes are available: \
                 1 node(s) didn't have free ports for the requested pod ports (80/TCP).";
    assert_eq!(place(&mut cluster, on_port("p1", "10.0.0.1", "TCP")), "a");
    assert_eq!(place(&mut cluster, on_port("p2", "10.0.0.2", "TCP")), "a");
    assert_eq!(place(&mut cluster, on_port("p3", "10.0.0.1", "TCP")), taken);
    assert_eq!(place(&mut cluster, on_port("p4", "", "TCP")), taken);
    assert_eq!(place(&mut cluster, on_port("p5", "", "UDP")), "a");
    cluster.remove_pod("default/p1");
    assert_eq!(place(&mut cluster, on_port("p3", "10.0.0.1", "TCP")), "a");
}

fn affine(pod: Value, which: &str, key: &str, app: &str) -> Value {
    let term = json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": term});
    with(pod, &format!("spec.affinity.{which}"), required)
}

#[test]
fn anti_affinity_keeps_replicas_apart_in_both_directions() {
    let mut cluster = cluster([zoned("a", "1"), zoned("b", "1"), zoned("c", "2")]);
    assert_eq!(place(&mut cluster, affine(pod("p1", "1"), "podAntiAffinity", "zone", "web")), "a");
    assert_eq!(place(&mut cluster, affine(pod("p2", "1"), "podAntiAffinity", "zone", "web")), "c");
    assert_eq!(
        place(&mut cluster, affine(pod("p3", "1"), "podAntiAffinity", "zone", "web")),
        "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."
    );
    assert_eq!(
        place(&mut cluster, pod("plain", "1")),
        "0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules."
    );
    let elsewhere = with(pod("other", "1"), "metadata.namespace", json!("other"));
    assert_eq!(place(&mut cluster, elsewhere), "b", "another namespace is not meant");
}

#[test]
fn affinity_follows_other_pods_and_the_first_of_a_kind_starts() {
    let mut cluster = cluster([zoned("a", "1"), zoned("b", "2"), node("nowhere", "64", "64Gi")]);
    assert_eq!(
        place(&mut cluster, affine(pod("p1", "1"), "podAffinity", "zone", "db")),
        "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    );
    assert_eq!(place(&mut cluster, affine(pod("p1", "1"), "podAffinity", "zone", "web")), "a");
    assert_eq!(place(&mut cluster, affine(pod("p2", "1"), "podAffinity", "zone", "web")), "a");
}

#[test]
fn namespace_selectors_widen_affinity() {
    let mut cluster = cluster([zoned("a", "1"), zoned("b", "2")]);
    cluster.set_namespace("prod", [("env".to_owned(), "prod".to_owned())].into());
    let db = with(pod("db", "2"), "metadata.namespace", json!("prod"));
    assert_eq!(place(&mut cluster, with(db, "spec.nodeSelector", json!({"zone": "2"}))), "b");
    let mut near = affine(pod("p", "1"), "podAffinity", "zone", "web");
    let term = "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
    near.pointer_mut(term).expect("the term")["namespaceSelector"] = json!({"matchLabels": {"env": "prod"}});
    assert_eq!(place(&mut cluster, near.clone()), "b");
    near["metadata"]["name"] = json!("p2");
    near.pointer_mut(term).expect("the term")["namespaceSelector"] = json!({"matchLabels": {"env": "test"}});
    assert_eq!(
        place(&mut cluster, near),
        "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."
    );
}

fn spread_over(name: &str, constraint: Value) -> Value {
    let mut all = json!({"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    all.as_object_mut().expect("an object").extend(constraint.as_object().expect("an object").clone());
    with(pod(name, "100m"), "spec.topologySpreadConstraints", json!([all]))
}

#[test]
fn spread_bounds_the_skew_between_domains() {
    let small =
        with(zoned("c", "2"), "status.allocatable", json!({"cpu": "100m", "memory": "1Gi", "pods": "9"}));
    let mut cluster = cluster([zoned("a", "1"), zoned("b", "1"), small]);
    for (name, expected) in [("p1", "a"), ("p2", "c"), ("p3", "b")] {
        assert_eq!(place(&mut cluster, spread_over(name, json!({}))), expected, "{name}");
    }
    assert_eq!(
        place(&mut cluster, spread_over("p4", json!({}))),
        "0/3 nodes are available: 1 Insufficient cpu (asked 100m, free 0), \
         2 node(s) didn't match pod topology spread constraints (zone, max skew 1)."
    );
    let soft = spread_over("p4", json!({"whenUnsatisfiable": "ScheduleAnyway"}));
    assert_ne!(place(&mut cluster, soft), "c");
}

#[test]
fn with_fewer_domains_than_wanted_the_skew_counts_from_zero() {
    let mut cluster = cluster([zoned("a", "1"), zoned("b", "2")]);
    for name in ["p1", "p2"] {
        assert!(place(&mut cluster, spread_over(name, json!({"minDomains": 3}))).len() == 1);
    }
    assert!(place(&mut cluster, spread_over("p3", json!({"minDomains": 3}))).starts_with("0/2"));
    assert_eq!(place(&mut cluster, spread_over("p3", json!({"minDomains": 2}))), "a");
}

#[test]
fn nodes_that_the_pod_cannot_use_count_for_spread_only_when_told() {
    let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    let nodes = || [zoned("a", "1"), with(zoned("b", "2"), "spec.taints", taint.clone())];
    let run = |extra: Value| {
        let mut cluster = cluster(nodes());
        place(&mut cluster, spread_over("p1", extra.clone()));
        place(&mut cluster, spread_over("p2", extra))
    };
    assert!(run(json!({})).starts_with("0/2"), "taints are ignored, so zone 2 stays at zero");
    assert_eq!(run(json!({"nodeTaintsPolicy": "Honor"})), "a");

    let selected =
        |extra: Value, name| with(spread_over(name, extra), "spec.nodeSelector", json!({"zone": "1"}));
    let run = |extra: Value| {
        let mut cluster = cluster([zoned("a", "1"), zoned("b", "2")]);
        place(&mut cluster, selected(extra.clone(), "p1"));
        place(&mut cluster, selected(extra, "p2"))
    };
    assert_eq!(run(json!({})), "a");
    assert!(run(json!({"nodeAffinityPolicy": "Ignore"})).starts_with("0/2"));
}

#[test]
fn replicas_of_one_controller_are_spread_without_being_told() {
    let owned = |name: &str| {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
        with(pod(name, "100m"), "metadata.ownerReferences", owner)
    };
    // The larger node would win on free resources alone.
    let mut cluster = cluster([node("a", "16", "32Gi"), node("b", "4", "8Gi")]);
    let mut placed = [place(&mut cluster, owned("p1")), place(&mut cluster, owned("p2"))];
    placed.sort();
    assert_eq!(placed, ["a", "b"]);
}

#[test]
fn local_volumes_pin_a_pod_to_their_node() {
    let volume = json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}}}});
    let volume: core::PersistentVolume = serde_json::from_value(volume).expect("a volume");
    let mut wants = pod_view(pod("p", "1"));
    wants.add_volume(&volume);
    let chosen = |cluster: &Cluster| match schedule(cluster, &wants) {
        Decision::Node(choice) => choice.node,
        Decision::None(why) => why.to_string(),
    };
    assert_eq!(chosen(&cluster([node("a", "64", "64Gi"), node("b", "4", "8Gi")])), "b");
    assert_eq!(
        chosen(&cluster([node("a", "64", "64Gi")])),
        "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
    );
}

#[test]
fn an_image_that_is_already_there_decides_between_equals() {
    let has = json!([{"names": ["docker.io/app:latest"], "sizeBytes": 900 << 20}]);
    let mut cluster = cluster([node("a", "4", "8Gi"), with(node("b", "4", "8Gi"), "status.images", has)]);
    let wants = with(pod("p", "100m"), "spec.containers", json!([{"name": "c", "image": "docker.io/app"}]));
    assert_eq!(place(&mut cluster, wants), "b");
}

#[test]
fn blocked_pods_are_not_looked_at() {
    let gated = with(pod("p", "1"), "spec.schedulingGates", json!([{"name": "g"}]));
    assert_eq!(
        place(&mut cluster([node("a", "4", "8Gi")]), gated),
        "0/1 nodes are available: Scheduling is blocked due to non-empty scheduling gates."
    );
}

#[test]
fn higher_priority_comes_first_then_who_waits_longest() {
    let (low, high) =
        (PodView { name: "l".into(), ..PodView::default() }, PodView { priority: 5, ..PodView::default() });
    assert!(queue_order((&high, 9), (&low, 1)).is_lt());
    assert!(queue_order((&low, 1), (&low, 2)).is_lt());
}

fn important(name: &str, cpu: &str, priority: i32) -> Value {
    with(pod(name, cpu), "spec.priority", json!(priority))
}

fn preempting(cluster: &Cluster, pod: Value) -> Option<Preemption> {
    let pod = pod_view(pod);
    match schedule(cluster, &pod) {
        Decision::Node(choice) => panic!("{} had room", choice.node),
        Decision::None(why) => preempt(cluster, &pod, &why),
    }
}

#[test]
fn preemption_removes_the_least_that_is_enough() {
    let mut cluster = cluster([node("a", "4", "8Gi")]);
    for (name, cpu, priority) in [("low", "1", 1), ("mid", "1", 2), ("big", "2", 3)] {
        place(&mut cluster, important(name, cpu, priority));
    }
    let before = format!("{:?}", cluster.free("a"));
    let victims = |found: Option<Preemption>| found.map(|p| p.victims);
    assert_eq!(victims(preempting(&cluster, important("p", "1", 9))), Some(vec!["default/low".to_owned()]));
    assert_eq!(
        victims(preempting(&cluster, important("p", "2", 9))),
        Some(vec!["default/mid".to_owned(), "default/low".to_owned()])
    );
    assert_eq!(preempting(&cluster, important("p", "3", 3)), None, "not enough of lower priority");
    let never = with(important("p", "1", 9), "spec.preemptionPolicy", json!("Never"));
    assert_eq!(preempting(&cluster, never), None);
    assert_eq!(format!("{:?}", cluster.free("a")), before);
}

#[test]
fn preemption_prefers_the_node_whose_victims_matter_least() {
    let mut cluster = cluster([node("a", "1", "8Gi"), node("b", "1", "8Gi")]);
    cluster.assume(&pod_view(important("high", "1", 5)), "a");
    cluster.assume(&pod_view(important("low", "1", 1)), "b");
    let found = preempting(&cluster, important("p", "1", 9)).expect("room can be made");
    assert_eq!((found.node.as_str(), found.victims), ("b", vec!["default/low".to_owned()]));
}

#[test]
fn pods_seen_before_their_node_count_once_it_appears() {
    let mut cluster = Cluster::new();
    cluster.assume(&pod_view(pod("early", "3")), "a");
    assert_eq!(cluster.node_count(), 0);
    cluster.set_node(node_view(node("a", "4", "8Gi")));
    assert_eq!(cluster.free("a").map(|free| free.cpu), Some(1000));
    cluster.remove_node("a");
    assert_eq!((cluster.node_count(), cluster.pod_count()), (0, 1));
    cluster.remove_pod("default/early");
    cluster.set_node(node_view(node("a", "4", "8Gi")));
    assert_eq!(cluster.free("a").map(|free| free.cpu), Some(4000));
}

#[test]
fn finished_pods_use_nothing() {
    let mut cluster = cluster([node("a", "4", "8Gi")]);
    cluster.assume(&pod_view(pod("p", "3")), "a");
    let done = with(with(pod("p", "3"), "status.phase", json!("Succeeded")), "spec.nodeName", json!("a"));
    cluster.set_pod(pod_view(done));
    assert_eq!(cluster.free("a").map(|free| free.cpu), Some(4000));
}
