//! Containers made by another program behind a CRI socket, such as containerd.
//!
//! The runtime's own list is the truth: sandboxes and containers carry the pod and this node in their labels. On disk
//! are only what it cannot keep for us (`pods/<uid>/sandbox-spec.json`) and the pods' logs and volumes.
//!
//! It cannot stop a pod by a deadline on its own, so pods that may run at most once are refused ([`Runtime::fence`]).

mod client;
mod messages;
mod network;
mod spec;
mod state;
mod stream;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::sync::{mpsc, oneshot};
use tombolo_net::Subnet;

use self::client::Client;
use self::messages as cri;
use crate::disk;
use crate::identity::Identity;
use crate::image::{Image, ImageConfig};
use crate::runtime::{
    ContainerSpec, ExecRequest, PodState, PullSecret, Runtime, RuntimeError, SandboxSpec, SandboxState,
    Session, Usage,
};

/// How often the runtime is asked whether a container ended: not every version tells by itself.
const LOOK: Duration = Duration::from_secs(1);
/// Wake-ups waiting for the node; when it is full the node is about to look anyway, and one is dropped.
const CHANGES: usize = 1024;
const SIGKILL: i32 = 9;
const SPEC: &str = "sandbox-spec.json";

pub struct Cri {
    client: Client,
    root: PathBuf,
    /// Of this node: tells its pods from those of others.
    node: String,
    /// Known once the runtime answered for the first time.
    met: Arc<OnceLock<Met>>,
    receiver: Mutex<Option<mpsc::Receiver<String>>>,
}

/// As the runtime calls itself.
struct Met {
    name: String,
    version: String,
}

/// What the node tells the runtime about itself.
pub struct CriConfig {
    pub socket: PathBuf,
    pub root: PathBuf,
    pub id: String,
    /// The node's own bridge and its addresses, for a machine without another network for pods.
    pub network: Option<(String, Subnet)>,
}

impl Cri {
    /// A runtime that is not up yet, as after a boot, is waited for; until then every call is refused.
    pub async fn start(config: CriConfig) -> Result<Arc<Cri>, RuntimeError> {
        let client = Client::new(&config.socket)?;
        fs::create_dir_all(config.root.join("pods")).map_err(RuntimeError::io("pods folder"))?;
        let met = Arc::new(OnceLock::new());
        let cni = (config.network, config.root.join("cni"));
        if version(&client).await.is_ok() {
            let _ = met.set(meet(&client, &cni).await?);
        } else {
            tracing::warn!(socket = %config.socket.display(), "the container runtime does not answer; waiting for it");
            tokio::spawn(wait_for(client.clone(), cni, Arc::downgrade(&met)));
        }
        let (changes, receiver) = mpsc::channel(CHANGES);
        tokio::spawn(follow(client.clone(), config.id.clone(), changes));
        let receiver = Mutex::new(Some(receiver));
        Ok(Arc::new(Cri { client, root: config.root, node: config.id, met, receiver }))
    }

