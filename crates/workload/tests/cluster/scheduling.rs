//! Where our scheduler puts pods, and what it says of those that it cannot put anywhere.

use crate::fixture::{Site, eventually, heartbeat_with};
use anyhow::{Context, Result};
use k8s_openapi::api::{
    core::v1::{Event, Node, Pod},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Nodes that take no pods but those of one test: they have a taint and a label with its name. Each is a host in the zone
/// of its first letter.
struct Pool {
    site: Site,
    name: String,
    hosts: Arc<Vec<String>>,
    heartbeats: tokio::task::JoinHandle<()>,
}

const CPUS: &str = "4";

impl Pool {
    async fn start(name: &str, hosts: &[&str]) -> Result<Option<Self>> {
        let Some(site) = Site::get().await? else { return Ok(None) };
        site.namespace(name).await?;
        let nodes: Api<Node> = Api::all(site.client.clone());
        for host in hosts {
            let node = json!({
                "metadata": {
                    "name": node(name, host),
                    "labels": {"kubernetes.io/hostname": host, "zone": &host[..1], "pool": name},
                },
                "spec": {"taints": [{"key": "pool", "value": name, "effect": "NoSchedule"}]},
            });
            nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        }
        let hosts: Arc<Vec<String>> = Arc::new(hosts.iter().map(|host| node(name, host)).collect());
        let (client, all) = (site.client.clone(), hosts.clone());
        let heartbeats = tokio::spawn(async move {
            loop {
                for host in all.iter() {
                    let _ = heartbeat_with(&client, host, CPUS).await;
                }
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
        let pool = Self { site, name: name.to_owned(), hosts, heartbeats };
        eventually("the nodes are taken for ready", async || {
            for host in pool.hosts.iter() {
                let taints = nodes.get(host).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
                if taints.iter().any(|taint| taint.key.starts_with("node.kubernetes.io/")) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await?;
        Ok(Some(pool))
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.site.client.clone(), &self.name)
    }

    /// A pod of this pool, with what `more` adds to its spec; its only container asks for `cpu`.
    async fn add(&self, name: &str, app: &str, cpu: &str, more: Value) -> Result<()> {
        let mut spec = json!({
            "nodeSelector": {"pool": self.name},
            "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "a", "resources": {"requests": {"cpu": cpu}}}],
        });
        merge(&mut spec, more);
        let pod = json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": spec});
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    async fn node_of(&self, name: &str) -> Result<Option<String>> {
        Ok(self.pods().get(name).await?.spec.and_then(|spec| spec.node_name))
    }

    /// The host that the pod gets.
    async fn host_of(&self, name: &str) -> Result<String> {
        eventually(&format!("{name} gets a node"), async || Ok(self.node_of(name).await?.is_some())).await?;
        let node = self.node_of(name).await?.context("it had one")?;
        Ok(node.strip_prefix(&format!("node-{}-", self.name)).unwrap_or(&node).to_owned())
    }

    /// Waits until the pod's condition and an event give this reason for its having no node.
    async fn refused(&self, name: &str, reason: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.site.client.clone(), &self.name);
        eventually(&format!("{name} is told: {reason}"), async || {
            let pod = self.pods().get(name).await?;
            anyhow::ensure!(
                pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()),
                "{name} has a node, against: {reason}"
            );
            let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
            let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False");
            let right = scheduled.is_some_and(|c| {
                c.reason.as_deref() == Some("Unschedulable")
                    && c.message.as_deref().is_some_and(|message| message.contains(reason))
            });
            let of = ListParams::default().fields(&format!("involvedObject.name={name}"));
            let told = events.list(&of).await?.iter().any(|event| {
                let message = event.message.as_deref().unwrap_or_default();
                event.reason.as_deref() == Some("FailedScheduling")
                    && message.starts_with("0/")
                    && message.contains(reason)
            });
            Ok(right && told)
        })
        .await
    }

    async fn remove(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn end(self) -> Result<()> {
        self.heartbeats.abort();
        let all = DeleteParams::default().grace_period(0);
        self.pods().delete_collection(&all, &ListParams::default()).await?;
        let nodes: Api<Node> = Api::all(self.site.client.clone());
        for host in self.hosts.iter() {
            nodes.delete(host, &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

fn node(pool: &str, host: &str) -> String {
    format!("node-{pool}-{host}")
}

/// Adds the fields of `more`; lists are put together.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(more)) => into.extend(more),
        (into, more) => *into = more,
    }
}

fn term(app: &str, key: &str) -> Value {
    json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}])
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const HOST: &str = "kubernetes.io/hostname";

#[tokio::test]
async fn pods_go_to_the_nodes_and_the_neighbours_that_they_want() -> Result<()> {
    let Some(pool) = Pool::start("affinity", &["a1", "a2", "b1"]).await? else { return Ok(()) };
    let zone =
        |zone: &str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
    let required = json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [zone("b")]}}}});
    pool.add("must", "db", "1", required).await?;
    assert_eq!(pool.host_of("must").await?, "b1");
    // b1 has less free than the others; the wish outweighs it.
    let wish = json!([{"weight": 100, "preference": zone("b")}]);
    pool.add("would", "x", "1", json!({"affinity": {"nodeAffinity": {PREFERRED: wish}}})).await?;
    assert_eq!(pool.host_of("would").await?, "b1");
    let nowhere = json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [zone("c")]}}}});
    pool.add("nowhere", "x", "1", nowhere).await?;
    pool.refused("nowhere", "node(s) didn't match Pod's node affinity/selector").await?;

    let near = json!({"affinity": {"podAffinity": {REQUIRED: term("db", "zone")}}});
    pool.add("near", "web", "1", near).await?;
    assert_eq!(pool.host_of("near").await?, "b1", "the only node in the zone of db");
    let alone = json!({"affinity": {"podAntiAffinity": {REQUIRED: term("lone", HOST)}}});
    let mut hosts = Vec::new();
    for name in ["lone-1", "lone-2", "lone-3"] {
        pool.add(name, "lone", "100m", alone.clone()).await?;
        hosts.push(pool.host_of(name).await?);
    }
    hosts.sort();
    assert_eq!(hosts, ["a1", "a2", "b1"]);
    pool.add("lone-4", "lone", "100m", alone).await?;
    pool.refused("lone-4", "3 node(s) didn't match pod anti-affinity rules").await?;
    // The others' wish to be alone counts for one that has none.
    pool.add("guest", "lone", "100m", json!({})).await?;
    pool.refused("guest", "3 node(s) didn't satisfy existing pods anti-affinity rules").await?;
    let apart = json!({"affinity": {"podAntiAffinity": {REQUIRED: term("db", "zone")}}});
    pool.add("apart", "x", "1", apart).await?;
    assert!(pool.host_of("apart").await?.starts_with('a'));
    // As soon as there is room.
    pool.remove("lone-4").await?;
    pool.remove("lone-2").await?;
    pool.host_of("guest").await?;
    pool.end().await
}

