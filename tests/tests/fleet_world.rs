//! The whole fleet on one machine, each host in its own network namespace with a WAN between them: a hub; a real
//! Kubernetes cluster with kubelet and containerd; two Tombolo sites; and a second hub with two more sites below it. An
//! application is placed over all of it; then processes are killed and links are cut, and kubectl looks on.

mod world;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, real_node_possible, require, wait_for};
use world::{PATIENCE, World};

const NEEDED: &[Fixture] = &[
    Fixture::Kubectl,
    Fixture::KubeApiserver,
    Fixture::KubeControllerManager,
    Fixture::KubeScheduler,
    Fixture::Kubelet,
    Fixture::Etcd,
];
const APPLICATION: &str = include_str!("world/application.yaml");

#[test]
fn an_application_runs_over_a_whole_fleet_and_survives_what_fails() -> Result<()> {
    if !require(NEEDED) || !real_node_possible() {
        return Ok(());
    }
    let mut world = World::start()?;
    place(&world)?;
    world.say("the application runs everywhere");
    reach(&world)?;
    world.say("logs, exec and port-forward reach every site");
    hubs_die(&mut world)?;
    world.say("both hubs were killed and came back; nothing restarted");
    agent_dies(&mut world)?;
    world.say("the agent was killed and came back; nothing restarted");
    link_is_cut(&world)?;
    world.say("a link was cut while both sides changed things; nothing restarted");
    site_is_lost(&world)?;
    world.say("a site was lost, its replica moved, and it came back with what it had kept");
    hub_forgets(&mut world)?;
    world.say("the hub was restored from an old backup, and started empty; no site lost anything");
    Ok(())
}

/// One replica per zone, with what it needs, changed where the placement says so.
fn place(world: &World) -> Result<()> {
    let hub = world.kubectl();
    wait_for("the application to be applied", PATIENCE, || hub.apply(APPLICATION))?;
    for what in ["deploy/web", "sts/db", "ds/lamp"] {
        hub.run(&["rollout", "status", "-n", "shop", what, "--timeout=90s"])?;
    }
    hub.run(&["wait", "-n", "shop", "--for=condition=complete", "job/once", "--timeout=60s"])?;
    let pods = hub.run(&["get", "pods", "-n", "shop", "-l", "app in (web,db)", "--no-headers"])?;
    ensure!(pods.matches(" Running ").count() == 10, "{pods}");
    for (site, kubectl) in world.members() {
        for what in
            ["deploy/web", "sts/db", "ds/lamp", "cm/settings", "secret/key", "svc/web", "svc/db", "ship/flag"]
        {
            // The custom resource may have waited for its definition.
            wait_for(&format!("{what} at {site}"), PATIENCE, || kubectl.run(&["get", "-n", "shop", what]))?;
        }
        let replicas =
            kubectl.run(&["get", "-n", "shop", "deploy/web", "-o", "jsonpath={.status.readyReplicas}"])?;
        ensure!(replicas == "1", "{site} has {replicas} replicas");
        let env = kubectl.run(&["get", "-n", "shop", "deploy/web", "-o", "jsonpath={..env[*].name}"])?;
        ensure!(env.contains("WHERE") == (site != "frankfurt"), "{site}: {env}");
    }
    let there = world.upstream.kubectl();
    let noted = there.run(&[
        "get",
        "-n",
        "shop",
        "deploy/web",
        "-o",
        "jsonpath={.metadata.annotations.data-centre}",
    ])?;
    ensure!(noted == "yes", "the override by name: {noted:?}");
    // A database's pods have a name of their own over all sites.
    let mut names = Vec::new();
    for (_, kubectl) in world.members() {
        names.push(kubectl.run(&[
            "get",
            "pods",
            "-n",
            "shop",
            "-l",
            "app=db",
            "-o",
            "jsonpath={.items[*].metadata.name}",
        ])?);
    }
    names.sort();
    names.dedup();
    ensure!(names.len() == 5, "{names:?}");
    let nodes = hub.run(&["get", "nodes", "--no-headers"])?;
    ensure!(nodes.lines().count() == 4 && nodes.matches(" Ready ").count() == 4, "{nodes}");
    let why = world.hub.tombolo(&["explain", "place", "deploy/web", "-n", "shop"])?;
    ensure!(["frankfurt", "harbour", "island", "north"].iter().all(|site| why.contains(site)), "{why}");
    Ok(())
}

