//! `bench wan`: how long a Deployment takes from the hub to a site and back, by the delay of the link, in the phases of
//! the report "Kubernetes and the Edge?".

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tombolo_tests::wan::{Applier, Observer, Phases, Wan, deployment, walk};
use tombolo_wan::Link;

use crate::report::{Figure, Goal, write_figures};

#[derive(clap::Args)]
pub struct Args {
    /// Deployments per delay, one after the other
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// One-way delays in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [0, 50, 250, 400])]
    delays: Vec<u64>,
    /// Deployments at once on the lossy link
    #[arg(long, default_value_t = 50)]
    deployments: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let wan = Wan::start(&[])?;
    let (hub, site) = (Observer::start(&wan.hub)?, Observer::start(&wan.site)?);
    let applier = Applier::start(&wan.hub)?;
    walk(&applier, &hub, &site, "warm-up").with_context(|| wan.logs())?;
    let mut figures = Vec::new();
    for delay in &args.delays {
        wan.link(Link { delay: Duration::from_millis(*delay), ..Link::default() });
        // The first call after a change finds the old round trip.
        walk(&applier, &hub, &site, &format!("first-{delay}")).with_context(|| wan.logs())?;
        let walks: Result<Vec<Phases>> =
            (0..args.rounds).map(|n| walk(&applier, &hub, &site, &format!("d{delay}-{n}"))).collect();
        figures.extend(phases(*delay, &walks.with_context(|| wan.logs())?));
    }
    figures.extend(lossy(&wan, &applier, &hub, args.deployments)?);
    let note = format!(
        "Hub and Tombolo site with a node and real containers, each in a network namespace; between them a relay of packets \
         with the delay given (one way). Medians of {} Deployments of one replica, one after the other. Created: the request \
         is sent to the hub. Scheduled and running: as a watch of pods beside the site shows it. Seen: as a watch of pods \
         beside the hub shows it.",
        args.rounds
    );
    write_figures("wan", &note, &figures)
}

fn phases(delay: u64, walks: &[Phases]) -> Vec<Figure> {
    let ms = |f: &dyn Fn(&Phases) -> Duration| -> Vec<f64> {
        walks.iter().map(|walk| f(walk).as_secs_f64() * 1e3).collect()
    };
    let most = |more: u64| Some(Goal::AtMost((delay + more) as f64));
    let at = |what: &str| format!("{delay} ms one way: {what}");
    vec![
        Figure::new(at("created to scheduled"), "ms", ms(&|p| p.created_to_scheduled), None),
        Figure::new(at("scheduled to running"), "ms", ms(&|p| p.scheduled_to_running), None),
        Figure::new(at("running to seen"), "ms", ms(&|p| p.running_to_seen), most(50)),
        Figure::new(at("apply to running"), "ms", ms(&|p| p.apply_to_running()), most(100)),
    ]
}

/// Many Deployments at 400 ms and 10 % loss, beside the log of a pod that talks all the time.
fn lossy(wan: &Wan, applier: &Applier, hub: &Observer, count: usize) -> Result<Vec<Figure>> {
    wan.link(Link::default());
    let talk = "while true; do echo the quick brown fox jumps over the lazy dog; usleep 2000; done";
    applier.create(vec![deployment("chatty", talk)])?;
    hub.until_running(&["chatty".into()], Duration::from_secs(60))?;
    wan.link(Link { delay: Duration::from_millis(400), loss: 0.1, up: true });
    let dir = tempfile::tempdir()?;
    let mut logs = wan.hub.follow("logs", &["logs", "-f", "deploy/chatty"], dir.path())?;
    std::thread::sleep(Duration::from_secs(5));
    let before = logs.log().lines().count();
    let apps: Vec<String> = (0..count).map(|n| format!("lossy-{n}")).collect();
    let began = Instant::now();
    applier.create(apps.iter().map(|name| deployment(name, "sleep 100000")).collect())?;
    hub.until_running(&apps, Duration::from_secs(300)).with_context(|| wan.logs())?;
    let took = began.elapsed().as_secs_f64();
    logs.alive()?;
    let lines = (logs.log().lines().count() - before) as f64 / took;
    let lost = wan.hub_log().matches("lost: not heard since").count();
    let at = |what: &str| format!("400 ms one way, 10 % loss: {what}");
    Ok(vec![
        Figure::new(
            at(&format!("{count} Deployments running and seen")),
            "s",
            vec![took],
            Some(Goal::AtMost(60.0)),
        ),
        Figure::new(at("lines a second of `logs -f` meanwhile"), "/s", vec![lines], None),
        Figure::new(at("leases lost"), "", vec![lost as f64], Some(Goal::AtMost(0.0))),
    ])
}
