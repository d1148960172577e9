//! `tombolo node` as a node of a real Kubernetes: kube-apiserver, scheduler and controller manager give it a pod. Needs root.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Image, Process, Upstream, UpstreamOptions, cargo_binary, require, wait_for};
use tombolo_tests::site::{IMAGE, is_root, link_up};
use tombolo_wan::Namespace;

const NEEDED: &[Fixture] = &[
    Fixture::Kubectl,
    Fixture::KubeApiserver,
    Fixture::KubeControllerManager,
    Fixture::KubeScheduler,
    Fixture::Etcd,
];
const PATIENCE: Duration = Duration::from_secs(90);

const APPLICATION: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: ahoy}
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
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: IMAGE
        envFrom: [{configMapRef: {name: settings}}]
        command: [sh, -c, "echo $greeting from the edge; exec httpd -f -p 8080"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#;

#[test]
fn a_real_kubernetes_runs_pods_on_a_tombolo_node() -> Result<()> {
    if !require(NEEDED) || !is_root() {
        return Ok(());
    }
    // The whole cluster is in one network namespace: what a thread in it starts is in it too.
    let space = Namespace::create(&format!("ttk{}", std::process::id()))?;
    link_up(space.name(), "10.78.0.1/24")?;
    space.run(story)?
}

fn story() -> Result<()> {
    let options = UpstreamOptions { controllers: Some("*".into()), scheduler: true, lift_limits: true };
    let (upstream, pki) = Upstream::start_with_certificates(&options)?;
    let kubectl = upstream.kubectl();
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("node");
    // Who routes services must know their endpoints; upstream that is kube-proxy, here it is the node.
    let proxy = [
        "create",
        "clusterrolebinding",
        "tombolo-nodes",
        "--clusterrole=system:node-proxier",
        "--group=system:nodes",
    ];
    kubectl.run(&proxy)?;
    // The rights of a node, as the node authorizer and NodeRestriction give them, and no more.
    let kubeconfig = pki.kubeconfig("edge", &upstream.url, "system:node:edge", "system:nodes")?;
    let start = || {
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(["node", "--name", "edge", "--address", "10.78.0.1", "--data-dir"]).arg(&data);
        command.arg("--kubeconfig").arg(&kubeconfig);
        Process::start("node", command, dir.path())
    };
    let mut node = start()?;
    let _removal = Removal(data.clone());
    let result = lives(&kubectl, &data, dir.path(), &mut node);
    if result.is_err() {
        eprintln!("{}", node.log());
    }
    result?;

    // The node's process ends, its pods do not; the next one takes them over as they are.
    let started = kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].containerID}",
    ])?;
    node.kill();
    let _node = start()?;
    kubectl.run(&["wait", "node/edge", "--for=condition=Ready", "--timeout=60s"])?;
    let after = kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].containerID}",
    ])?;
    ensure!(started == after, "{started} became {after}");
    kubectl.run(&["delete", "deployment", "web"])?;
    wait_for("the pods to go", PATIENCE, || {
        let pods = kubectl.run(&["get", "pods", "-o", "name"])?;
        ensure!(!pods.contains("pod/"), "{pods}");
        Ok(())
    })
}

fn lives(
    kubectl: &tombolo_testkit::Kubectl,
    data: &std::path::Path,
    dir: &std::path::Path,
    node: &mut Process,
) -> Result<()> {
    wait_for("the node", PATIENCE, || {
        node.alive()?;
        kubectl.run(&["wait", "node/edge", "--for=condition=Ready", "--timeout=5s"])
    })?;
    let cidr = kubectl.run(&["get", "node", "edge", "-o", "jsonpath={.spec.podCIDR}"])?;
    ensure!(cidr.starts_with("10.70."), "the controller manager gives pod networks: {cidr:?}");
    let archive = dir.join("busybox.tar");
    Image::busybox(&[IMAGE])?.save(&archive)?;
    let mut import = Command::new(cargo_binary("tombolo"));
    import.args(["image", "import"]).arg(&archive).arg("--data-dir").arg(data);
    ensure!(import.status()?.success(), "the image is imported");

    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=90s"])?;
    ensure!(kubectl.run(&["logs", "deployment/web"])?.contains("ahoy from the edge"));
    ensure!(kubectl.run(&["exec", "deployment/web", "--", "hostname"])?.contains("web-"));
    // A name, an address of a Service, a pod behind it.
    let ask = "a=$(nslookup web.default.svc.cluster.local | awk '/^Address/ {a = $2} END {print a}'); printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 $a 80 | head -n 1";
    kubectl.until(&["exec", "deployment/web", "--", "sh", "-c", ask], "HTTP/1", PATIENCE)?;
    Ok(())
}

/// Everything the node made is gone when the test ends, however it ends.
struct Removal(std::path::PathBuf);

impl Drop for Removal {
    fn drop(&mut self) {
        let mut command = Command::new(cargo_binary("tombolo"));
        let _ = command.args(["wipe", "--data-dir"]).arg(&self.0).output();
    }
}