/// From the hub into every pod, wherever it is.
fn reach(world: &World) -> Result<()> {
    let hub = world.kubectl();
    let pods =
        hub.run(&["get", "pods", "-n", "shop", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"])?;
    for pod in pods.split_whitespace() {
        let log = hub.run(&["logs", "-n", "shop", pod])?;
        ensure!(log.contains("the colour is green"), "{pod}: {log}");
        let own = pod.split('.').next().unwrap_or_default();
        let host = hub.run(&["exec", "-n", "shop", pod, "--", "hostname"])?;
        ensure!(host.trim() == own, "{pod}: {host}");
        let secret = hub.run(&["exec", "-n", "shop", pod, "--", "sh", "-c", "echo $password"])?;
        ensure!(secret.trim() == "pelican", "{pod}: {secret}");
        let page = hub
            .forwarded("shop", pod, 8080, "/index.html")
            .with_context(|| format!("port-forward to {pod}"))?;
        ensure!(page.contains(&format!("served by {own}")), "{pod}: {page}");
    }
    Ok(())
}

fn hubs_die(world: &mut World) -> Result<()> {
    let before = world.running()?;
    world.hub.process.kill();
    world.below.process.kill();
    // A hub that is away stops no local change.
    let island = world.edges[1].member.kubectl();
    island.run(&["create", "configmap", "-n", "shop", "local"])?;
    island.run(&["scale", "-n", "shop", "deploy/web", "--replicas=2"])?;
    island.run(&[
        "wait",
        "-n",
        "shop",
        "deploy/web",
        "--for=jsonpath={.status.readyReplicas}=2",
        "--timeout=30s",
    ])?;
    // Somebody deletes what the hub wants: the site restores it by itself.
    let harbour = world.edges[0].member.kubectl();
    harbour.run(&["delete", "configmap", "-n", "shop", "settings"])?;
    wait_for("the ConfigMap to come back without a hub", PATIENCE, || {
        harbour.run(&["get", "configmap", "-n", "shop", "settings"])
    })?;
    world.back_up_hub()?;
    world.hub = world.hub_host.tombolo("hub", world::HUB)?;
    world.below = world.below_host.tombolo("hub", world::HUB)?;
    world.all_ready()?;
    let after = world.running()?;
    ensure!(before.is_subset(&after), "restarted: {:?}", before.difference(&after).collect::<Vec<_>>());
    // What a person at the site changed stays, and the hub says so.
    world.kubectl().until(
        &["get", "works", "-n", "site-island", "-o", "jsonpath={.items[*].status.drift[*].field}"],
        "replicas",
        PATIENCE,
    )?;
    Ok(())
}

fn agent_dies(world: &mut World) -> Result<()> {
    let before = world.running()?;
    world.agent.kill();
    let hub = world.kubectl();
    hub.until(&["get", "node", "frankfurt"], "NotReady", PATIENCE)?;
    // Unknown is neither ready nor gone.
    hub.until(
        &[
            "get",
            "deploy",
            "-n",
            "shop",
            "web",
            "-o",
            "jsonpath={.status.conditions[?(@.type=='Available')]}",
        ],
        "frankfurt: not heard since",
        PATIENCE,
    )?;
    world.agent = world.start_agent()?;
    world.all_ready()?;
    ensure!(world.running()? == before);
    Ok(())
}

fn link_is_cut(world: &World) -> Result<()> {
    let hub = world.kubectl();
    let harbour = world.edges[0].member.kubectl();
    let before = world.running()?;
    world.lan.cut_between(&world.hub_host, &world.edges[0].host);
    hub.until(&["get", "node", "harbour"], "NotReady", PATIENCE)?;
    hub.apply(&deployment("late", "harbour", 1))?;
    hub.run(&["patch", "-n", "shop", "cm", "settings", "-p", r#"{"data":{"colour":"blue"}}"#])?;
    harbour.run(&["annotate", "-n", "shop", "deploy/web", "keeper=anna"])?;
    harbour.run(&["create", "configmap", "-n", "shop", "tide"])?;
    world.lan.mend_between(&world.hub_host, &world.edges[0].host);
    hub.run(&["rollout", "status", "-n", "shop", "deploy/late", "--timeout=60s"])?;
    harbour.until(
        &["get", "cm", "-n", "shop", "settings", "-o", "jsonpath={.data.colour}"],
        "blue",
        PATIENCE,
    )?;
    ensure!(
        harbour.run(&[
            "get",
            "deploy",
            "-n",
            "shop",
            "web",
            "-o",
            "jsonpath={.metadata.annotations.keeper}"
        ])? == "anna"
    );
    harbour.run(&["get", "configmap", "-n", "shop", "tide"])?;
    world.all_ready()?;
    let after = world.running()?;
    ensure!(before.is_subset(&after), "restarted: {:?}", before.difference(&after).collect::<Vec<_>>());
    Ok(())
}

/// A Deployment and a Placement that keeps it to some sites, moving early.
fn deployment(name: &str, sites: &str, replicas: u32) -> String {
    format!(
        r#"
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: {name}, namespace: shop}}
spec:
  objects: [{{apiVersion: apps/v1, kind: Deployment, name: {name}}}]
  sites: {{names: [{sites}]}}
  replicas: {{divideBy: Weight}}
  failover: {{waitSeconds: 1}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sleep, "100000"]}}
"#
    )
}

