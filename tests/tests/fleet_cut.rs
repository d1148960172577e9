//! A site that is cut off: it keeps right what it was told, also after a restart of its own, and when the link is back
//! only what differs crosses it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_tests::tied::Tied;

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

/// What crossed the link since `start`, down and up, when all that comes after a reconnection has come: reports, capacity,
/// the comparison.
fn since(tied: &Tied, start: (u64, u64)) -> Result<(u64, u64)> {
    let mut quiet = tied.bytes();
    wait_for("the link to be quiet", PATIENCE, || {
        std::thread::sleep(Duration::from_secs(2));
        let now = tied.bytes();
        let moved = now.0 - quiet.0;
        quiet = now;
        ensure!(moved < 4000, "{moved} bytes in two seconds");
        Ok(())
    })?;
    Ok((quiet.0 - start.0, quiet.1 - start.1))
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
        let (down, up) = since(&tied, start)?;
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

/// Longer than any heartbeat, retry or idle time of a connection.
#[test]
fn minutes_of_changes_on_both_sides_of_a_cut_cost_what_differs_and_restart_nothing() -> Result<()> {
    changes_on_both_sides("tfe", 81, Duration::from_secs(190))
}

#[test]
#[ignore = "takes more than an hour"]
fn an_hour_of_changes_on_both_sides_of_a_cut_costs_what_differs_and_restarts_nothing() -> Result<()> {
    changes_on_both_sides("tff", 82, Duration::from_secs(3600))
}

/// Changed at the hub in every turn of a cut.
const BUSY: usize = 3;
/// Deleted at the hub in the middle of it.
const DELETED: usize = 5;

fn changes_on_both_sides(prefix: &str, network: u8, length: Duration) -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let tied = Tied::start(prefix, network)?;
    let (hub, there) = (tied.hub.kubectl(), tied.site.kubectl());
    let start = tied.bytes();
    hub.apply(&web("report"))?;
    hub.apply(&many("green", 0..MANY))?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    let last = format!("big-{}", MANY - 1);
    there.until(&["get", "configmap", &last, "-o", "jsonpath={.data.colour}"], "green", PATIENCE)?;
    let all = since(&tied, start)?.0;
    let before = tied.pods()?;
    let revision = ["get", "replicaset", "-o", "jsonpath={.items[*].metadata.uid}"];
    let sets = there.run(&revision)?;

    tied.cut()?;
    let (began, crossed) = (Instant::now(), tied.bytes());
    let mut turn = 0;
    while began.elapsed() < length {
        turn += 1;
        // The hub changes the same few again and again, the site what it has of its own.
        hub.apply(&many(&format!("blue-{turn}"), 0..BUSY))?;
        there.run(&["annotate", "--overwrite", "deploy/web", &format!("keeper=anna-{turn}")])?;
        there.run(&["create", "configmap", &format!("tide-{turn}")])?;
        if turn == 2 {
            hub.run(&["delete", "configmap", &format!("big-{DELETED}")])?;
            hub.apply(&many("new", MANY..MANY + 1))?;
            // Somebody removes what the hub wants there: it is put back, with what the site knows.
            there.run(&["delete", "configmap", "settings"])?;
        }
        std::thread::sleep((length / 12).min(Duration::from_secs(60)));
    }
    there.until(&["get", "configmap", "settings", "-o", "jsonpath={.data.colour}"], "green", PATIENCE)?;
    ensure!(turn > 3, "only {turn} turns");
    ensure!(tied.bytes() == crossed, "the link was not cut");

    let (start, asked) = (tied.bytes(), tied.requests_for_works()?);
    tied.mend()?;
    let colour =
        |n: usize| there.run(&["get", "configmap", &format!("big-{n}"), "-o", "jsonpath={.data.colour}"]);
    wait_for("the site to have what the hub wants", PATIENCE, || {
        for n in 0..BUSY {
            ensure!(colour(n)? == format!("blue-{turn}"), "big-{n} is {}", colour(n)?);
        }
        ensure!(colour(DELETED).is_err(), "big-{DELETED} is still there");
        ensure!(colour(MANY)? == "new", "a new one is {}", colour(MANY)?);
        Ok(())
    })?;
    let (down, up) = since(&tied, start)?;
    let answered = tied.requests_for_works()?;
    let of = |verb: &str| answered.get(verb).copied().unwrap_or(0) - asked.get(verb).copied().unwrap_or(0);
    println!(
        "{turn} turns in {length:?}: {down} bytes down, {up} up, everything was {all}; {} Works read one by one, {} lists",
        of("get"),
        of("list")
    );
    // Three changed, one new, one tombstone: each crosses once, however often it was changed meanwhile.
    let differ = BUSY + 2;
    ensure!(of("list") > 0, "versions were not compared");
    ensure!((1..=differ as u64).contains(&of("get")), "{} Works were read, {differ} differ", of("get"));
    ensure!(
        down < (differ + 2) as u64 * FILLING as u64 * 3 / 2 && down > (BUSY + 1) as u64 * FILLING as u64,
        "{down} of {all} bytes for {differ} Works of {FILLING}"
    );
    ensure!(up < all / 4, "{up} bytes were reported");
    ensure!(tied.pods()? == before && there.run(&revision)? == sets, "something was restarted");
    let keeper = there.run(&["get", "deploy", "web", "-o", "jsonpath={.metadata.annotations.keeper}"])?;
    ensure!(keeper == format!("anna-{turn}"), "{keeper}");
    there.run(&["get", "configmap", "tide-1", &format!("tide-{turn}")])?;
    hub.run(&["rollout", "status", "deploy/web", "--timeout=60s"])?;
    Ok(())
}
