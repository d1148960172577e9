//! One task per pod: look at what is, decide, act, report.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, mpsc, watch};

use super::fencing::Fencing;
use super::memory::Memory;
use super::plan::{self, Action, Decision};
use super::spec;
use super::status::{self, Facts};
use crate::context::{Context, essence, remember_pod, remembered_pod};
use crate::probe::{self, Outcome};
use crate::report;
use crate::runtime::{ContainerPhase, PodState};
use crate::start::{self, StartError};
use crate::stop;

/// Volumes made from objects follow them within this time.
const REFRESH: Duration = Duration::from_secs(45);
/// While the runtime does not say what runs.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A missed wake-up costs at most this.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Probe results waiting for the worker; a probe waits when it is full, which only slows probing.
const RESULTS: usize = 64;

/// What the API says about a pod.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Here(Arc<Pod>),
    /// It is no longer in the API: stop it and forget it.
    Gone(Arc<Pod>),
}

impl Wanted {
    pub fn pod(&self) -> &Arc<Pod> {
        match self {
            Wanted::Here(pod) | Wanted::Gone(pod) => pod,
        }
    }

    /// It is to stop, whatever else it says.
    pub fn is_ending(&self) -> bool {
        matches!(self, Wanted::Gone(_)) || self.pod().metadata.deletion_timestamp.is_some()
    }
}

/// A running worker, as the node sees it.
pub(crate) struct Handle {
    pub wanted: watch::Sender<Wanted>,
    pub wake: Arc<Notify>,
    /// Set by the node to give the pod up: (reason, message).
    pub verdict: Verdict,
    pub task: tokio::task::JoinHandle<()>,
}

impl Handle {
    /// The pod, while it takes room here: one that is over takes none.
    pub fn occupant(&self) -> Option<Arc<Pod>> {
        if self.task.is_finished() {
            return None;
        }
        let pod = self.wanted.borrow().pod().clone();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        (!matches!(phase, Some("Failed" | "Succeeded"))).then_some(pod)
    }
}

pub(crate) type Verdict = Arc<parking_lot::Mutex<Option<(String, String)>>>;

/// `refusal`: why the pod cannot be here; it is told, and nothing is started.
pub(crate) fn spawn(ctx: Arc<Context>, wanted: Wanted, refusal: Option<(String, String)>) -> Handle {
    let (sender, receiver) = watch::channel(wanted);
    let wake = Arc::new(Notify::new());
    let verdict = Verdict::new(parking_lot::Mutex::new(refusal));
    let worker = Worker::new(ctx, receiver, wake.clone(), verdict.clone());
    Handle { wanted: sender, wake, verdict, task: tokio::spawn(worker.run()) }
}

struct Worker {
    ctx: Arc<Context>,
    wanted: watch::Receiver<Wanted>,
    wake: Arc<Notify>,
    verdict: Verdict,
    memory: Memory,
    reporter: report::Reporter,
    probes: probe::Probers,
    results: mpsc::Receiver<Outcome>,
    stops: tokio::task::JoinSet<String>,
    last_refresh: tokio::time::Instant,
    fencing: Fencing,
    /// What is on disk of the pod, as far as it matters there.
    kept: Option<Pod>,
}

impl Worker {
    fn new(
        ctx: Arc<Context>,
        wanted: watch::Receiver<Wanted>,
        wake: Arc<Notify>,
        verdict: Verdict,
    ) -> Worker {
        let (sender, results) = mpsc::channel(RESULTS);
        let pod = wanted.borrow().pod().clone();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let mut memory = Memory::default();
        memory.finished = matches!(phase, "Succeeded" | "Failed");
        let fencing = Fencing::start(&ctx, &pod);
        Worker {
            reporter: report::Reporter::start(ctx.clone(), &pod),
            probes: probe::Probers::new(ctx.clone(), sender),
            ctx,
            wanted,
            wake,
            verdict,
            memory,
            results,
            stops: tokio::task::JoinSet::new(),
            last_refresh: tokio::time::Instant::now(),
            fencing,
            kept: None,
        }
    }

    fn pod(&self) -> Arc<Pod> {
        self.wanted.borrow().pod().clone()
    }

