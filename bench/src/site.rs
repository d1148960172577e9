//! `bench site`: a whole cluster on one machine, against kube-apiserver, etcd, controller manager, scheduler, kubelet and
//! containerd. Needs root.

mod cluster;
mod pods;
mod upstream_node;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::runtime::Runtime;
use tombolo_wan::Namespace;

use crate::procfs::{Family, written};
use crate::report::{Row, median, write};
use cluster::{Cluster, Shape};

#[derive(clap::Args)]
pub struct Args {
    /// How often each cluster is made and measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Deployments to be scheduled
    #[arg(long, default_value_t = 100)]
    schedule: usize,
    /// Deployments to be run
    #[arg(long, default_value_t = 50)]
    run: usize,
    /// Pods that run while memory and writes are measured
    #[arg(long, default_value_t = 10)]
    pods: usize,
    /// How long the cluster is left alone before memory and writes are measured: what the pods' start left behind is
    /// written and forgotten by then
    #[arg(long, default_value_t = 330)]
    settle_seconds: u64,
    /// How long the idle cluster's writes are watched; the store compacts every five minutes
    #[arg(long, default_value_t = 330)]
    idle_seconds: u64,
    /// Which parts to run: `times` writes `site.md`, `rest` writes `site-rest.md`
    #[arg(long, value_delimiter = ',', default_value = "times,rest")]
    only: Vec<String>,
}

const DAY: f64 = 24.0 * 3600.0;
/// Memory is looked at so often: a process lets go of code twice a minute, and takes it back.
const SAMPLE: Duration = Duration::from_secs(7);
const SIDES: [&str; 2] = ["upstream", "tombolo"];
const PARTS: &str = "Upstream is kube-apiserver, etcd, controller manager and scheduler 1.36 with lifted client limits, kubelet \
    and containerd; Tombolo is `tombolo site --node` with the embedded runtime.";

pub fn run(args: &Args) -> Result<()> {
    // Everything from here on, programs included, is in a network of its own.
    let space = Namespace::create(&format!("tombolo-bench-{}", std::process::id()))
        .context("the benchmark runs containers, which needs root")?;
    tombolo_wan::enter(space.name())?;
    cluster::make_network()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for part in &args.only {
        match part.as_str() {
            "times" => times(args, &runtime)?,
            "rest" => rest(args, &runtime)?,
            other => bail!("there is no part {other}; write times, rest, or both"),
        }
    }
    Ok(())
}

/// How long it takes until many pods are scheduled, and until they run.
fn times(args: &Args, runtime: &Runtime) -> Result<()> {
    let mut measured: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..args.rounds {
        for (side, name) in SIDES.into_iter().enumerate() {
            println!("round {} of {}: {name}", round + 1, args.rounds);
            let cluster = Cluster::start(name, Shape::NodeObject)?;
            let time = runtime.block_on(pods::until(&cluster, args.schedule, pods::is_scheduled))?;
            measured[side][0].push(time.as_secs_f64());
            drop(cluster);

            let cluster = Cluster::start(name, Shape::RealNode)?;
            let time = runtime.block_on(pods::until(&cluster, args.run, pods::is_running))?;
            measured[side][1].push(time.as_secs_f64());
            runtime.block_on(pods::remove_all(&cluster))?;
        }
    }
    let names =
        [("Deployments to all pods scheduled", "s", ">= 10x"), ("Deployments to all running", "s", ">= 3x")];
    let note = format!(
        "{} Deployments scheduled onto a node object, and {} run by a real node. Medians of {} alternating rounds. {PARTS}",
        args.schedule, args.run, args.rounds
    );
    write("site", &note, &rows(&names, &measured))
}

/// What a cluster with a few pods costs while nothing happens.
fn rest(args: &Args, runtime: &Runtime) -> Result<()> {
    let mut measured: [[Vec<f64>; 2]; 2] = Default::default();
    for (side, name) in SIDES.into_iter().enumerate() {
        println!("at rest for {} s and {} s: {name}", args.settle_seconds, args.idle_seconds);
        let cluster = Cluster::start(name, Shape::RealNode)?;
        runtime.block_on(pods::until(&cluster, args.pods, pods::is_running))?;
        std::thread::sleep(Duration::from_secs(args.settle_seconds));
        let (memory, writes) = idle(&cluster.family()?, args.idle_seconds)?;
        measured[side][0].push(memory);
        measured[side][1].push(writes);
        runtime.block_on(pods::remove_all(&cluster))?;
    }
    let names = [
        ("memory of everything (proportional set size), with pods", "MB", "<= 60 MB"),
        ("written to disk in a day, idle, with pods", "MB", "<= 20 MB"),
    ];
    let note = format!(
        "{} pods at rest, {} s after they ran. {PARTS} Memory is the median over the next {} s of every process, shims and \
         containers too. Writes are those to the block layer (`/proc/<pid>/io`) in that time, times what a day has more.",
        args.pods, args.settle_seconds, args.idle_seconds
    );
    write("site-rest", &note, &rows(&names, &measured))
}

fn rows(names: &[(&'static str, &'static str, &'static str)], measured: &[[Vec<f64>; 2]; 2]) -> Vec<Row> {
    let row = |(n, (what, unit, goal)): (usize, &(&'static str, &'static str, &'static str))| Row {
        what,
        unit,
        upstream: measured[0][n].clone(),
        tombolo: measured[1][n].clone(),
        goal,
        more_is_better: false,
    };
    names.iter().enumerate().map(row).collect()
}

/// Over these seconds: the median of the processes' memory, and what they would write in a day at that rate; both in MB.
fn idle(family: &Family, seconds: u64) -> Result<(f64, f64)> {
    let (before, began) = (written(family.pids()), Instant::now());
    let mut memory = Vec::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        memory.push(family.pss_mb()?);
        std::thread::sleep(SAMPLE);
    }
    let bytes = written(family.pids()).saturating_sub(before);
    Ok((median(&memory), bytes as f64 / (1 << 20) as f64 * DAY / began.elapsed().as_secs_f64()))
}
