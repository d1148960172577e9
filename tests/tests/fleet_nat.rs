//! A site behind a router that translates addresses: nobody can dial it, and its address changes.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{
    Fixture, Host, Kubectl, Lan, Member, Nat, Process, busybox_archive, cargo_binary, require, wait_for,
};
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: &str = "5";

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: test.local/app:1
        imagePullPolicy: IfNotPresent
        command: [/bin/sh, -c, "mkdir -p /www; echo ahoy > /www/index.html; busybox httpd -p 8080 -h /www; n=0; while :; do n=$((n+1)); echo wave $n; usleep 100000; done"]
"#;

/// Dropped in the order written: first what uses the others.
struct Cottage {
    site: Member,
    hub: Member,
    nat: Nat,
    hub_host: Host,
    _lan: Lan,
    dir: tempfile::TempDir,
}

impl Cottage {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let link = Link { delay: Duration::from_millis(5), ..Link::default() };
        let mut lan = Lan::start("tfn", [198, 18, 83], dir.path(), link)?;
        let hub_host = lan.host("hub")?;
        let nat = Nat::start(&mut lan, "cottage")?;
        let hub = hub_host.tombolo("hub", &["--lease-seconds", LEASE])?;
        let site = nat.inside.tombolo("site", &["--node", "--name", "cottage"])?;
        let cottage = Self { site, hub, nat, hub_host, _lan: lan, dir };
        let image = busybox_archive(cottage.dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
        let data = cottage.nat.inside.dir.join("site").display().to_string();
        cottage.at_site(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
        let line = cottage.hub.tombolo(&["token", "create", "--uses", "1"])?;
        let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--name", "cottage"]).collect();
        cottage.at_site(&words)?;
        cottage.ready()?;
        Ok(cottage)
    }

    /// `tombolo …` as the site's owner types it, beside the site.
    fn at_site(&self, args: &[&str]) -> Result<String> {
        let mut command = std::process::Command::new(cargo_binary("tombolo"));
        command.arg("--kubeconfig").arg(&self.site.kubeconfig).args(args);
        let output = self.nat.inside.run(move || command.output())??;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn ready(&self) -> Result<()> {
        self.hub.kubectl().run(&["wait", "--for=create", "site/cottage", "--timeout=60s"])?;
        self.hub.kubectl().run(&["wait", "--for=condition=Ready", "site/cottage", "--timeout=60s"]).map(drop)
    }

    /// A program at the hub's own host opens a connection there.
    fn hub_dials(&self, address: String) -> Result<bool> {
        let address = address.parse()?;
        self.hub_host.run(move || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
    }

    /// The last tie that the hub knows of: `quic` or `tcp`, and how many there were.
    fn ties(&self) -> (usize, bool) {
        let log = self.hub.process.log();
        let ties: Vec<&str> = log.lines().filter(|line| line.contains("carrier=")).collect();
        (ties.len(), ties.last().is_some_and(|line| line.contains("quic")))
    }

    /// Logs, exec and port-forward, from the hub into the pod.
    fn reach(&self) -> Result<()> {
        let hub = self.hub.kubectl();
        let pod = hub.run(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"])?;
        let own = pod.split('.').next().unwrap_or_default();
        wait_for("exec", PATIENCE, || {
            let host = hub.run(&["exec", &pod, "--", "hostname"])?;
            ensure!(host.trim() == own, "{host}");
            Ok(())
        })?;
        let log = hub.run(&["logs", &pod, "--tail=3"])?;
        ensure!(log.contains("wave"), "{log}");
        let page = hub.forwarded("default", &pod, 8080, "/index.html").context("port-forward")?;
        ensure!(page.contains("ahoy"), "{page}");
        Ok(())
    }

    fn container(&self) -> Result<String> {
        let of = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}";
        Kubectl::new(&self.site.kubeconfig).inside(self.nat.inside.netns()).run(&["get", "pods", "-o", of])
    }
}

/// The number of the last line that `logs -f` printed.
fn wave(logs: &Process) -> u64 {
    let log = logs.log();
    let last = log.lines().rev().find_map(|line| line.strip_prefix("wave ")?.parse().ok());
    last.unwrap_or(0)
}

/// The same `logs -f` goes on, and no line is missing.
fn flows(logs: &mut Process) -> Result<()> {
    let before = wave(logs);
    wait_for("more of the log", PATIENCE, || {
        logs.alive()?;
        ensure!(wave(logs) > before + 5, "still at wave {before}");
        Ok(())
    })?;
    let log = logs.log();
    let mut waves = log.lines().filter_map(|line| line.strip_prefix("wave ")?.parse::<u64>().ok());
    let first = waves.next().context("a wave")?;
    ensure!(waves.enumerate().all(|(n, wave)| wave == first + n as u64 + 1), "a line is missing:\n{log}");
    Ok(())
}

#[test]
fn a_site_behind_nat_is_reached_and_stays_tied_when_its_address_changes() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut cottage = Cottage::start()?;
    let result = live(&mut cottage);
    if result.is_err() {
        for log in [cottage.hub.process.log(), cottage.site.process.log()] {
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("---\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
    result
}

fn live(cottage: &mut Cottage) -> Result<()> {
    let hub = cottage.hub.kubectl();
    for address in [cottage.nat.inside.address, cottage.nat.address()] {
        ensure!(!cottage.hub_dials(format!("{address}:6443"))?, "the hub can dial {address}");
    }
    hub.apply(WEB)?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    cottage.reach()?;
    let before = cottage.container()?;
    let (ties, quic) = cottage.ties();
    ensure!(ties == 1 && quic, "{ties} ties, over QUIC: {quic}");

    // The provider gives it another address: the connection goes on under the new one, and so does what runs over it.
    let mut logs = Process::start("logs", hub.command(&["logs", "-f", "deploy/web"]), cottage.dir.path())?;
    flows(&mut logs)?;
    for _ in 0..2 {
        let old = cottage.nat.address();
        cottage.nat.readdress()?;
        ensure!(cottage.nat.address() != old);
        flows(&mut logs)?;
        cottage.reach()?;
    }
    ensure!(cottage.ties().0 == ties, "a changed address broke the tie");
    ensure!(!cottage.hub.process.log().contains("lost: not heard"), "a changed address lost the site");

    // The router is off for longer than a lease.
    cottage.nat.unplug()?;
    hub.until(&["get", "node", "cottage"], "NotReady", PATIENCE)?;
    cottage.nat.plug()?;
    cottage.ready()?;
    cottage.reach()?;

    // A router that lets no UDP pass: TCP does it too, and what the address change breaks is dialed anew.
    cottage.nat.pass_udp(false)?;
    wait_for("a tie over TCP", PATIENCE, || {
        let (_, quic) = cottage.ties();
        ensure!(!quic, "the last one is over QUIC");
        Ok(())
    })?;
    cottage.ready()?;
    cottage.reach()?;
    let ties = cottage.ties().0;
    cottage.nat.readdress()?;
    let began = Instant::now();
    wait_for("a new tie", PATIENCE, || {
        ensure!(cottage.ties().0 > ties, "none");
        Ok(())
    })?;
    println!("over TCP a changed address was noticed, and dialed anew, after {:?}", began.elapsed());
    cottage.ready()?;
    cottage.reach()?;
    // UDP passes again: the site finds that out by itself, but not while somebody follows a log.
    let mut logs =
        Process::start("logs-tcp", hub.command(&["logs", "-f", "deploy/web"]), cottage.dir.path())?;
    flows(&mut logs)?;
    cottage.nat.pass_udp(true)?;
    std::thread::sleep(Duration::from_secs(25));
    flows(&mut logs)?;
    ensure!(!cottage.ties().1, "a log was cut off");
    logs.kill();
    wait_for("a tie over QUIC", Duration::from_secs(150), || {
        ensure!(cottage.ties().1, "still over TCP");
        Ok(())
    })?;
    cottage.reach()?;
    ensure!(cottage.container()? == before, "something was restarted");
    Ok(())
}
