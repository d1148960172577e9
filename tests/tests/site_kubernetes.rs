//! `tombolo node` as a node of a real Kubernetes: kube-apiserver, scheduler and controller manager give it a pod. Needs root.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{
    Fixture, Image, Process, Upstream, UpstreamOptions, cargo_binary, require, wait_for, wipe,
};
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
const DAY: Duration = Duration::from_secs(24 * 3600);

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
    let options = UpstreamOptions {
        controllers: Some("*".into()),
        scheduler: true,
        lift_limits: true,
        ..Default::default()
    };
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
    // As kubeadm lets nodes renew their certificates.
    let renewal = "--clusterrole=system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";
    kubectl.run(&["create", "clusterrolebinding", "renewal", renewal, "--group=system:nodes"])?;
    // The rights of a node, as the node authorizer and NodeRestriction give them, and no more. It is late in the life of its
    // certificate.
    let now = SystemTime::now();
    let kubeconfig = pki.node_kubeconfig("edge", &upstream.url, now - 30 * DAY..now + DAY)?;
    let start = || {
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(["node", "--name", "edge", "--address", "10.78.0.1", "--network", "own"]);
        command.arg("--data-dir").arg(&data);
        command.arg("--kubeconfig").arg(&kubeconfig);
        Process::start("node", command, dir.path())
    };
    // Older than the node, so that it goes after it.
    let _removal = Removal(data.clone(), None);
    let mut node = start()?;
    let result = lives(&kubectl, &data, dir.path(), &mut node).and_then(|()| renewed(&node, &data));
    if result.is_err() {
        eprintln!("{}", node.log());
    }
    result?;
    // What the kubeconfig has is of no use any more.
    pki.node_kubeconfig("edge", &upstream.url, now - 30 * DAY..now - DAY)?;

    // The node's process ends, its pods do not; the next one takes them over as they are.
    let started = kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].containerID}",
    ])?;
    node.kill();
    let lease = ["get", "lease", "-n", "kube-node-lease", "edge", "-o", "jsonpath={.spec.renewTime}"];
    let last_lease = kubectl.run(&lease)?;
    let node = start()?;
    let heard = wait_for("the node to be heard again", PATIENCE, || {
        ensure!(kubectl.run(&lease)? != last_lease, "not yet");
        Ok(())
    });
    heard.with_context(|| node.log())?;
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

