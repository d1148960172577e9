//! Probes: startup, readiness and liveness of containers, each on its own clock.

mod target;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) use target::Target;

use crate::context::Context;
use crate::pod::memory::Memory;
use crate::pod::plan::{self, is_sidecar, is_started};
use crate::pod::spec;
use crate::runtime::{ContainerPhase, ExecRequest, PodState};

/// Of a probe's output, an event shows this much.
const SHOWN: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Readiness => "Readiness",
            Kind::Liveness => "Liveness",
        }
    }
}

/// News from a probe. `verdict`: the threshold was reached; `trouble`: a single try failed.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub container: String,
    pub id: String,
    pub kind: Kind,
    pub verdict: Option<bool>,
    pub trouble: Option<String>,
}

/// The probes of one pod that are under way.
pub(crate) struct Probers {
    ctx: Arc<Context>,
    results: mpsc::Sender<Outcome>,
    running: HashMap<(String, Kind), JoinHandle<()>>,
}

impl Probers {
    pub fn new(ctx: Arc<Context>, results: mpsc::Sender<Outcome>) -> Probers {
        Probers { ctx, results, running: HashMap::new() }
    }

    /// Starts what should be probed and ends what should not.
    pub fn keep(&mut self, pod: &Arc<Pod>, state: &PodState, memory: &Memory) {
        let mut wanted = Vec::new();
        let spec = pod.spec.clone().unwrap_or_default();
        let all =
            spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)));
        for container in all {
            let Some(current) = plan::latest(state, &container.name) else { continue };
            if !matches!(current.phase, ContainerPhase::Running { .. })
                || memory.stopping.contains(&current.id)
            {
                continue;
            }
            let started = is_started(container, current, memory);
            let kinds = [
                (Kind::Startup, &container.startup_probe, !started),
                (Kind::Readiness, &container.readiness_probe, started),
                (Kind::Liveness, &container.liveness_probe, started),
            ];
            for (kind, probe, due) in kinds {
                if let (Some(probe), true) = (probe, due) {
                    wanted.push((current.id.clone(), kind));
                    let key = (current.id.clone(), kind);
                    if self.running.get(&key).is_none_or(|task| task.is_finished()) {
                        let age = jiff::Timestamp::now().duration_since(current.started);
                        let age = Duration::try_from(age).unwrap_or_default();
                        let task = Prober {
                            ctx: self.ctx.clone(),
                            pod: pod.clone(),
                            container: container.clone(),
                            id: current.id.clone(),
                            kind,
                            probe: probe.clone(),
                            results: self.results.clone(),
                        };
                        self.running.insert(key, tokio::spawn(task.run(age)));
                    }
                }
            }
        }
        self.running.retain(|key, task| {
            let keep = wanted.contains(key);
            if !keep {
                task.abort();
            }
            keep
        });
    }

    pub fn forget(&mut self, id: &str) {
        self.running.retain(|(other, _), task| {
            if other == id {
                task.abort();
            }
            other != id
        });
    }

    pub fn stop(&mut self) {
        self.running.drain().for_each(|(_, task)| task.abort());
    }
}

