//! A hub over a real Kubernetes cluster, tied by the agent: what is applied at the hub runs there and is seen here.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{
    Fixture, Kubectl, Process, Release, Tombolo, Upstream, UpstreamOptions, cargo_binary, require, wait_for,
};

const PATIENCE: Duration = Duration::from_secs(60);

const APPLICATION: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: green}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  minReadySeconds: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.com/web:1
        envFrom: [{configMapRef: {name: settings}}]
"#;

/// `tombolo agent`, as a person starts it beside a cluster.
fn agent(dir: &Path, member: &Path, join: &str) -> Result<Process> {
    agent_as("frankfurt", dir, member, join)
}

fn agent_as(name: &str, dir: &Path, member: &Path, join: &str) -> Result<Process> {
    let mut command = Command::new(cargo_binary("tombolo"));
    // tombolo join URL --token T --ca-hash H  ->  tombolo agent --hub URL --token T --ca-hash H
    let words: Vec<_> = join.split_whitespace().skip(2).collect();
    command.args(["agent", "--name", name, "--tier", "cloud", "--kubeconfig"]).arg(member);
    command.arg("--hub").args(words);
    Process::start(&format!("agent-{name}"), command, dir)
}

fn hub_says(hub: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(cargo_binary("tombolo")).arg("--kubeconfig").arg(hub).args(args).output()?;
    ensure!(output.status.success(), "tombolo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A node object that takes pods, and an account that they run as.
fn ready_node(member: &Kubectl) -> Result<()> {
    member.add_node("n1", 110)?;
    wait_for("the default service account", PATIENCE, || member.run(&["get", "sa", "default"])).map(drop)
}

#[test]
fn a_real_kubernetes_runs_what_is_applied_at_the_hub() -> Result<()> {
    is_a_good_member(Release::Newest)
}

#[test]
fn the_oldest_kubernetes_of_a_fleet_does_so_too() -> Result<()> {
    is_a_good_member(Release::Oldest)
}

/// A control plane with a node object that takes pods.
fn cluster(release: Release) -> Result<(Upstream, Kubectl)> {
    let upstream = Upstream::start(&UpstreamOptions {
        controllers: Some("*,-node-lifecycle-controller".into()),
        scheduler: true,
        lift_limits: true,
        release,
    })?;
    let member = upstream.kubectl();
    ready_node(&member)?;
    Ok((upstream, member))
}

fn is_a_good_member(release: Release) -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) || !require(&release.programs()) {
        return Ok(());
    }
    let (upstream, member) = cluster(release)?;
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0", "--lease-seconds", "5"])?;
    let kubectl = hub.kubectl();

    // Before any site is there, an ordinary Deployment says that it is placed nowhere.
    kubectl.apply(APPLICATION)?;
    kubectl.until(&["get", "events"], "0 of 2 replicas placed", PATIENCE)?;

    let join = hub_says(&hub.kubeconfig, &["token", "create", "--uses", "1"])?;
    let mut tie = agent(dir.path(), &upstream.kubeconfig, join.trim())?;
    kubectl.until(&["get", "sites"], "True", PATIENCE)?;
    kubectl.until(&["get", "nodes"], "frankfurt", PATIENCE)?;

    // It runs there, with the ConfigMap that its pods name, and is seen here.
    member.until(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"], "n1 n1", PATIENCE)?;
    ensure!(member.run(&["get", "cm", "settings", "-o", "jsonpath={.data.colour}"])? == "green");
    kubectl.until(&["get", "pods", "-o", "wide"], "frankfurt", PATIENCE)?;

    // What is no longer set at the hub goes away there.
    let unset = r#"[{"op": "remove", "path": "/spec/minReadySeconds"}]"#;
    kubectl.run(&["patch", "deploy", "web", "--type=json", "-p", unset])?;
    wait_for("the field to go at the member", PATIENCE, || {
        let left = member.run(&["get", "deploy", "web", "-o", "jsonpath={.spec.minReadySeconds}"])?;
        ensure!(left.is_empty() || left == "0", "minReadySeconds is {left}");
        Ok(())
    })?;

    // A change at the hub arrives.
    kubectl.run(&["scale", "deploy/web", "--replicas=3"])?;
    member.until(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"], "3", PATIENCE)?;

    // The agent dies: the site is seen as lost within its lease, and nothing there is touched.
    tie.kill();
    kubectl.until(&["get", "nodes"], "NotReady", PATIENCE)?;
    ensure!(member.run(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"])? == "3");
    // Under another name it is refused, and told which one it has.
    let mut stranger = agent_as("munich", dir.path(), &upstream.kubeconfig, join.trim())?;
    wait_for("another name to be refused", PATIENCE, || {
        ensure!(stranger.log().contains("tied to the hub as frankfurt, not as munich"), "{}", stranger.log());
        ensure!(stranger.alive().is_err(), "it runs on");
        Ok(())
    })?;
    // Its token is used up, but it has a certificate by now.
    let _tie = agent(dir.path(), &upstream.kubeconfig, join.trim())?;
    wait_for("the site to be back", PATIENCE, || {
        let nodes = kubectl.run(&["get", "nodes"])?;
        ensure!(!nodes.contains("NotReady"), "{nodes}");
        Ok(())
    })?;

    // Deleted at the hub, it goes at the member, with what only it needed.
    kubectl.run(&["delete", "deploy", "web"])?;
    wait_for("the Deployment to go at the member", PATIENCE, || {
        let left = member.run(&["get", "deploy,cm", "-o", "name"])?;
        ensure!(!left.contains("web") && !left.contains("settings"), "{left}");
        Ok(())
    })?;
    Ok(())
}

/// Either side ends the tie without the other, and nothing is left behind.
#[test]
fn a_real_kubernetes_and_its_hub_part_without_each_other() -> Result<()> {
    let release = Release::Newest;
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) || !require(&release.programs()) {
        return Ok(());
    }
    let (upstream, member) = cluster(release)?;
    let dir = tempfile::tempdir()?;
    let mut hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0", "--lease-seconds", "5"])?;
    let kubectl = hub.kubectl();
    kubectl.run(&["create", "namespace", "shop"])?;
    let manifest = APPLICATION
        .replace("metadata: {name: ", "metadata: {namespace: shop, name: ")
        // There is no kubelet that could end a pod with grace.
        .replace(
            "    spec:\n      containers:",
            "    spec:\n      terminationGracePeriodSeconds: 0\n      containers:",
        );
    kubectl.apply(&manifest)?;
    let join = hub_says(&hub.kubeconfig, &["token", "create", "--uses", "1"])?;
    let mut tie = agent(dir.path(), &upstream.kubeconfig, join.trim())?;
    let replicas = ["get", "deploy", "-n", "shop", "web", "-o", "jsonpath={.spec.replicas}"];
    wait_for("the Deployment at the member", PATIENCE, || member.run(&replicas))?;
    let spaces = ["get", "namespaces", "-o", "name"];
    let nothing_runs = || {
        let left = member.run(&["get", "deploy,cm", "-n", "shop", "-o", "name", "--ignore-not-found"])?;
        ensure!(!left.contains("web") && !left.contains("settings"), "{left}");
        Ok(())
    };

    // Removed while its agent is away, which keeps nothing on disk: the next one cleans up all the same.
    tie.kill();
    hub_says(&hub.kubeconfig, &["sites", "remove", "frankfurt"])?;
    kubectl.run(&["wait", "--for=delete", "site/frankfurt", "--timeout=60s"])?;
    ensure!(member.run(&replicas)? == "2");
    // Somebody's own, in a namespace that was made for the hub.
    member.run(&["create", "configmap", "own", "-n", "shop"])?;
    let mut told = agent(dir.path(), &upstream.kubeconfig, join.trim())?;
    wait_for("what the hub placed to go", PATIENCE, nothing_runs)?;
    wait_for("the agent to end", PATIENCE, || {
        ensure!(told.alive().is_err(), "it runs");
        Ok(())
    })?;
    ensure!(told.log().contains("join with a new token"), "{}", told.log());
    member.run(&["get", "configmap", "own", "-n", "shop"])?;
    member.run(&["delete", "namespace", "shop"])?;

    // With a new token it is back. Then hub and agent die, and the cluster's owner is done with them.
    let join = hub_says(&hub.kubeconfig, &["token", "create", "--uses", "1"])?;
    let mut tie = agent(dir.path(), &upstream.kubeconfig, join.trim())?;
    wait_for("the Deployment to be back", PATIENCE, || member.run(&replicas))?;
    tie.kill();
    hub.process.kill();
    let url = join.split_whitespace().nth(2).unwrap_or_default();
    let refused = hub_says(&upstream.kubeconfig, &["leave", "https://127.0.0.1:1"]);
    let said = format!("{:#}", refused.err().context("left a hub that it never knew")?);
    ensure!(said.contains("nothing is recorded here for https://127.0.0.1:1; recorded are: "), "{said}");
    hub_says(&upstream.kubeconfig, &["leave", url])?;
    nothing_runs()?;
    let again = hub_says(&upstream.kubeconfig, &["leave", url]);
    ensure!(again.is_err(), "something to leave is still there");
    wait_for("the namespaces made for the hub to go", PATIENCE, || {
        let left = member.run(&spaces)?;
        ensure!(!left.contains("shop") && !left.contains("tombolo-system"), "{left}");
        Ok(())
    })
}
