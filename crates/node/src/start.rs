//! Brings a pod's sandbox, volumes and containers up.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::Notify;

use crate::context::Context;
use crate::hook;
use crate::objects::Sources;
use crate::pod::spec::{self, PodFiles};
use crate::pod::{env, plan};
use crate::runtime::{ContainerPhase, ContainerState, PodState, PullSecret, RuntimeError, SandboxState};
use crate::storage;
use crate::tokens;
use crate::volumes::{self, Place, VolumeError};

/// How much of a container's last words the status carries.
const LAST_WORDS: usize = 4096;
/// How many lines of a log speak for a container that left no message.
const LAST_LINES: usize = 80;
const LAST_LOG: usize = 2048;

/// Why a container waits instead of running: the reason and message of its status.
#[derive(Debug)]
pub(crate) struct StartError {
    pub reason: &'static str,
    pub message: String,
}

fn fail(reason: &'static str) -> impl FnOnce(String) -> StartError {
    move |message| StartError { reason, message }
}

/// Written last: while it is missing, the sandbox is not furnished.
const FURNISHED: &str = "hostname";

pub(crate) async fn sandbox(ctx: &Context, pod: &Pod) -> Result<(), RuntimeError> {
    let spec = spec::sandbox(pod, &ctx.cluster_domain);
    // What an earlier sandbox had names other addresses.
    let _ = fs::remove_file(ctx.pod_dir(&spec.uid).join(FURNISHED));
    let state = ctx.runtime.start_sandbox(&spec).await?;
    furnish(ctx, pod, &state).await
}

/// Gives a sandbox its kernel settings and the files that its containers share. A node that was killed before it came
/// to this leaves it to the one that adopts the sandbox.
async fn furnish(ctx: &Context, pod: &Pod, state: &SandboxState) -> Result<(), RuntimeError> {
    let spec = spec::sandbox(pod, &ctx.cluster_domain);
    let addresses: Vec<String> = state.addresses.iter().map(ToString::to_string).collect();
    let dir = ctx.pod_dir(&spec.uid);
    let host_resolv = crate::resolver::host_resolv_conf();
    let write = |name: &str, text: String| {
        fs::write(dir.join(name), text)
            .and_then(|()| fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)))
            .map_err(RuntimeError::io(name.to_owned()))
    };
    let addresses = if spec.host_network { ctx.host_addresses.now().to_vec() } else { addresses };
    if !spec.sysctls.is_empty() {
        let (pid, sysctls) = (state.pid, spec.sysctls.clone());
        let set = move || {
            for (name, value) in &sysctls {
                fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
                    .map_err(|e| std::io::Error::other(format!("sysctl {name}: {e}")))?;
            }
            Ok(())
        };
        let done = tokio::task::spawn_blocking(move || inside(pid, set)).await;
        done.map_err(|e| RuntimeError::Create(e.to_string()))?.map_err(RuntimeError::io("sysctls"))?;
    }
    write("hosts", spec::hosts_file(pod, &addresses, &ctx.cluster_domain))?;
    write("resolv.conf", spec::resolv_conf(pod, &ctx.cluster_dns, &ctx.cluster_domain, &host_resolv))?;
    write(FURNISHED, format!("{}\n", spec.hostname))
}

/// Runs `act` in the network and IPC namespaces of process `pid`, on a thread that ends afterwards: what the kernel lets a
/// pod set belongs to one of them.
fn inside(pid: u32, act: impl FnOnce() -> std::io::Result<()> + Send + 'static) -> std::io::Result<()> {
    let ipc = fs::File::open(format!("/proc/{pid}/ns/ipc"))?;
    tombolo_net::inside(pid, move || {
        nix::sched::setns(&ipc, nix::sched::CloneFlags::CLONE_NEWIPC)?;
        act()
    })
}

/// Makes or refreshes the pod's volumes and returns where they are.
pub(crate) async fn volumes(
    ctx: &Context,
    pod: &Pod,
    state: &PodState,
) -> Result<BTreeMap<String, Place>, VolumeError> {
    let sources = gather(ctx, pod).await;
    volumes_from(ctx, pod, state, &sources).await
}

