//! The embedded runtime: containers made by our own binary, kept by a shim per pod. No daemon.
//!
//! ```text
//! pods/<uid>/sandbox.json shim.sock shim.pid       the pod's shim and its address
//! pods/<uid>/containers/<name>/<attempt>/          one container: config.json, meta.json, upper/, pid, exit
//! ```
//!
//! The disk is the truth: whatever is here can be read again by the next node process. Mounts live in the shim's and
//! the containers' own mount namespaces, never in the host's, so none can be left behind.

pub(crate) mod cgroup;
pub(crate) mod launch;
mod links;
mod oci;
mod seccomp;
mod session;
pub(crate) mod shim;
mod state;
mod users;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::mpsc;

use self::cgroup::Cgroups;
use self::launch::Launch;
pub use self::links::PodLinks;
use self::oci::Place;
pub(crate) use self::oci::{MASKED, READ_ONLY};
use self::state::{Meta, Sandbox};
use crate::image::{Image, Store};
use crate::reexec::{self, Create};
use crate::runtime::{
    ContainerSpec, ExecRequest, PodState, PullSecret, Runtime, RuntimeError, SandboxSpec, SandboxState,
    Session, Usage,
};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Wake-ups waiting for the node; when it is full the node is about to look anyway, and one is dropped.
const CHANGES: usize = 1024;

pub struct Embedded {
    root: PathBuf,
    /// What the shim starts to make a container: this very program.
    program: PathBuf,
    shim: PathBuf,
    images: Arc<Store>,
    cgroups: Cgroups,
    links: PodLinks,
    live: Mutex<HashMap<String, Sandbox>>,
    changes: mpsc::Sender<String>,
    receiver: Mutex<Option<mpsc::Receiver<String>>>,
    grantable: Vec<String>,
    /// Puller of images from registries.
    registries: crate::image::Registries,
}

/// What the embedded runtime needs to start.
pub struct EmbeddedConfig {
    pub root: PathBuf,
    pub id: String,
    pub program: PathBuf,
    pub images: Arc<Store>,
    pub links: PodLinks,
    pub registries: crate::image::Registries,
}

impl Embedded {
    /// Opens the runtime and adopts every pod whose shim still answers.
    pub async fn start(config: EmbeddedConfig) -> Result<Arc<Embedded>, RuntimeError> {
        let shim =
            shim::install(&config.root.join("bin")).map_err(RuntimeError::io("install the pod shim"))?;
        fs::create_dir_all(config.root.join("pods")).map_err(RuntimeError::io("pods folder"))?;
        let (changes, receiver) = mpsc::channel(CHANGES);
        let runtime = Arc::new(Embedded {
            root: config.root,
            program: config.program,
            shim,
            images: config.images,
            cgroups: Cgroups::new(&config.id),
            links: config.links,
            live: Mutex::default(),
            changes,
            receiver: Mutex::new(Some(receiver)),
            grantable: grantable_capabilities(),
            registries: config.registries,
        });
        for uid in runtime.pods().await? {
            runtime.adopt(&uid).await;
        }
        Ok(runtime)
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    async fn adopt(self: &Arc<Self>, uid: &str) {
        let dir = self.pod_dir(uid);
        let Some(sandbox) = Sandbox::load(&dir) else { return };
        // Also a pod that has to be started again keeps its address: while the API is away, nobody could be told another.
        if let Some(address) = sandbox.address
            && !self.links.claim(uid, address)
        {
            tracing::warn!(pod = uid, %address, "the address of an adopted pod is taken by another one");
        }
        if !sandbox.this_boot() || shim::settle(&dir).await.is_err() {
            return;
        }
        tracing::info!(pod = uid, pid = sandbox.pid, "adopted");
        self.keep(uid, sandbox);
    }

    /// Remembers a running sandbox and listens to its shim.
    fn keep(&self, uid: &str, sandbox: Sandbox) {
        self.live.lock().expect("no panic while held").insert(uid.to_owned(), sandbox);
        let (dir, uid, changes) = (self.pod_dir(uid), uid.to_owned(), self.changes.clone());
        tokio::spawn(async move {
            if let Ok(mut events) = shim::Shim::connect(&dir).await
                && events.ask(&["events"]).await.is_ok()
            {
                // An end that came before we listened is on disk; look once.
                let _ = changes.try_send(uid.clone());
                while let Ok(Some(_)) = events.line().await {
                    let _ = changes.try_send(uid.clone());
                }
            }
            let _ = changes.try_send(uid);
        });
    }

    fn sandbox(&self, uid: &str) -> Option<Sandbox> {
        let mut live = self.live.lock().expect("no panic while held");
        let sandbox = live.get(uid)?.clone();
        if sandbox.alive() {
            return Some(sandbox);
        }
        live.remove(uid);
        None
    }

    fn container_dir(&self, pod: &str, id: &str) -> Result<PathBuf, RuntimeError> {
        let found = state::containers(&self.pod_dir(pod)).into_iter().find(|(_, meta)| meta.id == id);
        found.map(|(dir, _)| dir).ok_or_else(|| RuntimeError::NoContainer(id.to_owned()))
    }
}

/// Without them no container can be made. A shell in `ip netns exec` has a `/sys` of its own, with nothing in it.
fn has_control_groups(root: &Path) -> Result<(), RuntimeError> {
    if fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some()) {
        return Ok(());
    }
    let path = root.display();
    Err(RuntimeError::Create(format!(
        "no control groups at {path}: `tombolo check machine` says how to mend it"
    )))
}

