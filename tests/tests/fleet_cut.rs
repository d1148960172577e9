//! A site that is cut off: it keeps right what it was told, also after a restart of its own, and when the link is back
//! only what differs crosses it.

use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Host, Lan, Member, busybox_archive, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
/// How many ConfigMaps, and how large each is.
const MANY: usize = 20;
const FILLING: usize = 20_000;

fn web(drift: &str) -> String {
    format!(
        r#"
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: web, namespace: default}}
spec:
  objects: [{{apiVersion: apps/v1, kind: Deployment, name: web}}]
  drift: {drift}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings, namespace: default}}
data: {{colour: green}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: default}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, envFrom: [{{configMapRef: {{name: settings}}}}]}}
"#
    )
}

struct Tied {
    site: Member,
    hub: Member,
    site_host: Host,
    hub_host: Host,
    lan: Lan,
    _dir: tempfile::TempDir,
}

impl Tied {
    fn start(prefix: &str, network: u8) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut lan = Lan::start(prefix, [198, 18, network], dir.path(), Link::default())?;
        let image = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
        let (hub_host, site_host) = (lan.host("hub")?, lan.host("harbour")?);
        let hub = hub_host.tombolo("hub", &["--lease-seconds", "5"])?;
        let site = site_host.tombolo("site", &["--node", "--name", "harbour"])?;
        let data = site_host.dir.join("site").display().to_string();
        site.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
        site.join(&hub, "harbour", &[])?;
        let tied = Self { site, hub, site_host, hub_host, lan, _dir: dir };
        tied.ready()?;
        Ok(tied)
    }

    fn ready(&self) -> Result<()> {
        wait_for("the site to be heard", PATIENCE, || {
            self.hub.kubectl().run(&["wait", "--for=condition=Ready", "site/harbour", "--timeout=5s"])
        })
        .map(drop)
    }

    fn cut(&self) -> Result<()> {
        self.lan.cut_between(&self.hub_host, &self.site_host);
        self.hub.kubectl().until(&["get", "node", "harbour"], "NotReady", PATIENCE).map(drop)
    }

    fn mend(&self) -> Result<()> {
        self.lan.mend_between(&self.hub_host, &self.site_host);
        self.ready()
    }

    /// Bytes so far: to the site, and from it.
    fn bytes(&self) -> (u64, u64) {
        let (hub, site) = (self.hub_host.address, self.site_host.address);
        (self.lan.relay.delivered(hub, site), self.lan.relay.delivered(site, hub))
    }

    fn pods(&self) -> Result<String> {
        let line = "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{'\\n'}{end}";
        let all = self.site.kubectl().run(&["get", "pods", "-o", line])?;
        let mut lines: Vec<&str> = all.lines().collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }
}

#[test]
fn a_site_that_starts_while_it_is_cut_off_still_corrects_drift() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut tied = Tied::start("tfc", 77)?;
    let hub = tied.hub.kubectl();
    hub.apply(&web("force"))?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    tied.cut()?;
    let before = tied.pods()?;
    tied.site.restart()?;
    let there = tied.site.kubectl();
    wait_for("the agent to remember", PATIENCE, || {
        ensure!(
            tied.site.process.log().contains("works of an earlier run are kept right"),
            "nothing in its log"
        );
        Ok(())
    })?;
    ensure!(tied.pods()? == before, "something was restarted");
    // Somebody changes one thing and removes another; nobody can ask the hub.
    there.run(&["scale", "deploy/web", "--replicas=3"])?;
    there.until(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"], "1", PATIENCE)?;
    there.run(&["delete", "configmap", "settings"])?;
    there.until(&["get", "configmap", "settings", "-o", "jsonpath={.data.colour}"], "green", PATIENCE)?;
    ensure!(hub.run(&["get", "node", "harbour"])?.contains("NotReady"), "the link was not cut");
    tied.mend()?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    wait_for("one pod, the one of before", PATIENCE, || {
        let now = tied.pods()?;
        ensure!(now == before, "{now}\nwas\n{before}");
        Ok(())
    })?;
    // What the hub no longer wants is forgotten on disk too.
    hub.run(&["delete", "deploy", "web"])?;
    wait_for("the Work to be forgotten", PATIENCE, || {
        let ties = tied.site_host.dir.join("site/ties");
        let kept: usize = std::fs::read_dir(ties)?
            .flatten()
            .map(|tie| std::fs::read_dir(tie.path()).map_or(0, Iterator::count))
            .sum();
        ensure!(kept == 0, "{kept} files are left");
        Ok(())
    })
}

/// ConfigMaps that travel by themselves.
fn many(colour: &str, which: std::ops::Range<usize>) -> String {
    let filling = "x".repeat(FILLING);
    let placement = "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: many, namespace: default}\nspec: {objects: [{name: none}]}\n";
    let one = |n: usize| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: big-{n}, annotations: {{tombolo.dev/placement: many}}}}\ndata: {{colour: {colour}, filling: {filling}}}\n"
        )
    };
    std::iter::once(placement.to_owned()).chain(which.map(one)).collect()
}

#[test]
fn after_a_cut_only_what_differs_crosses_the_link() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut tied = Tied::start("tfd", 78)?;
    let (hub, there) = (tied.hub.kubectl(), tied.site.kubectl());
    let start = tied.bytes();
    hub.apply(&web("report"))?;
    hub.apply(&many("green", 0..MANY))?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let last = format!("big-{}", MANY - 1);
    there.until(&["get", "configmap", &last, "-o", "jsonpath={.data.colour}"], "green", PATIENCE)?;
    let all = tied.bytes().0 - start.0;
    ensure!(all > (MANY * FILLING) as u64, "{all} bytes carried {MANY} times {FILLING}");
    let before = tied.pods()?;

    // The hub remembers where the site stopped; and it does not, because it was started anew.
    for (round, hub_restarts) in [(1, false), (2, true)] {
        tied.cut()?;
        let colour = format!("blue-{round}");
        hub.apply(&many(&colour, 3..4))?;
        there.run(&["create", "configmap", &format!("tide-{round}")])?;
        there.run(&["annotate", "--overwrite", "deploy/web", &format!("keeper=anna-{round}")])?;
        if hub_restarts {
            tied.hub.restart()?;
        }
        let start = tied.bytes();
        tied.mend()?;
        there.until(&["get", "configmap", "big-3", "-o", "jsonpath={.data.colour}"], &colour, PATIENCE)?;
        // All that comes after a reconnection has come: reports, capacity, the comparison.
        let mut quiet = tied.bytes();
        wait_for("the link to be quiet", PATIENCE, || {
            std::thread::sleep(Duration::from_secs(2));
            let now = tied.bytes();
            let moved = now.0 - quiet.0;
            quiet = now;
            ensure!(moved < 4000, "{moved} bytes in two seconds");
            Ok(())
        })?;
        let (down, up) = (quiet.0 - start.0, quiet.1 - start.1);
        println!("round {round}: {down} bytes down, {up} up; everything was {all}");
        ensure!(
            down < all / 4 && down > FILLING as u64,
            "round {round}: {down} of {all} bytes for one change"
        );
        ensure!(up < all / 4, "round {round}: {up} bytes were reported");
        let keeper = there.run(&["get", "deploy", "web", "-o", "jsonpath={.metadata.annotations.keeper}"])?;
        ensure!(keeper == format!("anna-{round}"), "{keeper}");
        there.run(&["get", "configmap", &format!("tide-{round}")])?;
        ensure!(tied.pods()? == before, "something was restarted");
    }
    Ok(())
}
