//! Placing end to end: overflow to the cloud and back without flapping, law and distance, a Placement that comes later
//! than what it places, groups of sites, taints; and what is told of it all.

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
    what_a_site_cannot_schedule(&two)?;
    law_and_distance(&two)?;
    a_placement_that_comes_later(&two)?;
    groups(&two)?;
    taints(&two)?;
    nothing_places_it(&two)
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

/// The edge says that it has room, and has no second node for a pod that wants one of its own.
fn what_a_site_cannot_schedule(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    let apart = "      affinity:\n        podAntiAffinity:\n          requiredDuringSchedulingIgnoredDuringExecution:\n          - {labelSelector: {matchLabels: {app: apart}}, topologyKey: kubernetes.io/hostname}\n      containers:";
    hub.apply(&placement("apart", "prefer: [{tiers: [edge]}, {tiers: [cloud]}]"))?;
    hub.apply(&deployment("apart", 2, 1).replace("      containers:", apart))?;
    two.until_divided("apart", (1, 1), PATIENCE)?;
    hub.run(&["rollout", "status", "deploy/apart", "--timeout=60s"])?;
    wait_for("an explanation", SOON, || {
        let table = two.hub.tombolo(&["explain", "place", "deploy/apart"])?;
        ensure!(table.contains("edge gets no more for now: it could not schedule"), "{table}");
        Ok(())
    })?;
    hub.run(&["delete", "deploy/apart"]).map(drop)
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
    same_story(two, "lawful", "Placed")?;
    same_story(two, "nowhere", "NotPlaced")?;
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
    two.stays("late", (2, 0), Duration::from_secs(5))?;
    hub.run(&["delete", "deploy", "late"]).map(drop)
}

/// The messages of an object's events with this reason, the newest last; within a second they are in any order.
fn events(two: &Two, kind: &str, name: &str, reason: &str) -> Result<Vec<String>> {
    let only = format!("involvedObject.kind={kind},involvedObject.name={name},reason={reason}");
    let path = r#"jsonpath={range .items[*]}{.message}{"====="}{end}"#;
    let sorted = ["--sort-by=.lastTimestamp", "-o", path];
    let args: Vec<&str> = ["get", "events", "--field-selector", &only].into_iter().chain(sorted).collect();
    let text = two.kubectl().run(&args)?;
    Ok(text.split("=====").map(str::to_owned).filter(|message| !message.trim().is_empty()).collect())
}

/// Every site and why it was chosen or not.
fn reasons(table: &str) -> Vec<(String, String)> {
    let lines = table.lines().skip_while(|line| !line.starts_with("SITE ")).skip(1);
    let cells =
        lines.map(|line| line.split("   ").map(str::trim).filter(|c| !c.is_empty()).collect::<Vec<_>>());
    let rows = cells.take_while(|cells| cells.len() > 2);
    rows.map(|cells| (cells[0].to_owned(), cells[cells.len() - 1].to_owned())).collect()
}

/// What `tombolo explain place` says, an event says too.
fn same_story(two: &Two, name: &str, reason: &str) -> Result<()> {
    let explained = two.hub.tombolo(&["explain", "place", &format!("deploy/{name}")])?;
    let events = events(two, "Deployment", name, reason)?;
    let wanted = reasons(&explained);
    ensure!(!wanted.is_empty(), "{explained}");
    let told = events.iter().find(|told| reasons(told) == wanted);
    let told = told.with_context(|| format!("no event {reason} of {name} as in\n{explained}\n{events:?}"))?;
    // Lists of events show the first line only.
    let summary = told.lines().next().unwrap_or_default();
    ensure!(summary.contains(" replicas placed"), "{told}");
    Ok(())
}

fn groups(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    let group = |spec: &str| {
        let head = "apiVersion: tombolo.dev/v1alpha1\nkind: SiteGroup\nmetadata: {name: shore}\nspec:";
        hub.apply(&format!("{head} {spec}\n"))
    };
    group("{sites: [edge]}")?;
    hub.apply(&placement("grouped", "sites: {names: [shore]}"))?;
    hub.apply(&deployment("grouped", 2, 1))?;
    two.until_divided("grouped", (2, 0), SOON)?;
    group("{sites: [cloud]}")?;
    two.until_divided("grouped", (0, 2), SOON)?;
    // By what sites are, and by what somebody calls them.
    group("{selector: {tiers: [edge]}}")?;
    two.until_divided("grouped", (2, 0), SOON)?;
    hub.run(&["label", "site", "cloud", "rack=7"])?;
    group("{selector: {labels: {matchLabels: {rack: \"7\"}}}}")?;
    two.until_divided("grouped", (0, 2), SOON)?;
    hub.run(&["label", "site", "edge", "rack=7"])?;
    hub.run(&["label", "site", "cloud", "rack-"])?;
    two.until_divided("grouped", (2, 0), SOON)?;
    let table = two.hub.tombolo(&["explain", "place", "deploy/grouped"])?;
    ensure!(reasons(&table).contains(&("cloud".into(), "not selected".into())), "{table}");
    hub.run(&["delete", "deploy/grouped", "placement/grouped", "sitegroup/shore"]).map(drop)
}