#[async_trait]
impl Runtime for Embedded {
    fn name(&self) -> &str {
        "tombolo"
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    async fn answers(&self) -> Result<(), RuntimeError> {
        has_control_groups(Path::new("/sys/fs/cgroup"))
    }

    async fn start_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxState, RuntimeError> {
        if let Some(sandbox) = self.sandbox(&spec.uid) {
            return Ok(sandbox.state());
        }
        let dir = self.pod_dir(&spec.uid);
        fs::create_dir_all(&dir).map_err(RuntimeError::io("pod folder"))?;
        shim::retire(&dir).await.map_err(RuntimeError::io("end the pod's old shim"))?;
        let (cgroups, group) = (self.cgroups.clone(), self.cgroups.pod(&spec.uid));
        let _ = tokio::task::spawn_blocking(move || cgroups.kill(&group)).await;
        let letters = [
            ('n', !spec.host_network),
            ('i', !spec.host_ipc),
            ('u', !spec.host_network),
            ('p', spec.share_processes),
        ];
        let namespaces: String =
            letters.iter().filter(|(_, wanted)| *wanted).map(|(letter, _)| letter).collect();
        let namespaces = if namespaces.is_empty() { "-".to_owned() } else { namespaces };
        let pid = shim::start(&self.shim, &dir, &namespaces, &spec.hostname)
            .await
            .map_err(RuntimeError::io(format!("sandbox of {}/{}", spec.namespace, spec.name)))?;
        let mut sandbox = Sandbox::new(pid, spec, &dir);
        let outcome = async {
            self.cgroups
                .create_pod(&spec.uid, &spec.resources, pid)
                .map_err(RuntimeError::io("pod cgroup"))?;
            if !spec.host_network {
                sandbox.address = Some(self.links.attach(spec, pid).await?);
            }
            let shm = dir.join("shm");
            fs::create_dir_all(&shm).map_err(RuntimeError::io("shm"))?;
            let shm = shm.to_string_lossy().into_owned();
            shim::ask(&dir, &["tmpfs", &shm, "mode=1777,size=65536k"])
                .await
                .map_err(RuntimeError::io("/dev/shm"))?;
            sandbox.save(&dir).map_err(RuntimeError::io("sandbox.json"))
        };
        if let Err(error) = outcome.await {
            let _ = shim::ask(&dir, &["exit"]).await;
            let _ = self.links.release(&spec.uid).await;
            return Err(error);
        }
        let state = sandbox.state();
        self.keep(&spec.uid, sandbox);
        Ok(state)
    }

    async fn stop_sandbox(&self, uid: &str) -> Result<(), RuntimeError> {
        let dir = self.pod_dir(uid);
        let sandbox = self.live.lock().expect("no panic while held").remove(uid);
        self.links.leave(uid, sandbox.filter(Sandbox::alive).map(|sandbox| sandbox.pid)).await?;
        shim::retire(&dir).await.map_err(RuntimeError::io("stop the pod"))?;
        let _ = fs::remove_file(dir.join("sandbox.json"));
        let (cgroups, name) = (self.cgroups.clone(), uid.to_owned());
        let cleaned = tokio::task::spawn_blocking(move || {
            // What the containers wrote beside their volumes went with them; their logs and how they ended stay.
            for (container, _) in state::containers(&dir) {
                for layer in ["upper", "work", "rootfs"] {
                    let _ = fs::remove_dir_all(container.join(layer));
                }
            }
            cgroups.kill(&cgroups.pod(&name));
            cgroups.remove(&cgroups.pod(&name));
        });
        cleaned.await.map_err(|error| RuntimeError::Create(error.to_string()))?;
        self.links.release(uid).await
    }

    async fn remove_pod(&self, uid: &str) -> Result<(), RuntimeError> {
        let dir = self.pod_dir(uid);
        let removed = tokio::task::spawn_blocking(move || match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(RuntimeError::io("remove the pod's folder")(error))
            }
            _ => Ok(()),
        });
        removed.await.map_err(|error| RuntimeError::Create(error.to_string()))?
    }

    async fn start_container(&self, spec: &ContainerSpec) -> Result<(), RuntimeError> {
        let sandbox = self.sandbox(&spec.pod).ok_or(RuntimeError::NoSandbox)?;
        let pod_dir = self.pod_dir(&spec.pod);
        let image = self
            .images
            .get(&spec.image)
            .ok_or_else(|| crate::image::StoreError::Unknown(spec.image.clone()))?;
        let meta = Meta::new(spec, &image, &sandbox);
        let dir = pod_dir.join("containers").join(&spec.name).join(spec.attempt.to_string());
        let cgroup = self.cgroups.container(&spec.pod, &meta.id);
        let layers = self.images.layers(&image);
        let rootfs = dir.join("rootfs");
        let place = Place {
            id: &meta.id,
            cgroup: &cgroup,
            rootfs: &rootfs.to_string_lossy(),
            sandbox_pid: sandbox.pid,
            pause_pid: spec.target.as_ref().map(|(_, pid)| *pid).or(sandbox.pause),
            host_pid: sandbox.host_pid,
            host_network: sandbox.host_network,
            cgroup_v2: self.cgroups.v2,
            grantable: &self.grantable,
        };
        if let Err(error) = prepare(spec, &image, &layers, &dir, &place, &meta) {
            let _ = fs::remove_dir_all(&dir);
            return Err(error);
        }
        if let Some(folder) = spec.log.parent() {
            fs::create_dir_all(folder).map_err(RuntimeError::io("log folder"))?;
        }
        let flags: String = [('t', spec.tty), ('i', spec.stdin), ('o', spec.stdin_once)]
            .iter()
            .filter(|(_, wanted)| *wanted)
            .map(|(letter, _)| letter)
            .collect();
        let (dir_text, log, program) =
            (dir.to_string_lossy(), spec.log.to_string_lossy(), self.program.to_string_lossy());
        let request = ["run", &meta.id, &dir_text, &log, &flags, &program, reexec::CREATE, &dir_text];
        if let Err(error) = shim::ask(&pod_dir, &request).await {
            // One that hangs is not waited for again.
            let _ = shim::ask(&pod_dir, &["kill", &meta.id, "9"]).await;
            let group = cgroup.clone();
            let cgroups = self.cgroups.clone();
            let _ = tokio::task::spawn_blocking(move || cgroups.remove(&group)).await;
            let _ = fs::remove_dir_all(&dir);
            return Err(RuntimeError::Create(error.to_string()));
        }
        Ok(())
    }

    async fn signal(&self, pod: &str, id: &str, signal: i32) -> Result<(), RuntimeError> {
        match shim::ask(&self.pod_dir(pod), &["kill", id, &signal.to_string()]).await {
            Ok(_) => Ok(()),
            Err(error) if error.to_string().starts_with("no container") => {
                Err(RuntimeError::NoContainer(id.to_owned()))
            }
            Err(error) => Err(RuntimeError::io("signal the container")(error)),
        }
    }

    async fn remove_container(&self, pod: &str, id: &str) -> Result<(), RuntimeError> {
        let dir = self.container_dir(pod, id)?;
        let _ = shim::ask(&self.pod_dir(pod), &["forget", id]).await;
        let (cgroups, group) = (self.cgroups.clone(), self.cgroups.container(pod, id));
        let removed = tokio::task::spawn_blocking(move || {
            cgroups.remove(&group);
            fs::remove_dir_all(&dir).map_err(RuntimeError::io("remove the container"))
        });
        removed.await.map_err(|error| RuntimeError::Create(error.to_string()))?
    }

    async fn pod(&self, uid: &str) -> Result<PodState, RuntimeError> {
        let sandbox = self.sandbox(uid);
        let containers = state::containers(&self.pod_dir(uid))
            .into_iter()
            .filter_map(|(dir, meta)| {
                let group = self.cgroups.container(uid, &meta.id);
                meta.state(&dir, sandbox.as_ref(), || self.cgroups.out_of_memory(&group))
            })
            .collect();
        Ok(PodState { sandbox: sandbox.map(|s| s.state()), containers })
    }

    async fn pods(&self) -> Result<Vec<String>, RuntimeError> {
        let folders = fs::read_dir(self.root.join("pods")).map_err(RuntimeError::io("pods folder"))?;
        Ok(folders.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    fn changes(&self) -> mpsc::Receiver<String> {
        let receiver = self.receiver.lock().expect("no panic while held").take();
        receiver.expect("the node takes the receiver once")
    }

    async fn exec(&self, pod: &str, id: &str, request: &ExecRequest) -> Result<Session, RuntimeError> {
        session::exec(&self.program, &self.container_dir(pod, id)?, request).await
    }

    async fn attach(&self, pod: &str, id: &str, stdin: bool) -> Result<Session, RuntimeError> {
        session::attach(&self.pod_dir(pod), id, stdin).await
    }

    async fn reopen_log(&self, pod: &str, id: &str) -> Result<(), RuntimeError> {
        let asked = shim::ask(&self.pod_dir(pod), &["reopen", id]).await;
        asked.map(drop).map_err(RuntimeError::io("reopen the log"))
    }

    async fn usage(&self, pod: &str, id: Option<&str>) -> Result<Usage, RuntimeError> {
        let group = id.map_or_else(|| self.cgroups.pod(pod), |id| self.cgroups.container(pod, id));
        self.cgroups.usage(&group).map_err(RuntimeError::io("read the cgroup"))
    }

    async fn memory_volume(&self, pod: &str, path: &Path, size: Option<u64>) -> Result<(), RuntimeError> {
        let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
        let asked =
            shim::ask(&self.pod_dir(pod), &["tmpfs", &path.to_string_lossy(), &format!("mode=0777{size}")])
                .await;
        asked.map(drop).map_err(RuntimeError::io("mount a memory volume"))
    }

    async fn fence(&self, pod: &str, stop: i64, kill: i64) -> Result<(), RuntimeError> {
        let asked = shim::ask(&self.pod_dir(pod), &["fence", &stop.to_string(), &kill.to_string()]).await;
        asked.map(drop).map_err(RuntimeError::io("set the pod's deadline"))
    }

    async fn image(&self, name: &str) -> Option<Image> {
        self.images.get(name)
    }

    async fn pull(&self, name: &str, secrets: &[PullSecret]) -> Result<Image, RuntimeError> {
        self.registries.pull(&self.images, name, secrets).await.map_err(|error| match error.is_away() {
            true => RuntimeError::Away(error.to_string()),
            false => RuntimeError::Refused(error.to_string()),
        })
    }

    async fn images(&self) -> Vec<(Image, Vec<String>)> {
        self.images.list()
    }

    async fn remove_image(&self, name: &str) -> Result<(), RuntimeError> {
        self.images.remove(name).map_err(RuntimeError::from)
    }
}

/// Writes everything the creating process reads.
fn prepare(
    spec: &ContainerSpec,
    image: &Image,
    layers: &[PathBuf],
    dir: &Path,
    place: &Place<'_>,
    meta: &Meta,
) -> Result<(), RuntimeError> {
    let io = RuntimeError::io;
    let _ = fs::remove_dir_all(dir);
    for folder in ["upper", "work", "rootfs"] {
        fs::create_dir_all(dir.join(folder)).map_err(io("container folder"))?;
    }
    open_to_all(&dir.join("upper")).map_err(io("container folder"))?;
    let config = &image.config;
    let user = users::resolve(layers, config.user.as_deref().unwrap_or(""), &spec.security)?;
    let args = oci::arguments(
        spec,
        config.entrypoint.as_deref().unwrap_or(&[]),
        config.cmd.as_deref().unwrap_or(&[]),
    );
    if args.is_empty() {
        return Err(RuntimeError::Create(format!(
            "no command specified: image {} names none and neither does the pod",
            spec.image
        )));
    }
    let env = environment(config.env.as_deref().unwrap_or(&[]), &spec.env);
    let capabilities = oci::capabilities(spec, place.grantable);
    let mut process = oci::process(spec, &args, &env, &user, &capabilities);
    if let Some(score) = spec.resources.oom_score_adj
        && !place.grantable.iter().any(|c| c == "CAP_SYS_RESOURCE")
    {
        // Without that capability the kernel lets a process only make itself more likely to be killed.
        let own: i32 = fs::read_to_string("/proc/self/oom_score_adj")
            .ok()
            .and_then(|t| t.trim().parse().ok())
            .unwrap_or(0);
        process["oomScoreAdj"] = score.max(own).into();
    }
    let cwd = spec.working_dir.clone().or_else(|| config.working_dir.clone()).filter(|cwd| !cwd.is_empty());
    let cwd = cwd.unwrap_or_else(|| "/".into());
    let mounted = spec.mounts.iter().any(|mount| Path::new(&cwd).starts_with(&mount.target));
    if !mounted && !users::exists_in(layers, Path::new(&cwd)) {
        let made = dir.join("upper").join(cwd.trim_start_matches('/'));
        fs::create_dir_all(&made).and_then(|()| open_to_all(&made)).map_err(io("working directory"))?;
    }
    process["cwd"] = cwd.into();
    let create = Create {
        id: place.id.to_owned(),
        layers: layers.iter().map(|layer| layer.to_string_lossy().into_owned()).collect(),
        launch: Launch {
            terminal: spec.tty,
            filtered: spec.security.filtered,
            capabilities,
            ..Launch::default()
        },
    };
    let write = |name: &str, bytes: Vec<u8>| fs::write(dir.join(name), bytes).map_err(RuntimeError::io(name));
    write("config.json", oci::config(spec, process, place).to_string().into_bytes())?;
    write("create.json", serde_json::to_vec(&create).map_err(|e| RuntimeError::Create(e.to_string()))?)?;
    write("meta.json", serde_json::to_vec(meta).map_err(|e| RuntimeError::Create(e.to_string()))?)
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// The image's variables under the pod's; the last word on a name wins. `PATH` is always there.
fn environment(image: &[String], pod: &[(String, String)]) -> Vec<String> {
    let mut env: Vec<String> = Vec::new();
    let mut put = |entry: String| {
        let name = entry.split('=').next().unwrap_or_default().to_owned();
        match env.iter_mut().find(|e| e.split('=').next() == Some(name.as_str())) {
            Some(old) => *old = entry,
            None => env.push(entry),
        }
    };
    put(DEFAULT_PATH.to_owned());
    image.iter().cloned().for_each(&mut put);
    pod.iter().for_each(|(name, value)| put(format!("{name}={value}")));
    env
}

/// What this process may hand on: on a machine that itself lacks a capability, asking for it would fail.
fn grantable_capabilities() -> Vec<String> {
    let mut names: Vec<String> = caps::read(None, caps::CapSet::Bounding)
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_control_groups_runs_no_pods_and_says_so() {
        let dir = tempfile::tempdir().expect("folder");
        let error = has_control_groups(dir.path()).expect_err("nothing is mounted");
        assert!(error.to_string().contains("check machine"), "{error}");
        fs::create_dir(dir.path().join("memory")).expect("a controller");
        assert!(has_control_groups(dir.path()).is_ok());
    }
}
