//! What the agent costs beside a Kubernetes cluster: memory, and bytes on the way to the hub.
//!
//! Hub and cluster are hosts of their own with a relay of packets between them, so that every byte is counted.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Kubectl, Process, cargo_binary, wait_for};
use tombolo_wan::{Link, Namespace, Relay};

use super::through::{ready_node, upstream};
use crate::procfs::resident_mb;
use crate::report::{Figure, Goal};

const HUB: Ipv4Addr = Ipv4Addr::new(198, 18, 251, 1);
const MEMBER: Ipv4Addr = Ipv4Addr::new(198, 18, 251, 2);
const PATIENCE: Duration = Duration::from_secs(120);
/// After the join, before the counting.
const SETTLE: Duration = Duration::from_secs(45);
const REPLICAS: usize = 20;

/// Idle memory and traffic, and memory with `pods` reported.
pub async fn measure(idle_seconds: u64, pods: usize) -> Result<Vec<Figure>> {
    tokio::task::spawn_blocking(move || measure_here(idle_seconds, pods)).await?
}

fn measure_here(idle_seconds: u64, pods: usize) -> Result<Vec<Figure>> {
    let id = std::process::id();
    let dir = tempfile::tempdir()?;
    let relay = Relay::start(Link::default(), 1);
    let (above, below) =
        (Namespace::create(&format!("tbench-hub-{id}"))?, Namespace::create(&format!("tbench-member-{id}"))?);
    relay.plug(&above, HUB)?;
    relay.plug(&below, MEMBER)?;
    let mut line = Command::new(cargo_binary("tombolo"));
    line.arg("hub").arg("--data-dir").arg(dir.path().join("hub"));
    line.args(["--listen", &format!("{HUB}:6443"), "--netns", above.name()]);
    let _hub = Process::start("hub", line, dir.path())?;
    let kubeconfig = dir.path().join("hub/admin.kubeconfig");
    wait_for("the hub", PATIENCE, || kubeconfig.exists().then_some(()).context("not ready"))?;
    let hub = kubeconfig.clone();
    let at_hub = |args: Vec<&'static str>| {
        let kubectl = Kubectl::new(&hub);
        above.run(move || kubectl.run(&args))?
    };

    let member = below.run(|| upstream(MEMBER))??;
    let kubectl = member.kubectl();
    below.run(move || ready_node(&kubectl))??;
    let mut token = Command::new(cargo_binary("tombolo"));
    token.arg("--kubeconfig").arg(&kubeconfig).args(["token", "create"]);
    let ticket = String::from_utf8(above.run(move || token.output())??.stdout)?;
    let mut line = Command::new(cargo_binary("tombolo"));
    line.args(["agent", "--name", "member", "--tier", "cloud", "--kubeconfig"]).arg(&member.kubeconfig);
    line.arg("--hub").args(ticket.split_whitespace().skip(2));
    let logs = dir.path().to_owned();
    let agent = below.run(move || Process::start("agent", line, &logs))??;
    wait_for("the member to be tied", PATIENCE, || {
        let nodes = at_hub(vec!["get", "nodes", "-o", "jsonpath={.items[*].status.allocatable.cpu}"])?;
        ensure!(nodes.contains("64"), "{nodes}\n{}", agent.log());
        Ok(())
    })?;

    std::thread::sleep(SETTLE);
    let before = relay.carried();
    let idle = every_second(idle_seconds, agent.pid())?;
    let traffic = (relay.carried() - before) as f64 / 1024.0 * 300.0 / idle_seconds as f64;
    let most = idle.iter().copied().fold(0.0, f64::max);

    let manifest: String = (0..pods / REPLICAS).map(manifest).collect();
    let apply = Kubectl::new(&kubeconfig);
    above.run(move || apply.apply(&manifest))??;
    wait_for("all pods at the hub", Duration::from_secs(300), || {
        let shown = at_hub(vec!["get", "pods", "-A", "-o", "name"])?.lines().count();
        ensure!(shown >= pods / REPLICAS * REPLICAS, "{shown} pods are shown");
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(10));
    let busy = every_second(30, agent.pid())?;
    Ok(vec![
        Figure::new("agent beside a Kubernetes cluster, idle", "MB", idle, Some(Goal::AtMost(12.0))),
        Figure::new("the same, the most of these minutes", "MB", vec![most], None),
        Figure::new(
            "agent, bytes of IP packets both ways in 5 idle minutes",
            "KB",
            vec![traffic],
            Some(Goal::AtMost(8.0)),
        ),
        Figure::new(format!("agent with {pods} pods reported"), "MB", busy, Some(Goal::AtMost(25.0))),
    ])
}

fn every_second(seconds: u64, pid: u32) -> Result<Vec<f64>> {
    let second = || {
        std::thread::sleep(Duration::from_secs(1));
        resident_mb(&[pid])
    };
    (0..seconds).map(|_| second()).collect()
}

fn manifest(n: usize) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: app-{n}}}\nspec:\n  replicas: {REPLICAS}\n  selector: {{matchLabels: {{app: app-{n}}}}}\n  template:\n    metadata: {{labels: {{app: app-{n}}}}}\n    spec:\n      containers: [{{name: main, image: example.com/main:1, resources: {{requests: {{cpu: 1m}}}}}}]\n"
    )
}