fn taints(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    let taint = |effect: &str| {
        let patch = format!(r#"{{"spec":{{"taints":[{{"key":"storm","value":"","effect":"{effect}"}}]}}}}"#);
        hub.run(&["patch", "site", "edge", "--type=merge", "-p", &patch])
    };
    hub.apply(&placement("sailing", "prefer: [{names: [edge]}]"))?;
    hub.apply(&deployment("sailing", 2, 1))?;
    two.until_divided("sailing", (2, 0), SOON)?;
    // Nothing new comes, and what is there stays.
    taint("NoSchedule")?;
    hub.apply(&placement("mooring", "prefer: [{names: [edge]}]"))?;
    hub.apply(&deployment("mooring", 2, 1))?;
    two.until_divided("mooring", (0, 2), SOON)?;
    two.stays("sailing", (2, 0), Duration::from_secs(3))?;
    let table = two.hub.tombolo(&["explain", "place", "deploy/mooring"])?;
    ensure!(table.contains("untolerated taint {storm: }"), "{table}");
    // What is there goes, unless it may stay.
    hub.apply(&placement(
        "sturdy",
        "prefer: [{names: [edge]}]\n  tolerations: [{key: storm, operator: Exists}]",
    ))?;
    hub.apply(&deployment("sturdy", 1, 1))?;
    two.until_divided("sturdy", (1, 0), SOON)?;
    taint("NoExecute")?;
    two.until_divided("sailing", (0, 2), SOON)?;
    two.stays("sturdy", (1, 0), Duration::from_secs(3))?;
    hub.run(&["patch", "site", "edge", "--type=merge", "-p", r#"{"spec":{"taints":[]}}"#])?;
    hub.run(&["delete", "deploy,placement", "sailing", "mooring", "sturdy"]).map(drop)
}

/// A kind of the users' own, which the sites do not have.
const SHIPS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.sea.example}
spec:
  group: sea.example
  scope: Namespaced
  names: {plural: ships, singular: ship, kind: Ship}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"#;
const FLAG: &str = "
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {name: ships, namespace: default}
spec:
  objects: [{apiVersion: sea.example/v1, kind: Ship}]
  sites: {names: [atlantis]}
---
apiVersion: sea.example/v1
kind: Ship
metadata: {name: flag, namespace: default}
";
const JOB: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: {name: orphan, namespace: default}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/true]}]
"#;

/// What has no place says so, whatever its kind; once, and not for every look at it.
fn nothing_places_it(two: &Two) -> Result<()> {
    let hub = two.kubectl();
    let told = |kind: &str, name: &str, reason: &str, wanted: &str| {
        wait_for(&format!("an event {reason} of {kind} {name} with {wanted:?}"), SOON, || {
            let all = events(two, kind, name, reason)?;
            ensure!(all.iter().any(|message| message.contains(wanted)), "{all:?}");
            Ok(all.len())
        })
    };
    hub.run(&["delete", "placement", "default", "-n", "tombolo-system"])?;
    hub.apply(&deployment("orphan", 1, 1))?;
    hub.apply(JOB)?;
    hub.apply(SHIPS)?;
    hub.run(&["wait", "--for=condition=Established", "crd/ships.sea.example", "--timeout=30s"])?;
    wait_for("ships to be served", PATIENCE, || hub.apply(FLAG))?;
    told("Deployment", "orphan", "NotPlaced", "create a Placement")?;
    told("Job", "orphan", "NotPlaced", "create a Placement")?;
    told("Ship", "flag", "NotPlaced", "without a place")?;
    let table = two.hub.tombolo(&["explain", "place", "ship/flag"])?;
    ensure!(table.contains("Placement default/ships") && table.contains("not selected"), "{table}");
    for look in ["first", "second", "third"] {
        let note = format!("look={look}");
        hub.run(&["annotate", "--overwrite", "job/orphan", "ship/flag", &note])?;
        std::thread::sleep(Duration::from_secs(1));
    }
    for (kind, name) in [("Job", "orphan"), ("Ship", "flag")] {
        let once = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let counts = ["get", "events", "--field-selector", &once, "-o", "jsonpath={.items[*].count}"];
        ensure!(hub.run(&counts)?.trim() == "1", "{kind} {name} was told of more than once");
    }
    // A site that does not know the kind refuses it.
    hub.run(&[
        "patch",
        "placement",
        "ships",
        "--type=merge",
        "-p",
        r#"{"spec":{"sites":{"names":["edge"]}}}"#,
    ])?;
    told("Ship", "flag", "NotPlaced", "edge refuses it")?;
    hub.apply("apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: default, namespace: tombolo-system}\nspec: {}\n")?;
    told("Job", "orphan", "Placed", "1 of 1 replicas placed")?;
    told("Deployment", "orphan", "Placed", "1 of 1 replicas placed")?;
    hub.run(&["wait", "--for=condition=Complete", "job/orphan", "--timeout=60s"]).map(drop)
}
