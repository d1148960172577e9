//! Ends containers: the hook first, then the signal, then, when the grace is over, the kill.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Notify, watch};

use crate::context::Context;
use crate::hook;
use crate::pod::plan::is_sidecar;
use crate::pod::spec;
use crate::pod::worker::Wanted;
use crate::runtime::{ContainerPhase, ContainerState, PodState, RuntimeError};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// After a hook used up the grace, the program still gets this long.
const AFTER_HOOK: Duration = Duration::from_secs(2);

/// How long one container may take. A failing probe may carry a grace period of its own.
pub(crate) fn grace(pod: &Pod, name: &str, unhealthy: bool) -> Duration {
    let container = spec::container(pod, name);
    let probe = container.as_ref().and_then(|c| c.liveness_probe.as_ref().or(c.startup_probe.as_ref()));
    let own = probe.and_then(|p| p.termination_grace_period_seconds).filter(|_| unhealthy);
    let seconds = own.or_else(|| pod.spec.as_ref()?.termination_grace_period_seconds).unwrap_or(30);
    Duration::from_secs(seconds.max(0) as u64)
}

/// Which containers end together: the main ones first, then the sidecars in reverse order.
pub(crate) fn order(pod: &Pod, state: &PodState) -> Vec<Vec<(String, String)>> {
    let running = |name: &str| {
        let alive = |c: &&ContainerState| c.name == name && matches!(c.phase, ContainerPhase::Running { .. });
        state.containers.iter().filter(alive).map(|c| (c.name.clone(), c.id.clone())).collect::<Vec<_>>()
    };
    let sidecars: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten())
        .filter(|c| is_sidecar(c))
        .map(|c| c.name.as_str())
        .collect();
    let others = state.containers.iter().filter(|c| !sidecars.contains(&c.name.as_str()));
    let mut names: Vec<&str> = others.map(|c| c.name.as_str()).collect();
    names.dedup();
    let mut groups = vec![names.into_iter().flat_map(running).collect::<Vec<_>>()];
    groups.extend(sidecars.into_iter().rev().map(running));
    groups.retain(|group| !group.is_empty());
    groups
}

pub(crate) async fn container(
    ctx: &Arc<Context>,
    pod: &Arc<Pod>,
    name: &str,
    id: &str,
    grace: Duration,
    wake: &Notify,
) {
    container_until(ctx, pod, name, id, grace, wake, None).await;
}

/// Ends a container and returns when it is gone. `wanted`: a shorter grace period may arrive meanwhile.
pub(crate) async fn container_until(
    ctx: &Arc<Context>,
    pod: &Arc<Pod>,
    name: &str,
    id: &str,
    mut grace: Duration,
    wake: &Notify,
    mut wanted: Option<watch::Receiver<Wanted>>,
) {
    let uid = spec::uid(pod).to_owned();
    let start = Instant::now();
    let container = spec::container(pod, name);
    let handler = container.as_ref().and_then(|c| Some((c, c.lifecycle.as_ref()?.pre_stop.clone()?)));
    if let (Some((container, handler)), false) = (handler, grace.is_zero()) {
        let state = ctx.runtime.pod(&uid).await.unwrap_or_default();
        if let Some(current) = state.containers.iter().find(|c| c.id == id)
            && let Err(why) = hook::run(ctx, pod, container, current, &handler, grace).await
        {
            ctx.events.warning(pod, Some(name), "FailedPreStopHook", format!("PreStopHook failed: {why}"));
        }
        grace = grace.max(start.elapsed() + AFTER_HOOK);
    }
    let signal = container.as_ref().and_then(|c| c.lifecycle.as_ref()?.stop_signal.clone());
    let signal = match (signal, container.as_ref().and_then(|c| c.image.as_deref())) {
        (None, Some(image)) => ctx.runtime.image(image).await.and_then(|image| image.config.stop_signal),
        (signal, _) => signal,
    };
    let first = signal.and_then(|name| signal_number(&name)).unwrap_or(SIGTERM);
    let sent = ctx.runtime.signal(&uid, id, if grace.is_zero() { SIGKILL } else { first }).await;
    if matches!(sent, Err(RuntimeError::NoContainer(_))) {
        return;
    }
    let mut killed = grace.is_zero();
    while is_running(ctx, &uid, id).await {
        if let Some(wanted) = &mut wanted {
            let asked = spec::grace_period(wanted.borrow_and_update().pod()).max(0) as u64;
            grace = grace.min(Duration::from_secs(asked).max(start.elapsed().min(AFTER_HOOK)));
        }
        let left = grace.saturating_sub(start.elapsed());
        if left.is_zero() && !killed {
            killed = true;
            let _ = ctx.runtime.signal(&uid, id, SIGKILL).await;
        }
        let nap = if killed { Duration::from_millis(50) } else { left.min(Duration::from_millis(500)) };
        // The worker's own loop is not running while it waits for us, so its wake-ups are ours.
        let _ = tokio::time::timeout(nap.max(Duration::from_millis(5)), wake.notified()).await;
    }
}

/// While the runtime does not say, it is.
async fn is_running(ctx: &Context, uid: &str, id: &str) -> bool {
    let Ok(state) = ctx.runtime.pod(uid).await else { return true };
    state.containers.iter().any(|c| c.id == id && matches!(c.phase, ContainerPhase::Running { .. }))
}

/// `SIGQUIT`, `QUIT` or `3`.
fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let full = if name.starts_with("SIG") { name.to_owned() } else { format!("SIG{name}") };
    full.parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal_number("SIGQUIT"), Some(3));
        assert_eq!(signal_number("QUIT"), Some(3));
        assert_eq!(signal_number("10"), Some(10));
        assert_eq!(signal_number("NOPE"), None);
    }
}
