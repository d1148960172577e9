//! `bench api`: start, memory, durable creates, lists and watches, alternating between the two servers.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde_json::json;

use crate::contestant::Contestant;
use crate::fan_out::{self, Watchers, Wire};
use crate::load;
use crate::procfs::{cpu, cpu_exact, resident_mb};
use crate::report::{Row, median, write};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

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
    /// Lists and watched writes per round; the round's number is their median
    #[arg(long, default_value_t = 11)]
    tries: usize,
    /// How long the creates run
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Leave out the memory after the kubectl suite
    #[arg(long)]
    no_suite: bool,
    /// Only this server (`upstream` or `tombolo`), printed and not recorded
    #[arg(long)]
    only: Option<String>,
}

/// What one round on one server measured: a number for each of `ROWS`.
type Round = [f64; ROWS.len()];

const ROWS: [(&str, &str, &str, bool); 18] = [
    ("start to ready", "s", "<= 0.2 s", false),
    ("memory, idle after start", "MB", "<= 30 MB", false),
    ("memory, after the kubectl suite", "MB", "<= 50 MB", false),
    ("durable creates, 32 clients", "/s", ">= 5x", true),
    ("server CPU per create", "us", "<= 1/5", false),
    ("load generator CPU per create", "us", "shown only", false),
    ("list of 10,000 pods", "ms", "<= 1/5", false),
    ("load generator CPU per list", "ms", "shown only", false),
    ("1,000 watchers see one write, a connection each", "ms", "<= 1/5", false),
    ("server CPU per such write", "ms", "shown only", false),
    ("load generator CPU per such write", "ms", "shown only", false),
    ("the same on loopback, receiving included", "ms", "shown only", false),
    ("server CPU per such write", "ms", "shown only", false),
    ("load generator CPU per such write", "ms", "shown only", false),
    ("1,000 watchers see one write, 100 on a connection", "ms", "<= 1/5", false),
    ("server CPU per such write", "ms", "shown only", false),
    ("load generator CPU per such write", "ms", "shown only", false),
    ("memory, after all of it", "MB", "shown only", false),
];

pub fn run(args: &Args) -> Result<()> {
    let wire = Wire::lay()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rounds: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    for number in 0..args.rounds {
        for (index, name) in ["upstream", "tombolo"].into_iter().enumerate() {
            if args.only.as_deref().is_some_and(|only| only != name) {
                continue;
            }
            println!("round {} of {}: {name}", number + 1, args.rounds);
            let worked_out = if args.no_suite { f64::NAN } else { after_suite(name)? };
            let (contestant, ready) = Contestant::start(name)?;
            rounds[index].push(runtime.block_on(round(&contestant, &wire, ready, worked_out, args))?);
        }
    }
    let column = |side: usize, row: usize| rounds[side].iter().map(|round| round[row]).collect();
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
    if args.only.is_some() {
        println!("{}", crate::report::table(&rows));
        return Ok(());
    }
    let note = format!(
        "Medians of {} alternating rounds; upstream is kube-apiserver 1.36 with etcd 3.6. Both share the machine's cores \
         with the load generator, whose own cost is shown in rows of its own. Watchers have a TLS connection each, as \
         nodes do, or share HTTP/2 connections, as client-go does within a program. The time is from sending the write until \
         the last watcher's packet: watchers stand for other machines, so what came is read and checked after the \
         measurement. Those with a connection each are behind a wire, and the time is until the packet is on it; on \
         loopback it is until the kernel has it, and the receiver's half of the network runs within the server's system calls.",
        args.rounds
    );
    write("api", &note, &rows)
}

/// Resident memory after everything that kubectl is asked to do in the tests.
fn after_suite(name: &str) -> Result<f64> {
    let (contestant, _) = Contestant::start(name)?;
    tombolo_tests::kubectl::both_releases(contestant.kubeconfig())?;
    resident_mb(&contestant.pids())
}

async fn round(
    contestant: &Contestant,
    wire: &Wire,
    ready: Duration,
    worked_out: f64,
    args: &Args,
) -> Result<Round> {
    let pids = contestant.pids();
    let own = [std::process::id()];
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = resident_mb(&pids)?;
    let mut clients = Vec::new();
    for _ in 0..args.clients {
        clients.push(contestant.client().await?);
    }

    let (server_before, own_before) = (cpu(&pids)?, cpu(&own)?);
    let started = Instant::now();
    let created = load::create_config_maps(clients.clone(), Duration::from_secs(args.seconds)).await?;
    let rate = created as f64 / started.elapsed().as_secs_f64();
    let per_create = |spent: Duration| spent.as_secs_f64() * 1e6 / created as f64;
    let server_create = per_create(cpu(&pids)? - server_before);
    let own_create = per_create(cpu(&own)? - own_before);

    load::create_pods(&clients, args.pods).await?;
    let mut lists = Vec::new();
    let before = cpu_exact(&own)?;
    for _ in 0..args.tries {
        let started = Instant::now();
        load::send(&clients[0], "GET", "/api/v1/namespaces/default/pods", None).await?;
        lists.push(milliseconds(started.elapsed()));
    }
    let own_list = milliseconds(cpu_exact(&own)? - before) / args.tries as f64;

    let access = contestant.access().await?;
    let path = format!("{SECRETS}?watch=true&timeoutSeconds=300");
    let beyond = fan_out::alone(&access, &path, args.watchers, Some(wire))?;
    let beyond = watched(&clients[0], "beyond", beyond, &pids, args.tries).await?;
    let alone = fan_out::alone(&access, &path, args.watchers, None)?;
    let alone = watched(&clients[0], "alone", alone, &pids, args.tries).await?;
    let together = fan_out::together(&access, &path, args.watchers)?;
    let together = watched(&clients[0], "together", together, &pids, args.tries).await?;
    Ok([
        ready.as_secs_f64(),
        idle,
        worked_out,
        rate,
        server_create,
        own_create,
        median(&lists),
        own_list,
        beyond[0],
        beyond[1],
        beyond[2],
        alone[0],
        alone[1],
        alone[2],
        together[0],
        together[1],
        together[2],
        resident_mb(&pids)?,
    ])
}

/// Milliseconds until all watchers saw a write, and what it cost the server and the generator.
async fn watched(
    client: &kube::Client,
    prefix: &str,
    mut watchers: impl Watchers,
    server: &[u32],
    tries: usize,
) -> Result<[f64; 3]> {
    let own = [std::process::id()];
    let mut seen = Vec::new();
    let (mut server_spent, mut own_spent) = (Duration::ZERO, Duration::ZERO);
    for n in 0..tries {
        // Apart from each other, so that no write meets what the one before it left to do.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let name = format!("{prefix}-{n:02}");
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"k": "v"}});
        let client = client.clone();
        watchers.expect()?;
        let before = (cpu_exact(server)?, cpu_exact(&own)?);
        let written = SystemTime::now();
        let write = tokio::spawn(async move { load::send(&client, "POST", SECRETS, Some(&secret)).await });
        watchers.rest()?;
        server_spent += cpu_exact(server)? - before.0;
        own_spent += cpu_exact(&own)? - before.1;
        seen.push(milliseconds(watchers.last_saw(&name)?.duration_since(written)?));
        write.await??;
    }
    let each = |total: Duration| milliseconds(total) / tries as f64;
    Ok([median(&seen), each(server_spent), each(own_spent)])
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