/// The certificate of the kubeconfig was replaced before its end.
fn renewed(node: &Process, data: &Path) -> Result<()> {
    wait_for("a new certificate", PATIENCE, || {
        ensure!(data.join("kubeconfig/client.pem").exists(), "there is none");
        ensure!(node.log().contains("the node's certificate was renewed"), "{}", node.log());
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
    import(dir, data)?;
    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=90s"])?;
    ensure!(kubectl.run(&["logs", "deployment/web"])?.contains("ahoy from the edge"));
    ensure!(kubectl.run(&["exec", "deployment/web", "--", "hostname"])?.contains("web-"));
    // A name, an address of a Service, a pod behind it.
    let ask = "a=$(nslookup web.default.svc.cluster.local | awk '/^Address/ {a = $2} END {print a}'); printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 $a 80 | head -n 1";
    kubectl.until(&["exec", "deployment/web", "--", "sh", "-c", ask], "HTTP/1", PATIENCE)?;
    Ok(())
}

/// The node is behind a router that hides its address and lets nothing in that was not asked for.
#[test]
fn a_real_kubernetes_reaches_into_pods_of_a_node_behind_nat() -> Result<()> {
    if !require(NEEDED) || !is_root() {
        return Ok(());
    }
    let name = |end: &str| format!("ttn{}{end}", std::process::id());
    let [cluster, router, edge] =
        [Namespace::create(&name("c"))?, Namespace::create(&name("r"))?, Namespace::create(&name("e"))?];
    router_between(&cluster, &router, &edge)?;
    let inside = edge.name().to_owned();
    cluster.run(move || behind_nat(&inside))?
}

const CLUSTER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const EDGE: &str = "192.168.79.2";

fn router_between(cluster: &Namespace, router: &Namespace, edge: &Namespace) -> Result<()> {
    let (c, r, e) = (cluster.name(), router.name(), edge.name());
    let lines = [
        format!("-n {r} link add out type veth peer name eth0 netns {c}"),
        format!("-n {r} link add in type veth peer name eth0 netns {e}"),
        format!("-n {c} addr add {CLUSTER}/24 dev eth0"),
        format!("-n {c} link set eth0 up"),
        // kube-apiserver wants a default route. It is one to nowhere.
        format!("-n {c} route add default via 10.79.0.99"),
        format!("-n {r} addr add 10.79.0.2/24 dev out"),
        format!("-n {r} link set out up"),
        format!("-n {r} addr add 192.168.79.1/24 dev in"),
        format!("-n {r} link set in up"),
        format!("-n {e} addr add {EDGE}/24 dev eth0"),
        format!("-n {e} link set eth0 up"),
        format!("-n {e} route add default via 192.168.79.1"),
    ];
    for line in lines {
        let output = Command::new("ip").args(line.split_whitespace()).output()?;
        ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let rules = r#"
table ip nat {
    chain post {
        type nat hook postrouting priority 100
        oifname "out" masquerade
    }
}
table ip filter {
    chain forward {
        type filter hook forward priority 0; policy drop;
        iifname "in" accept
        ct state established,related accept
    }
}
"#;
    router.run(move || -> Result<()> {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), rules)?;
        let output = Command::new("nft").arg("-f").arg(file.path()).output()?;
        ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })?
}

fn behind_nat(edge: &str) -> Result<()> {
    let options = UpstreamOptions {
        controllers: Some("*".into()),
        scheduler: true,
        lift_limits: true,
        ..Default::default()
    };
    let (upstream, pki) = Upstream::start_with_certificates_at(CLUSTER, &options)?;
    let kubectl = upstream.kubectl();
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("node");
    kubectl.run(&[
        "create",
        "clusterrolebinding",
        "tombolo-nodes",
        "--clusterrole=system:node-proxier",
        "--group=system:nodes",
    ])?;
    let start_gateway = || {
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(["gateway", "--listen", &format!("{CLUSTER}:8443"), "--kubeconfig"]);
        command.arg(&upstream.kubeconfig).arg("--data-dir").arg(dir.path().join("gateway"));
        Process::start("gateway", command, dir.path())
    };
    let kubeconfig = pki.kubeconfig("edge", &upstream.url, "system:node:edge", "system:nodes")?;
    let _removal = Removal(data.clone(), Some(Namespace::of_another(edge)));
    let mut command = Command::new(cargo_binary("tombolo"));
    command.args(["node", "--name", "edge", "--netns", edge, "--network", "own"]);
    command.args(["--server-tls-bootstrap", "--data-dir"]);
    command.arg(&data).arg("--kubeconfig").arg(&kubeconfig);
    let mut node = Process::start("node", command, dir.path())?;
    wait_for("the node", PATIENCE, || {
        node.alive()?;
        kubectl.run(&["wait", "node/edge", "--for=condition=Ready", "--timeout=5s"])
    })?;
    // The node has said its own addresses; the gateway's takes the place of them all.
    let mut gateway = start_gateway()?;
    let result = reached_through_the_gateway(&kubectl, &data, dir.path(), &mut node);
    if result.is_err() {
        eprintln!("{}\n{}", gateway.log(), node.log());
    }
    result?;

    // The gateway is killed: pods do not mind, and the next one is found by itself.
    gateway.kill();
    ensure!(
        kubectl.run(&["logs", "deployment/web", "--tail=1"]).is_err(),
        "there is no other way to the node"
    );
    let _gateway = start_gateway()?;
    kubectl.until(&["logs", "deployment/web"], "ahoy from the edge", PATIENCE)?;
    kubectl.run(&["wait", "node/edge", "--for=condition=Ready", "--timeout=60s"])?;
    Ok(())
}

fn reached_through_the_gateway(
    kubectl: &tombolo_testkit::Kubectl,
    data: &Path,
    dir: &Path,
    node: &mut Process,
) -> Result<()> {
    import(dir, data)?;
    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=90s"])?;
    let direct =
        std::net::TcpStream::connect_timeout(&format!("{EDGE}:10250").parse()?, Duration::from_millis(500));
    ensure!(direct.is_err(), "the node's own port cannot be reached from the cluster");
    wait_for("the gateway's address", PATIENCE, || {
        let said = kubectl.run(&["get", "node", "edge", "-o", "jsonpath={.status.addresses[*].address}"])?;
        ensure!(said == CLUSTER.to_string(), "{said}");
        Ok(())
    })?;
    kubectl.until(&["logs", "deployment/web"], "ahoy from the edge", PATIENCE)?;
    ensure!(kubectl.run(&["exec", "deployment/web", "--", "hostname"])?.contains("web-"));
    let echoed = kubectl.run_with_input(&["exec", "-i", "deployment/web", "--", "cat"], "there and back")?;
    ensure!(echoed.contains("there and back"), "{echoed}");
    let metrics = kubectl.run(&["get", "--raw", "/api/v1/nodes/edge/proxy/metrics/resource"])?;
    ensure!(metrics.contains("pod_memory_working_set_bytes") && metrics.contains("pod=\"web-"), "{metrics}");

    // The kubelet port's certificate is the cluster's, once somebody approves it.
    wait_for("the certificate to be used", PATIENCE, || {
        // There may be one for the address that it had before the gateway's.
        let row = "jsonpath={range .items[*]}{.metadata.name} {.spec.signerName}{'\\n'}{end}";
        for request in kubectl.run(&["get", "csr", "-o", row])?.lines() {
            let (name, signer) = request.split_once(' ').context("a name and a signer")?;
            ensure!(signer == "kubernetes.io/kubelet-serving", "{signer}");
            kubectl.run(&["certificate", "approve", name])?;
        }
        ensure!(node.log().contains("shows a certificate of the cluster"), "{}", node.log());
        Ok(())
    })?;
    ensure!(kubectl.run(&["logs", "deployment/web"])?.contains("ahoy from the edge"));
    Ok(())
}

/// Everything the node made is gone when the test ends, however it ends.
struct Removal(std::path::PathBuf, Option<Namespace>);

impl Drop for Removal {
    fn drop(&mut self) {
        if let Err(error) = wipe(&self.0, self.1.as_ref()) {
            assert!(std::thread::panicking(), "{error:#}");
            eprintln!("{error:#}");
        }
    }
}

fn import(dir: &Path, data: &Path) -> Result<()> {
    let archive = dir.join("busybox.tar");
    Image::busybox(&[IMAGE])?.save(&archive)?;
    let mut import = Command::new(cargo_binary("tombolo"));
    import.args(["image", "import"]).arg(&archive).arg("--data-dir").arg(data);
    ensure!(import.status()?.success(), "the image is imported");
    Ok(())
}