    /// Ends and removes every pod of a node, its memory volumes, and the network configuration it wrote.
    pub(crate) async fn destroy(socket: &Path, node: &Identity, root: &Path) -> Result<(), RuntimeError> {
        let client = Client::new(socket)?;
        for sandbox in sandboxes(&client, &node.id, None).await? {
            remove_sandbox(&client, &sandbox.id).await?;
        }
        unmount_below(&root.join("pods"));
        network::forget(&network::folder(&configuration(&client).await?), &node.bridge());
        Ok(())
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    fn logs(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("logs")
    }

    fn kept_spec(&self, uid: &str) -> Result<SandboxSpec, RuntimeError> {
        let bytes = fs::read(self.pod_dir(uid).join(SPEC)).map_err(RuntimeError::io(SPEC))?;
        serde_json::from_slice(&bytes).map_err(|error| RuntimeError::Create(error.to_string()))
    }

    /// Every sandbox of a pod, the newest last.
    async fn sandboxes(&self, uid: &str) -> Result<Vec<cri::Sandbox>, RuntimeError> {
        let mut all = sandboxes(&self.client, &self.node, Some(uid)).await?;
        all.sort_by_key(|sandbox| sandbox.created_at);
        Ok(all)
    }

    /// The sandbox that is up, with its state.
    async fn ready(&self, uid: &str) -> Result<Option<(String, SandboxState)>, RuntimeError> {
        let all = self.sandboxes(uid).await?;
        let Some(sandbox) = all.iter().rev().find(|sandbox| sandbox.state == cri::SANDBOX_READY) else {
            return Ok(None);
        };
        let request = cri::DetailsRequest { id: sandbox.id.clone(), verbose: true };
        let details: Option<cri::SandboxStatusResponse> =
            self.client.if_there("PodSandboxStatus", request).await?;
        Ok(details.and_then(|details| state::sandbox(&details)).map(|state| (sandbox.id.clone(), state)))
    }

    async fn details(&self, id: &str) -> Result<Option<cri::ContainerStatusResponse>, RuntimeError> {
        let request = cri::DetailsRequest { id: id.to_owned(), verbose: true };
        self.client.if_there("ContainerStatus", request).await
    }

    async fn containers(&self, uid: &str) -> Result<Vec<cri::Container>, RuntimeError> {
        containers(&self.client, &self.node, Some(uid)).await
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        let request = cri::Id { id: id.to_owned() };
        self.client.if_there::<_, cri::Empty>("RemoveContainer", request).await.map(drop)
    }

    async fn image_details(&self, name: &str) -> Result<Option<cri::ImageStatusResponse>, RuntimeError> {
        let image = Some(cri::ImageSpec { image: name.to_owned() });
        let answer: cri::ImageStatusResponse =
            self.client.images("ImageStatus", cri::ImageRequest { image, verbose: true }).await?;
        Ok(Some(answer).filter(|answer| answer.image.is_some()))
    }
}

async fn version(client: &Client) -> Result<cri::VersionResponse, RuntimeError> {
    client.runtime("Version", cri::Empty {}).await
}

/// The node's own bridge and its addresses, and where the addresses of pods are remembered.
type Cni = (Option<(String, Subnet)>, PathBuf);

/// Learns who the runtime is, and tells it about the node's network.
async fn meet(client: &Client, (network, addresses): &Cni) -> Result<Met, RuntimeError> {
    let named = version(client).await?;
    if let Some((bridge, subnet)) = network {
        let own = configuration(client).await?;
        network::configure(&network::folder(&own), bridge, *subnet, addresses)?;
    }
    Ok(Met { name: named.runtime_name, version: named.runtime_version })
}

/// Ends with the node, or when the runtime is there.
async fn wait_for(client: Client, cni: Cni, met: Weak<OnceLock<Met>>) {
    while met.strong_count() > 0 {
        match meet(&client, &cni).await {
            Ok(runtime) => {
                tracing::info!(runtime = runtime.name, "the container runtime is there");
                met.upgrade().map(|met| met.set(runtime));
                return;
            }
            Err(error) => tracing::debug!(%error, "still waiting for the container runtime"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What the runtime says of its own configuration.
async fn configuration(client: &Client) -> Result<serde_json::Value, RuntimeError> {
    let status: cri::StatusResponse = client.runtime("Status", cri::StatusRequest { verbose: true }).await?;
    Ok(status.info.get("config").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
}

fn selector(node: &str, uid: Option<&str>) -> cri::Labels {
    let mut labels = cri::Labels::from([(spec::NODE.to_owned(), node.to_owned())]);
    labels.extend(uid.map(|uid| (spec::POD_UID.to_owned(), uid.to_owned())));
    labels
}

async fn sandboxes(
    client: &Client,
    node: &str,
    uid: Option<&str>,
) -> Result<Vec<cri::Sandbox>, RuntimeError> {
    let filter = Some(cri::SandboxFilter { label_selector: selector(node, uid) });
    let listed: cri::ListSandboxesResponse =
        client.runtime("ListPodSandbox", cri::ListSandboxesRequest { filter }).await?;
    Ok(listed.items)
}

async fn containers(
    client: &Client,
    node: &str,
    uid: Option<&str>,
) -> Result<Vec<cri::Container>, RuntimeError> {
    let filter = Some(cri::ContainerFilter { label_selector: selector(node, uid) });
    let listed: cri::ListContainersResponse =
        client.runtime("ListContainers", cri::ListContainersRequest { filter }).await?;
    Ok(listed.containers)
}

async fn remove_sandbox(client: &Client, id: &str) -> Result<(), RuntimeError> {
    for method in ["StopPodSandbox", "RemovePodSandbox"] {
        client.if_there::<_, cri::Empty>(method, cri::Id { id: id.to_owned() }).await?;
    }
    Ok(())
}

/// Tells whose containers changed since the last look.
async fn follow(client: Client, node: String, changes: mpsc::Sender<String>) {
    let mut known: BTreeMap<String, i32> = BTreeMap::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = changes.closed() => return,
        }
        let Ok(listed) = containers(&client, &node, None).await else { continue };
        let mut now = BTreeMap::new();
        for container in listed {
            if known.get(&container.id) != Some(&container.state)
                && let Some(uid) = container.labels.get(spec::POD_UID)
            {
                let _ = changes.try_send(uid.clone());
            }
            now.insert(container.id, container.state);
        }
        known = now;
    }
}

/// Unmounts what is mounted below a folder (memory volumes).
fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter(|point| Path::new(point).starts_with(dir)) {
        let _ = umount2(point, MntFlags::MNT_DETACH);
    }
}

#[async_trait]
impl Runtime for Cri {
    fn name(&self) -> &str {
        self.met.get().map_or("cri", |runtime| &runtime.name)
    }

    fn version(&self) -> String {
        self.met.get().map_or_else(|| "unknown".to_owned(), |runtime| runtime.version.clone())
    }

    async fn answers(&self) -> Result<(), RuntimeError> {
        version(&self.client).await?;
        self.met.get().map(drop).ok_or_else(|| RuntimeError::Create("the runtime has just started".into()))
    }

    async fn start_sandbox(&self, wanted: &SandboxSpec) -> Result<SandboxState, RuntimeError> {
        if let Some((_, state)) = self.ready(&wanted.uid).await? {
            return Ok(state);
        }
        let (dir, logs) = (self.pod_dir(&wanted.uid), self.logs(&wanted.uid));
        fs::create_dir_all(&logs).map_err(RuntimeError::io("log folder"))?;
        let text = serde_json::to_vec(wanted).map_err(|error| RuntimeError::Create(error.to_string()))?;
        disk::replace_until_reboot(&dir.join(SPEC), &text).map_err(RuntimeError::io(SPEC))?;
        let old = self.sandboxes(&wanted.uid).await?;
        let attempts = old.iter().filter_map(|sandbox| Some(sandbox.metadata.as_ref()?.attempt + 1));
        let config = spec::sandbox(&self.node, wanted, attempts.max().unwrap_or(0), &logs);
        let _: cri::Id =
            self.client.runtime("RunPodSandbox", cri::RunSandboxRequest { config: Some(config) }).await?;
        self.ready(&wanted.uid).await?.map(|(_, state)| state).ok_or(RuntimeError::NoSandbox)
    }

    async fn stop_sandbox(&self, uid: &str) -> Result<(), RuntimeError> {
        for sandbox in self.sandboxes(uid).await? {
            self.client.if_there::<_, cri::Empty>("StopPodSandbox", cri::Id { id: sandbox.id }).await?;
        }
        unmount_below(&self.pod_dir(uid));
        Ok(())
    }

    async fn remove_pod(&self, uid: &str) -> Result<(), RuntimeError> {
        for sandbox in self.sandboxes(uid).await? {
            remove_sandbox(&self.client, &sandbox.id).await?;
        }
        let dir = self.pod_dir(uid);
        let removed = tokio::task::spawn_blocking(move || {
            unmount_below(&dir);
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(RuntimeError::io("remove the pod's folder")(error))
                }
                _ => Ok(()),
            }
        });
        removed.await.map_err(|error| RuntimeError::Create(error.to_string()))?
    }

    async fn start_container(&self, wanted: &ContainerSpec) -> Result<(), RuntimeError> {
        let (sandbox_id, _) = self.ready(&wanted.pod).await?.ok_or(RuntimeError::NoSandbox)?;
        let sandbox = self.kept_spec(&wanted.pod)?;
        let unknown = || crate::image::StoreError::Unknown(wanted.image.clone());
        let image = self.image_details(&wanted.image).await?.and_then(|details| details.image);
        let image = image.ok_or_else(unknown)?;
        if wanted.security.must_not_be_root && wanted.security.user.is_none() {
            let root = match &image.uid {
                Some(uid) => uid.value == 0,
                None => image.username.is_empty() || image.username == "root",
            };
            if root {
                return Err(RuntimeError::Refused(
                    "container has runAsNonRoot and image will run as root".into(),
                ));
            }
        }
        // One that was made and never started is of no use; its name must be free.
        for container in self.containers(&wanted.pod).await? {
            let same = container
                .metadata
                .as_ref()
                .is_some_and(|m| m.name == wanted.name && m.attempt == wanted.attempt);
            if same && container.state == cri::state::CREATED {
                self.remove(&container.id).await?;
            }
        }
        let logs = self.logs(&wanted.pod);
        if let Some(folder) = wanted.log.parent() {
            fs::create_dir_all(folder).map_err(RuntimeError::io("log folder"))?;
        }
        let attempt =
            self.sandboxes(&wanted.pod).await?.last().and_then(|s| Some(s.metadata.as_ref()?.attempt));
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox_id,
            config: Some(spec::container(&self.node, wanted, &sandbox, &image.id, &logs)),
            sandbox_config: Some(spec::sandbox(&self.node, &sandbox, attempt.unwrap_or(0), &logs)),
        };
        let made: cri::Id = self.client.runtime("CreateContainer", request).await?;
        let started =
            self.client.runtime::<_, cri::Empty>("StartContainer", cri::Id { id: made.id.clone() }).await;
        if let Err(error) = started {
            self.remove(&made.id).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn signal(&self, _pod: &str, id: &str, signal: i32) -> Result<(), RuntimeError> {
        if signal == SIGKILL {
            let request = cri::StopContainerRequest { id: id.to_owned(), timeout: 0 };
            return self.client.if_there::<_, cri::Empty>("StopContainer", request).await.map(drop);
        }
        let details = self.details(id).await?.ok_or_else(|| RuntimeError::NoContainer(id.to_owned()))?;
        // The interface knows no other signal; the process is on this machine.
        if let (Some(pid), Ok(signal)) = (state::running_pid(&details), Signal::try_from(signal)) {
            kill(Pid::from_raw(pid as i32), signal)
                .map_err(|error| RuntimeError::io("signal")(error.into()))?;
        }
        Ok(())
    }

    async fn remove_container(&self, _pod: &str, id: &str) -> Result<(), RuntimeError> {
        self.remove(id).await
    }

    async fn pod(&self, uid: &str) -> Result<PodState, RuntimeError> {
        if self.met.get().is_none() {
            self.answers().await?;
        }
        let sandbox = self.ready(uid).await?;
        let mut states = Vec::new();
        for container in self.containers(uid).await? {
            if container.state == cri::state::CREATED {
                continue;
            }
            let current = sandbox.as_ref().is_some_and(|(id, _)| *id == container.pod_sandbox_id);
            let details = self.details(&container.id).await?;
            states.extend(details.and_then(|details| state::container(&details, current)));
        }
        states.sort_by(|a, b| (&a.name, a.attempt).cmp(&(&b.name, b.attempt)));
        Ok(PodState { sandbox: sandbox.map(|(_, state)| state), containers: states })
    }

    async fn pods(&self) -> Result<Vec<String>, RuntimeError> {
        let folders = fs::read_dir(self.root.join("pods")).map_err(RuntimeError::io("pods folder"))?;
        let mut uids: std::collections::BTreeSet<String> =
            folders.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let listed = sandboxes(&self.client, &self.node, None).await?;
        uids.extend(listed.into_iter().filter_map(|sandbox| Some(sandbox.metadata?.uid)));
        Ok(uids.into_iter().collect())
    }

    fn changes(&self) -> mpsc::Receiver<String> {
        let receiver = self.receiver.lock().expect("no panic while held").take();
        receiver.expect("the node takes the receiver once")
    }

    async fn exec(&self, _pod: &str, id: &str, request: &ExecRequest) -> Result<Session, RuntimeError> {
        if !request.streamed {
            return Ok(exec_sync(self.client.clone(), id, request));
        }
        let message = cri::ExecRequest {
            container_id: id.to_owned(),
            cmd: request.command.clone(),
            tty: request.tty,
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr && !request.tty,
        };
        let streaming: cri::Streaming = self.client.runtime("Exec", message).await?;
        let ExecRequest { tty, stdin, stdout, stderr, .. } = *request;
        stream::connect(&streaming.url, stream::Wanted { stdin, stdout, stderr, tty }).await
    }

    async fn attach(&self, _pod: &str, id: &str, stdin: bool) -> Result<Session, RuntimeError> {
        let details = self.details(id).await?.ok_or_else(|| RuntimeError::NoContainer(id.to_owned()))?;
        let tty = state::has_terminal(&details);
        let message =
            cri::AttachRequest { container_id: id.to_owned(), stdin, tty, stdout: true, stderr: !tty };
        let streaming: cri::Streaming = self.client.runtime("Attach", message).await?;
        stream::connect(&streaming.url, stream::Wanted { stdin, stdout: true, stderr: !tty, tty }).await
    }

    async fn reopen_log(&self, _pod: &str, id: &str) -> Result<(), RuntimeError> {
        let request = cri::Id { id: id.to_owned() };
        self.client.runtime::<_, cri::Empty>("ReopenContainerLog", request).await.map(drop)
    }

    async fn usage(&self, pod: &str, id: Option<&str>) -> Result<Usage, RuntimeError> {
        let ids = match id {
            Some(id) => vec![id.to_owned()],
            None => {
                let all = self.containers(pod).await?;
                all.into_iter().filter(|c| c.state == cri::state::RUNNING).map(|c| c.id).collect()
            }
        };
        let mut sum = Usage::default();
        for id in ids {
            let answer: Option<cri::ContainerStatsResponse> =
                self.client.if_there("ContainerStats", cri::Id { id }).await?;
            let one = state::usage(&answer.unwrap_or_default());
            sum.cpu_nanos += one.cpu_nanos;
            sum.memory_bytes += one.memory_bytes;
            sum.working_set_bytes += one.working_set_bytes;
        }
        Ok(sum)
    }

    async fn memory_volume(&self, _pod: &str, path: &Path, size: Option<u64>) -> Result<(), RuntimeError> {
        let options = format!("mode=0777{}", size.map(|bytes| format!(",size={bytes}")).unwrap_or_default());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(|error| RuntimeError::io("mount a memory volume")(error.into()))
    }

    async fn image(&self, name: &str) -> Option<Image> {
        let details = self.image_details(name).await.ok()??;
        Some(state::image(&details.image?, state::image_config(&details.info)))
    }

    async fn pull(&self, name: &str, secrets: &[PullSecret]) -> Result<Image, RuntimeError> {
        let refused = |error: RuntimeError| match error.to_string() {
            // So containerd says that nobody answered.
            text if text.contains("failed to do request") => RuntimeError::Away(text),
            text => RuntimeError::Refused(text),
        };
        let registry = name.parse::<crate::image::Reference>().map(|r| r.registry).unwrap_or_default();
        let auth = secrets.iter().find(|secret| secret.registry == registry).map(|secret| cri::Auth {
            username: secret.username.clone(),
            password: secret.password.clone(),
            server_address: secret.registry.clone(),
        });
        let image = Some(cri::ImageSpec { image: name.to_owned() });
        let _: cri::Id =
            self.client.images("PullImage", cri::PullImageRequest { image, auth }).await.map_err(refused)?;
        self.image(name).await.ok_or_else(|| crate::image::StoreError::Unknown(name.to_owned()).into())
    }

    async fn images(&self) -> Vec<(Image, Vec<String>)> {
        let listed: Result<cri::ListImagesResponse, _> =
            self.client.images("ListImages", cri::Empty {}).await;
        let named = |image: cri::Image| {
            let names = image.repo_tags.clone();
            (state::image(&image, ImageConfig::default()), names)
        };
        listed
            .map(|list| list.images.into_iter().filter(|i| !i.pinned).map(named).collect())
            .unwrap_or_default()
    }

    async fn remove_image(&self, name: &str) -> Result<(), RuntimeError> {
        let image = Some(cri::ImageSpec { image: name.to_owned() });
        let request = cri::ImageRequest { image, verbose: false };
        self.client.images::<_, cri::Empty>("RemoveImage", request).await.map(drop)
    }
}

/// A command whose output is wanted in the end. Giving it up ends it: the runtime sees the call go away.
fn exec_sync(client: Client, id: &str, request: &ExecRequest) -> Session {
    let message = cri::ExecSyncRequest { container_id: id.to_owned(), cmd: request.command.clone() };
    let (stdout, mut stdout_end) = duplex(64 * 1024);
    let (stderr, mut stderr_end) = duplex(64 * 1024);
    let (resize, _) = mpsc::channel(1);
    let (mut sender, done) = oneshot::channel();
    tokio::spawn(async move {
        let called = tokio::select! {
            called = client.exec_sync(message) => called,
            () = sender.closed() => return,
        };
        let outcome = match called {
            Ok(answer) => {
                let _ =
                    tokio::join!(stdout_end.write_all(&answer.stdout), stderr_end.write_all(&answer.stderr));
                Ok(answer.exit_code)
            }
            Err(error) => Err(error.to_string()),
        };
        drop((stdout_end, stderr_end));
        let _ = sender.send(outcome);
    });
    Session { stdin: None, stdout: Some(Box::new(stdout)), stderr: Some(Box::new(stderr)), resize, done }
}