async fn gather(ctx: &Context, pod: &Pod) -> Result<Sources, crate::objects::ObjectsError> {
    let dir = ctx.pod_dir(spec::uid(pod));
    if !ctx.is_online()
        && let Some(kept) = Sources::load(&dir)
    {
        return Ok(kept);
    }
    Sources::gather(&ctx.client, pod, &dir).await
}

async fn volumes_from(
    ctx: &Context,
    pod: &Pod,
    state: &PodState,
    sources: &Result<Sources, crate::objects::ObjectsError>,
) -> Result<BTreeMap<String, Place>, VolumeError> {
    let sources = match sources {
        Ok(sources) => sources,
        Err(error) => return Err(VolumeError::Invalid("objects".into(), error.to_string())),
    };
    let dir = ctx.pod_dir(spec::uid(pod));
    let tokens = tokens::gather(ctx, pod, &dir)
        .await
        .map_err(|e| VolumeError::Invalid("service account token".into(), e))?;
    let claims = storage::claims(ctx, pod, &dir)
        .await
        .map_err(|e| VolumeError::Invalid("persistentVolumeClaim".into(), e))?;
    let addresses: Vec<String> =
        state.sandbox.iter().flat_map(|s| &s.addresses).map(ToString::to_string).collect();
    let facts = ctx.facts(&addresses);
    let inputs = volumes::Inputs { pod, sources, tokens: &tokens, claims: &claims, facts: &facts };
    let places = volumes::set_up(&dir.join("volumes"), &inputs)?;
    for place in places.values() {
        if let Some(size) = place.memory {
            let marker = place.path.with_extension("in-memory");
            let sandbox = state.sandbox.as_ref().map(|s| s.pid.to_string()).unwrap_or_default();
            // Mounted once per sandbox, in the sandbox's own mount namespace.
            if fs::read_to_string(&marker).is_ok_and(|text| text == sandbox) {
                continue;
            }
            ctx.runtime
                .memory_volume(spec::uid(pod), &place.path, size)
                .await
                .map_err(|e| VolumeError::Invalid(place.path.display().to_string(), e.to_string()))?;
            let _ = fs::write(marker, sandbox);
        }
    }
    Ok(places)
}

pub(crate) async fn container(
    ctx: &Arc<Context>,
    pod: &Arc<Pod>,
    name: &str,
    attempt: u32,
    wake: &Arc<Notify>,
) -> Result<(), StartError> {
    let container = &*spec::container(pod, name)
        .ok_or_else(|| fail("CreateContainerConfigError")(format!("no container {name}")))?;
    let sources = gather(ctx, pod).await;
    image(ctx, pod, container, sources.as_ref().ok()).await?;
    let uid = spec::uid(pod);
    let state = ctx.runtime.pod(uid).await.map_err(|e| fail("CreateContainerError")(e.to_string()))?;
    let places = volumes_from(ctx, pod, &state, &sources).await.map_err(|error| {
        ctx.events.warning(pod, None, "FailedMount", error.to_string());
        fail("ContainerCreating")(error.to_string())
    })?;
    let sources = sources.map_err(|e| fail("CreateContainerConfigError")(e.to_string()))?;
    let addresses: Vec<String> = match &pod.spec {
        Some(s) if s.host_network == Some(true) => ctx.host_addresses.now().to_vec(),
        _ => state.sandbox.iter().flat_map(|s| &s.addresses).map(ToString::to_string).collect(),
    };
    let variables = env::environment(pod, container, &sources, &ctx.services(), &ctx.facts(&addresses))
        .map_err(|e| fail("CreateContainerConfigError")(e.to_string()))?;
    let dir = ctx.pod_dir(uid);
    if let (Some(sandbox), false) = (&state.sandbox, dir.join(FURNISHED).exists()) {
        furnish(ctx, pod, sandbox).await.map_err(|e| fail("CreateContainerError")(e.to_string()))?;
    }
    let files = PodFiles {
        hosts: dir.join("hosts"),
        resolv: dir.join("resolv.conf"),
        hostname: dir.join(FURNISHED),
        shm: dir.join("shm"),
        termination: termination_file(ctx, uid, name, attempt),
    };
    if let Some(folder) = files.termination.parent() {
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&files.termination, b""))
            .and_then(|()| fs::set_permissions(&files.termination, fs::Permissions::from_mode(0o666)))
            .map_err(|e| fail("CreateContainerError")(e.to_string()))?;
    }
    let log = ctx.log_path(uid, name, attempt);
    let mut wanted = spec::container_spec(pod, container, attempt, variables, &places, &files, log)
        .map_err(|e| fail("CreateContainerConfigError")(e.to_string()))?;
    wanted.target = target(pod, name, &state).map_err(fail("CreateContainerError"))?;
    match ctx.runtime.start_container(&wanted).await {
        Ok(()) => {}
        Err(RuntimeError::Refused(message)) => return Err(fail("CreateContainerConfigError")(message)),
        Err(RuntimeError::Create(message)) => return Err(fail("RunContainerError")(message)),
        Err(error) => return Err(fail("CreateContainerError")(error.to_string())),
    }
    ctx.events.normal(pod, Some(name), "Created", "Container created".to_string());
    ctx.events.normal(pod, Some(name), "Started", "Container started".to_string());
    post_start(ctx, pod, container, uid, wake).await
}

