//! Machines whose clock is wrong when they start, and machines that slept longer than their certificates last: site and node
//! find each other again, and no container notices. Needs root.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Image, Kubectl, Process, cargo_binary, require, wait_for, wipe};
use tombolo_tests::clock::Clock;
use tombolo_tests::site::{IMAGE, Runtime, TwoNodes, is_root, link_up};
use tombolo_wan::Namespace;

const PATIENCE: Duration = Duration::from_secs(120);
/// Boards without a battery start in 1970 or, as here, 1972.
const LONG_AGO: i64 = -20_000;
/// Certificates of nodes last a year.
const TWO_YEARS: i64 = 800;

const APPLICATION: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: IMAGE
        command: [sh, -c, "echo ahoy; exec httpd -f -p 8080"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
"#;

#[test]
fn a_node_with_a_wrong_clock_or_an_outdated_certificate_comes_back() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (Some(site_clock), Some(node_clock)) =
        (Clock::new(dir.path(), "site")?, Clock::new(dir.path(), "node")?)
    else {
        return Ok(());
    };
    let mut two = TwoNodes::start_with(Runtime::Embedded, Some([site_clock.clone(), node_clock.clone()]))?;
    let result = clocks_go_wrong(&mut two, &site_clock, &node_clock);
    if result.is_err() {
        eprintln!("{}", two.node_log());
    }
    result
}

fn clocks_go_wrong(two: &mut TwoNodes, site_clock: &Clock, node_clock: &Clock) -> Result<()> {
    let kubectl = two.kubectl();
    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    kubectl.run(&["rollout", "status", "daemonset/web", "--timeout=60s"])?;
    let before = containers(&kubectl)?;

    two.restart_second(|| node_clock.set(LONG_AGO))?;
    reached(two, &before, "a node whose clock says 1972")?;
    two.restart_second(|| node_clock.set(0))?;
    reached(two, &before, "the node with its clock set right")?;

    two.stop_both();
    site_clock.set(TWO_YEARS)?;
    node_clock.set(TWO_YEARS)?;
    two.start_both()?;
    reached(two, &before, "a node that slept for two years")?;
    ensure!(two.node_log().contains("certificate was renewed"), "{}", two.node_log());

    // It was not two years: both clocks were wrong, and are set while everything runs.
    site_clock.set(0)?;
    node_clock.set(0)?;
    reached(two, &before, "a node whose certificate comes from the future")
}

fn containers(kubectl: &Kubectl) -> Result<String> {
    kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{'\\n'}{end}",
    ])
}

/// The second node tells the site of itself now, is reached for logs, and its containers are those from before.
fn reached(two: &TwoNodes, before: &str, who: &str) -> Result<()> {
    let kubectl = two.kubectl();
    let field = "--field-selector=spec.nodeName=second";
    wait_for(who, PATIENCE, || {
        let pod = kubectl.run(&["get", "pods", "-l", "app=web", field, "-o", "name"])?;
        kubectl.run(&["exec", pod.trim(), "--", "echo", "here"])
    })?;
    let lease = ["get", "lease", "-n", "kube-node-lease", "second", "-o", "jsonpath={.spec.renewTime}"];
    // A site that was restarted has forgotten it.
    let first = wait_for(&format!("the lease of {who}"), PATIENCE, || kubectl.run(&lease))?;
    wait_for(&format!("{who} to renew its lease"), PATIENCE, || {
        let now = kubectl.run(&lease)?;
        ensure!(now != first, "still {now}");
        Ok(())
    })?;
    kubectl.run(&["wait", "node/second", "--for=condition=Ready", "--timeout=60s"])?;
    wait_for(&format!("the containers of {who}"), PATIENCE, || {
        let after = containers(&kubectl)?;
        ensure!(after == before, "{before} became {after}");
        Ok(())
    })
}

#[test]
fn a_site_that_first_started_in_1972_is_right_when_its_clock_is() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let Some(clock) = Clock::new(dir.path(), "site")? else { return Ok(()) };
    let space = Namespace::create(&format!("ttc{}", std::process::id()))?;
    link_up(space.name(), "10.80.0.1/24")?;
    clock.set(LONG_AGO)?;
    let data = dir.path().join("site");
    let mut command = Command::new(cargo_binary("tombolo"));
    command.args(["site", "--node", "--name", "box", "--listen", "10.80.0.1:6443", "--netns", space.name()]);
    command.arg("--data-dir").arg(&data);
    clock.rule(&mut command);
    let mut site = Process::start("site", command, dir.path())?;
    let result = set_right(&mut site, &clock, &space, dir.path());
    if result.is_err() {
        eprintln!("{}", site.log());
    }
    site.kill();
    wipe(&data.join("node"), Some(&space))?;
    result
}

fn set_right(site: &mut Process, clock: &Clock, space: &Namespace, dir: &std::path::Path) -> Result<()> {
    let data = dir.join("site");
    wait_for("the site's node", PATIENCE, || {
        site.alive()?;
        ensure!(
            data.join("admin.kubeconfig").exists() && site.log().contains("the API is reachable"),
            "not yet"
        );
        Ok(())
    })?;
    let archive = dir.join("busybox.tar");
    Image::busybox(&[IMAGE])?.save(&archive)?;
    let mut import = Command::new(cargo_binary("tombolo"));
    ensure!(import.args(["image", "import"]).arg(&archive).arg("--data-dir").arg(&data).status()?.success());
    let kubectl = Kubectl::new(&data.join("admin.kubeconfig")).inside(space.name());
    ensure!(kubectl.run(&["get", "nodes"]).is_err(), "to everybody else its certificates ended long ago");

    clock.set(0)?;
    wait_for("the site", PATIENCE, || {
        site.alive()?;
        kubectl.run(&["wait", "node/box", "--for=condition=Ready", "--timeout=5s"])
    })?;
    wait_for("the application", PATIENCE, || kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE)))?;
    kubectl.run(&["rollout", "status", "daemonset/web", "--timeout=60s"])?;
    // Its account's token, which the node asked for, is good.
    let token = "cat /var/run/secrets/kubernetes.io/serviceaccount/token";
    let token = kubectl.run(&["exec", "daemonset/web", "--", "sh", "-c", token])?;
    let review = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {{token: {}}}\n",
        token.trim()
    );
    let answer = kubectl.run_with_input(&["create", "--validate=false", "-o", "json", "-f", "-"], &review)?;
    ensure!(answer.contains("\"authenticated\": true"), "{answer}");
    ensure!(kubectl.run(&["logs", "daemonset/web"])?.contains("ahoy"));
    Ok(())
}
