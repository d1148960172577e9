//! A hub of two replicas over etcd, a site tied to each: the one that leads is killed, the other takes over, and every site
//! is reached through it. Then the other one is cut off from the store, and lets go of its sites.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Host, Kubectl, Lan, Member, busybox_archive, require, wait_for};
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
const APPLICATION: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sh, -c, "echo hello; exec sleep 100000"]}
"#;

/// A site with a node, tied to the replica at `hub`: the join command names the one that leads.
fn site(host: &Host, name: &str, token: &Member, hub: &Host, image: &Path) -> Result<Member> {
    let site = host.tombolo("site", &["--node", "--name", name])?;
    let data = host.dir.join("site").display().to_string();
    site.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
    let line = token.tombolo(&["token", "create", "--uses", "1"])?;
    let url = hub.url();
    let words = line
        .split_whitespace()
        .skip(1)
        .map(|word| if word.starts_with("https://") { url.as_str() } else { word });
    let words: Vec<&str> = words.chain(["--name", name]).collect();
    site.tombolo(&words)?;
    Ok(site)
}

/// Who holds a Lease, by the address of its host.
fn held_by(kubectl: &Kubectl, namespace: &str, lease: &str, host: &Host) -> Result<()> {
    wait_for(&format!("{lease} in {namespace} to be held by {}", host.name), PATIENCE, || {
        let path = "jsonpath={.spec.holderIdentity}";
        let holder = kubectl.run(&["get", "lease", lease, "-n", namespace, "-o", path])?;
        ensure!(holder.trim() == format!("{}:6443", host.address), "{holder}");
        Ok(())
    })
}

/// The one pod of a site, as the hub names it.
fn pod_at(hub: &Kubectl, site: &str) -> Result<String> {
    let label = format!("tombolo.dev/site={site}");
    let path = "jsonpath={.items[*].metadata.name}";
    let names = hub.run(&["get", "pods", "-l", &label, "-o", path])?;
    names.split_whitespace().next().map(str::to_owned).with_context(|| format!("no pod of {site}"))
}

#[test]
fn the_replica_that_leads_dies_and_the_other_reaches_every_site() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfx", [198, 18, 73], dir.path(), Link::default())?;
    let image = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
    let store = lan.host("store")?;
    let etcd = format!("http://{}:2379", store.address);
    let mut command = Command::new(Fixture::Etcd.must());
    command.arg("--data-dir").arg(store.dir.join("etcd")).args(["--log-level", "error"]);
    command.args(["--listen-client-urls", &etcd, "--advertise-client-urls", &etcd]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
    let _etcd = store.start("etcd", command)?;
    wait_for("etcd to listen", PATIENCE, || {
        Ok(std::net::TcpStream::connect((store.address, 2379)).map(drop)?)
    })?;
    let (host_a, host_b) = (lan.host("a")?, lan.host("b")?);
    let (host_cove, host_bay) = (lan.host("cove")?, lan.host("bay")?);
    let kept = format!("etcd={etcd}");
    let flags = ["--store", kept.as_str(), "--lease-seconds", "6"];
    let mut a = host_a.tombolo("hub", &flags)?;
    let b = host_b.tombolo("hub", &flags)?;
    let survivor = b.kubectl();
    let cove = site(&host_cove, "cove", &a, &host_a, &image)?;
    let bay = site(&host_bay, "bay", &b, &host_b, &image)?;
    for name in ["cove", "bay"] {
        let ready = ["wait", "--for=condition=Ready", &format!("site/{name}"), "--timeout=5s"];
        wait_for(&format!("{name} to be heard"), PATIENCE, || survivor.run(&ready))?;
        let shape = ["get", "site", name, "-o", "jsonpath={.status.shapes[*].count}"];
        survivor.until(&shape, "1", PATIENCE)?;
    }
    // The one that came first leads. Each has the tunnel of one site.
    held_by(&survivor, "tombolo-system", "tombolo-fleet", &host_a)?;
    held_by(&survivor, "site-cove", "tombolo-site", &host_a)?;
    held_by(&survivor, "site-bay", "tombolo-site", &host_b)?;
    survivor.apply(APPLICATION)?;
    survivor.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let pods = ["cove", "bay"].map(|name| pod_at(&survivor, name).map(|pod| (name, pod)));
    let pods: Vec<(&str, String)> = pods.into_iter().collect::<Result<_>>()?;
    let hostname = |hub: &Kubectl, site: &str, pod: &str| -> Result<()> {
        let host = hub.run(&["exec", pod, "--", "hostname"])?;
        ensure!(host.trim() == pod.trim_end_matches(&format!(".{site}")), "{host}");
        Ok(())
    };
    // Both reach both.
    for hub in [&a, &b] {
        for (site, pod) in &pods {
            ensure!(hub.kubectl().run(&["logs", pod])?.contains("hello"));
            hostname(&hub.kubectl(), site, pod)?;
        }
    }
    let line = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].containerID}";
    let running = || -> Result<[String; 2]> {
        let at = |site: &Member| site.kubectl().run(&["get", "pods", "-o", line]);
        Ok([at(&cove)?, at(&bay)?])
    };
    let before = running()?;

    a.process.kill();
    let killed = Instant::now();
    // The site of the survivor never lost its tie.
    hostname(&survivor, "bay", &pods[1].1)?;
    wait_for("exec through the survivor", PATIENCE, || hostname(&survivor, "cove", &pods[0].1))?;
    println!("the site of the replica that died was reached through the other after {:?}", killed.elapsed());
    held_by(&survivor, "tombolo-system", "tombolo-fleet", &host_b)?;
    held_by(&survivor, "site-cove", "tombolo-site", &host_b)?;
    survivor.run(&["scale", "deploy/web", "--replicas=4"])?;
    survivor.run(&["wait", "deploy/web", "--for=jsonpath={.status.readyReplicas}=4", "--timeout=60s"])?;
    for name in ["cove", "bay"] {
        survivor.until(&["get", "node", name], " Ready ", PATIENCE)?;
    }
    for (before, after) in before.iter().zip(running()?) {
        ensure!(before.split_whitespace().all(|id| after.contains(id)), "{before}, then {after}");
    }
    // The first one comes back, and follows.
    let a = host_a.tombolo("hub", &flags)?;
    for (site, pod) in &pods {
        wait_for("the first replica to reach the sites again", PATIENCE, || {
            hostname(&a.kubectl(), site, pod)
        })?;
    }
    held_by(&a.kubectl(), "tombolo-system", "tombolo-fleet", &host_b)?;
    // Whoever cannot say that it hears a site must not be heard by it: the site would count on a lease that all others take
    // for over.
    for site in ["site-cove", "site-bay"] {
        held_by(&a.kubectl(), site, "tombolo-site", &host_b)?;
    }
    let before = running()?;
    lan.cut_between(&host_b, &store);
    for site in ["site-cove", "site-bay"] {
        held_by(&a.kubectl(), site, "tombolo-site", &host_a)?;
    }
    held_by(&a.kubectl(), "tombolo-system", "tombolo-fleet", &host_a)?;
    for (site, pod) in &pods {
        wait_for("the sites to be reached", PATIENCE, || hostname(&a.kubectl(), site, pod))?;
    }
    ensure!(running()? == before, "{before:?}, then {:?}", running()?);
    // A site may also give up by itself, sooner or later; that must not be what the others count on.
    let log = b.process.log();
    ensure!(log.contains("this replica cannot write that it hears the site"), "{log}");
    Ok(())
}
