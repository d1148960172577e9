//! Deployments through the hub to a real Kubernetes, against the same directly: how long until their pods are scheduled,
//! and until they are gone again.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tombolo_testkit::{Kubectl, Process, Upstream, UpstreamOptions, cargo_binary};

use super::{client, start_hub, ticket};
use crate::load::send;
use crate::procfs::cpu;
use crate::report::{Figure, Goal, median};

const PATIENCE: Duration = Duration::from_secs(120);
/// Deployments one after the other, for the time of a single one.
const SINGLES: usize = 10;
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// When pods of an application were scheduled and gone, as the member's API shows it.
#[derive(Clone, Default)]
struct Pods(Arc<Mutex<HashMap<String, (Option<Instant>, Option<Instant>)>>>);

impl Pods {
    async fn watch(client: kube::Client) -> Result<Self> {
        let pods = Self::default();
        let this = pods.clone();
        let (ready, started) = tokio::sync::oneshot::channel();
        let mut ready = Some(ready);
        tokio::spawn(async move {
            // Without a pause after errors it would spin when the cluster is gone, and never let the benchmark end.
            let mut events = Box::pin(watcher(Api::<Pod>::all(client), Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => this.see(&pod, false),
                    Ok(Event::Delete(pod)) => this.see(&pod, true),
                    Ok(Event::InitDone) => drop(ready.take().map(|ready| ready.send(()))),
                    _ => {}
                }
            }
        });
        tokio::time::timeout(PATIENCE, started).await.context("no answer to the watch of pods")??;
        Ok(pods)
    }

    fn see(&self, pod: &Pod, gone: bool) {
        let Some(app) = pod.labels().get("app") else { return };
        let mut all = self.0.lock();
        let (scheduled, left) = all.entry(app.clone()).or_default();
        if pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) {
            scheduled.get_or_insert_with(Instant::now);
        }
        if gone {
            left.get_or_insert_with(Instant::now);
        }
    }

    /// Waits until all of these are scheduled, or gone; gives the moments.
    async fn all(&self, apps: &[String], gone: bool) -> Result<Vec<Instant>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let times: Vec<Instant> = {
                let all = self.0.lock();
                let one = |app: &String| {
                    all.get(app).and_then(|(scheduled, left)| if gone { *left } else { *scheduled })
                };
                apps.iter().filter_map(one).collect()
            };
            if times.len() == apps.len() {
                return Ok(times);
            }
            if Instant::now() > deadline {
                bail!("after {PATIENCE:?} {} of {} are there", times.len(), apps.len());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/main:1", "resources": {"requests": {"cpu": "1m"}}}]}}}})
}

/// Seconds of one side's round.
#[derive(Default)]
struct Times {
    single: Vec<f64>,
    single_gone: Vec<f64>,
    total: Vec<f64>,
    total_gone: Vec<f64>,
}

async fn round(api: &kube::Client, pods: &Pods, prefix: &str, count: usize, times: &mut Times) -> Result<()> {
    for n in 0..SINGLES {
        let name = format!("{prefix}-single-{n}");
        let asked = Instant::now();
        send(api, "POST", DEPLOYMENTS, Some(&deployment(&name))).await?;
        let there = pods.all(std::slice::from_ref(&name), false).await?;
        times.single.push(there[0].saturating_duration_since(asked).as_secs_f64());
        let asked = Instant::now();
        send(api, "DELETE", &format!("{DEPLOYMENTS}/{name}"), None).await?;
        let gone = pods.all(&[name], true).await?;
        times.single_gone.push(gone[0].saturating_duration_since(asked).as_secs_f64());
    }
    let apps: Vec<String> = (0..count).map(|n| format!("{prefix}-{n}")).collect();
    for gone in [false, true] {
        let asked = Instant::now();
        let calls = apps.iter().map(|name| async move {
            match gone {
                false => send(api, "POST", DEPLOYMENTS, Some(&deployment(name))).await,
                true => send(api, "DELETE", &format!("{DEPLOYMENTS}/{name}"), None).await,
            }
        });
        for sent in futures::stream::iter(calls).buffer_unordered(16).collect::<Vec<_>>().await {
            sent?;
        }
        let done = pods.all(&apps, gone).await?;
        let last = done.into_iter().max().context("nothing was created")?;
        let total = last.saturating_duration_since(asked).as_secs_f64();
        if gone { &mut times.total_gone } else { &mut times.total }.push(total);
    }
    Ok(())
}

