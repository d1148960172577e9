//! What must be done now and then: rotate logs, free the disk, evict pods when the machine runs short.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Upkeep;
use crate::machine;
use crate::node::Shared;
use crate::pod::{plan, quantity, spec};
use crate::pressure::Pressure;

/// After an eviction the machine gets this long to recover.
const PAUSE: Duration = Duration::from_secs(30);

pub(crate) async fn run(
    shared: Arc<Shared>,
    upkeep: Upkeep,
    mut pressure: watch::Receiver<Pressure>,
    shutdown: CancellationToken,
) {
    let mut next_eviction = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(upkeep.round) => {}
            _ = pressure.changed() => {}
        }
        rotate_logs(&shared, &upkeep).await;
        collect_images(&shared, &upkeep).await;
        let now = *pressure.borrow_and_update();
        if (now.memory || now.disk)
            && tokio::time::Instant::now() >= next_eviction
            && evict(&shared, now).await
        {
            next_eviction = tokio::time::Instant::now() + PAUSE;
        }
    }
}

async fn rotate_logs(shared: &Shared, upkeep: &Upkeep) {
    for pod in shared.pods() {
        let uid = spec::uid(&pod);
        let folder = shared.ctx.pod_dir(uid).join("logs");
        for name in fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
        {
            let Ok(state) = shared.ctx.runtime.pod(uid).await else { continue };
            let Some(current) = plan::latest(&state, &name) else { continue };
            let path = shared.ctx.log_path(uid, &name, current.attempt);
            if fs::metadata(&path).map_or(0, |m| m.len()) < upkeep.largest_log {
                continue;
            }
            let old = PathBuf::from(format!("{}.{}", path.display(), Timestamp::now().as_millisecond()));
            if fs::rename(&path, &old).is_ok()
                && let Err(error) = shared.ctx.runtime.reopen_log(uid, &current.id).await
            {
                tracing::debug!(%error, log = %path.display(), "a log could not be reopened");
            }
            remove_old_logs(&path, upkeep.log_files);
        }
    }
}

/// Keeps the newest rotated files of a log; the current one counts.
fn remove_old_logs(path: &Path, keep: usize) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return;
    };
    let prefix = format!("{name}.");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let mut old: Vec<PathBuf> = entries
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix)))
        .collect();
    old.sort();
    for path in old.iter().take(old.len().saturating_sub(keep.saturating_sub(1))) {
        let _ = fs::remove_file(path);
    }
}

fn used_percent(path: &Path) -> u64 {
    machine::disk_bytes(path).map_or(0, |(total, free)| 100 - (free * 100).checked_div(total).unwrap_or(100))
}

/// Removes images nobody uses when the disk fills up. Only what can be fetched again: an image that was imported by
/// hand or is built in has no registry to come back from.
async fn collect_images(shared: &Shared, upkeep: &Upkeep) {
    let dir = &shared.ctx.data_dir;
    if used_percent(dir) < upkeep.collect_above {
        return;
    }
    let mut used = BTreeSet::new();
    for pod in shared.pods() {
        let (spec, ephemeral) = (pod.spec.clone().unwrap_or_default(), spec::ephemeral(&pod));
        let lasting = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        for container in lasting.chain(&ephemeral) {
            if let Some(name) = &container.image {
                used.extend(shared.ctx.runtime.image(name).await.map(|image| image.id));
            }
        }
    }
    for (image, names) in shared.ctx.runtime.images().await {
        if image.digests.is_empty() || used.contains(&image.id) {
            continue;
        }
        tracing::info!(
            image = names.first(),
            bytes = image.size,
            "removing an unused image: the disk is nearly full"
        );
        for name in names.iter().chain([&image.id]) {
            let _ = shared.ctx.runtime.remove_image(name).await;
        }
        if used_percent(dir) < upkeep.collect_to {
            return;
        }
    }
}

/// What counts when one pod must go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub uid: String,
    pub priority: i32,
    pub request: i64,
    pub usage: u64,
}

/// The pod to evict: first those that use more than they asked for, then the least important, then the one that is
/// furthest above its request. Pods the node cannot do without are never chosen. Pure.
pub(crate) fn victim(candidates: &[Candidate]) -> Option<&Candidate> {
    const CRITICAL: i32 = 2_000_000_000;
    let over = |c: &Candidate| c.usage as i64 - c.request;
    let order = |c: &&Candidate| (over(c) > 0, -i64::from(c.priority), over(c));
    candidates.iter().filter(|c| c.priority < CRITICAL).max_by_key(order)
}

async fn evict(shared: &Shared, pressure: Pressure) -> bool {
    let resource = if pressure.memory { "memory" } else { "ephemeral-storage" };
    let mut candidates = Vec::new();
    let mut pods: HashMap<String, Arc<Pod>> = HashMap::new();
    for pod in shared.pods() {
        let uid = spec::uid(&pod).to_owned();
        if pod.metadata.deletion_timestamp.is_some()
            || !shared.ctx.runtime.pod(&uid).await.is_ok_and(|s| s.sandbox.is_some())
        {
            continue;
        }
        let usage = if pressure.memory {
            shared.ctx.runtime.usage(&uid, None).await.map_or(0, |u| u.working_set_bytes)
        } else {
            let dir = shared.ctx.pod_dir(&uid);
            tokio::task::spawn_blocking(move || folder_bytes(&dir)).await.unwrap_or(0)
        };
        let containers = pod.spec.iter().flat_map(|s| &s.containers);
        let requests = containers
            .filter_map(|c| c.resources.as_ref()?.requests.as_ref()?.get(resource).and_then(quantity::whole));
        let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        candidates.push(Candidate { uid: uid.clone(), priority, request: requests.sum(), usage });
        pods.insert(uid, pod);
    }
    let Some(victim) = victim(&candidates) else { return false };
    let message = format!(
        "The node was low on resource: {resource}. The pod was using {}Ki, request is {}Ki.",
        victim.usage / 1024,
        victim.request / 1024
    );
    if let Some(pod) = pods.get(&victim.uid) {
        shared.ctx.events.warning(pod, None, "Evicted", message.clone());
    }
    shared.fail(&victim.uid, "Evicted", message);
    true
}

/// What a pod's writable layers, logs and volumes take. Does not leave the file system's tree through links.
fn folder_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(uid: &str, priority: i32, request: i64, usage: u64) -> Candidate {
        Candidate { uid: uid.into(), priority, request, usage }
    }

    #[test]
    fn a_pod_above_its_request_goes_before_one_that_keeps_its_word() {
        let pods = [candidate("large-but-honest", 0, 1000, 900), candidate("greedy", 0, 10, 50)];
        assert_eq!(victim(&pods).map(|v| v.uid.as_str()), Some("greedy"));
    }

    #[test]
    fn among_greedy_pods_the_least_important_goes_and_critical_ones_stay() {
        let pods = [
            candidate("important", 100, 0, 900),
            candidate("other", 0, 0, 50),
            candidate("vital", 2_000_001_000, 0, 9999),
        ];
        assert_eq!(victim(&pods).map(|v| v.uid.as_str()), Some("other"));
        assert_eq!(victim(&pods[2..]), None);
    }
}
