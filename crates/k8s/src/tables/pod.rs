//! The state of a pod in one word, and what goes with it.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use super::text::{int, items, text};

/// What the containers say when taken together.
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    /// When the last container stopped that was started again.
    last_restart: Option<String>,
}

pub fn ready(pod: &Value, _: Timestamp) -> Value {
    let Summary { ready, total, .. } = summary(pod);
    format!("{ready}/{total}").into()
}

pub fn status(pod: &Value, _: Timestamp) -> Value {
    summary(pod).reason.into()
}

pub fn restarts(pod: &Value, now: Timestamp) -> Value {
    let Summary { restarts, last_restart, .. } = summary(pod);
    match last_restart {
        Some(time) if restarts != 0 => format!("{restarts} ({} ago)", age(Some(&time.into()), now)).into(),
        _ => restarts.to_string().into(),
    }
}

pub fn readiness_gates(pod: &Value, _: Timestamp) -> Value {
    let gates = items(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates.iter().filter(|g| is_true(pod, text(g, "/conditionType"))).count();
    format!("{open}/{}", gates.len()).into()
}

/// The row's conditions of a pod that has ended.
pub fn conditions(pod: &Value) -> Option<Value> {
    let (reason, message) = match text(pod, "/status/phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

fn is_true(pod: &Value, condition: &str) -> bool {
    items(pod, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == condition)
        .is_some_and(|c| text(c, "/status") == "True")
}

fn state<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    container.pointer("/state").and_then(|s| s.get(name)).filter(|s| !s.is_null())
}

/// RFC 3339 in UTC sorts as text.
fn later(so_far: &mut Option<String>, container: &Value) {
    let finished = text(container, "/lastState/terminated/finishedAt");
    if !finished.is_empty() && so_far.as_deref().is_none_or(|s| s < finished) {
        *so_far = Some(finished.to_owned());
    }
}

/// Why a container ended, where it has said nothing itself.
fn exit_reason(terminated: &Value) -> String {
    match (text(terminated, "/reason"), int(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn summary(pod: &Value) -> Summary {
    let init_specs = items(pod, "/spec/initContainers");
    let sidecar = |name: &str| {
        init_specs.iter().any(|c| text(c, "/name") == name && text(c, "/restartPolicy") == "Always")
    };
    let mut out = Summary {
        ready: 0,
        total: items(pod, "/spec/containers").len()
            + init_specs.iter().filter(|c| text(c, "/restartPolicy") == "Always").count(),
        reason: text(pod, "/status/phase").to_owned(),
        restarts: 0,
        last_restart: None,
    };
    if !text(pod, "/status/reason").is_empty() {
        out.reason = text(pod, "/status/reason").to_owned();
    }
    let gated = |c: &&Value| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated";
    if items(pod, "/status/conditions").iter().any(|c| gated(&c)) {
        out.reason = "SchedulingGated".to_owned();
    }

    let (mut sidecar_restarts, mut sidecar_last) = (0, None);
    let mut initializing = false;
    for (i, container) in items(pod, "/status/initContainerStatuses").iter().enumerate() {
        let count = int(container, "/restartCount");
        let is_sidecar = sidecar(text(container, "/name"));
        out.restarts += count;
        later(&mut out.last_restart, container);
        if is_sidecar {
            sidecar_restarts += count;
            later(&mut sidecar_last, container);
        }
        let terminated = state(container, "terminated");
        if terminated.is_some_and(|t| int(t, "/exitCode") == 0) {
            continue;
        }
        if is_sidecar && container["started"] == true {
            out.ready += usize::from(container["ready"] == true);
            continue;
        }
        let waiting = state(container, "waiting").map(|w| text(w, "/reason")).unwrap_or_default();
        out.reason = match terminated {
            Some(t) => format!("Init:{}", exit_reason(t)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{i}/{}", init_specs.len()),
        };
        initializing = true;
        break;
    }

    if !initializing || is_true(pod, "Initialized") {
        out.restarts = sidecar_restarts;
        out.last_restart = sidecar_last;
        running(pod, &mut out);
    }

    if pod.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null()) {
        if text(pod, "/status/reason") == "NodeLost" {
            out.reason = "Unknown".to_owned();
        } else if !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
            out.reason = "Terminating".to_owned();
        }
    }
    out
}

/// The containers proper; the first one's word counts most.
fn running(pod: &Value, out: &mut Summary) {
    let (mut has_running, mut error) = (false, String::new());
    for container in items(pod, "/status/containerStatuses").iter().rev() {
        out.restarts += int(container, "/restartCount");
        later(&mut out.last_restart, container);
        let waiting = state(container, "waiting").map(|w| text(w, "/reason")).unwrap_or_default();
        if !waiting.is_empty() {
            out.reason = waiting.to_owned();
        } else if let Some(terminated) = state(container, "terminated") {
            out.reason = exit_reason(terminated);
            if int(terminated, "/exitCode") != 0 {
                error = out.reason.clone();
            }
        } else if container["ready"] == true && state(container, "running").is_some() {
            has_running = true;
            out.ready += 1;
        }
    }
    // One container ended well while others go on: the pod is what the others are.
    if out.reason == "Completed" {
        if has_running && is_true(pod, "Ready") {
            out.reason = "Running".to_owned();
        } else if !error.is_empty() {
            out.reason = error;
        } else if has_running {
            out.reason = "NotReady".to_owned();
        }
    }
}
