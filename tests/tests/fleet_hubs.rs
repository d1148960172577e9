//! A hub under a hub: what is applied at the top runs at a site two ties below, and is seen, read and entered from the top.

use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Lan, Member, busybox_archive, require, wait_for};
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
const IMAGE: &str = "test.local/app:1";

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
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: test.local/app:1
        command: [/bin/sh, -c, "echo the colour is $colour; exec sleep 100000"]
        envFrom: [{configMapRef: {name: settings}}]
"#;

#[test]
fn a_hub_under_a_hub_runs_what_the_top_was_given() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfh", [198, 18, 71], dir.path(), Link::default())?;
    let image = busybox_archive(dir.path(), IMAGE, &["/bin/sleep", "100000"])?;
    let (top_host, below_host, site_host) = (lan.host("top")?, lan.host("below")?, lan.host("site")?);
    let top = top_host.tombolo("hub", &["--lease-seconds", "5"])?;
    let below = below_host.tombolo("hub", &["--lease-seconds", "5"])?;
    let site = site_host.tombolo("site", &["--node", "--name", "cove"])?;
    let data = site_host.dir.join("site");
    site.tombolo(&[
        "image",
        "import",
        &image.display().to_string(),
        "--data-dir",
        &data.display().to_string(),
    ])?;
    site.join(
        &below,
        "cove",
        &["--tier", "edge", "--region", "north", "--zone", "n1", "--jurisdiction", "EU"],
    )?;
    below.join(&top, "north", &["--tier", "cloud"])?;
    let (hub, hub_below) = (top.kubectl(), below.kubectl());
    hub_below.until(&["get", "sites"], "True", PATIENCE)?;
    hub.until(&["get", "sites"], "True", PATIENCE)?;
    // What fits where, not one sum.
    hub.until(&["get", "site", "north", "-o", "jsonpath={.status.offers[*].location.zone}"], "n1", PATIENCE)?;

    hub.apply(APPLICATION)?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let pods = hub.until(&["get", "pods", "-o", "wide"], "north", PATIENCE)?;
    ensure!(pods.matches("Running").count() == 2, "{pods}");
    let name = hub.run(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"])?;
    ensure!(name.ends_with(".cove.north"), "{name}");

    // Through two tunnels.
    ensure!(hub.run(&["logs", &name])?.contains("the colour is green"));
    ensure!(hub.run(&["exec", &name, "--", "hostname"])?.trim() == name.trim_end_matches(".cove.north"));
    wait_for("scaling to travel", PATIENCE, || {
        hub.run(&["scale", "deploy/web", "--replicas=3"])?;
        let there =
            site.kubectl().run(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"])?;
        ensure!(there == "3", "{there}");
        Ok(())
    })?;
    hub.run(&["delete", "deploy", "web"])?;
    wait_for("the Deployment to go everywhere", PATIENCE, || {
        for member in [&below, &site] {
            let left = member.kubectl().run(&["get", "deploy,cm,pods", "-o", "name"])?;
            ensure!(!left.contains("web") && !left.contains("settings"), "{left}");
        }
        Ok(())
    })?;
    loops(&top, &below)
}

const PLACED: &str = "jsonpath={.status.conditions[?(@.type=='Placed')].message}";

/// Two hubs may be tied in both directions; what came from one never goes back to it. A hub is no site of itself.
fn loops(top: &Member, below: &Member) -> Result<()> {
    let (hub, hub_below) = (top.kubectl(), below.kubectl());
    let refused = top.join(top, "itself", &[]).map_err(|error| error.to_string());
    ensure!(refused.as_ref().is_err_and(|why| why.contains("a loop is refused")), "{refused:?}");
    wait_for("the hub to refuse itself", PATIENCE, || {
        let requests = hub.run(&["get", "csr", "-o", "jsonpath={.items[*].status.conditions[*].message}"])?;
        ensure!(requests.contains("a loop is refused"), "{requests}");
        ensure!(top.process.log().contains("a signing request was denied"), "no trace in the log");
        Ok(())
    })?;
    ensure!(!hub.run(&["get", "sites"])?.contains("itself"));

    top.join(below, "up", &["--tier", "cloud"])?;
    hub_below.until(&["get", "site", "up"], "True", PATIENCE)?;
    // From the top: it runs at the site below, and is not offered back.
    hub.apply(APPLICATION)?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let table = below.tombolo(&["explain", "place", "deploy/web"])?;
    ensure!(table.lines().any(|l| l.starts_with("up ") && l.contains("offers nothing")), "{table}");
    ensure!(hub_below.run(&["get", "works", "-n", "site-up", "-o", "name"])?.trim().is_empty());
    // From below, with nowhere to go but up: the top has no place but the one it came from, and says so.
    let only_up = "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: own, namespace: default}\nspec: {objects: [{name: own}], sites: {names: [up]}}\n";
    hub_below.apply(only_up)?;
    hub_below.apply(&APPLICATION.replace("name: web", "name: own").replace("app: web", "app: own"))?;
    hub_below.until(&["get", "deploy", "own", "-o", PLACED], "0 of 2 replicas placed", PATIENCE)?;
    ensure!(!hub.run(&["get", "works", "-n", "site-north", "-o", "name"])?.contains("own"), "it came back");
    hub.run(&["delete", "deploy", "web"]).map(drop)
}
