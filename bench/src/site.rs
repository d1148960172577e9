//! `bench site`: a whole cluster on one machine, against kube-apiserver, etcd, controller manager, scheduler, kubelet and
//! containerd. Needs root.

mod cluster;
mod pods;
mod upstream_node;

use std::time::Duration;

use anyhow::{Context, Result};
use tombolo_wan::Namespace;

use crate::procfs::{Family, written};
use crate::report::{Row, write};
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
    /// How long the idle cluster's writes are watched; the store compacts every five minutes. 0 leaves it out
    #[arg(long, default_value_t = 330)]
    idle_seconds: u64,
}

const DAY: f64 = 24.0 * 3600.0;
const SIDES: [&str; 2] = ["upstream", "tombolo"];

pub fn run(args: &Args) -> Result<()> {
    // Everything from here on, programs included, is in a network of its own.
    let space = Namespace::create(&format!("tombolo-bench-{}", std::process::id()))
        .context("the benchmark runs containers, which needs root")?;
    tombolo_wan::enter(space.name())?;
    cluster::make_network()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut measured: [[Vec<f64>; 4]; 2] = Default::default();
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
            runtime.block_on(pods::until(&cluster, args.pods, pods::is_running))?;
            std::thread::sleep(Duration::from_secs(10));
            measured[side][2].push(cluster.family()?.pss_mb()?);
            if args.idle_seconds > 0 && round == 0 {
                println!("  watching idle writes for {} s", args.idle_seconds);
                measured[side][3].push(idle_writes(&cluster.family()?, args.idle_seconds)?);
            }
            runtime.block_on(pods::remove_all(&cluster))?;
        }
    }
    let rows: Vec<Row> = [
        ("Deployments to all pods scheduled", "s", ">= 10x"),
        ("Deployments to all running", "s", ">= 3x"),
        ("memory of everything (proportional set size), with pods", "MB", "<= 60 MB"),
        ("written to disk in a day, idle, with pods", "MB", "<= 20 MB"),
    ]
    .into_iter()
    .enumerate()
    .map(|(n, (what, unit, goal))| Row {
        what,
        unit,
        upstream: measured[0][n].clone(),
        tombolo: measured[1][n].clone(),
        goal,
        more_is_better: false,
    })
    .filter(|row| !row.tombolo.is_empty())
    .collect();
    let note = format!(
        "{} Deployments scheduled onto a node object, {} run by a real node, then {} pods at rest. Medians of {} alternating \
         rounds. Upstream is kube-apiserver, etcd, controller manager and scheduler 1.36 with lifted client limits, kubelet \
         and containerd; Tombolo is `tombolo site --node` with the embedded runtime. Memory counts every process, shims and \
         containers too. Writes are those to the block layer (`/proc/<pid>/io`) over {} s in the first round, times what a \
         day has more.",
        args.schedule, args.run, args.pods, args.rounds, args.idle_seconds
    );
    write("site", &note, &rows)
}

/// What the processes write in a day at the rate of these seconds, in MB.
fn idle_writes(family: &Family, seconds: u64) -> Result<f64> {
    let before = written(family.pids());
    std::thread::sleep(Duration::from_secs(seconds));
    let bytes = written(family.pids()).saturating_sub(before);
    Ok(bytes as f64 / (1 << 20) as f64 * DAY / seconds as f64)
}
