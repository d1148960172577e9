//! The hosts, the clusters and the ties of the fleet under test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{
    Host, Kubectl, Lan, Member, Process, RealNode, Upstream, UpstreamOptions, busybox_archive, cargo_binary,
    wait_for,
};
use tombolo_wan::Link;

pub const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "test.local/app:1";
pub const HUB: &[&str] = &["--lease-seconds", "6"];

/// A Tombolo site and the host it is on. The site goes first: what it left running is removed inside the host's namespace.
pub struct Site {
    pub name: &'static str,
    pub member: Member,
    pub host: Host,
}

/// Dropped in the order written: first what uses the others.
pub struct World {
    pub agent: Process,
    pub node: RealNode,
    pub upstream: Upstream,
    pub coves: Vec<Site>,
    pub edges: Vec<Site>,
    pub below: Member,
    pub below_host: Host,
    pub hub: Member,
    pub hub_host: Host,
    pub frankfurt: Host,
    pub lan: Lan,
    began: Instant,
    dir: tempfile::TempDir,
    /// Folders of hubs that were set aside.
    aside: u32,
}

impl World {
    /// frankfurt (real Kubernetes), harbour and island under the hub; north under the hub, with cove and bay below.
    pub fn start() -> Result<Self> {
        let began = Instant::now();
        let dir = tempfile::tempdir()?;
        let link = Link { delay: Duration::from_millis(10), ..Link::default() };
        let mut lan = Lan::start("tfw", [198, 18, 72], dir.path(), link)?;
        let image = busybox_archive(dir.path(), IMAGE, &["/bin/sleep", "100000"])?;
        let hub_host = lan.host("hub")?;
        let hub = hub_host.tombolo("hub", HUB)?;
        let frankfurt = lan.host("frankfurt")?;
        let address = frankfurt.address;
        let upstream = frankfurt.run(move || {
            let options = UpstreamOptions {
                controllers: Some("*".into()),
                scheduler: true,
                lift_limits: true,
                ..Default::default()
            };
            Upstream::start_at(address, &options)
        })??;
        let node = RealNode::start(&frankfurt, &upstream.kubeconfig, &[&image])?;
        let mut site = |name: &'static str| -> Result<Site> {
            let host = lan.host(name)?;
            let member = host.tombolo("site", &["--node", "--name", name])?;
            let data = host.dir.join("site").display().to_string();
            member.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
            Ok(Site { name, member, host })
        };
        let edges = vec![site("harbour")?, site("island")?];
        let coves = vec![site("cove")?, site("bay")?];
        let below_host = lan.host("below")?;
        let below = below_host.tombolo("hub", HUB)?;
        let agent = agent(&frankfurt, &upstream, &hub)?;
        let mut world = Self {
            agent,
            node,
            upstream,
            coves,
            edges,
            below,
            below_host,
            hub,
            hub_host,
            frankfurt,
            lan,
            began,
            dir,
            aside: 0,
        };
        world.tie()?;
        world.say("the fleet is up");
        Ok(world)
    }

    fn tie(&mut self) -> Result<()> {
        let place = |region: &'static str, zone: &'static str, law: &'static str| {
            ["--tier", "edge", "--region", region, "--zone", zone, "--jurisdiction", law]
        };
        self.edges[0].member.join(&self.hub, "harbour", &place("south", "s1", "EU"))?;
        self.edges[1].member.join(&self.hub, "island", &place("south", "s2", "EU"))?;
        self.coves[0].member.join(&self.below, "cove", &place("north", "n1", "NO"))?;
        self.coves[1].member.join(&self.below, "bay", &place("north", "n2", "NO"))?;
        self.below.join(&self.hub, "north", &["--tier", "fog"])?;
        let (hub, member) = (self.kubectl(), self.upstream.kubectl());
        wait_for("the real node", PATIENCE, || {
            self.node.kubelet.alive()?;
            self.agent.alive()?;
            member.until(&["get", "nodes", "--no-headers"], " Ready ", Duration::ZERO)
        })?;
        self.all_ready()?;
        hub.until(
            &["get", "site", "north", "-o", "jsonpath={.status.offers[*].location.zone}"],
            "n1 n2",
            PATIENCE,
        )?;
        hub.until(&["get", "site", "frankfurt", "-o", "jsonpath={.status.shapes[*].count}"], "1", PATIENCE)?;
        Ok(())
    }

    pub fn kubectl(&self) -> Kubectl {
        self.hub.kubectl()
    }

    /// Every cluster that runs pods, with its administrator's kubectl.
    pub fn members(&self) -> Vec<(&'static str, Kubectl)> {
        let tombolo = self.edges.iter().chain(&self.coves).map(|site| (site.name, site.member.kubectl()));
        tombolo.chain([("frankfurt", self.upstream.kubectl())]).collect()
    }

    /// All sites are heard, at both hubs.
    pub fn all_ready(&self) -> Result<()> {
        for (hub, sites) in [
            (&self.hub, &["frankfurt", "harbour", "island", "north"][..]),
            (&self.below, &["cove", "bay"][..]),
        ] {
            let kubectl = hub.kubectl();
            wait_for("all sites to be ready", PATIENCE, || {
                for site in sites {
                    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
                    let found = kubectl.run(&["get", "site", site, "-o", ready])?;
                    ensure!(found == "True", "{site}: {found}");
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Every container that runs anywhere: a restarted or replaced one has another line.
    pub fn running(&self) -> Result<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        let line = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount} {.status.phase}{'\\n'}{end}";
        for (site, kubectl) in self.members() {
            let pods = kubectl.run(&["get", "pods", "-n", "shop", "-o", line])?;
            all.extend(pods.lines().filter(|l| l.ends_with("Running")).map(|l| format!("{site} {l}")));
        }
        Ok(all)
    }

    pub fn start_agent(&self) -> Result<Process> {
        start_agent(&self.frankfurt, &self.upstream, &["--hub", &self.hub_host.url()])
    }

    fn hub_data(&self) -> PathBuf {
        self.hub_host.dir.join("hub")
    }

    fn backup(&self) -> PathBuf {
        self.dir.path().join("backup.tar")
    }

    /// Of a hub that does not run.
    pub fn back_up_hub(&self) -> Result<()> {
        self.own(&["backup", &self.backup().display().to_string()])
    }

    pub fn restore_hub(&self) -> Result<()> {
        self.own(&["restore", &self.backup().display().to_string()])
    }

    fn own(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(cargo_binary("tombolo"));
        let output = command.args(args).arg("--data-dir").arg(self.hub_data()).output()?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Moves the hub's folder away, and says where to.
    pub fn set_hub_aside(&mut self) -> Result<PathBuf> {
        self.aside += 1;
        let to = self.dir.path().join(format!("hub-{}", self.aside));
        std::fs::rename(self.hub_data(), &to)?;
        Ok(to)
    }

    pub fn put_hub_back(&mut self, from: &Path) -> Result<()> {
        self.set_hub_aside()?;
        std::fs::rename(from, self.hub_data()).context("the hub's own folder")
    }

    /// A line in the test's output with the time it took to get here.
    pub fn say(&self, what: &str) {
        println!("{:6.1} s  {what}", self.began.elapsed().as_secs_f64());
    }
}

/// `tombolo agent` beside the real cluster, as its administrator starts it the first time.
fn agent(host: &Host, upstream: &Upstream, hub: &Member) -> Result<Process> {
    let line = hub.tombolo(&["token", "create", "--uses", "1"])?;
    // tombolo join URL --token T --ca-hash H  ->  tombolo agent --hub URL --token T --ca-hash H
    let words: Vec<&str> = ["--hub"].into_iter().chain(line.split_whitespace().skip(2)).collect();
    start_agent(host, upstream, &words)
}

fn start_agent(host: &Host, upstream: &Upstream, hub: &[&str]) -> Result<Process> {
    let mut command = Command::new(cargo_binary("tombolo"));
    command.args(["agent", "--name", "frankfurt", "--tier", "cloud", "--region", "centre", "--zone", "c1"]);
    command.args(["--jurisdiction", "EU", "--kubeconfig"]).arg(&upstream.kubeconfig).args(hub);
    host.start("agent", command)
}
