//! Placing end to end: overflow to the cloud and back without flapping, law and distance, and a Placement that comes later
//! than what it places.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Host, Kubectl, Lan, Member, busybox_archive, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a few heartbeats and a plan, well below the rest that the hub takes between moves.
const SOON: Duration = Duration::from_secs(20);
const PLACED: &str = "jsonpath={.status.conditions[?(@.type=='Placed')].message}";

fn placement(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  objects: [{{apiVersion: apps/v1, kind: Deployment, name: {name}}}]\n  {spec}\n"
    )
}

fn deployment(name: &str, replicas: u32, millicores: u64) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: default}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, resources: {{requests: {{cpu: {millicores}m}}}}}}
"#
    )
}

struct Two {
    edge: Member,
    cloud: Member,
    hub: Member,
    _hosts: Vec<Host>,
    _lan: Lan,
    _dir: tempfile::TempDir,
}

/// An edge in Vienna and a cloud in Virginia, equally large.
fn start() -> Result<Two> {
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfp", [198, 18, 79], dir.path(), Link::default())?;
    let image = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
    let hub_host = lan.host("hub")?;
    let hub = hub_host.tombolo("hub", &["--lease-seconds", "5"])?;
    let mut hosts = vec![hub_host];
    let mut site = |name: &str, place: &[&str]| -> Result<Member> {
        let host = lan.host(name)?;
        let member = host.tombolo("site", &["--node", "--name", name])?;
        let data = host.dir.join("site").display().to_string();
        member.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
        member.join(&hub, name, place)?;
        hosts.push(host);
        let shape = ["get", "site", name, "-o", "jsonpath={.status.shapes[*].count}"];
        hub.kubectl().until(&shape, "1", PATIENCE)?;
        Ok(member)
    };
    let edge = site("edge", &["--tier", "edge", "--jurisdiction", "EU", "--lat", "48.2", "--lon", "16.4"])?;
    let cloud = site("cloud", &["--tier", "cloud", "--jurisdiction", "US", "--lat", "38.9", "--lon=-77.4"])?;
    Ok(Two { edge, cloud, hub, _hosts: hosts, _lan: lan, _dir: dir })
}

fn replicas(member: &Member, name: &str) -> Result<u32> {
    let path = ["get", "deploy", name, "--ignore-not-found", "-o", "jsonpath={.spec.replicas}"];
    Ok(member.kubectl().run(&path)?.trim().parse().unwrap_or(0))
}

impl Two {
    fn kubectl(&self) -> Kubectl {
        self.hub.kubectl()
    }

    fn divided(&self, name: &str) -> Result<(u32, u32)> {
        Ok((replicas(&self.edge, name)?, replicas(&self.cloud, name)?))
    }

    fn until_divided(&self, name: &str, wanted: (u32, u32), within: Duration) -> Result<()> {
        wait_for(&format!("{name} to be {wanted:?} at edge and cloud"), within, || {
            let now = self.divided(name)?;
            ensure!(
                now == wanted,
                "it is {now:?}: {}",
                self.hub.tombolo(&["explain", "place", &format!("deploy/{name}")])?
            );
            Ok(())
        })
    }

    /// Nothing moves for so long.
    fn stays(&self, name: &str, wanted: (u32, u32), long: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < long {
            let now = self.divided(name)?;
            ensure!(now == wanted, "{name} flaps: {now:?} after {:?}", start.elapsed());
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }
}

#[test]
fn replicas_go_where_the_placement_says() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let two = start()?;
    overflow(&two)?;
    law_and_distance(&two)?;
    a_placement_that_comes_later(&two)
}

/// Edge first, cloud when the edge is full, back when room returns; and never to and fro.
fn overflow(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    let room =
        two.edge.kubectl().run(&["get", "node", "edge", "-o", "jsonpath={.status.allocatable.cpu}"])?;
    let cores: u64 = match room.trim().strip_suffix('m') {
        Some(milli) => milli.parse()?,
        None => room.trim().parse::<u64>().with_context(|| room.clone())? * 1000,
    };
    // Six fit at the edge; two are taken.
    let each = cores / 6;
    hub.apply(&placement("filler", "sites: {names: [edge]}"))?;
    hub.apply(&deployment("filler", 2, each))?;
    hub.run(&["rollout", "status", "deploy/filler", "--timeout=60s"])?;
    hub.apply(&placement("web", "prefer: [{tiers: [edge]}, {tiers: [cloud]}]"))?;
    // Room counts once, also right after it was given away: what was explained then is what fits.
    hub.apply(&deployment("web", 3, each))?;
    two.until_divided("web", (3, 0), SOON)?;
    hub.run(&["scale", "deploy/web", "--replicas=6"])?;
    two.until_divided("web", (4, 2), SOON)?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    two.stays("web", (4, 2), Duration::from_secs(15))?;
    // Room returns. One place stays free at the edge, so that the next small change moves nothing.
    hub.run(&["delete", "deploy/filler"])?;
    two.until_divided("web", (5, 1), Duration::from_secs(120))?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    two.stays("web", (5, 1), Duration::from_secs(20))?;
    hub.run(&["delete", "deploy/web"]).map(drop)
}

fn law_and_distance(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    hub.apply(&placement("lawful", "limits: {jurisdictions: [EU]}"))?;
    hub.apply(&deployment("lawful", 4, 1))?;
    two.until_divided("lawful", (4, 0), SOON)?;
    let table = two.hub.tombolo(&["explain", "place", "deploy/lawful"])?;
    ensure!(table.contains("jurisdiction US, allowed EU"), "{table}");
    // The law changes, and with it where it may run.
    hub.run(&[
        "patch",
        "placement",
        "lawful",
        "--type=merge",
        "-p",
        r#"{"spec":{"limits":{"jurisdictions":["US"]}}}"#,
    ])?;
    two.until_divided("lawful", (0, 4), SOON)?;

    hub.apply(&placement("near", "limits: {maxDistanceKm: 500, near: {latitude: 48.1, longitude: 11.6}}"))?;
    hub.apply(&deployment("near", 2, 1))?;
    two.until_divided("near", (2, 0), SOON)?;
    let table = two.hub.tombolo(&["explain", "place", "deploy/near"])?;
    ensure!(table.contains("km away, limit 500 km"), "{table}");
    hub.apply(&placement(
        "nowhere",
        "limits: {maxDistanceKm: 500, near: {latitude: -33.9, longitude: 151.2}}",
    ))?;
    hub.apply(&deployment("nowhere", 1, 1))?;
    hub.until(&["get", "deploy", "nowhere", "-o", PLACED], "too far", SOON)?;
    ensure!(two.divided("nowhere")? == (0, 0));
    hub.run(&["delete", "deploy", "lawful", "near", "nowhere"]).map(drop)
}

fn a_placement_that_comes_later(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    hub.apply(&deployment("late", 2, 1))?;
    hub.run(&["rollout", "status", "deploy/late", "--timeout=60s"])?;
    hub.apply(&placement("late", "sites: {names: [cloud]}"))?;
    two.until_divided("late", (0, 2), SOON)?;
    hub.apply(&placement("late", "prefer: [{names: [edge]}]"))?;
    // Left out of the manifest, the names are gone.
    two.until_divided("late", (2, 0), SOON)?;
    two.stays("late", (2, 0), Duration::from_secs(5))
}
