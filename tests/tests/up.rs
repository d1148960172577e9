//! The first five minutes: `tombolo up` as a new user types it, with real containers. Needs root.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, cargo_binary, require, wait_for};

/// Everything `up` made is gone when the test ends, however it ends.
struct Down(PathBuf);

impl Drop for Down {
    fn drop(&mut self) {
        let _ = tombolo(&["down", "--data-dir", &self.0.display().to_string()]);
    }
}

fn tombolo(args: &[&str]) -> Result<String> {
    let output = Command::new(cargo_binary("tombolo")).args(args).output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "tombolo {}: {text}", args.join(" "));
    Ok(text)
}

fn get(url: &str) -> Result<String> {
    let output = Command::new("curl").args(["-sf", "-m", "3", url]).output()?;
    ensure!(output.status.success(), "{url} does not answer");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn up_starts_a_fleet_that_serves_and_down_removes_it() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    if !is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI must run this as root");
        eprintln!("SKIPPED: `tombolo up` needs root");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("up");
    let down = Down(data.clone());
    let path = data.display().to_string();
    let shown = tombolo(&["up", "--data-dir", &path])?;
    for part in ["edge-1", "edge-2", "cloud", "KUBECONFIG", "http://"] {
        ensure!(shown.contains(part), "no {part:?} in what `up` printed:\n{shown}");
    }
    let hub = Kubectl::new(&data.join("hub/admin.kubeconfig"));

    // One node per site, and the pods of all sites.
    let nodes = hub.run(&["get", "nodes", "-o", "name"])?;
    ensure!(nodes.lines().count() == 3, "{nodes}");
    hub.run(&["rollout", "status", "deploy/hello", "--timeout=60s"])?;
    let pods = hub.run(&["get", "pods", "-o", "wide"])?;
    ensure!(["edge-1", "edge-2", "cloud"].iter().all(|site| pods.contains(site)), "{pods}");

    // Scaling at the hub spreads over the sites; logs and exec reach them.
    hub.run(&["scale", "deploy/hello", "--replicas=9"])?;
    hub.run(&["rollout", "status", "deploy/hello", "--timeout=60s"])?;
    let count = |site: &str| {
        hub.run(&["get", "pods", "--field-selector", &format!("spec.nodeName={site}"), "-o", "name"])
    };
    for site in ["edge-1", "edge-2", "cloud"] {
        let there = count(site)?;
        ensure!(there.lines().count() == 3, "{site} has {there}");
    }
    ensure!(hub.run(&["logs", "deploy/hello"])?.contains("hello:"));
    let kubeconfig = data.join("hub/admin.kubeconfig").display().to_string();
    let why = tombolo(&["explain", "place", "deploy/hello", "--kubeconfig", &kubeconfig])?;
    ensure!(why.contains("9 of 9 replicas placed"), "{why}");

    // A second `up` finds the first.
    ensure!(tombolo(&["up", "--data-dir", &path])?.contains("up already"));

    // A site dies: it is seen as lost, and its replicas move to the others.
    let fleet: serde_json::Value = serde_json::from_slice(&std::fs::read(data.join("fleet.json"))?)?;
    let kill = |name: &str| -> Result<()> {
        let members = fleet["members"].as_array().expect("the fleet has members");
        let member = members.iter().find(|m| m["name"] == name).expect("the member is in the fleet");
        ensure!(Command::new("kill").args(["-9", &member["pid"].to_string()]).status()?.success());
        Ok(())
    };
    kill("cloud")?;
    hub.until(&["get", "nodes"], "NotReady", Duration::from_secs(60))?;
    hub.until(&["get", "events"], "edge-1 5, edge-2 4", Duration::from_secs(60))
        .or_else(|_| hub.until(&["get", "events"], "edge-1 4, edge-2 5", Duration::from_secs(1)))?;
    hub.until(&["get", "deploy", "hello"], "9/9", Duration::from_secs(60))?;

    // The hub dies too; the edge goes on.
    kill("hub")?;
    wait_for("the edge to answer without its hub", Duration::from_secs(5), || {
        get("http://198.19.77.12:30080/text")
    })?;

    drop(down);
    ensure!(!data.exists(), "`down` left {} behind", data.display());
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    ensure!(!mounts.contains(&path), "`down` left mounts behind");
    Ok(())
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).trim() == "0")
}
