//! The chart as people use it: hub and agent as pods of a real Kubernetes, on a real kubelet with containerd, from an image
//! of this program. Needs root.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use tombolo_testkit::{
    Fixture, Host, Image, Kubectl, Lan, RealNode, Upstream, UpstreamOptions, cargo_binary,
    real_node_possible, require, wait_for,
};
use tombolo_tests::chart::{self, Ticket, helm};
use tombolo_tests::etcd::{Credentials, Etcd};
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

const NEEDED: &[Fixture] = &[
    Fixture::Helm,
    Fixture::Kubectl,
    Fixture::KubeApiserver,
    Fixture::KubeControllerManager,
    Fixture::KubeScheduler,
    Fixture::Kubelet,
    Fixture::Etcd,
];
const PATIENCE: Duration = Duration::from_secs(120);
const IMAGE: &str = "test.local/tombolo:1";
const PROGRAM: &str = "/usr/local/bin/tombolo";

/// The image that `packaging/Containerfile` describes, of the program under test and the libraries that it is linked to.
fn image(dir: &Path) -> Result<PathBuf> {
    let binary = dir.join("tombolo");
    let strip = Command::new("strip").arg("-o").arg(&binary).arg(cargo_binary("tombolo")).output()?;
    ensure!(strip.status.success(), "{}", String::from_utf8_lossy(&strip.stderr));
    let mut image =
        Image::new(&[IMAGE]).with("Entrypoint", json!([PROGRAM])).with("User", json!("65532:65532"));
    image.libraries(&binary)?;
    image.file(PROGRAM.trim_start_matches('/'), 0o755, &std::fs::read(&binary)?)?;
    let file = dir.join("tombolo.tar");
    image.save(&file)?;
    std::fs::remove_file(binary)?;
    Ok(file)
}

/// A real Kubernetes with one node that has the image. Ends when dropped, the node first.
struct Cluster {
    _node: RealNode,
    upstream: Upstream,
    kubectl: Kubectl,
    host: Host,
    _lan: Lan,
    dir: TempDir,
}

impl Cluster {
    /// `prefix` and `network` must be the test's own.
    fn start(prefix: &str, network: [u8; 3]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let image = image(dir.path())?;
        let mut lan = Lan::start(prefix, network, dir.path(), Link::default())?;
        let host = lan.host("madrid")?;
        let address = host.address;
        let (upstream, _pki) = host.run(move || {
            let options = UpstreamOptions {
                controllers: Some("*".into()),
                scheduler: true,
                lift_limits: true,
                ..Default::default()
            };
            Upstream::start_with_certificates_at(address, &options)
        })??;
        let node = RealNode::start(&host, &upstream.kubeconfig, &[&image])?;
        let kubectl = upstream.kubectl();
        kubectl.until(&["get", "nodes", "--no-headers"], " Ready ", PATIENCE)?;
        Ok(Self { _node: node, upstream, kubectl, host, _lan: lan, dir })
    }

    /// A disk for a hub; nobody provisions one here.
    fn disk(&self, name: &str) -> Result<PathBuf> {
        let data = self.dir.path().join(name);
        std::fs::create_dir_all(&data)?;
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o777))?;
        self.kubectl.apply(&format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 1Gi}}\n  accessModes: [ReadWriteOnce]\n  hostPath: {{path: {}}}\n",
            data.display()
        ))?;
        Ok(data)
    }

    /// `helm install` or `helm upgrade` of the chart with a hub and these values.
    fn helm(&self, command: &str, values: &str) -> Result<String> {
        let values = format!("image.repository=test.local/tombolo,image.tag=1,hub.enabled=true,{values}");
        helm(&self.upstream.kubeconfig, &[command, "t", &chart::folder(), "--set", &values])
    }

    /// `tombolo ARGS…` inside the pod of a hub, as its administrator.
    fn inside(&self, pod: &str, args: &[&str]) -> Result<String> {
        let line = ["exec", pod, "--", PROGRAM];
        self.kubectl.run(&[&line, args, &["--kubeconfig", "/data/admin.kubeconfig"]].concat())
    }
}

/// What kube-proxy would do for two Services: packets to their addresses go where they lead.
fn lead(host: &Host, services: &[(&str, &str, String)]) -> Result<()> {
    let mut rules = String::from("flush ruleset\ntable ip proxy {\n  chain services {\n");
    for (address, port, to) in services {
        rules.push_str(&format!("    ip daddr {address} tcp dport {port} dnat to {to}\n"));
        rules.push_str(&format!("    ip daddr {address} udp dport {port} dnat to {to}\n"));
    }
    rules.push_str("  }\n  chain incoming { type nat hook prerouting priority -100; jump services; }\n");
    rules.push_str("  chain outgoing { type nat hook output priority -100; jump services; }\n");
    rules.push_str(
        "  chain leaving { type nat hook postrouting priority 100; ct status dnat masquerade; }\n}\n",
    );
    host.run(move || -> Result<()> {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        let mut child = Command::new("nft").args(["-f", "-"]).stdin(std::process::Stdio::piped()).spawn()?;
        std::io::Write::write_all(&mut child.stdin.take().context("a pipe")?, rules.as_bytes())?;
        ensure!(child.wait()?.success(), "nft does not take {rules}");
        Ok(())
    })?
}

