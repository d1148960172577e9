//! The two clusters, started the same way.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tombolo_testkit::{Image, Kubectl, Tombolo, Upstream, UpstreamOptions, cargo_binary, wait_for};

use super::upstream_node::UpstreamNode;
use crate::procfs::Family;

/// What all containers run.
pub const IMAGE: &str = "bench.example/busybox:1";
pub const ADDRESS: &str = "10.67.0.1";
const NODE: &str = "bench";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A Node object that nobody runs: the control plane alone.
    NodeObject,
    RealNode,
}

pub struct Cluster {
    pub kubeconfig: PathBuf,
    dir: tempfile::TempDir,
    tombolo: Option<Tombolo>,
    // The node goes before its control plane.
    node: Option<UpstreamNode>,
    upstream: Option<Upstream>,
}

/// The benchmark's own network namespace gets a link with a default route, which node programs expect.
pub fn make_network() -> Result<()> {
    let address = format!("{ADDRESS}/24");
    for words in [
        &["link", "set", "lo", "up"][..],
        &["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"],
        &["addr", "add", &address, "dev", "eth0"],
        &["link", "set", "eth0", "up"],
        &["link", "set", "eth1", "up"],
        &["route", "add", "default", "dev", "eth0"],
    ] {
        let status = Command::new("ip").args(words).status().context("could not start ip")?;
        ensure!(status.success(), "ip {} failed", words.join(" "));
    }
    Ok(())
}

impl Cluster {
    pub fn start(side: &str, shape: Shape) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let archive = dir.path().join("busybox.tar");
        Image::busybox(&[IMAGE])?.save(&archive)?;
        let mut cluster = if side == "upstream" {
            let upstream = Upstream::start(&UpstreamOptions {
                controllers: Some("*".into()),
                scheduler: true,
                lift_limits: true,
                ..Default::default()
            })?;
            let kubeconfig = upstream.kubeconfig.clone();
            Self { kubeconfig, dir, tombolo: None, node: None, upstream: Some(upstream) }
        } else {
            let listen = format!("{ADDRESS}:6443");
            let mut words = vec!["--name", NODE, "--listen", &listen];
            words.extend((shape == Shape::RealNode).then_some("--node"));
            let site = Tombolo::start("site", dir.path(), &words)?;
            let kubeconfig = site.kubeconfig.clone();
            Self { kubeconfig, dir, tombolo: Some(site), node: None, upstream: None }
        };
        match shape {
            Shape::NodeObject => cluster.make_node_object()?,
            Shape::RealNode if side == "upstream" => {
                let node = UpstreamNode::start(NODE, &cluster.kubeconfig, cluster.dir.path())?;
                node.import(&archive)?;
                cluster.node = Some(node);
            }
            Shape::RealNode => {
                let mut import = Command::new(cargo_binary("tombolo"));
                import
                    .args(["image", "import"])
                    .arg(&archive)
                    .arg("--data-dir")
                    .arg(cluster.dir.path().join("site"));
                let output = import.output()?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        let kubectl = cluster.kubectl();
        wait_for("a node that takes pods", std::time::Duration::from_secs(60), || {
            let node =
                kubectl.run(&["get", "node", NODE, "-o", "jsonpath={.spec.taints}|{.status.conditions}"])?;
            ensure!(node.starts_with('|') && node.contains(r#""type":"Ready""#), "{node}");
            kubectl.run(&["get", "serviceaccount", "default"])
        })?;
        Ok(cluster)
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }

    fn make_node_object(&self) -> Result<()> {
        let kubectl = self.kubectl();
        kubectl.apply(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {NODE}}}\n"))?;
        let status = r#"{"status":{"capacity":{"cpu":"64","memory":"256Gi","pods":"2000"},"allocatable":{"cpu":"64","memory":"256Gi","pods":"2000"},
            "conditions":[{"type":"Ready","status":"True","reason":"Bench","message":"a node object only"}]}}"#;
        kubectl.run(&["patch", "node", NODE, "--subresource=status", "--type=merge", "-p", status]).map(drop)
    }

    /// A client with a connection of its own.
    pub async fn client(&self) -> Result<kube::Client> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let options = KubeConfigOptions::default();
        Ok(kube::Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)?)
    }

    /// Every process of the cluster, containers included.
    pub fn family(&self) -> Result<Family> {
        let own = self.tombolo.iter().map(|t| t.process.pid());
        let upstream = self.upstream.iter().flat_map(|u| u.processes.iter().map(|p| p.pid()));
        let node = self.node.iter().flat_map(|n| n.processes.iter().map(|p| p.pid()));
        Family::of(&own.chain(upstream).chain(node).collect::<Vec<_>>(), &self.marks())
    }

    /// What the command lines of shims have in them, whoever their parent is.
    fn marks(&self) -> Vec<String> {
        let end = self.dir.path().file_name().map(|n| n.to_string_lossy().into_owned());
        end.map(|name| name.trim_start_matches('.').to_owned()).into_iter().collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.tombolo.take().is_some() {
            // Containers outlive the process.
            let mut remove = Command::new(cargo_binary("tombolo"));
            remove.args(["wipe", "--data-dir"]).arg(self.dir.path().join("site/node"));
            if let Err(error) = remove.output() {
                eprintln!("containers may be left: {error}");
            }
        }
    }
}