    async fn run(mut self) {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let pod = wanted.pod().clone();
            if matches!(wanted, Wanted::Here(_)) {
                self.remember(&pod).await;
            }
            if wanted.is_ending() {
                self.end(matches!(wanted, Wanted::Gone(_))).await;
                return;
            }
            let sleep = self.turn(&pod).await;
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return },
                () = self.wake.notified() => {}
                () = self.fencing.renewed() => {}
                Some(outcome) = self.results.recv() => self.probed(&pod, outcome),
                Some(stopped) = self.stops.join_next() => if let Ok(id) = stopped {
                    self.memory.stopping.retain(|other| *other != id);
                },
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Keeps the pod on disk, if something changed that a start without the API depends on.
    async fn remember(&mut self, pod: &Arc<Pod>) {
        let (dir, pod, new) = (self.ctx.pod_dir(spec::uid(pod)), pod.clone(), essence(pod));
        let first = self.kept.is_none();
        if self.kept.as_ref() == Some(&new) {
            return;
        }
        self.kept = Some(new.clone());
        let write = move || {
            if !first || remembered_pod(&dir).map(|old| essence(&old)) != Some(new) {
                remember_pod(&dir, &pod);
            }
        };
        let _ = tokio::task::spawn_blocking(write).await;
    }

    /// One look, one decision, its actions, one report. Returns how long nothing needs to be done.
    async fn turn(&mut self, pod: &Arc<Pod>) -> Duration {
        let uid = spec::uid(pod).to_owned();
        if let Some(verdict) = self.verdict.lock().take() {
            self.memory.failed.get_or_insert(verdict);
        }
        let mut decision = Decision::default();
        // An action may allow the next one at once (the sandbox is there: start the containers).
        for _ in 0..16 {
            let Some(state) = self.look(&uid).await else { return ASK_AGAIN };
            self.mind_deadline(pod, &state).await;
            decision = plan::plan(pod, &state, &self.memory, Timestamp::now());
            self.note_backoff(pod, &state, &decision);
            if decision.actions.is_empty() || self.deleted() {
                break;
            }
            for action in decision.actions.clone() {
                self.act(pod, &state, action).await;
            }
            let Some(state) = self.look(&uid).await else { return ASK_AGAIN };
            self.report(pod, &state);
        }
        let Some(state) = self.look(&uid).await else { return ASK_AGAIN };
        self.probes.keep(pod, &state, &self.memory);
        let addresses = state.sandbox.as_ref().map(|s| s.addresses.clone()).unwrap_or_default();
        self.ctx.set_host_ports(&uid, pod, &addresses);
        self.report(pod, &state);
        self.refresh(pod, &state).await;
        let until = decision.wake.map(|at| at.duration_since(Timestamp::now()));
        until.map_or(LOOK_AGAIN, |d| {
            Duration::try_from(d).unwrap_or_default().min(LOOK_AGAIN) + Duration::from_millis(5)
        })
    }

    /// A pod that may run at most once starts only with its deadline set where it is enforced.
    async fn mind_deadline(&mut self, pod: &Pod, state: &PodState) {
        let held = self.fencing.hold(&self.ctx, pod, state).await.err();
        if held == self.memory.held {
            return;
        }
        if let Some(why) = &held {
            self.ctx.events.warning(pod, None, "AwaitingLease", why.clone());
        }
        for container in
            pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
        {
            let memory = self.memory.container_mut(&container.name);
            if memory.waiting.as_ref().is_none_or(|(reason, _)| reason == "AwaitingLease") {
                memory.waiting = held.clone().map(|why| ("AwaitingLease".to_owned(), why));
            }
        }
        self.memory.held = held;
    }

    fn deleted(&self) -> bool {
        self.wanted.borrow().is_ending()
    }

    /// Nothing while the runtime does not say: then nothing is decided or told, and what was told last stays.
    async fn look(&self, uid: &str) -> Option<PodState> {
        let looked = self.ctx.runtime.pod(uid).await;
        looked.inspect_err(|error| tracing::warn!(pod = uid, %error, "the runtime cannot say what runs")).ok()
    }

