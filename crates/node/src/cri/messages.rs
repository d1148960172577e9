//! The messages of the container runtime interface (`runtime.v1`) that the node uses, with the fields that it uses.
//! Field numbers as in Kubernetes' `cri-api`; what is left out here keeps its default at the other end.

use std::collections::HashMap;

use prost::Message;

pub type Labels = HashMap<String, String>;

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct VersionResponse {
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(map = "string, string", tag = "2")]
    pub info: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct Int64Value {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// Values of [`NamespaceOption`].
pub mod namespace {
    pub const POD: i32 = 0;
    pub const CONTAINER: i32 = 1;
    pub const NODE: i32 = 2;
    pub const TARGET: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub network: i32,
    #[prost(int32, tag = "2")]
    pub pid: i32,
    #[prost(int32, tag = "3")]
    pub ipc: i32,
    /// With [`namespace::TARGET`]: the container whose process namespace is meant.
    #[prost(string, tag = "4")]
    pub target_id: String,
}

/// Values of [`SecurityProfile::profile_type`].
pub mod profile {
    pub const RUNTIME_DEFAULT: i32 = 0;
    pub const UNCONFINED: i32 = 1;
}

#[derive(Clone, PartialEq, Message)]
pub struct SecurityProfile {
    #[prost(int32, tag = "1")]
    pub profile_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxSecurity {
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
    #[prost(bool, tag = "6")]
    pub privileged: bool,
    #[prost(message, optional, tag = "9")]
    pub seccomp: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxSandbox {
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<SandboxSecurity>,
    #[prost(map = "string, string", tag = "3")]
    pub sysctls: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<SandboxMetadata>,
    #[prost(string, tag = "2")]
    pub hostname: String,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(map = "string, string", tag = "6")]
    pub labels: Labels,
    #[prost(map = "string, string", tag = "7")]
    pub annotations: Labels,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub config: Option<SandboxConfig>,
}

/// Requests and answers that carry one id and nothing else (a sandbox's, a container's).
#[derive(Clone, PartialEq, Message)]
pub struct Id {
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Also `ContainerStatusRequest`: the same two fields.
#[derive(Clone, PartialEq, Message)]
pub struct DetailsRequest {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    #[prost(string, tag = "1")]
    pub ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxNetwork {
    #[prost(string, tag = "1")]
    pub ip: String,
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<PodIp>,
}

/// Value of a sandbox's `state` while it is up.
pub const SANDBOX_READY: i32 = 0;

#[derive(Clone, PartialEq, Message)]
pub struct SandboxStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// Nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(message, optional, tag = "5")]
    pub network: Option<SandboxNetwork>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<SandboxStatus>,
    #[prost(map = "string, string", tag = "2")]
    pub info: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxFilter {
    #[prost(map = "string, string", tag = "3")]
    pub label_selector: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListSandboxesRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<SandboxFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<SandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListSandboxesResponse {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageSpec {
    #[prost(string, tag = "1")]
    pub image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Values of [`Mount::propagation`].
pub mod propagation {
    pub const PRIVATE: i32 = 0;
    pub const FROM_HOST: i32 = 1;
    pub const BOTH_WAYS: i32 = 2;
}

#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub readonly: bool,
    #[prost(int32, tag = "5")]
    pub propagation: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxResources {
    #[prost(int64, tag = "1")]
    pub cpu_period: i64,
    #[prost(int64, tag = "2")]
    pub cpu_quota: i64,
    #[prost(int64, tag = "3")]
    pub cpu_shares: i64,
    #[prost(int64, tag = "4")]
    pub memory_limit_in_bytes: i64,
    #[prost(int64, tag = "5")]
    pub oom_score_adj: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Capabilities {
    #[prost(string, repeated, tag = "1")]
    pub add: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub drop: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerSecurity {
    #[prost(message, optional, tag = "1")]
    pub capabilities: Option<Capabilities>,
    #[prost(bool, tag = "2")]
    pub privileged: bool,
    #[prost(message, optional, tag = "3")]
    pub namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = "5")]
    pub run_as_user: Option<Int64Value>,
    #[prost(bool, tag = "7")]
    pub readonly_rootfs: bool,
    #[prost(int64, repeated, tag = "8")]
    pub supplemental_groups: Vec<i64>,
    #[prost(bool, tag = "11")]
    pub no_new_privs: bool,
    #[prost(message, optional, tag = "12")]
    pub run_as_group: Option<Int64Value>,
    #[prost(string, repeated, tag = "13")]
    pub masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub readonly_paths: Vec<String>,
    #[prost(message, optional, tag = "15")]
    pub seccomp: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainer {
    #[prost(message, optional, tag = "1")]
    pub resources: Option<LinuxResources>,
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<ContainerSecurity>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub args: Vec<String>,
    #[prost(string, tag = "5")]
    pub working_dir: String,
    #[prost(message, repeated, tag = "6")]
    pub envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "8")]
    pub devices: Vec<Device>,
    #[prost(map = "string, string", tag = "9")]
    pub labels: Labels,
    #[prost(map = "string, string", tag = "10")]
    pub annotations: Labels,
    #[prost(string, tag = "11")]
    pub log_path: String,
    #[prost(bool, tag = "12")]
    pub stdin: bool,
    #[prost(bool, tag = "13")]
    pub stdin_once: bool,
    #[prost(bool, tag = "14")]
    pub tty: bool,
    #[prost(message, optional, tag = "15")]
    pub linux: Option<LinuxContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub id: String,
    /// Seconds until it is killed.
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerFilter {
    #[prost(map = "string, string", tag = "4")]
    pub label_selector: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerFilter>,
}

/// Values of a container's `state`.
pub mod state {
    pub const CREATED: i32 = 0;
    pub const RUNNING: i32 = 1;
    pub const EXITED: i32 = 2;
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "6")]
    pub state: i32,
    #[prost(map = "string, string", tag = "8")]
    pub labels: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    #[prost(int64, tag = "6")]
    pub finished_at: i64,
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    #[prost(string, tag = "9")]
    pub image_ref: String,
    #[prost(string, tag = "10")]
    pub reason: String,
    #[prost(map = "string, string", tag = "13")]
    pub annotations: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
    #[prost(map = "string, string", tag = "2")]
    pub info: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(string, repeated, tag = "2")]
    pub cmd: Vec<String>,
    #[prost(bool, tag = "3")]
    pub tty: bool,
    #[prost(bool, tag = "4")]
    pub stdin: bool,
    #[prost(bool, tag = "5")]
    pub stdout: bool,
    #[prost(bool, tag = "6")]
    pub stderr: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttachRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(bool, tag = "2")]
    pub stdin: bool,
    #[prost(bool, tag = "3")]
    pub tty: bool,
    #[prost(bool, tag = "4")]
    pub stdout: bool,
    #[prost(bool, tag = "5")]
    pub stderr: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(string, repeated, tag = "2")]
    pub cmd: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}

/// Where the streams of a command are to be had.
#[derive(Clone, PartialEq, Message)]
pub struct Streaming {
    #[prost(string, tag = "1")]
    pub url: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, repeated, tag = "2")]
    pub repo_tags: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub repo_digests: Vec<String>,
    #[prost(uint64, tag = "4")]
    pub size: u64,
    #[prost(message, optional, tag = "5")]
    pub uid: Option<Int64Value>,
    #[prost(string, tag = "6")]
    pub username: String,
    #[prost(bool, tag = "8")]
    pub pinned: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListImagesResponse {
    #[prost(message, repeated, tag = "1")]
    pub images: Vec<Image>,
}

/// Also `RemoveImageRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
    #[prost(map = "string, string", tag = "2")]
    pub info: Labels,
}

#[derive(Clone, PartialEq, Message)]
pub struct Auth {
    #[prost(string, tag = "1")]
    pub username: String,
    #[prost(string, tag = "2")]
    pub password: String,
    #[prost(string, tag = "4")]
    pub server_address: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub auth: Option<Auth>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CpuUsage {
    #[prost(message, optional, tag = "2")]
    pub usage_core_nano_seconds: Option<UInt64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemoryUsage {
    #[prost(message, optional, tag = "2")]
    pub working_set_bytes: Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub usage_bytes: Option<UInt64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStats {
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<CpuUsage>,
    #[prost(message, optional, tag = "3")]
    pub memory: Option<MemoryUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatsResponse {
    #[prost(message, optional, tag = "1")]
    pub stats: Option<ContainerStats>,
}
