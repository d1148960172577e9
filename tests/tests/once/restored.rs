//! A hub that is restored from a backup of before a move believes that the workload is where it was.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, cargo_binary, require, wait_for};
use tombolo_tests::site::is_root;

use super::{Event, Fleet, HUB, MOVED, workload};

/// At most once too, one at each site: for their sake both sites renew their lease at any time.
fn mate(site: &str) -> String {
    format!(
        r#"
---
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: mate-{site}, namespace: default}}
spec:
  objects: [{{apiVersion: apps/v1, kind: StatefulSet, name: mate-{site}}}]
  sites: {{names: [{site}]}}
  failover: {{atMostOnce: true, leaseSeconds: 11}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: mate-{site}, namespace: default}}
spec:
  replicas: 1
  serviceName: mate
  selector: {{matchLabels: {{app: mate-{site}}}}}
  template:
    metadata: {{labels: {{app: mate-{site}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent}}
"#
    )
}

/// `tombolo backup` and `tombolo restore`.
fn own(what: &str, copy: &Path, data: &Path) -> Result<()> {
    let mut command = Command::new(cargo_binary("tombolo"));
    let output = command.arg(what).arg(copy).arg("--data-dir").arg(data).output()?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn a_hub_restored_from_before_a_move_starts_nothing_a_second_time() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut fleet = Fleet::start("tfr", 79)?;
    let result = restore(&mut fleet);
    fleet.tell(result)
}

fn restore(fleet: &mut Fleet) -> Result<()> {
    let kubectl = fleet.hub.as_ref().context("a hub")?.kubectl();
    kubectl.apply(&format!("{}{}{}", workload(&fleet.stamps), mate("east"), mate("west")))?;
    let before = fleet.runs_at(None)?;
    let data = fleet.hub_host.dir.join("hub");
    let copy = fleet.hub_host.dir.join("yesterday");
    own("backup", &copy, &data)?;

    // It moves, and the site that had it is back and knows.
    fleet.toggle(&before, Event::Link)?;
    let after = fleet.runs_at(Some(if before == "east" { "west" } else { "east" }))?;
    fleet.toggle(&before, Event::Link)?;
    wait_for("the old place to be cleaned up", MOVED, || {
        let works = kubectl.run(&["get", "works", "-n", &format!("site-{before}"), "-o", "name"])?;
        ensure!(!works.contains("statefulset-once"), "{works}");
        Ok(())
    })?;
    for site in ["east", "west"] {
        kubectl.run(&["rollout", "status", &format!("sts/mate-{site}"), "--timeout=60s"])?;
    }

    fleet.hub = None;
    std::fs::rename(data.join("store"), data.join("store.lost"))?;
    own("restore", &copy, &data)?;
    fleet.hub = Some(fleet.hub_host.tombolo("hub", HUB)?);
    fleet.say("the hub is yesterday's");
    // It believes in the old place, and both sites are there; but first the new one must have stopped.
    fleet.calm(40)?;
    fleet.runs_at(Some(&before))?;
    fleet.calm(20)?;
    // What the hub has forgotten stays where it is, does not run, and is shown.
    let orphans = ["get", "site", &after, "-o", "jsonpath={.status.orphans}"];
    kubectl.until(&orphans, "StatefulSet/default/once", MOVED)?;
    for site in ["east", "west"] {
        kubectl.run(&["rollout", "status", &format!("sts/mate-{site}"), "--timeout=60s"])?;
    }
    ensure!(!data.join("restored").exists(), "the hub would take its next start for a restored one");

    // From now on it is a hub like any other.
    fleet.toggle(&before, Event::Link)?;
    fleet.runs_at(Some(&after))?;
    fleet.toggle(&before, Event::Link)?;
    fleet.calm(5)
}
