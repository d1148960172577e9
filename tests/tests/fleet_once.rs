//! `failover.atMostOnce`: whatever is cut, killed or rebooted, and in whatever order, two never run at the same moment.
//! The workload itself writes down when it runs; the test only looks for two that did at once.

#[path = "once/machine.rs"]
mod machine;
#[path = "once/restored.rs"]
mod restored;
#[path = "once/stamps.rs"]
mod stamps;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use machine::{Machine, Nodes};
use tombolo_testkit::{Fixture, Host, Lan, Member, busybox_archive, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_tests::soak::random::Random;
use tombolo_wan::Link;

/// A lease of 11 s, 15 s more that the hub waits, and time to start.
const MOVED: Duration = Duration::from_secs(90);
const HUB: &[&str] = &["--lease-seconds", "5"];

fn workload(stamps: &Path) -> String {
    format!(
        r#"
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: once, namespace: default}}
spec:
  objects: [{{apiVersion: apps/v1, kind: StatefulSet, name: once}}]
  replicas: {{divideBy: Pack}}
  # Where the stamps are is no data of its own.
  failover: {{atMostOnce: true, leaseSeconds: 11, waitSeconds: 1, moveLocalVolumes: true}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: once, namespace: default}}
spec:
  replicas: 1
  serviceName: once
  selector: {{matchLabels: {{app: once}}}}
  template:
    metadata: {{labels: {{app: once}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{{name: stamps, hostPath: {{path: {stamps}, type: Directory}}}}]
      containers:
      - name: c
        image: test.local/app:1
        imagePullPolicy: IfNotPresent
        env: [{{name: NODE, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}]
        volumeMounts: [{{name: stamps, mountPath: /stamps}}]
        # Deaf to the polite signal: it runs until it is killed.
        command: [/bin/sh, -c, "trap '' TERM; read id < /proc/sys/kernel/random/uuid; while :; do read up idle < /proc/uptime; echo $up >> /stamps/$NODE.$id; usleep 20000; done"]
"#,
        stamps = stamps.display()
    )
}

struct Fleet {
    machines: Vec<Machine>,
    hub: Option<Member>,
    hub_host: Host,
    lan: Lan,
    stamps: PathBuf,
    began: Instant,
    _dir: tempfile::TempDir,
}

/// What can happen to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Link,
    Site,
    Node,
    Power,
    Hub,
}

impl Fleet {
    /// `prefix` and `network` as of [`Lan::start`].
    fn start(prefix: &str, network: u8) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let stamps = dir.path().join("stamps");
        std::fs::create_dir(&stamps)?;
        let link = Link { delay: Duration::from_millis(5), ..Link::default() };
        let mut lan = Lan::start(prefix, [198, 18, network], dir.path(), link)?;
        let image = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
        let hub_host = lan.host("hub")?;
        let hub = hub_host.tombolo("hub", HUB)?;
        let mut machines = Vec::new();
        for (name, nodes) in [("east", Nodes::Inside), ("west", Nodes::Beside)] {
            let mut machine = Machine::start(&mut lan, name, nodes, &image)?;
            machine.power_on(Some(&hub))?;
            machines.push(machine);
        }
        for name in ["east", "west"] {
            let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status} {.status.nodes}";
            hub.kubectl().until(&["get", "site", name, "-o", ready], "True 1", MOVED)?;
        }
        let began = Instant::now();
        Ok(Self { machines, hub: Some(hub), hub_host, lan, stamps, began, _dir: dir })
    }

    fn say(&self, what: &str) {
        println!("{:6.1} s  {what}", self.began.elapsed().as_secs_f64());
    }

    fn machine(&mut self, name: &str) -> Result<&mut Machine> {
        self.machines.iter_mut().find(|m| m.name == name).with_context(|| format!("no machine {name}"))
    }

    /// The law.
    fn never_two(&self) -> Result<()> {
        let runs = stamps::runs(&self.stamps)?;
        if let Some((a, b)) = stamps::overlap(&runs) {
            bail!("two ran at once: {a:?} and {b:?}; all: {runs:#?}");
        }
        Ok(())
    }

    /// What everybody said, where that may explain a failure.
    fn tell(&self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            for machine in &self.machines {
                let log = machine.log();
                let tail: Vec<&str> = log.lines().rev().take(30).collect();
                eprintln!("--- {}\n{}", machine.name, tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
            let log = std::fs::read_to_string(self.hub_host.dir.join("tombolo-hub.log")).unwrap_or_default();
            eprintln!("--- hub\n{}", log.lines().rev().take(40).collect::<Vec<_>>().join("\n"));
        }
        result
    }

    /// Watches for a while that two never run.
    fn calm(&self, seconds: u64) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(seconds) {
            self.never_two()?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Waits until it runs, at `where_` if that is said.
    fn runs_at(&self, where_: Option<&str>) -> Result<String> {
        let what = format!("it to run{}", where_.map(|w| format!(" at {w}")).unwrap_or_default());
        let holder = wait_for(&what, MOVED, || {
            self.never_two()?;
            let holder = stamps::holder(&self.stamps)?.context("nobody runs it")?;
            ensure!(where_.is_none_or(|w| w == holder), "{holder} runs it");
            Ok(holder)
        })?;
        self.say(&format!("it runs at {holder}"));
        Ok(holder)
    }

    /// Breaks what is whole, mends what is broken.
    fn toggle(&mut self, name: &str, event: Event) -> Result<()> {
        let index = self.machines.iter().position(|m| m.name == name).context("a machine")?;
        let machine = &mut self.machines[index];
        let what = match event {
            Event::Link if machine.linked => {
                machine.linked = false;
                self.lan.cut_between(&self.hub_host, &machine.host);
                "its link is cut"
            }
            Event::Link => {
                machine.linked = true;
                self.lan.mend_between(&self.hub_host, &machine.host);
                "its link is back"
            }
            Event::Power if machine.is_on() => {
                machine.power_off();
                "it loses its power"
            }
            // All that runs on it waits for the power.
            _ if !machine.is_on() => {
                machine.power_on(None)?;
                "it boots"
            }
            Event::Power => unreachable!("a machine is on or off"),
            Event::Site if machine.site.is_some() => {
                machine.kill_site();
                "its site and agent are killed"
            }
            Event::Site => {
                machine.start_site()?;
                "its site is started"
            }
            Event::Node if machine.node.is_some() => {
                machine.kill_node();
                "its node is killed"
            }
            Event::Node => {
                machine.start_node()?;
                "its node is started"
            }
            Event::Hub => {
                self.hub = None;
                self.hub = Some(self.hub_host.tombolo("hub", HUB)?);
                "the hub is killed and started again"
            }
        };
        self.say(&format!("{name}: {what}"));
        Ok(())
    }

    /// Everything is mended.
    fn mend_all(&mut self) -> Result<()> {
        for index in 0..self.machines.len() {
            let name = self.machines[index].name;
            if !self.machines[index].linked {
                self.toggle(name, Event::Link)?;
            }
            self.machines[index].power_on(None)?;
        }
        self.say("all is mended");
        Ok(())
    }
}

#[test]
fn a_workload_that_may_run_at_most_once_never_runs_twice() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut fleet = Fleet::start("tfo", 76)?;
    let result = live_through_it(&mut fleet);
    fleet.tell(result)
}

