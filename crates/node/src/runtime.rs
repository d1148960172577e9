//! What a container runtime must be able to do for the node.
//!
//! Everything is level-triggered: the pod worker asks for the truth ([`Runtime::pod`]), decides, acts, and is woken by
//! [`Runtime::changes`] when something ended. Every call is safe to repeat.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};

use crate::image::Image;

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("{0}")]
    Create(String),
    #[error("{0}")]
    Refused(String),
    /// The registry of an image cannot be reached; it did not say no.
    #[error("{0}")]
    Away(String),
    #[error("no such container: {0}")]
    NoContainer(String),
    #[error("the pod has no running sandbox")]
    NoSandbox,
    #[error(transparent)]
    Network(#[from] tombolo_net::PodNetworkError),
    #[error(transparent)]
    Plugins(#[from] tombolo_net::CniError),
    #[error(transparent)]
    Address(#[from] tombolo_net::Exhausted),
    #[error(transparent)]
    Image(#[from] crate::image::StoreError),
}

impl RuntimeError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> RuntimeError {
        let what = what.into();
        move |source| RuntimeError::Io { what, source }
    }
}

/// The surroundings all containers of a pod share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub hostname: String,
    pub host_network: bool,
    pub host_ipc: bool,
    pub host_pid: bool,
    pub share_processes: bool,
    pub resources: Resources,
    pub sysctls: BTreeMap<String, String>,
}

/// A file or folder of the host inside a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: String,
    pub read_only: bool,
    /// `None`, `HostToContainer` or `Bidirectional`.
    pub propagation: Option<String>,
}

/// What a container may use. Absent means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds of processor time per 100 ms.
    pub cpu_quota: Option<i64>,
    pub memory_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    pub oom_score_adj: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Security {
    pub user: Option<i64>,
    pub group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    pub must_not_be_root: bool,
    pub privileged: bool,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub filtered: bool,
    pub unmasked_proc: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub pod: String,
    pub name: String,
    pub attempt: u32,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: Option<String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<String>,
    pub resources: Resources,
    pub security: Security,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    pub log: PathBuf,
    /// The running container whose processes it sees, and its first process.
    pub target: Option<(String, u32)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ContainerPhase {
    Running {
        pid: u32,
    },
    /// `oom`: the kernel killed it for using more memory than allowed.
    Exited {
        code: i32,
        finished: Timestamp,
        oom: bool,
    },
    /// The machine or the shim went away under it; how it ended is not known.
    Lost,
}

/// A container as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerState {
    pub id: String,
    pub name: String,
    pub attempt: u32,
    pub image: String,
    pub image_id: String,
    pub started: Timestamp,
    pub phase: ContainerPhase,
    /// Made in the sandbox the pod has now, not in one it had before a reboot.
    pub current: bool,
}

/// A pod as it is: `sandbox` is absent when nothing runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    pub sandbox: Option<SandboxState>,
    pub containers: Vec<ContainerState>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SandboxState {
    pub addresses: Vec<IpAddr>,
    /// Process in whose network namespace the pod lives.
    pub pid: u32,
    pub created: Timestamp,
}

pub type Input = Box<dyn AsyncWrite + Send + Unpin>;
pub type Output = Box<dyn AsyncRead + Send + Unpin>;

/// A command running in a container, or a connection to its main process.
pub struct Session {
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    /// Columns and rows; ignored without a terminal. Holds one: a later size replaces an earlier one anyway.
    pub resize: mpsc::Sender<(u16, u16)>,
    /// The exit code, or why it could not start. Dropping the receiver ends the command.
    pub done: oneshot::Receiver<Result<i32, String>>,
}

#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    pub command: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// Somebody follows it as it runs; otherwise its output is wanted in the end only.
    pub streamed: bool,
}

/// Processor time and memory of one container or pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu_nanos: u64,
    pub memory_bytes: u64,
    /// Memory the kernel cannot simply take back.
    pub working_set_bytes: u64,
}

#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Name for container ids and the node's status, e.g. `tombolo`.
    fn name(&self) -> &str;
    fn version(&self) -> String;

    async fn start_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxState, RuntimeError>;
    /// Ends every container of the pod at once and gives its address back. Its logs and volumes stay.
    async fn stop_sandbox(&self, uid: &str) -> Result<(), RuntimeError>;
    /// Removes what is left of a pod on disk.
    async fn remove_pod(&self, uid: &str) -> Result<(), RuntimeError>;

    async fn start_container(&self, spec: &ContainerSpec) -> Result<(), RuntimeError>;
    async fn signal(&self, pod: &str, id: &str, signal: i32) -> Result<(), RuntimeError>;
    async fn remove_container(&self, pod: &str, id: &str) -> Result<(), RuntimeError>;

    /// Whether it answers; the error says why the node cannot run pods now.
    async fn answers(&self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// An error tells nothing about the pod: it may well run.
    async fn pod(&self, uid: &str) -> Result<PodState, RuntimeError>;
    /// Every pod the runtime knows, for adoption after a restart.
    async fn pods(&self) -> Result<Vec<String>, RuntimeError>;
    /// Told the uid of a pod whenever one of its containers ended. Called once.
    fn changes(&self) -> mpsc::Receiver<String>;

    async fn exec(&self, pod: &str, id: &str, request: &ExecRequest) -> Result<Session, RuntimeError>;
    async fn attach(&self, pod: &str, id: &str, stdin: bool) -> Result<Session, RuntimeError>;
    /// Called after a log file was renamed: the container's output goes to a new one.
    async fn reopen_log(&self, pod: &str, id: &str) -> Result<(), RuntimeError>;
    async fn usage(&self, pod: &str, id: Option<&str>) -> Result<Usage, RuntimeError>;

    /// A folder in memory shared by the pod's containers; `size` limits it.
    async fn memory_volume(
        &self,
        pod: &str,
        path: &std::path::Path,
        size: Option<u64>,
    ) -> Result<(), RuntimeError>;

    /// Ends the pod without anybody's help at a time of the boot clock (milliseconds), after asking it to end at
    /// another; until it is moved again. A runtime that cannot do that refuses.
    async fn fence(&self, _pod: &str, _stop: i64, _kill: i64) -> Result<(), RuntimeError> {
        Err(RuntimeError::Refused(format!("the runtime {} cannot stop a pod by a deadline", self.name())))
    }

    async fn image(&self, name: &str) -> Option<Image>;
    async fn pull(&self, name: &str, secrets: &[PullSecret]) -> Result<Image, RuntimeError>;
    async fn images(&self) -> Vec<(Image, Vec<String>)>;
    async fn remove_image(&self, name: &str) -> Result<(), RuntimeError>;
}

/// Credentials for one registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSecret {
    pub registry: String,
    pub username: String,
    pub password: String,
}
