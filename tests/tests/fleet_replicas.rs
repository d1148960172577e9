//! A hub of two replicas over etcd: one leads and is killed, the other carries on, and every site is reached through it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Lan, busybox_archive, require, wait_for};
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
const APPLICATION: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sh, -c, "echo hello; exec sleep 100000"]}
"#;

#[test]
fn a_replica_of_the_hub_dies_and_the_other_reaches_every_site() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfx", [198, 18, 73], dir.path(), Link::default())?;
    let image = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
    let store = lan.host("store")?;
    let etcd = format!("http://{}:2379", store.address);
    let mut command = Command::new(Fixture::Etcd.must());
    command.arg("--data-dir").arg(store.dir.join("etcd")).args(["--log-level", "error"]);
    command.args(["--listen-client-urls", &etcd, "--advertise-client-urls", &etcd]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
    let _etcd = store.start("etcd", command)?;
    wait_for("etcd to listen", PATIENCE, || {
        Ok(std::net::TcpStream::connect((store.address, 2379)).map(drop)?)
    })?;
    let (host_a, host_b, host_site) = (lan.host("a")?, lan.host("b")?, lan.host("site")?);
    let kept = format!("etcd={etcd}");
    let flags = ["--store", kept.as_str(), "--lease-seconds", "6"];
    let mut a = host_a.tombolo("hub", &flags)?;
    let b = host_b.tombolo("hub", &flags)?;
    let site = host_site.tombolo("site", &["--node", "--name", "cove"])?;
    let data = host_site.dir.join("site").display().to_string();
    site.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
    site.join(&a, "cove", &[])?;
    b.kubectl().until(&["get", "sites"], "True", PATIENCE)?;
    b.kubectl().apply(APPLICATION)?;
    b.kubectl().run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let pod = a.kubectl().run(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let own = pod.trim_end_matches(".cove");
    // The tunnel ends at one of them; both reach the pod.
    for hub in [&a, &b] {
        ensure!(hub.kubectl().run(&["logs", &pod])?.contains("hello"));
        ensure!(hub.kubectl().run(&["exec", &pod, "--", "hostname"])?.trim() == own);
    }
    let line = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}";
    let before = site.kubectl().run(&["get", "pods", "-o", line])?;

    a.process.kill();
    let survivor = b.kubectl();
    wait_for("exec through the survivor", PATIENCE, || {
        let host = survivor.run(&["exec", &pod, "--", "hostname"])?;
        ensure!(host.trim() == own, "{host}");
        Ok(())
    })?;
    survivor.run(&["scale", "deploy/web", "--replicas=2"])?;
    survivor.run(&["wait", "deploy/web", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=60s"])?;
    survivor.until(&["get", "nodes"], " Ready ", PATIENCE)?;
    let after = site.kubectl().run(&["get", "pods", "-o", line])?;
    ensure!(before.split_whitespace().all(|id| after.contains(id)), "{before}, then {after}");
    // The first one comes back, and follows.
    let a = host_a.tombolo("hub", &flags)?;
    wait_for("the first replica to reach the site again", PATIENCE, || {
        ensure!(a.kubectl().run(&["exec", &pod, "--", "hostname"])?.trim() == own);
        Ok(())
    })
}
