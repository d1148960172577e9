//! When a hub says that a site is lost, and what it says of workloads there: not known, which is neither ready nor gone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_tests::tied::{IMAGE, LEASE, SITE, Tied};

const PATIENCE: Duration = Duration::from_secs(60);
/// Heartbeats come four times in a lease, so the last one may be that old when the link is cut; seconds are counted whole.
const EARLIER: Duration = Duration::from_millis(LEASE * 1000 / 4 + 1000);
/// The hub looks once a second; the rest is for a machine that is busy.
const LATER: Duration = Duration::from_secs(4);

/// One of each kind that has a rollout, and a Job that does not end.
fn workloads() -> String {
    let template = |app: &str, more: &str| {
        format!(
            "template: {{metadata: {{labels: {{app: {app}}}}}, spec: {{terminationGracePeriodSeconds: 0, {more}containers: [{{name: c, image: \"{IMAGE}\", imagePullPolicy: IfNotPresent}}]}}}}"
        )
    };
    let one = |version: &str, kind: &str, name: &str, spec: &str| {
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: default}}\nspec: {{{spec}}}\n"
        )
    };
    let set = |name: &str| format!("selector: {{matchLabels: {{app: {name}}}}}, {}", template(name, ""));
    [
        one("apps/v1", "Deployment", "web", &format!("replicas: 2, {}", set("web"))),
        one("apps/v1", "Deployment", "late", &format!("replicas: 1, {}", set("late"))),
        one("apps/v1", "StatefulSet", "db", &format!("replicas: 1, serviceName: db, {}", set("db"))),
        one("apps/v1", "DaemonSet", "lamp", &set("lamp")),
        one("batch/v1", "Job", "haul", &template("haul", "restartPolicy: Never, ")),
    ]
    .concat()
}

/// Seconds until the hub says `Ready=False` of the site, from when its link is cut.
fn until_lost(tied: &Tied) -> Result<Duration> {
    let began = Instant::now();
    tied.lan.cut_between(&tied.hub_host, &tied.site_host);
    let ready = ["get", "site", SITE, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"];
    tied.hub.kubectl().until(&ready, "False", PATIENCE)?;
    Ok(began.elapsed())
}

/// It must wait, and give up after the time that it was given.
fn waits(kubectl: &Kubectl, args: &[&str]) -> Result<()> {
    let all: Vec<&str> = args.iter().copied().chain(["--timeout=2s"]).collect();
    match kubectl.run(&all) {
        Ok(said) => anyhow::bail!("kubectl {} did not wait: {said}", all.join(" ")),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(said.contains("timed out") || said.contains("deadline exceeded"), "{said}");
            ensure!(!said.contains("successfully"), "{said}");
            Ok(())
        }
    }
}

#[test]
fn a_lost_site_is_seen_when_its_lease_is_over_and_what_it_runs_is_unknown_until_it_is_back() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let tied = Tied::start("tfl", 80)?;
    let hub = tied.hub.kubectl();
    hub.apply(&workloads())?;
    let rollouts = ["deploy/web", "deploy/late", "sts/db", "ds/lamp"];
    for what in rollouts {
        hub.run(&["rollout", "status", what, "--timeout=60s"])?;
    }
    hub.until(&["get", "job", "haul", "-o", "jsonpath={.status.active}"], "1", PATIENCE)?;
    let before = tied.pods()?;
    ensure!(!tied.hub.process.log().contains("lost: not heard"), "lost without a cut");

    let lease = Duration::from_secs(LEASE);
    for round in 1..=3 {
        let seen = until_lost(&tied)?;
        println!("round {round}: lost after {:.1} s, with a lease of {LEASE} s", seen.as_secs_f64());
        ensure!(seen >= lease - EARLIER, "given up after {seen:?}, with a lease of {lease:?}");
        ensure!(seen <= lease + LATER, "noticed after {seen:?}, with a lease of {lease:?}");
        if round < 3 {
            tied.mend()?;
        }
    }

    // Nobody knows: what exists still exists, nothing of it counts as ready, and nothing claims success.
    let number =
        |what: &str, field: &str| hub.run(&["get", what, "-o", &format!("jsonpath={{.status.{field}}}")]);
    wait_for("nothing to count as ready", PATIENCE, || {
        for (what, field) in [
            ("deploy/web", "readyReplicas"),
            ("deploy/web", "availableReplicas"),
            ("sts/db", "readyReplicas"),
            ("job/haul", "ready"),
        ] {
            let ready = number(what, field)?;
            ensure!(ready.is_empty() || ready == "0", "{field} of {what} is {ready}");
        }
        ensure!(number("ds/lamp", "numberReady")? == "0");
        Ok(())
    })?;
    ensure!(number("deploy/web", "replicas")? == "2", "unknown is not zero");
    ensure!(number("sts/db", "replicas")? == "1" && number("ds/lamp", "desiredNumberScheduled")? == "1");
    let available = number("deploy/web", "conditions[?(@.type=='Available')]")?;
    ensure!(available.contains("Unknown") && available.contains("harbour: not heard since"), "{available}");
    for what in rollouts {
        waits(&hub, &["rollout", "status", what])?;
    }
    waits(&hub, &["wait", "--for=condition=Available", "deploy/web"])?;
    waits(&hub, &["wait", "--for=jsonpath={.status.readyReplicas}=2", "deploy/web"])?;
    waits(&hub, &["wait", "--for=condition=complete", "job/haul"])?;
    waits(&hub, &["wait", "--for=condition=Ready", &format!("node/{SITE}")])?;
    waits(&hub, &["wait", "--for=condition=Ready", "pod", "-l", "app=web"])?;
    let pods = hub.run(&["get", "pods", "-l", "app=web", "--no-headers"])?;
    ensure!(pods.lines().count() == 2 && pods.contains("SiteSilent"), "{pods}");

    // A change that nobody has carried out is not rolled out, and one that asks for less is not either.
    hub.run(&["set", "env", "deploy/late", "COLOUR=blue"])?;
    hub.run(&["scale", "sts/db", "--replicas=0"])?;
    waits(&hub, &["rollout", "status", "deploy/late"])?;
    waits(&hub, &["rollout", "status", "sts/db"])?;
    hub.run(&["scale", "sts/db", "--replicas=1"])?;
    waits(&hub, &["rollout", "status", "sts/db"])?;

    tied.mend()?;
    for what in rollouts {
        hub.run(&["rollout", "status", what, "--timeout=60s"])?;
    }
    hub.run(&["wait", "--for=condition=Available", "deploy/web", "--timeout=30s"])?;
    hub.run(&["wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=30s"])?;
    let colour = tied.site.kubectl().run(&["get", "deploy", "late", "-o", "jsonpath={..env[0].value}"])?;
    ensure!(colour == "blue", "{colour}");
    // All but the pod that was changed go on as they were, and perhaps that of the set of which none was wanted for a
    // while: if the tunnel outlived the cut, the site hears of that first.
    let after = tied.pods()?;
    let replaced = before.lines().filter(|line| !after.contains(line)).count();
    ensure!((1..=2).contains(&replaced), "{replaced} pods were replaced:\n{before}\n{after}");
    Ok(())
}