#[tokio::test]
async fn taints_keep_pods_away_until_they_are_tolerated_or_gone() -> Result<()> {
    let Some(pool) = Pool::start("tainted", &["a1", "b1"]).await? else { return Ok(()) };
    let nodes: Api<Node> = Api::all(pool.site.client.clone());
    let taint = async |host: &str, extra: Value| {
        let mut taints = vec![json!({"key": "pool", "value": "tainted", "effect": "NoSchedule"})];
        taints.extend(extra.as_array().cloned().unwrap_or_default());
        let body = json!({"spec": {"taints": taints}});
        nodes.patch(&node("tainted", host), &PatchParams::default(), &Patch::Merge(&body)).await
    };
    taint("a1", json!([{"key": "disk", "value": "slow", "effect": "NoSchedule"}])).await?;
    taint("b1", json!([{"key": "gpu", "effect": "PreferNoSchedule"}])).await?;
    let on = |host: &str| json!({"nodeSelector": {HOST: host}});
    pool.add("stranger", "x", "1", on("a1")).await?;
    pool.refused("stranger", "1 node(s) had untolerated taint {disk: slow}").await?;
    let mut tolerant = on("a1");
    merge(&mut tolerant, json!({"tolerations": [{"key": "disk", "operator": "Equal", "value": "slow"}]}));
    pool.add("tolerant", "x", "1", tolerant).await?;
    assert_eq!(pool.host_of("tolerant").await?, "a1");
    // "Rather not" is better than a node that is forbidden, and worse than one that is not.
    pool.add("any", "x", "100m", json!({})).await?;
    assert_eq!(pool.host_of("any").await?, "b1");
    taint("a1", json!([])).await?;
    assert_eq!(pool.host_of("stranger").await?, "a1", "it is let in when the taint is gone");
    pool.add("later", "x", "100m", json!({})).await?;
    assert_eq!(pool.host_of("later").await?, "a1");
    let body = json!({"spec": {"unschedulable": true}});
    nodes.patch(&node("tainted", "b1"), &PatchParams::default(), &Patch::Merge(&body)).await?;
    pool.add("cordoned", "x", "1", on("b1")).await?;
    pool.refused("cordoned", "1 node(s) were unschedulable").await?;
    pool.end().await
}

