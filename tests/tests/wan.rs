//! A hub and a site with a wide area network between them. The limits here are generous, because machines that run tests
//! are noisy; `cargo xtask bench wan` measures.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, require, wait_for};
use tombolo_tests::wan::{Applier, Observer, SITE, Wan, deployment, walk};
use tombolo_wan::Link;

/// What the site and the hub need for themselves on a busy machine with a debug build.
const SLACK: Duration = Duration::from_secs(3);

fn possible() -> bool {
    let root = std::process::Command::new("id").arg("-u").output();
    if !root.is_ok_and(|o| o.stdout.trim_ascii() == b"0") {
        assert!(std::env::var_os("CI").is_none(), "CI must run this as root");
        eprintln!("SKIPPED: network namespaces and containers need root");
        return false;
    }
    require(&[Fixture::Kubectl])
}

#[test]
fn a_deployment_crosses_a_slow_link_once_down_and_once_up() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let wan = Wan::start(&[])?;
    let (hub, site) = (Observer::start(&wan.hub)?, Observer::start(&wan.site)?);
    let applier = Applier::start(&wan.hub)?;
    walk(&applier, &hub, &site, "warm-up").with_context(|| wan.logs())?;
    // Long enough that one way more would show on the busiest machine.
    for delay in [250, 1000].map(Duration::from_millis) {
        wan.link(Link { delay, ..Link::default() });
        let phases = walk(&applier, &hub, &site, &format!("delay-{}", delay.as_millis()))
            .with_context(|| wan.logs())?;
        println!("{delay:?} one way: {phases:?}");
        ensure!(phases.apply_to_running() >= delay, "{phases:?} is faster than the link");
        ensure!(phases.apply_to_running() < 2 * delay + SLACK, "apply to running at {delay:?}: {phases:?}");
        ensure!(phases.running_to_seen < 2 * delay + SLACK, "running to seen at {delay:?}: {phases:?}");
    }

    // 400 ms and one packet in ten lost: fifty Deployments, beside the log of a pod that talks all the time.
    wan.link(Link::default());
    applier.create(vec![deployment(
        "chatty",
        "while true; do echo the quick brown fox jumps over the lazy dog; usleep 2000; done",
    )])?;
    hub.until_running(&["chatty".into()], Duration::from_secs(60)).with_context(|| wan.logs())?;
    wan.link(Link { delay: Duration::from_millis(400), loss: 0.1, up: true });
    let dir = tempfile::tempdir()?;
    let mut logs = wan.hub.follow("logs", &["logs", "-f", "deploy/chatty"], dir.path())?;
    let apps: Vec<String> = (0..50).map(|n| format!("app-{n}")).collect();
    let began = Instant::now();
    applier.create(apps.iter().map(|name| deployment(name, "sleep 100000")).collect())?;
    hub.until_running(&apps, Duration::from_secs(120)).with_context(|| wan.logs())?;
    println!("50 Deployments at 400 ms and 10 % loss: running and seen after {:?}", began.elapsed());
    logs.alive()?;
    let lines = || logs.log().lines().count();
    let before = lines();
    wait_for("more lines of the log", Duration::from_secs(30), || {
        let now = lines();
        ensure!(now > before.max(100), "{now} lines");
        Ok(())
    })?;
    ensure!(!wan.hub_log().contains("lost: not heard since"), "a lease was lost:\n{}", wan.hub_log());
    let nodes = wan.hub.kubectl(&["get", "nodes"])?;
    ensure!(nodes.contains(SITE) && !nodes.contains("NotReady"), "{nodes}");
    Ok(())
}
