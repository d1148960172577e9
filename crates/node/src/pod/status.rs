//! What a pod is, in the words of the API. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::memory::Memory;
use super::plan::{exit_code, init_failed, is_sidecar, is_started, latest, main_done};
use super::quantity::qos_class;
use crate::runtime::{ContainerPhase, ContainerState, PodState};

/// What the worker knows beside the runtime's word.
pub(crate) struct Facts<'a> {
    pub runtime: &'a str,
    pub host_addresses: &'a [String],
    pub now: Timestamp,
    /// Reads the last words of a container that ended (its termination message).
    pub last_words: &'a dyn Fn(&str, &ContainerState) -> Option<String>,
}

pub(crate) fn status(pod: &Pod, state: &PodState, memory: &Memory, facts: &Facts<'_>) -> PodStatus {
    let none = PodStatus::default();
    let old = pod.status.as_ref().unwrap_or(&none);
    let spec = pod.spec.clone().unwrap_or_default();
    let one =
        |container: &Container, init: bool| container_status(pod, container, init, state, memory, facts);
    let init: Vec<_> = spec.init_containers.iter().flatten().map(|c| one(c, true)).collect();
    let main: Vec<_> = spec.containers.iter().map(|c| one(c, false)).collect();
    let mut ephemeral: Vec<_> = super::spec::ephemeral(pod).iter().map(|c| one(c, false)).collect();
    for status in &mut ephemeral {
        // Nothing waits for them.
        (status.ready, status.started) = (false, None);
    }
    let phase = phase(pod, state, memory);
    let (reason, message) = match &memory.failed {
        Some((reason, message)) => (Some(reason.clone()), Some(message.clone())),
        None => (old.reason.clone(), old.message.clone()),
    };
    let host_network = spec.host_network == Some(true);
    let mut addresses: Vec<String> = match &state.sandbox {
        Some(_) if host_network => facts.host_addresses.to_vec(),
        Some(sandbox) => sandbox.addresses.iter().map(ToString::to_string).collect(),
        None => old.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect(),
    };
    addresses.dedup();
    let mut new = PodStatus {
        phase: Some(phase.to_owned()),
        reason,
        message,
        host_ip: facts.host_addresses.first().cloned(),
        host_ips: Some(facts.host_addresses.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: addresses.first().cloned(),
        pod_ips: Some(addresses.iter().map(|ip| PodIP { ip: ip.clone() }).collect()),
        start_time: old.start_time.clone().or(Some(Time(facts.now))),
        qos_class: Some(old.qos_class.clone().unwrap_or_else(|| qos_class(pod).to_owned())),
        observed_generation: pod.metadata.generation,
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: Some(main),
        ephemeral_container_statuses: (!ephemeral.is_empty()).then_some(ephemeral),
        ..PodStatus::default()
    };
    new.conditions = Some(conditions(pod, old, &new, state, facts.now));
    new
}

fn phase(pod: &Pod, state: &PodState, memory: &Memory) -> &'static str {
    if memory.failed.is_some() || init_failed(pod, state) {
        return "Failed";
    }
    let mains = pod.spec.iter().flat_map(|s| &s.containers);
    if main_done(pod, state) {
        // Sidecars must be gone too before the pod is over.
        if state.containers.iter().any(|c| matches!(c.phase, ContainerPhase::Running { .. })) {
            return "Running";
        }
        let failed = mains.clone().any(|c| latest(state, &c.name).and_then(exit_code) != Some(0));
        return if failed { "Failed" } else { "Succeeded" };
    }
    let started = mains.clone().filter(|c| latest(state, &c.name).is_some()).count();
    if started == mains.count() { "Running" } else { "Pending" }
}

fn container_status(
    pod: &Pod,
    container: &Container,
    init: bool,
    state: &PodState,
    memory: &Memory,
    facts: &Facts<'_>,
) -> ContainerStatus {
    let current = latest(state, &container.name);
    let remembered = memory.container(&container.name);
    let waiting = remembered.and_then(|m| m.waiting.clone());
    let terminated = |c: &ContainerState| ApiState {
        terminated: Some(ended(c, container, memory, facts)),
        ..Default::default()
    };
    let previous = current.and_then(|now| {
        state
            .containers
            .iter()
            .filter(|c| c.name == container.name && c.attempt < now.attempt)
            .max_by_key(|c| c.attempt)
    });
    let waits = |reason: &str, message: Option<String>| ApiState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..Default::default()
    };
    let mut last_state = previous.map(terminated);
    let api_state = match (current, waiting) {
        (Some(c), _) if matches!(c.phase, ContainerPhase::Running { .. }) => ApiState {
            running: Some(ContainerStateRunning { started_at: Some(Time(c.started)) }),
            ..Default::default()
        },
        // It ended and will start again, later: that is waiting, and how it ended is history.
        (Some(c), Some((reason, message))) => {
            last_state = Some(terminated(c));
            waits(&reason, Some(message))
        }
        (Some(c), None) => terminated(c),
        (None, Some((reason, message))) => waits(&reason, Some(message)),
        (None, None) => {
            let blocked = !init
                && pod.spec.as_ref().is_some_and(|s| s.init_containers.iter().flatten().next().is_some());
            let blocked = blocked || (init && state.sandbox.is_some());
            waits(if blocked { "PodInitializing" } else { "ContainerCreating" }, None)
        }
    };
    let running = api_state.running.is_some();
    let started = current.is_some_and(|c| running && is_started(container, c, memory));
    let ready = match current {
        Some(c) if init && !is_sidecar(container) => exit_code(c) == Some(0),
        Some(c) if started => {
            container.readiness_probe.is_none()
                || memory.probes(&container.name, &c.id).readiness == Some(true)
        }
        _ => false,
    };
    ContainerStatus {
        name: container.name.clone(),
        image: current.map_or_else(|| container.image.clone().unwrap_or_default(), |c| c.image.clone()),
        image_id: current.map(|c| c.image_id.clone()).unwrap_or_default(),
        container_id: current.map(|c| format!("{}://{}", facts.runtime, c.id)),
        restart_count: current.map_or(0, |c| c.attempt as i32),
        ready,
        started: Some(started),
        state: Some(api_state),
        last_state,
        ..ContainerStatus::default()
    }
}