/// The container that an ephemeral one was added to look into.
fn target(pod: &Pod, name: &str, state: &PodState) -> Result<Option<(String, u32)>, String> {
    let added = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let Some(wanted) = added.filter(|c| c.name == name).find_map(|c| c.target_container_name.as_deref())
    else {
        return Ok(None);
    };
    match plan::latest(state, wanted) {
        Some(ContainerState { id, phase: ContainerPhase::Running { pid }, .. }) => {
            Ok(Some((id.clone(), *pid)))
        }
        _ => Err(format!("container {wanted}, which {name} shall look into, does not run")),
    }
}

async fn post_start(
    ctx: &Arc<Context>,
    pod: &Arc<Pod>,
    container: &Container,
    uid: &str,
    wake: &Arc<Notify>,
) -> Result<(), StartError> {
    let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else {
        return Ok(());
    };
    let state = ctx.runtime.pod(uid).await.map_err(|e| fail("RunContainerError")(e.to_string()))?;
    let Some(current) = plan::latest(&state, &container.name) else { return Ok(()) };
    if let Err(why) = hook::run(ctx, pod, container, current, handler, Duration::from_secs(3600)).await {
        ctx.events.warning(
            pod,
            Some(&container.name),
            "FailedPostStartHook",
            format!("PostStartHook failed: {why}"),
        );
        let grace = crate::stop::grace(pod, &container.name, false);
        crate::stop::container(ctx, pod, &container.name, &current.id, grace, wake).await;
        return Err(fail("PostStartHookError")(why));
    }
    Ok(())
}

/// Sees to the container's image according to its pull policy.
async fn image(
    ctx: &Context,
    pod: &Pod,
    container: &Container,
    sources: Option<&Sources>,
) -> Result<(), StartError> {
    let name = container.image.clone().unwrap_or_default();
    if let Err(error) = name.parse::<crate::image::Reference>() {
        ctx.events.warning(
            pod,
            Some(&container.name),
            "InspectFailed",
            format!("Failed to apply default image tag {name:?}: {error}"),
        );
        return Err(fail("InvalidImageName")(format!("Failed to apply default image tag {name:?}: {error}")));
    }
    let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    let present = ctx.runtime.image(&name).await.is_some();
    if present && policy != "Always" {
        ctx.events.normal(
            pod,
            Some(&container.name),
            "Pulled",
            format!("Container image {name:?} already present on machine"),
        );
        return Ok(());
    }
    if !present && policy == "Never" {
        let message = format!("Container image {name:?} is not present with pull policy of Never");
        ctx.events.warning(pod, Some(&container.name), "ErrImageNeverPull", message.clone());
        return Err(fail("ErrImageNeverPull")(message));
    }
    ctx.events.normal(pod, Some(&container.name), "Pulling", format!("Pulling image {name:?}"));
    let _permit = ctx.pulls.acquire().await.map_err(|e| fail("ErrImagePull")(e.to_string()))?;
    let secrets = sources.map(|s| pull_secrets(pod, s)).unwrap_or_default();
    match ctx.runtime.pull(&name, &secrets).await {
        Ok(image) => {
            ctx.events.normal(
                pod,
                Some(&container.name),
                "Pulled",
                format!("Successfully pulled image {name:?}. Image size: {} bytes.", image.size),
            );
            Ok(())
        }
        // What is here is used when the registry is out of reach: a site must restart its pods without the world.
        Err(error @ RuntimeError::Away(_)) if present => {
            tracing::warn!(image = name, %error, "using the image on disk");
            ctx.events.normal(
                pod,
                Some(&container.name),
                "Pulled",
                format!("Container image {name:?} already present on machine; the registry did not answer"),
            );
            Ok(())
        }
        Err(error) => {
            let message = format!("failed to pull image {name:?}: {error}");
            ctx.events.warning(pod, Some(&container.name), "Failed", message.clone());
            Err(fail("ErrImagePull")(message))
        }
    }
}