impl Drop for Probers {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Prober {
    ctx: Arc<Context>,
    pod: Arc<Pod>,
    container: Container,
    id: String,
    kind: Kind,
    probe: Probe,
    results: mpsc::Sender<Outcome>,
}

impl Prober {
    async fn run(self, age: Duration) {
        let seconds =
            |value: Option<i32>, default: i32| Duration::from_secs(value.unwrap_or(default).max(0) as u64);
        let period = seconds(self.probe.period_seconds, 10).max(Duration::from_secs(1));
        let limit = seconds(self.probe.timeout_seconds, 1).max(Duration::from_secs(1));
        let delay = seconds(self.probe.initial_delay_seconds, 0);
        tokio::time::sleep(delay.saturating_sub(age)).await;
        let needed = |value: Option<i32>, default: i32| value.unwrap_or(default).max(1);
        let (to_succeed, to_fail) =
            (needed(self.probe.success_threshold, 1), needed(self.probe.failure_threshold, 3));
        let (mut successes, mut failures) = (0, 0);
        let mut said = None;
        // A readiness probe asks soon again until the first success: the pod is waiting for it.
        let mut quick = Duration::from_millis(100);
        loop {
            // What the runtime keeps us from asking tells nothing about the container.
            if self.ctx.runtime.answers().await.is_err() {
                tokio::time::sleep(period).await;
                continue;
            }
            let outcome = tokio::time::timeout(limit, self.once(limit)).await;
            let outcome = outcome.unwrap_or_else(|_| {
                Err(format!("command timed out or no answer within {} s", limit.as_secs()))
            });
            if outcome.is_err() && self.ctx.runtime.answers().await.is_err() {
                tokio::time::sleep(period).await;
                continue;
            }
            let trouble = outcome.as_ref().err().map(|why| {
                let why: String = why.chars().take(SHOWN).collect();
                format!("{} probe failed: {why}", self.kind.word())
            });
            if outcome.is_ok() {
                (successes, failures) = (successes + 1, 0);
            } else {
                (successes, failures) = (0, failures + 1);
            }
            let verdict = match outcome {
                Ok(()) if successes >= to_succeed => Some(true),
                Err(_) if failures >= to_fail => Some(false),
                _ => None,
            };
            let early = said.is_none()
                && self.kind != Kind::Liveness
                && failures < to_fail
                && delay.is_zero()
                && outcome.is_err();
            let news = verdict.filter(|v| said != Some(*v));
            if news.is_some() {
                said = news;
            }
            // While a program is starting, not answering yet is no news.
            let trouble = trouble.filter(|_| !(early && quick < Duration::from_secs(1)));
            if news.is_some() || trouble.is_some() {
                let (container, id) = (self.container.name.clone(), self.id.clone());
                let outcome = Outcome { container, id, kind: self.kind, verdict: news, trouble };
                if self.results.send(outcome).await.is_err() {
                    return;
                }
            }
            if early && quick < Duration::from_secs(1) && quick < period {
                // These tries come on top of the ones the pod asked for, so they do not count against it.
                failures = 0;
                tokio::time::sleep(quick).await;
                quick *= 2;
            } else {
                tokio::time::sleep(period).await;
            }
        }
    }

    async fn once(&self, limit: Duration) -> Result<(), String> {
        if let Some(exec) = &self.probe.exec {
            let command = exec.command.clone().unwrap_or_default();
            let request = ExecRequest { command, stdout: true, stderr: true, ..ExecRequest::default() };
            let (code, output) = self::exec(&self.ctx, spec::uid(&self.pod), &self.id, &request).await?;
            return if code == 0 { Ok(()) } else { Err(output) };
        }
        let address = address(&self.ctx, &self.pod).await.ok_or("the pod has no address")?;
        Target::of(&self.probe, &self.container, &address)?.check(limit).await
    }
}

/// The address a pod's ports answer at.
pub(crate) async fn address(ctx: &Context, pod: &Pod) -> Option<String> {
    if pod.spec.as_ref()?.host_network == Some(true) {
        return ctx.host_addresses.now().first().cloned();
    }
    let state = ctx.runtime.pod(spec::uid(pod)).await.ok()?;
    state.sandbox?.addresses.first().map(ToString::to_string)
}

/// Runs a command to its end and returns its code and output.
pub(crate) async fn exec(
    ctx: &Context,
    uid: &str,
    id: &str,
    request: &ExecRequest,
) -> Result<(i32, String), String> {
    let mut session = ctx.runtime.exec(uid, id, request).await.map_err(|e| e.to_string())?;
    let mut output = Vec::new();
    let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
    let read = |stream: Option<crate::runtime::Output>| async move {
        let mut text = Vec::new();
        if let Some(stream) = stream {
            let _ = stream.take(64 * 1024).read_to_end(&mut text).await;
        }
        text
    };
    let (out, err) = tokio::join!(read(stdout), read(stderr));
    output.extend(out);
    output.extend(err);
    let code = session.done.await.map_err(|_| "the command was cut off".to_owned())??;
    Ok((code, String::from_utf8_lossy(&output).into_owned()))
}