const ANCHOR: &str = r#"
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {name: anchor, namespace: shop}
spec:
  objects: [{apiVersion: apps/v1, kind: StatefulSet, name: anchor}]
  prefer: [{names: [island]}]
  replicas: {divideBy: Pack}
  failover: {waitSeconds: 1}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: anchor, namespace: shop}
spec:
  replicas: 1
  serviceName: anchor
  selector: {matchLabels: {app: anchor}}
  template:
    metadata: {labels: {app: anchor}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sleep, "100000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"#;

fn site_is_lost(world: &World) -> Result<()> {
    let hub = world.kubectl();
    let (harbour, island) = (world.edges[0].member.kubectl(), world.edges[1].member.kubectl());
    hub.apply(&deployment("ferry", "harbour, island", 2))?;
    hub.apply(ANCHOR)?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/ferry", "--timeout=60s"])?;
    hub.run(&["rollout", "status", "-n", "shop", "sts/anchor", "--timeout=60s"])?;
    let before = world.running()?;
    let ready = |member: &tombolo_testkit::Kubectl, wanted: &str| {
        member.until(
            &["get", "deploy", "-n", "shop", "ferry", "-o", "jsonpath={.status.readyReplicas}"],
            wanted,
            PATIENCE,
        )
    };
    ready(&harbour, "1")?;
    ready(&island, "1")?;
    world.lan.cut_between(&world.hub_host, &world.edges[1].host);
    ready(&harbour, "2")?;
    // A disk does not move; and what a lost site runs, it runs on.
    for (site, kubectl) in world.members().into_iter().filter(|(site, _)| *site != "island") {
        ensure!(kubectl.run(&["get", "sts", "-n", "shop", "anchor"]).is_err(), "the disk moved to {site}");
    }
    ready(&island, "1")?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/ferry", "--timeout=30s"])?;
    world.lan.mend_between(&world.hub_host, &world.edges[1].host);
    world.all_ready()?;
    // Two places, two replicas: the one that moved goes, the one that was kept stays.
    ready(&harbour, "1")?;
    wait_for("one ferry at each place", PATIENCE, || {
        for member in [&harbour, &island] {
            let pods = member.run(&["get", "pods", "-n", "shop", "-l", "app=ferry", "--no-headers"])?;
            ensure!(pods.lines().count() == 1 && pods.contains("Running"), "{pods}");
        }
        Ok(())
    })?;
    let after = world.running()?;
    ensure!(before.is_subset(&after), "replaced: {:?}", before.difference(&after).collect::<Vec<_>>());
    Ok(())
}

fn hub_forgets(world: &mut World) -> Result<()> {
    let before = world.running()?;
    // Yesterday's backup knows nothing of `late`, `ferry` and `anchor`.
    world.hub.process.kill();
    let today = world.set_hub_aside()?;
    world.restore_hub()?;
    world.hub = world.hub_host.tombolo("hub", world::HUB)?;
    world.all_ready()?;
    let orphans = world.kubectl().until(
        &["get", "site", "harbour", "-o", "jsonpath={.status.orphans}"],
        "Deployment/shop/late",
        PATIENCE,
    )?;
    ensure!(orphans.contains("ferry"), "{orphans}");
    ensure!(world.running()? == before, "a restored hub changed what runs");
    // A hub that starts with nothing is another hub: it cannot even speak to the sites.
    world.hub.process.kill();
    world.set_hub_aside()?;
    world.hub = world.hub_host.tombolo("hub", world::HUB)?;
    std::thread::sleep(Duration::from_secs(8));
    ensure!(world.kubectl().run(&["get", "sites"])?.contains("No resources"));
    ensure!(world.running()? == before, "an empty hub changed what runs");
    // And with today's data all is well again.
    world.hub.process.kill();
    world.put_hub_back(&today)?;
    world.hub = world.hub_host.tombolo("hub", world::HUB)?;
    world.all_ready()?;
    ensure!(world.running()? == before, "the return of the hub changed what runs");
    Ok(())
}