fn live_through_it(fleet: &mut Fleet) -> Result<()> {
    let manifest = workload(&fleet.stamps);
    fleet.hub.as_ref().context("a hub")?.kubectl().apply(&manifest)?;
    let other = |holder: &str| if holder == "east" { "west" } else { "east" };

    // Each alone: it moves, and what comes back finds it moved.
    for event in [Event::Link, Event::Site, Event::Power] {
        let holder = fleet.runs_at(None)?;
        fleet.toggle(&holder, event)?;
        let now = fleet.runs_at(Some(other(&holder)))?;
        fleet.toggle(&holder, event)?;
        fleet.machine(&holder)?.start_node()?;
        // The one that is back does not take it: long enough for a lease and all that follows.
        fleet.calm(10)?;
        ensure!(fleet.runs_at(None)? == now, "it went back by itself");
    }

    // A reboot that is over before anybody noticed, behind a cut link: the lease of before the boot is worth nothing.
    let holder = fleet.runs_at(None)?;
    fleet.toggle(&holder, Event::Link)?;
    fleet.toggle(&holder, Event::Power)?;
    fleet.toggle(&holder, Event::Power)?;
    fleet.runs_at(Some(other(&holder)))?;
    fleet.mend_all()?;
    fleet.runs_at(None)?;

    // In any order.
    let seed = std::env::var("TOMBOLO_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    println!("TOMBOLO_SEED={seed}");
    let mut random = Random::new(seed);
    for _ in 0..12 {
        let event = *random.pick(&[
            Event::Link,
            Event::Link,
            Event::Site,
            Event::Site,
            Event::Node,
            Event::Power,
            Event::Hub,
        ]);
        let name = *random.pick(&["east", "west"]);
        let nodes_beside = name == "west";
        if event != Event::Node || nodes_beside {
            fleet.toggle(name, event)?;
        }
        let until = Instant::now() + Duration::from_millis(*random.pick(&[100, 2000, 6000, 12_000]));
        while Instant::now() < until {
            fleet.never_two()?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    fleet.mend_all()?;
    fleet.runs_at(None)?;
    let runs = stamps::runs(&fleet.stamps)?;
    fleet.never_two()?;
    fleet.say(&format!("{} runs, never two at once", runs.len()));
    for name in ["east", "west"] {
        ensure!(runs.iter().filter(|run| run.node() == name).count() > 1, "{name} hardly ran it: {runs:#?}");
    }
    Ok(())
}