fn running(kubectl: &Kubectl, what: &str) -> Result<()> {
    let done = kubectl.run(&["rollout", "status", what, "--timeout=120s"]);
    done.map(drop).with_context(|| {
        let said = |args: &[&str]| kubectl.run(args).unwrap_or_else(|e| e.to_string());
        format!("{}\n{}", said(&["describe", "pods"]), said(&["logs", what, "--tail=20"]))
    })
}

#[test]
fn hub_and_agent_of_the_chart_run_as_pods_and_place_things() -> Result<()> {
    if !require(NEEDED) || !real_node_possible() || !is_root() {
        return Ok(());
    }
    let cluster = Cluster::start("tcp", [198, 18, 76])?;
    let Cluster { kubectl, upstream, host, .. } = &cluster;
    let data = cluster.disk("hub")?;

    // The hub first. Sites reach it at the address of its Service, which is known once it is there.
    cluster.helm("install", "hub.leaseSeconds=6")?;
    let service = kubectl.run(&["get", "service", "t-hub", "-o", "jsonpath={.spec.clusterIP}"])?;
    let at_service = format!("hub.leaseSeconds=6,hub.url=https://{service}:6443");
    cluster.helm("upgrade", &at_service)?;
    running(kubectl, "statefulset/t-hub")?;
    let pod = kubectl.run(&["get", "pod", "t-hub-0", "-o", "jsonpath={.status.podIP}"])?;
    let api = upstream.url.trim_start_matches("https://").to_owned();
    lead(host, &[("10.0.0.1", "443", api), (&service, "6443", format!("{pod}:6443"))])?;

    // What the notes of the chart say: a token from inside the pod, and then the agent.
    let inside = |args: &[&str]| cluster.inside("t-hub-0", args);
    let ticket = wait_for("the hub to know its new address", PATIENCE, || {
        let ticket = Ticket::read(&inside(&["token", "create"])?)?;
        ensure!(ticket.url == format!("https://{service}:6443"), "sites would dial {}", ticket.url);
        Ok(ticket)
    })?;
    cluster.helm("upgrade", &format!("{at_service},{}", ticket.values("madrid")))?;
    running(kubectl, "deployment/t-agent")?;
    wait_for("the cluster to be tied", PATIENCE, || {
        let sites = inside(&["sites"])?;
        let log = kubectl.run(&["logs", "deployment/t-agent", "--tail=20"])?;
        ensure!(sites.contains("madrid") && sites.contains("True"), "{sites}\n{log}");
        Ok(())
    })?;

    // With the kubeconfig that the hub wrote, from the machine that runs it.
    let hub = Kubectl::new(&data.join("admin.kubeconfig")).inside(host.netns());
    hub.apply(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {a: '1'}\n---\napiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: there}\nspec:\n  objects: [{kind: ConfigMap, name: note}]\n",
    )?;
    kubectl.until(&["get", "configmaps", "-o", "name"], "configmap/note", PATIENCE)?;

    // The pod is replaced: the hub is the same hub, and the site finds it again.
    kubectl.run(&["delete", "pod", "t-hub-0", "--wait=true", "--grace-period=5"])?;
    running(kubectl, "statefulset/t-hub")?;
    let pod = kubectl.run(&["get", "pod", "t-hub-0", "-o", "jsonpath={.status.podIP}"])?;
    let api = upstream.url.trim_start_matches("https://").to_owned();
    lead(host, &[("10.0.0.1", "443", api), (&service, "6443", format!("{pod}:6443"))])?;
    wait_for("the site to be back", PATIENCE, || {
        let sites = inside(&["sites"])?;
        ensure!(sites.contains("madrid") && sites.contains("True"), "{sites}");
        Ok(())
    })?;
    ensure!(kubectl.run(&["get", "configmap", "note", "-o", "jsonpath={.data.a}"])? == "1");
    helm(&upstream.kubeconfig, &["uninstall", "t"])?;
    Ok(())
}

#[test]
fn hubs_of_the_chart_share_an_etcd_that_asks_for_certificates() -> Result<()> {
    if !require(NEEDED) || !real_node_possible() || !is_root() {
        return Ok(());
    }
    let cluster = Cluster::start("tce", [198, 18, 88])?;
    let kubectl = &cluster.kubectl;
    let (dir, address) = (cluster.host.dir.clone(), cluster.host.address);
    let (etcd, Credentials { ca, client }) =
        cluster.host.run(move || Etcd::start_with_certificates(&dir, address))??;
    let files = [("ca.crt", &ca), ("tls.crt", &client.certificate), ("tls.key", &client.key)]
        .map(|(key, path)| format!("--from-file={key}={}", path.display()));
    let files = files.each_ref().map(String::as_str);
    kubectl.run(&[&["create", "secret", "generic", "etcd-client"], &files[..]].concat())?;
    for name in ["first", "second"] {
        cluster.disk(name)?;
    }
    let store = format!("hub.store=etcd={}", etcd.url);
    cluster.helm("install", &format!("hub.replicas=2,hub.etcd.tlsSecret=etcd-client,{store}"))?;
    running(kubectl, "statefulset/t-hub")?;

    // What one was told, the other knows.
    let ticket = Ticket::read(&cluster.inside("t-hub-0", &["token", "create"])?)?;
    let id = ticket.token.split('.').next().unwrap_or_default();
    let tokens = cluster.inside("t-hub-1", &["token", "list"])?;
    ensure!(tokens.contains(id), "no {id} among {tokens}");
    helm(&cluster.upstream.kubeconfig, &["uninstall", "t"])?;
    Ok(())
}
