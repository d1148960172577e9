//! `bench api`: start, memory, durable creates, lists and watches, alternating between the two servers.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::contestant::Contestant;
use crate::load;
use crate::procfs::{cpu, resident_mb};
use crate::report::{Row, write};

#[derive(clap::Args)]
pub struct Args {
    /// How often the whole scenario runs on each server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Clients that create at the same time
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Pods in the list
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Watchers of one write
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// How long the creates run
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// What one round on one server measured, in the order of `ROWS`.
struct Round(Vec<f64>);

const ROWS: &[(&str, &str, &str, bool)] = &[
    ("start to ready", "s", "<= 0.2 s", false),
    ("memory, idle after start", "MB", "<= 30 MB", false),
    ("durable creates, 32 clients", "/s", ">= 5x", true),
    ("server CPU per create", "us", "<= 1/5", false),
    ("load generator CPU per create", "us", "shown only", false),
    ("list of 10,000 pods", "ms", "<= 1/5", false),
    ("1,000 watchers see one write", "ms", "<= 1/5", false),
    ("memory, after all of it", "MB", "shown only", false),
];

pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rounds: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    for number in 0..args.rounds {
        for (index, name) in ["upstream", "tombolo"].into_iter().enumerate() {
            println!("round {} of {}: {name}", number + 1, args.rounds);
            let (contestant, ready) = Contestant::start(name)?;
            rounds[index].push(runtime.block_on(round(&contestant, ready, args))?);
        }
    }
    let column = |side: usize, row: usize| rounds[side].iter().map(|round| round.0[row]).collect();
    let rows: Vec<_> = ROWS
        .iter()
        .enumerate()
        .map(|(n, (what, unit, goal, more_is_better))| Row {
            what,
            unit,
            upstream: column(0, n),
            tombolo: column(1, n),
            goal,
            more_is_better: *more_is_better,
        })
        .collect();
    let note = format!(
        "Medians of {} alternating rounds; upstream is kube-apiserver 1.36 with etcd 3.6. Both share the machine's cores \
         with the load generator, whose own cost is a row of its own.",
        args.rounds
    );
    write("api", &note, &rows)
}

async fn round(contestant: &Contestant, ready: Duration, args: &Args) -> Result<Round> {
    let pids = contestant.pids();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = resident_mb(&pids)?;
    let mut clients = Vec::new();
    for _ in 0..args.clients {
        clients.push(contestant.client().await?);
    }

    let (server, own) = (cpu(&pids)?, cpu(&[std::process::id()])?);
    let started = Instant::now();
    let created = load::create_config_maps(clients.clone(), Duration::from_secs(args.seconds)).await?;
    let rate = created as f64 / started.elapsed().as_secs_f64();
    let per_create = |spent: Duration| spent.as_secs_f64() * 1e6 / created as f64;
    let server_cost = per_create(cpu(&pids)? - server);
    let own_cost = per_create(cpu(&[std::process::id()])? - own);

    load::create_pods(&clients, args.pods).await?;
    let mut list = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        load::send(&clients[0], "GET", "/api/v1/namespaces/default/pods", None).await?;
        list = list.min(started.elapsed().as_secs_f64() * 1e3);
    }

    let mut fan_out = f64::INFINITY;
    for n in 0..3 {
        let seen = load::watch_fan_out(&clients, args.watchers, &format!("fan-out-{n}")).await?;
        fan_out = fan_out.min(seen.as_secs_f64() * 1e3);
    }
    let after = resident_mb(&pids)?;
    Ok(Round(vec![ready.as_secs_f64(), idle, rate, server_cost, own_cost, list, fan_out, after]))
}
