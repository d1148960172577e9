//! What to do next for a pod: a pure function of what is wanted, what is, what is remembered and what time it is.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::memory::Memory;
use super::spec;
use crate::runtime::{ContainerPhase, ContainerState, PodState};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    StartSandbox,
    /// The number of the attempt is also the restart count.
    Start {
        name: String,
        attempt: u32,
    },
    /// Ask a container to end, then make it.
    Stop {
        id: String,
        name: String,
        reason: &'static str,
        message: String,
    },
    /// Give up the pod.
    Fail {
        reason: &'static str,
        message: String,
    },
    /// Nothing will run here again: free the address and the processes.
    StopSandbox,
    Remove {
        id: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    pub actions: Vec<Action>,
    /// Look again at this time even if nothing happens.
    pub wake: Option<Timestamp>,
    /// Containers that ended and wait before they start again.
    pub backing_off: Vec<String>,
}

impl Decision {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |old| old.min(at)));
    }
}

/// An init container that keeps running beside the main ones.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The newest container of a name.
pub(crate) fn latest<'a>(state: &'a PodState, name: &str) -> Option<&'a ContainerState> {
    state.containers.iter().filter(|c| c.name == name).max_by_key(|c| c.attempt)
}

/// How a container ended, if it did. One that was lost counts as failed.
pub(crate) fn exit_code(container: &ContainerState) -> Option<i32> {
    match container.phase {
        ContainerPhase::Running { .. } => None,
        ContainerPhase::Exited { code, .. } => Some(code),
        ContainerPhase::Lost => Some(255),
    }
}

fn running(container: &ContainerState) -> bool {
    matches!(container.phase, ContainerPhase::Running { .. })
}

fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always")
}

fn restarts(policy: &str, code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

/// Every main container has ended for good.
pub(crate) fn main_done(pod: &Pod, state: &PodState) -> bool {
    let policy = restart_policy(pod);
    let Some(spec) = &pod.spec else { return false };
    spec.containers.iter().all(|container| {
        let ended = latest(state, &container.name).and_then(exit_code);
        ended.is_some_and(|code| !restarts(policy, code))
    })
}

/// An init container has failed and will not be tried again.
pub(crate) fn init_failed(pod: &Pod, state: &PodState) -> bool {
    let policy = restart_policy(pod);
    let init = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    policy == "Never"
        && init
            .filter(|c| !is_sidecar(c))
            .any(|container| latest(state, &container.name).and_then(exit_code).is_some_and(|code| code != 0))
}

/// The pod's own deadline, counted from when it was first accepted.
fn deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    start.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// What to do for a pod that should run. Deletion is the worker's business.
pub(crate) fn plan(pod: &Pod, state: &PodState, memory: &Memory, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    if memory.finished || memory.failed.is_some() || main_done(pod, state) || init_failed(pod, state) {
        finish(state, memory, &mut decision);
        return decision;
    }
    if let Some(at) = deadline(pod) {
        if now >= at {
            let message = "Pod was active on the node longer than the specified deadline".to_owned();
            decision.actions.push(Action::Fail { reason: "DeadlineExceeded", message });
            return decision;
        }
        decision.wake_at(at);
    }
    if state.sandbox.is_none() && memory.held.is_some() {
        return decision;
    }
    if state.sandbox.is_none() {
        match memory.sandbox_retry.filter(|at| *at > now) {
            Some(at) => decision.wake_at(at),
            None => decision.actions.push(Action::StartSandbox),
        }
        return decision;
    }
    for container in spec::ephemeral(pod) {
        if latest(state, &container.name).is_none() {
            start(&container, state, memory, now, &mut decision);
        }
    }
    // What ran before the machine went down tells nothing about whether initialization is done.
    let fresh = |c: &ContainerState| c.current;
    if initialize(pod, state, memory, now, &fresh, &mut decision) {
        for container in pod.spec.iter().flat_map(|s| &s.containers) {
            run(pod, container, state, memory, now, &mut decision);
        }
    }
    forget_old(state, &mut decision);
    decision
}

/// Works through the init containers; true when the main ones may start.
fn initialize(
    pod: &Pod,
    state: &PodState,
    memory: &Memory,
    now: Timestamp,
    fresh: &dyn Fn(&ContainerState) -> bool,
    decision: &mut Decision,
) -> bool {
    let init: Vec<&Container> = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten()).collect();
    let mains = pod.spec.iter().flat_map(|s| &s.containers);
    // Once a main container runs (or ran here), initialization is over; only sidecars are kept alive.
    let past = mains.clone().any(|c| latest(state, &c.name).is_some_and(fresh));
    for container in init {
        let current = latest(state, &container.name);
        if is_sidecar(container) {
            run(pod, container, state, memory, now, decision);
            let started = current.is_some_and(|c| running(c) && is_started(container, c, memory));
            if !started && !past {
                return false;
            }
            continue;
        }
        if past {
            continue;
        }
        match current.filter(|c| fresh(c)) {
            Some(c) if running(c) => return false,
            Some(c) if exit_code(c) == Some(0) => {}
            _ => {
                // A failed one is tried again unless the pod says never, which was handled before.
                start(container, state, memory, now, decision);
                return false;
            }
        }
    }
    true
}