#[tokio::test]
async fn pods_are_spread_over_zones_and_no_further_than_the_skew_allows() -> Result<()> {
    let Some(pool) = Pool::start("spread", &["a1", "a2", "b1"]).await? else { return Ok(()) };
    let spread = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }]});
    let mut zones = Vec::new();
    for number in 0..4 {
        let name = format!("web-{number}");
        pool.add(&name, "web", "100m", spread.clone()).await?;
        zones.push(pool.host_of(&name).await?[..1].to_owned());
    }
    zones.sort();
    assert_eq!(zones, ["a", "a", "b", "b"], "zone b has half of them, on one node");
    // b has no room for more: a third one in a is allowed, a fourth is not.
    pool.add("filler", "x", "3800m", json!({"nodeSelector": {HOST: "b1"}})).await?;
    assert_eq!(pool.host_of("filler").await?, "b1");
    pool.add("web-4", "web", "100m", spread.clone()).await?;
    assert!(pool.host_of("web-4").await?.starts_with('a'));
    pool.add("web-5", "web", "100m", spread).await?;
    pool.refused("web-5", "2 node(s) didn't match pod topology spread constraints (zone, max skew 1)")
        .await?;
    pool.refused("web-5", "1 Insufficient cpu (asked 100m, free 0)").await?;
    pool.remove("filler").await?;
    assert_eq!(pool.host_of("web-5").await?, "b1");
    pool.end().await
}

#[tokio::test]
async fn two_pods_with_one_host_port_do_not_meet() -> Result<()> {
    let Some(pool) = Pool::start("ports", &["a1", "b1"]).await? else { return Ok(()) };
    let port = |protocol: &str, ip: &str| {
        let port = json!({"containerPort": 80, "hostPort": 8080, "protocol": protocol, "hostIP": ip});
        json!({"containers": [{"name": "p", "image": "a", "ports": [port]}]})
    };
    let mut hosts = Vec::new();
    for name in ["first", "second"] {
        pool.add(name, "x", "100m", port("TCP", "")).await?;
        hosts.push(pool.host_of(name).await?);
    }
    assert_ne!(hosts[0], hosts[1]);
    pool.add("third", "x", "100m", port("TCP", "10.0.0.1")).await?;
    let why = "2 node(s) didn't have free ports for the requested pod ports (8080/TCP)";
    pool.refused("third", why).await?;
    pool.add("other-protocol", "x", "100m", port("UDP", "")).await?;
    pool.host_of("other-protocol").await?;
    pool.remove("first").await?;
    assert_eq!(pool.host_of("third").await?, hosts[0]);
    pool.end().await
}

#[tokio::test]
async fn an_important_pod_makes_room_and_takes_no_more_than_it_needs() -> Result<()> {
    let Some(pool) = Pool::start("priority", &["a1"]).await? else { return Ok(()) };
    let classes: Api<PriorityClass> = Api::all(pool.site.client.clone());
    for (name, value, policy) in [
        ("test-low", 10, "PreemptLowerPriority"),
        ("test-middle", 20, "PreemptLowerPriority"),
        ("test-high", 1000, "PreemptLowerPriority"),
        ("test-patient", 1000, "Never"),
    ] {
        let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy});
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    }
    let class = |name: &str| json!({"priorityClassName": name});
    for (name, of) in [("low-1", "test-low"), ("low-2", "test-low"), ("middle", "test-middle")] {
        pool.add(name, "x", "1300m", class(of)).await?;
        assert_eq!(pool.host_of(name).await?, "a1");
    }
    pool.add("patient", "x", "1", class("test-patient")).await?;
    pool.refused("patient", "1 Insufficient cpu (asked 1, free 100m)").await?;
    assert_eq!(pool.pods().list(&ListParams::default()).await?.items.len(), 4, "nobody had to go for it");

    pool.add("high", "x", "1", class("test-high")).await?;
    assert_eq!(pool.host_of("high").await?, "a1");
    let left: Vec<_> = pool.pods().list(&ListParams::default()).await?.iter().map(name_of).collect();
    let lows = left.iter().filter(|name| name.starts_with("low-")).count();
    assert_eq!(lows, 1, "one of the least important went: {left:?}");
    assert!(left.iter().any(|name| name == "middle"), "{left:?}");
    let events: Api<Event> = Api::namespaced(pool.site.client.clone(), &pool.name);
    eventually("the victim is told by whom", async || {
        let preempted = events.list(&ListParams::default().fields("reason=Preempted")).await?;
        Ok(preempted.iter().any(|event| {
            event.involved_object.name.as_deref().is_some_and(|name| name.starts_with("low-"))
                && event.message.as_deref().is_some_and(|text| text.starts_with("Preempted by "))
        }))
    })
    .await?;
    // Of those that wait, the more important one is next.
    pool.add("waiting-low", "x", "1", class("test-low")).await?;
    pool.refused("waiting-low", "1 Insufficient cpu").await?;
    pool.remove("middle").await?;
    assert_eq!(pool.host_of("patient").await?, "a1");
    pool.end().await?;
    for name in ["test-low", "test-middle", "test-high", "test-patient"] {
        classes.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

fn name_of(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}
