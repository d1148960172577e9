//! A hub that is restored from a backup: its sites do what it wants now, although they have seen more, and it shows what they
//! run, although it has forgotten.

use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_tests::tied::{IMAGE, Tied};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn sites_follow_a_restored_hub_as_often_as_it_is_restored() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut tied = Tied::start("tfu", 86)?;
    let hub = tied.hub.kubectl();
    hub.apply(&web())?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let at = |name: &str| tied.hub_host.dir.join(name).display().to_string();
    let (data, yesterday) = (at("hub"), at("yesterday"));
    tied.hub.tombolo(&["backup", "--data-dir", &data, &yesterday])?;

    hub.run(&["scale", "deploy/web", "--replicas=1"])?;
    agree(&tied, "1")?;
    go_back(&mut tied, &data, &yesterday)?;
    agree(&tied, "2")?;

    // Once more from the same backup; and what is changed now has the number of a change that the site knows.
    hub.run(&["scale", "deploy/web", "--replicas=1"])?;
    agree(&tied, "1")?;
    go_back(&mut tied, &data, &yesterday)?;
    hub.run(&["scale", "deploy/web", "--replicas=3"])?;
    agree(&tied, "3")
}

fn web() -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: c, image: "{IMAGE}"}}]}}
"#
    )
}

fn go_back(tied: &mut Tied, data: &str, copy: &str) -> Result<()> {
    tied.hub.process.kill();
    std::fs::remove_dir_all(format!("{data}/store"))?;
    tied.hub.tombolo(&["restore", copy, "--data-dir", data])?;
    tied.hub.restart()
}

/// What the hub wants is what the site has, runs and what the hub shows.
fn agree(tied: &Tied, replicas: &str) -> Result<()> {
    let counts = "jsonpath={.spec.replicas} {.status.replicas} {.status.readyReplicas}";
    let wanted = [replicas; 3].join(" ");
    for (whose, kubectl) in [("the hub's", tied.hub.kubectl()), ("the site's", tied.site.kubectl())] {
        wait_for("hub and site to agree", PATIENCE, || {
            let found = kubectl.run(&["get", "deploy", "web", "-o", counts])?;
            ensure!(found == wanted, "{whose} is {found}, not {wanted}\n{}", tied.site.process.log());
            let pods = kubectl.run(&["get", "pods", "-l", "app=web", "-o", "name"])?.lines().count();
            ensure!(pods.to_string() == replicas, "{pods} pods are {whose}");
            Ok(())
        })?;
    }
    Ok(())
}
