//! Two versions in one fleet: a hub and a site that are one apart, and each replaced under what runs.
//!
//! The earlier one is that of a commit (`xtask/src/fixtures/earlier.rs`) until there is a release; `TOMBOLO_EARLIER` names
//! another program.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Host, Lan, Member, busybox_archive, cargo_binary, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);

/// An ordinary Deployment with what it needs, and one that may run at most once.
fn application(colour: &str) -> String {
    let template = |app: &str, more: &str| {
        format!(
            r#"  selector: {{matchLabels: {{app: {app}}}}}
  template:
    metadata: {{labels: {{app: {app}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, {more}command: [/bin/sh, -c, "echo ahoy; sleep 100000"]}}
"#
        )
    };
    format!(
        r#"
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: once, namespace: default}}
spec:
  objects: [{{apiVersion: apps/v1, kind: StatefulSet, name: once}}]
  failover: {{atMostOnce: true, leaseSeconds: 15}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings, namespace: default}}
data: {{colour: {colour}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: default}}
spec:
  replicas: 2
{}---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: once, namespace: default}}
spec:
  replicas: 1
  serviceName: once
{}"#,
        template("web", "envFrom: [{configMapRef: {name: settings}}], "),
        template("once", "")
    )
}

struct Pair {
    site: Member,
    hub: Member,
    _site_host: Host,
    _hub_host: Host,
    _lan: Lan,
    _dir: tempfile::TempDir,
}

impl Pair {
    fn start(prefix: &str, network: u8, hub: &Path, site: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut lan = Lan::start(prefix, [198, 18, network], dir.path(), Link::default())?;
        let image = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
        let (hub_host, site_host) = (lan.host("hub")?, lan.host("harbour")?);
        let hub = hub_host.tombolo_of(hub, "hub", &["--lease-seconds", "5"])?;
        let site = site_host.tombolo_of(site, "site", &["--node", "--name", "harbour"])?;
        let data = site_host.dir.join("site").display().to_string();
        site.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
        site.join(&hub, "harbour", &[])?;
        let pair = Self { site, hub, _site_host: site_host, _hub_host: hub_host, _lan: lan, _dir: dir };
        pair.ready()?;
        Ok(pair)
    }

    fn ready(&self) -> Result<()> {
        wait_for("the site to be heard", PATIENCE, || {
            self.hub.kubectl().run(&["wait", "--for=condition=Ready", "site/harbour", "--timeout=5s"])
        })
        .map(drop)
    }

    /// Everything that hub and site say to each other, once.
    fn work_together(&self, round: &str) -> Result<()> {
        let (hub, there) = (self.hub.kubectl(), self.site.kubectl());
        self.ready()?;
        hub.apply(&application(round))?;
        for what in ["deploy/web", "sts/once"] {
            hub.run(&["rollout", "status", what, "--timeout=90s"])
                .with_context(|| format!("{round}: {}", self.site.process.log()))?;
        }
        there.until(&["get", "cm", "settings", "-o", "jsonpath={.data.colour}"], round, PATIENCE)?;
        let pods = hub.run(&[
            "get",
            "pods",
            "-l",
            "app in (web, once)",
            "-o",
            "jsonpath={.items[*].metadata.name}",
        ])?;
        ensure!(pods.split_whitespace().count() == 3, "{round}: {pods}");
        for pod in pods.split_whitespace() {
            ensure!(hub.run(&["logs", pod])?.contains("ahoy"), "{round}: {pod}");
            let own = pod.split('.').next().unwrap_or_default();
            ensure!(hub.run(&["exec", pod, "--", "hostname"])?.trim() == own, "{round}: {pod}");
        }
        // What is made and deleted at the hub is made and deleted there; what is changed there is told.
        hub.run(&["create", "deployment", "brief", "--image=test.local/app:1"])?;
        hub.run(&["rollout", "status", "deploy/brief", "--timeout=60s"])?;
        there.run(&["scale", "deploy/brief", "--replicas=2"])?;
        let drift =
            ["get", "works", "-n", "site-harbour", "-o", "jsonpath={.items[*].status.drift[*].field}"];
        hub.until(&drift, "replicas", PATIENCE)?;
        hub.run(&["delete", "deploy", "brief"])?;
        wait_for("it to go", PATIENCE, || {
            ensure!(there.run(&["get", "deploy", "brief"]).is_err(), "it is there");
            Ok(())
        })?;
        let shapes = ["get", "site", "harbour", "-o", "jsonpath={.status.shapes[*].count}"];
        hub.until(&shapes, "1", PATIENCE)?;
        Ok(())
    }

    /// The containers of what must not be restarted by an upgrade.
    fn running(&self) -> Result<String> {
        let of = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID}{'\\n'}{end}";
        let all = self.site.kubectl().run(&["get", "pods", "-l", "app in (web, once)", "-o", of])?;
        let mut lines: Vec<&str> = all.lines().collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }
}

#[test]
fn a_newer_hub_and_an_earlier_site_work_together_and_the_site_is_replaced_under_what_runs() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Earlier]) || !is_root() {
        return Ok(());
    }
    let (old, new) = (Fixture::Earlier.must(), cargo_binary("tombolo"));
    let mut pair = Pair::start("tfs", 84, &old, &old)?;
    pair.work_together("both-earlier")?;
    let before = pair.running()?;
    // The order of the book: first the hub, then the site.
    pair.hub.replace(&new)?;
    pair.work_together("newer-hub")?;
    ensure!(
        pair.running()? == before,
        "the hub's upgrade restarted something: {before}\n{}",
        pair.running()?
    );
    pair.site.replace(&new)?;
    pair.work_together("both-newer")?;
    ensure!(
        pair.running()? == before,
        "the site's upgrade restarted something: {before}\n{}",
        pair.running()?
    );
    Ok(())
}

#[test]
fn a_newer_site_joins_an_earlier_hub() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Earlier]) || !is_root() {
        return Ok(());
    }
    let (old, new) = (Fixture::Earlier.must(), cargo_binary("tombolo"));
    let mut pair = Pair::start("tft", 85, &old, &new)?;
    pair.work_together("newer-site")?;
    let before = pair.running()?;
    pair.hub.replace(&new)?;
    pair.work_together("both-newer")?;
    ensure!(pair.running()? == before, "the hub's upgrade restarted something");
    Ok(())
}