    /// However long it takes.
    async fn look_until_told(&self, uid: &str) -> PodState {
        loop {
            if let Some(state) = self.look(uid).await {
                return state;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    fn note_backoff(&mut self, pod: &Pod, state: &PodState, decision: &Decision) {
        let uid = spec::uid(pod);
        for name in &decision.backing_off {
            let memory = self.memory.container_mut(name);
            if memory.waiting.is_none() {
                let message = format!(
                    "back-off {}s restarting failed container={name} pod={}_{}({uid})",
                    memory.delay().as_secs(),
                    spec::name(pod),
                    spec::namespace(pod)
                );
                memory.waiting = Some(("CrashLoopBackOff".into(), message.clone()));
                let text = format!(
                    "Back-off restarting failed container {name} in pod {}_{}({uid})",
                    spec::name(pod),
                    spec::namespace(pod)
                );
                self.ctx.events.warning(pod, Some(name), "BackOff", text);
            }
        }
        for container in &state.containers {
            if matches!(container.phase, ContainerPhase::Running { .. }) {
                let memory = self.memory.container_mut(&container.name);
                memory.waiting = None;
                memory.not_before = None;
            }
        }
    }

    async fn act(&mut self, pod: &Arc<Pod>, state: &PodState, action: Action) {
        match action {
            Action::StartSandbox => self.start_sandbox(pod).await,
            Action::Start { name, attempt } => self.start_container(pod, state, &name, attempt).await,
            Action::Stop { id, name, reason, message } => {
                self.ctx.events.normal(pod, Some(&name), "Killing", message.clone());
                self.memory.container_mut(&name).stopped_for = Some((id.clone(), message));
                self.memory.stopping.push(id.clone());
                self.probes.forget(&id);
                let grace = stop::grace(pod, &name, reason == "Unhealthy");
                let (ctx, pod, wake) = (self.ctx.clone(), pod.clone(), self.wake.clone());
                self.stops.spawn(async move {
                    stop::container(&ctx, &pod, &name, &id, grace, &wake).await;
                    id
                });
            }
            Action::Fail { reason, message } => {
                self.ctx.events.warning(pod, None, reason, message.clone());
                self.memory.failed = Some((reason.to_owned(), message));
            }
            Action::StopSandbox => {
                if let Err(error) = self.ctx.runtime.stop_sandbox(spec::uid(pod)).await {
                    tracing::warn!(pod = spec::name(pod), %error, "the sandbox of a finished pod could not be stopped");
                }
                self.memory.finished = true;
                // A pod that is over leaves its logs and its status, not its files: they may be what filled the disk.
                let volumes = self.ctx.pod_dir(spec::uid(pod)).join("volumes");
                let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(volumes)).await;
            }
            Action::Remove { id } => {
                if let Some(old) = state.containers.iter().find(|c| c.id == id) {
                    start::forget_words(&self.ctx, spec::uid(pod), &old.name, old.attempt);
                }
                if let Err(error) = self.ctx.runtime.remove_container(spec::uid(pod), &id).await {
                    tracing::debug!(pod = spec::name(pod), %error, "an old container could not be removed");
                }
            }
        }
    }

    async fn start_sandbox(&mut self, pod: &Arc<Pod>) {
        match start::sandbox(&self.ctx, pod).await {
            Ok(()) => {
                self.memory.sandbox_failures = 0;
                self.memory.sandbox_retry = None;
            }
            Err(error) => {
                self.memory.sandbox_failures += 1;
                let wait = Duration::from_secs(1 << self.memory.sandbox_failures.min(6));
                self.memory.sandbox_retry = Timestamp::now().checked_add(wait).ok();
                self.ctx.events.warning(
                    pod,
                    None,
                    "FailedCreatePodSandBox",
                    format!("Failed to create pod sandbox: {error}"),
                );
            }
        }
    }

    async fn start_container(&mut self, pod: &Arc<Pod>, state: &PodState, name: &str, attempt: u32) {
        if let Some(last) = plan::latest(state, name)
            && let ContainerPhase::Exited { finished, .. } = last.phase
        {
            self.memory.container_mut(name).restarted(last.started, finished);
        }
        let mut wanted = self.wanted.clone();
        let ending = async move { drop(wanted.wait_for(Wanted::is_ending).await) };
        // A pod that is deleted does not wait for an image or for a runtime that hangs.
        let started = tokio::select! {
            started = start::container(&self.ctx, pod, name, attempt, &self.wake) => started,
            () = ending => return,
        };
        match started {
            Ok(()) => {
                let memory = self.memory.container_mut(name);
                memory.waiting = None;
                memory.not_before = None;
            }
            Err(StartError { reason, message }) => {
                self.ctx.events.warning(pod, Some(name), "Failed", format!("Error: {message}"));
                self.memory.container_mut(name).start_failed(Timestamp::now(), reason, message);
            }
        }
    }

    fn probed(&mut self, pod: &Pod, outcome: Outcome) {
        if let Some(message) = outcome.trouble {
            self.ctx.events.warning(pod, Some(&outcome.container), "Unhealthy", message);
        }
        let memory = self.memory.container_mut(&outcome.container);
        if memory.probed != outcome.id {
            memory.probed = outcome.id;
            memory.probes = Default::default();
        }
        let Some(verdict) = outcome.verdict else { return };
        match outcome.kind {
            probe::Kind::Startup => memory.probes.startup = Some(verdict),
            probe::Kind::Readiness => memory.probes.readiness = Some(verdict),
            probe::Kind::Liveness => memory.probes.liveness = Some(verdict),
        }
    }

    fn status(&self, pod: &Pod, state: &PodState) -> PodStatus {
        let last_words = |name: &str, container: &crate::runtime::ContainerState| {
            start::last_words(&self.ctx, pod, name, container)
        };
        let host_addresses = self.ctx.host_addresses.now();
        let facts = Facts {
            runtime: self.ctx.runtime.name(),
            host_addresses: &host_addresses,
            now: Timestamp::now(),
            last_words: &last_words,
        };
        status::status(pod, state, &self.memory, &facts)
    }

    fn report(&mut self, pod: &Pod, state: &PodState) {
        if self.memory.finished && self.memory.failed.is_none() && state.containers.is_empty() {
            // Adopted as finished: the API already has its last word.
            return;
        }
        let status = self.status(pod, state);
        self.reporter.report(status);
    }

    async fn refresh(&mut self, pod: &Arc<Pod>, state: &PodState) {
        if state.sandbox.is_none() || self.last_refresh.elapsed() < REFRESH || !self.ctx.is_online() {
            return;
        }
        self.last_refresh = tokio::time::Instant::now();
        if let Err(error) = start::volumes(&self.ctx, pod, state).await {
            tracing::warn!(pod = spec::name(pod), %error, "volumes could not be brought up to date");
        }
    }

    /// The pod is to go: stop it, say so, delete it from the API, and leave nothing behind.
    async fn end(mut self, gone: bool) {
        let pod = self.pod();
        let uid = spec::uid(&pod).to_owned();
        self.probes.stop();
        self.ctx.set_host_ports(&uid, &pod, &[]);
        let state = self.look_until_told(&uid).await;
        let mut stops = tokio::task::JoinSet::new();
        for group in stop::order(&pod, &state) {
            for (name, id) in group {
                self.ctx.events.normal(&pod, Some(&name), "Killing", format!("Stopping container {name}"));
                let (ctx, wanted, wake) = (self.ctx.clone(), self.wanted.clone(), self.wake.clone());
                let grace = Duration::from_secs(spec::grace_period(&pod).max(0) as u64);
                let pod = pod.clone();
                stops.spawn(async move {
                    stop::container_until(&ctx, &pod, &name, &id, grace, &wake, Some(wanted)).await;
                });
            }
            while stops.join_next().await.is_some() {}
        }
        // The statuses show how each container ended before the sandbox and its records go.
        let state = self.look_until_told(&uid).await;
        let last = (!state.containers.is_empty()).then(|| {
            let mut last = self.status(&pod, &state);
            if !matches!(last.phase.as_deref(), Some("Succeeded" | "Failed")) {
                let failed = state.containers.iter().any(|c| plan::exit_code(c) != Some(0));
                last.phase = Some(if failed { "Failed" } else { "Succeeded" }.to_owned());
            }
            last
        });
        loop {
            match self.ctx.runtime.stop_sandbox(&uid).await {
                Ok(()) => break,
                Err(error) => tracing::warn!(pod = spec::name(&pod), %error, "stopping the pod again"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if !gone {
            self.reporter.finish(last, &mut self.wanted).await;
        }
        loop {
            match self.ctx.runtime.remove_pod(&uid).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(pod = spec::name(&pod), %error, "removing the pod's folder again")
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