/// Credentials from the pod's `imagePullSecrets`.
fn pull_secrets(pod: &Pod, sources: &Sources) -> Vec<PullSecret> {
    let mut found = Vec::new();
    let names = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    for secret in names.filter_map(|reference| sources.secret(&reference.name)) {
        let Some(config) = secret.data.as_ref().and_then(|d| d.get(".dockerconfigjson")) else { continue };
        let Ok(config) = serde_json::from_slice::<serde_json::Value>(&config.0) else { continue };
        for (registry, entry) in config["auths"].as_object().into_iter().flatten() {
            let text = |key: &str| entry[key].as_str().map(str::to_owned);
            let decoded = text("auth").and_then(|a| base64::engine::general_purpose::STANDARD.decode(a).ok());
            let pair = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = pair.and_then(|p| p.split_once(':').map(|(u, p)| (u.to_owned(), p.to_owned())));
            let (username, password) = match (text("username"), text("password"), pair) {
                (Some(username), Some(password), _) => (username, password),
                (_, _, Some(pair)) => pair,
                _ => continue,
            };
            let registry = registry.trim_start_matches("https://").trim_start_matches("http://");
            let registry = registry.split('/').next().unwrap_or(registry).to_owned();
            found.push(PullSecret { registry, username, password });
        }
    }
    found
}

fn termination_file(ctx: &Context, uid: &str, name: &str, attempt: u32) -> std::path::PathBuf {
    ctx.pod_dir(uid).join("termination").join(format!("{name}-{attempt}"))
}

/// What a container that ended wanted to say: its termination message, or the end of its log if it asked for that.
pub(crate) fn last_words(ctx: &Context, pod: &Pod, name: &str, container: &ContainerState) -> Option<String> {
    let ContainerPhase::Exited { code, .. } = container.phase else { return None };
    let uid = spec::uid(pod);
    let bytes = fs::read(termination_file(ctx, uid, name, container.attempt)).unwrap_or_default();
    if !bytes.is_empty() {
        return Some(String::from_utf8_lossy(&bytes[..bytes.len().min(LAST_WORDS)]).into_owned());
    }
    let policy = spec::container(pod, name).and_then(|c| c.termination_message_policy.clone());
    if policy.as_deref() != Some("FallbackToLogsOnError") || code == 0 {
        return None;
    }
    let log = fs::read_to_string(ctx.log_path(uid, name, container.attempt)).unwrap_or_default();
    let text = last_lines(&log);
    let from =
        (text.len().saturating_sub(LAST_LOG)..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Some(text[from..].to_owned())
}

/// Removes what a container said, with all its rotated parts: it is gone, and so is who could ask for it.
pub(crate) fn forget_words(ctx: &Context, uid: &str, name: &str, attempt: u32) {
    let _ = fs::remove_file(termination_file(ctx, uid, name, attempt));
    let log = ctx.log_path(uid, name, attempt);
    let (Some(folder), Some(file)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let part = entry.file_name().to_string_lossy().into_owned();
        if part == file || part.strip_prefix(file).is_some_and(|rest| rest.starts_with('.')) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The text of a log's last lines. A part (`P`) of a line goes on in the next one, and has no end of its own.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let mut text = String::new();
    for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (Some(tag), Some(words)) = (parts.next(), parts.next()) else { continue };
        text.push_str(words);
        if tag != "P" {
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn a_line_without_an_end_is_given_without_one() {
        let log = "2026-01-01T00:00:00Z stdout F one two\n2026-01-01T00:00:00Z stderr P DONE\n";
        assert_eq!(last_lines(log), "one two\nDONE");
        assert_eq!(last_lines(""), "");
    }
}