fn ended(
    c: &ContainerState,
    container: &Container,
    memory: &Memory,
    facts: &Facts<'_>,
) -> ContainerStateTerminated {
    let (code, finished, oom) = match c.phase {
        ContainerPhase::Exited { code, finished, oom } => (code, Some(Time(finished)), oom),
        _ => (255, None, false),
    };
    let stopped = memory.container(&c.name).and_then(|m| m.stopped_for.clone()).filter(|(id, _)| *id == c.id);
    let reason = match (&c.phase, oom, code) {
        (ContainerPhase::Lost, ..) => "Unknown",
        (_, true, _) => "OOMKilled",
        (_, _, 0) => "Completed",
        _ => "Error",
    };
    let message = (facts.last_words)(&container.name, c).or_else(|| match c.phase {
        ContainerPhase::Lost => Some("The machine or the process that kept the container went away".into()),
        _ => stopped.map(|(_, why)| why),
    });
    ContainerStateTerminated {
        exit_code: code,
        reason: Some(reason.to_owned()),
        message,
        started_at: Some(Time(c.started)),
        finished_at: finished,
        container_id: Some(format!("{}://{}", facts.runtime, c.id)),
        ..ContainerStateTerminated::default()
    }
}

fn conditions(
    pod: &Pod,
    old: &PodStatus,
    new: &PodStatus,
    state: &PodState,
    now: Timestamp,
) -> Vec<PodCondition> {
    let over = matches!(new.phase.as_deref(), Some("Succeeded" | "Failed"));
    let done = new.phase.as_deref() == Some("Succeeded");
    let names = |list: &[ContainerStatus], good: &dyn Fn(&ContainerStatus) -> bool| -> Vec<String> {
        list.iter().filter(|c| !good(c)).map(|c| c.name.clone()).collect()
    };
    let mains = new.container_statuses.clone().unwrap_or_default();
    let sidecars: Vec<String> = pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten())
        .filter(|c| is_sidecar(c))
        .map(|c| c.name.clone())
        .collect();
    let inits = new.init_container_statuses.clone().unwrap_or_default();
    let uninitialized =
        names(&inits, &|c| c.ready || (sidecars.contains(&c.name) && c.started == Some(true)));
    let running_mains = mains.iter().any(|c| c.state.as_ref().is_some_and(|s| s.waiting.is_none()));
    let initialized = uninitialized.is_empty() || running_mains || done;
    let mut unready = names(&inits, &|c| !sidecars.contains(&c.name) || c.ready);
    unready.extend(names(&mains, &|c| c.ready));

    let mut list = Vec::new();
    let mut put = |kind: &str, fine: bool, reason: &str, message: String| {
        list.push(condition(
            old,
            kind,
            fine,
            (!fine).then(|| reason.to_owned()),
            (!fine).then_some(message),
            now,
            pod,
        ));
    };
    put("PodReadyToStartContainers", state.sandbox.is_some(), "", String::new());
    if done {
        list.push(condition(old, "Initialized", true, Some("PodCompleted".into()), None, now, pod));
    } else {
        let message = format!("containers with incomplete status: [{}]", uninitialized.join(" "));
        put("Initialized", initialized, "ContainersNotInitialized", message);
    }
    let gates: Vec<String> = pod
        .spec
        .iter()
        .flat_map(|s| s.readiness_gates.iter().flatten())
        .filter(|gate| {
            !old.conditions.iter().flatten().any(|c| c.type_ == gate.condition_type && c.status == "True")
        })
        .map(|gate| gate.condition_type.clone())
        .collect();
    let containers_ready = unready.is_empty() && !over && initialized;
    let reason = match new.phase.as_deref() {
        Some("Succeeded") => "PodCompleted",
        Some("Failed") => "PodFailed",
        _ => "ContainersNotReady",
    };
    let why = |kind: &str, fine: bool, reason: &str, message: String| {
        let message = (!fine && !over).then_some(message);
        condition(old, kind, fine, (!fine).then(|| reason.to_owned()), message, now, pod)
    };
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    if containers_ready && !gates.is_empty() {
        let missing = format!("the status of pod readiness gate {:?} is not \"True\"", gates.join(", "));
        list.push(why("Ready", false, "ReadinessGatesNotReady", missing));
    } else {
        list.push(why("Ready", containers_ready, reason, message.clone()));
    }
    list.push(why("ContainersReady", containers_ready, reason, message));
    list.push(condition(old, "PodScheduled", true, None, None, now, pod));
    if new.reason.as_deref() == Some("Evicted") {
        // Whoever counts failures can tell this from an end of the pod's own making.
        let why = (Some("TerminationByKubelet".to_owned()), new.message.clone());
        list.push(condition(old, "DisruptionTarget", true, why.0, why.1, now, pod));
    }
    list
}

/// Keeps the time of the last change while the status stays the same.
fn condition(
    old: &PodStatus,
    kind: &str,
    fine: bool,
    reason: Option<String>,
    message: Option<String>,
    now: Timestamp,
    pod: &Pod,
) -> PodCondition {
    let status = if fine { "True" } else { "False" };
    let before = old.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == status);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.filter(|r| !r.is_empty()),
        message: message.filter(|m| !m.is_empty()),
        last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    }
}