/// The startup probe, where there is one, has passed.
pub(crate) fn is_started(container: &Container, state: &ContainerState, memory: &Memory) -> bool {
    container.startup_probe.is_none() || memory.probes(&container.name, &state.id).startup == Some(true)
}

/// Keeps one container running according to the pod's policy.
fn run(
    pod: &Pod,
    container: &Container,
    state: &PodState,
    memory: &Memory,
    now: Timestamp,
    decision: &mut Decision,
) {
    let policy = if is_sidecar(container) { "Always" } else { restart_policy(pod) };
    match latest(state, &container.name) {
        Some(current) if running(current) => {
            let probes = memory.probes(&container.name, &current.id);
            if memory.stopping.contains(&current.id) {
                return;
            }
            for (failed, kind) in
                [(probes.startup == Some(false), "startup"), (probes.liveness == Some(false), "liveness")]
            {
                if failed {
                    decision.actions.push(Action::Stop {
                        id: current.id.clone(),
                        name: container.name.clone(),
                        reason: "Unhealthy",
                        message: format!(
                            "Container {} failed {kind} probe, will be restarted",
                            container.name
                        ),
                    });
                    return;
                }
            }
        }
        Some(current) if !exit_code(current).is_some_and(|code| restarts(policy, code)) => {}
        _ => start(container, state, memory, now, decision),
    }
}

fn start(container: &Container, state: &PodState, memory: &Memory, now: Timestamp, decision: &mut Decision) {
    if memory.held.is_some() {
        return;
    }
    let remembered = memory.container(&container.name);
    if let Some(at) = remembered.and_then(|m| m.not_before).filter(|at| *at > now) {
        decision.wake_at(at);
        return;
    }
    let mut attempt = 0;
    if let Some(last) = latest(state, &container.name) {
        attempt = last.attempt + 1;
        if let (ContainerPhase::Exited { finished, .. }, Some(memory)) = (&last.phase, remembered) {
            let at = memory.may_start_at(last.started, *finished);
            if at > now {
                decision.wake_at(at);
                decision.backing_off.push(container.name.clone());
                return;
            }
        }
    }
    decision.actions.push(Action::Start { name: container.name.clone(), attempt });
}

/// The pod is over: stop what still runs (sidecars last), then free everything.
fn finish(state: &PodState, memory: &Memory, decision: &mut Decision) {
    let mut left = false;
    for container in state.containers.iter().filter(|c| running(c)) {
        left = true;
        if !memory.stopping.contains(&container.id) {
            decision.actions.push(Action::Stop {
                id: container.id.clone(),
                name: container.name.clone(),
                reason: "Killing",
                message: format!("Stopping container {}", container.name),
            });
        }
    }
    if !left && state.sandbox.is_some() {
        decision.actions.push(Action::StopSandbox);
    }
}

/// Of each name the newest and the one before it are kept (`kubectl logs --previous`).
fn forget_old(state: &PodState, decision: &mut Decision) {
    for container in state.containers.iter().filter(|c| !running(c)) {
        let newer = state
            .containers
            .iter()
            .filter(|c| c.name == container.name && c.attempt > container.attempt)
            .count();
        if newer >= 2 {
            decision.actions.push(Action::Remove { id: container.id.clone() });
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