/// A node object that takes pods. Nothing runs them: this is about the way to a scheduled pod.
pub fn ready_node(member: &Kubectl) -> Result<()> {
    member.add_node("n1", 5000)?;
    tombolo_testkit::wait_for("the default service account", PATIENCE, || {
        member.run(&["get", "sa", "default"])
    })
    .map(drop)
}

/// A control plane that serves at an address of the calling thread's network.
pub fn upstream(address: Ipv4Addr) -> Result<Upstream> {
    let options = UpstreamOptions {
        controllers: Some("*,-node-lifecycle-controller".into()),
        scheduler: true,
        lift_limits: true,
        ..Default::default()
    };
    Upstream::start_at(address, &options)
}

pub async fn measure(count: usize, rounds: usize) -> Result<Vec<Figure>> {
    let upstream = upstream(Ipv4Addr::LOCALHOST)?;
    ready_node(&upstream.kubectl())?;
    let dir = tempfile::tempdir()?;
    let hub = start_hub(dir.path(), &[])?;
    let mut line = std::process::Command::new(cargo_binary("tombolo"));
    line.args(["agent", "--name", "member", "--tier", "cloud", "--kubeconfig"]).arg(&upstream.kubeconfig);
    line.arg("--hub").args(ticket(&hub)?);
    let agent = Process::start("agent", line, dir.path())?;
    hub.kubectl().until(
        &["get", "nodes", "-o", "jsonpath={.items[*].status.allocatable.cpu}"],
        "64",
        PATIENCE,
    )?;

    let (below, above) = (client(&upstream.kubeconfig).await?, client(&hub.kubeconfig).await?);
    let pods = Pods::watch(below.clone()).await?;
    let (mut direct, mut through) = (Times::default(), Times::default());
    let (mut hub_spent, mut agent_spent) = (Vec::new(), Vec::new());
    let milliseconds = |pid: u32, before: Duration| -> Result<f64> {
        Ok((cpu(&[pid])? - before).as_secs_f64() * 1e3 / (SINGLES + count) as f64)
    };
    for n in 0..rounds {
        round(&below, &pods, &format!("direct-{n}"), count, &mut direct).await?;
        let before = (cpu(&[hub.process.pid()])?, cpu(&[agent.pid()])?);
        round(&above, &pods, &format!("hub-{n}"), count, &mut through).await?;
        hub_spent.push(milliseconds(hub.process.pid(), before.0)?);
        agent_spent.push(milliseconds(agent.pid(), before.1)?);
    }
    ensure!(!through.total.is_empty(), "at least one round is needed");
    let pair = |what: &str, direct: &[f64], through: &[f64], most: f64| {
        let ratio = median(through) / median(direct);
        let ms = |all: &[f64]| all.iter().map(|s| s * 1e3).collect::<Vec<_>>();
        [
            Figure::new(format!("{what}, directly"), "ms", ms(direct), None),
            Figure::new(format!("{what}, through the hub"), "ms", ms(through), None),
            Figure::new(format!("{what}, ratio"), "x", vec![ratio], Some(Goal::AtMost(most))),
        ]
    };
    Ok([
        pair("one Deployment, request to scheduled", &direct.single, &through.single, 1.5),
        pair("one Deployment, deleted to gone", &direct.single_gone, &through.single_gone, 1.5),
        pair(&format!("{count} Deployments, all scheduled"), &direct.total, &through.total, 1.2),
        pair(&format!("{count} Deployments, all gone"), &direct.total_gone, &through.total_gone, 1.2),
    ]
    .into_iter()
    .flatten()
    .chain([
        Figure::new("processor time of the hub for one Deployment, made and deleted", "ms", hub_spent, None),
        Figure::new("processor time of the agent for the same", "ms", agent_spent, None),
    ])
    .collect())
}
