//! What a sandbox and a container leave on disk, and how it is read back.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::disk;
use crate::image::Image;
use crate::runtime::{ContainerPhase, ContainerSpec, ContainerState, SandboxSpec, SandboxState};

/// `sandbox.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sandbox {
    /// Tells this sandbox from the one the pod had before a reboot; clocks cannot.
    pub id: String,
    pub pid: u32,
    /// Start time of that process in clock ticks: tells it from a later one with the same number.
    started_ticks: u64,
    pub pause: Option<u32>,
    pub address: Option<Ipv4Addr>,
    pub host_network: bool,
    pub host_pid: bool,
    created: Timestamp,
    boot: String,
}

impl Sandbox {
    pub fn new(pid: u32, spec: &SandboxSpec, dir: &Path) -> Sandbox {
        let pids = fs::read_to_string(dir.join("shim.pid")).unwrap_or_default();
        let pause = pids.lines().nth(1).and_then(|line| line.parse().ok()).filter(|pid| *pid > 0);
        Sandbox {
            id: uuid::Uuid::new_v4().to_string(),
            pid,
            started_ticks: start_ticks(pid).unwrap_or(0),
            pause,
            address: None,
            host_network: spec.host_network,
            host_pid: spec.host_pid,
            created: Timestamp::now(),
            boot: boot_id(),
        }
    }

    pub fn load(dir: &Path) -> Option<Sandbox> {
        serde_json::from_slice(&fs::read(dir.join("sandbox.json")).ok()?).ok()
    }

    pub fn save(&self, dir: &Path) -> io::Result<()> {
        disk::replace_until_reboot(&dir.join("sandbox.json"), &serde_json::to_vec(self)?)
    }

    pub fn this_boot(&self) -> bool {
        self.boot == boot_id()
    }

    pub fn alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.started_ticks)
    }

    pub fn state(&self) -> SandboxState {
        let addresses = self.address.map(IpAddr::V4).into_iter().collect();
        SandboxState { addresses, pid: self.pid, created: self.created }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Field 22 of `/proc/<pid>/stat`; none for a process that is gone or a zombie.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may contain spaces and parentheses; it ends at the last one.
    let rest: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if rest.first() == Some(&"Z") {
        return None;
    }
    rest.get(19)?.parse().ok()
}

/// `meta.json` of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Meta {
    pub id: String,
    sandbox: String,
    name: String,
    attempt: u32,
    image: String,
    image_id: String,
}

impl Meta {
    pub fn new(spec: &ContainerSpec, image: &Image, sandbox: &Sandbox) -> Meta {
        let unique = format!("{}/{}/{}/{}", spec.pod, spec.name, spec.attempt, uuid::Uuid::new_v4());
        Meta {
            id: format!("{:x}", Sha256::digest(unique)),
            sandbox: sandbox.id.clone(),
            name: spec.name.clone(),
            attempt: spec.attempt,
            image: spec.image.clone(),
            image_id: image.digests.first().cloned().unwrap_or_else(|| image.id.clone()),
        }
    }

    /// The container as it is, or nothing if its creation never finished.
    pub fn state(
        &self,
        dir: &Path,
        sandbox: Option<&Sandbox>,
        oom: impl FnOnce() -> bool,
    ) -> Option<ContainerState> {
        let current = sandbox.is_some_and(|s| s.id == self.sandbox);
        let started = fs::metadata(dir.join("pid")).ok()?.modified().ok()?;
        let phase = match exit_record(dir) {
            Some((code, finished)) => {
                ContainerPhase::Exited { code, finished, oom: out_of_memory(dir, code, oom) }
            }
            None if current => {
                let pid = fs::read_to_string(dir.join("pid")).ok()?.trim().parse().ok()?;
                ContainerPhase::Running { pid }
            }
            None => ContainerPhase::Lost,
        };
        Some(ContainerState {
            id: self.id.clone(),
            name: self.name.clone(),
            attempt: self.attempt,
            image: self.image.clone(),
            image_id: self.image_id.clone(),
            started: Timestamp::try_from(started).unwrap_or(Timestamp::UNIX_EPOCH),
            phase,
            current,
        })
    }
}

fn exit_record(dir: &Path) -> Option<(i32, Timestamp)> {
    let text = fs::read_to_string(dir.join("exit")).ok()?;
    let (code, time) = text.trim().split_once(' ')?;
    let (seconds, nanos) = time.split_once('.')?;
    Some((code.parse().ok()?, Timestamp::new(seconds.parse().ok()?, nanos.parse().ok()?).ok()?))
}

/// The group with the evidence goes away; the verdict is kept in a file.
fn out_of_memory(dir: &Path, code: i32, oom: impl FnOnce() -> bool) -> bool {
    if code == 0 {
        return false;
    }
    let verdict = dir.join("oom");
    match fs::read(&verdict) {
        Ok(text) => text == b"1",
        Err(_) => {
            let killed = oom();
            let _ = fs::write(&verdict, if killed { "1" } else { "0" });
            killed
        }
    }
}

/// Every container of a pod that has been prepared, with its folder, oldest attempt first.
pub(super) fn containers(pod: &Path) -> Vec<(PathBuf, Meta)> {
    let list =
        |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect::<Vec<_>>();
    let mut found: Vec<(PathBuf, Meta)> = list(&pod.join("containers"))
        .iter()
        .flat_map(|name| list(name))
        .filter_map(|dir| {
            let meta = serde_json::from_slice(&fs::read(dir.join("meta.json")).ok()?).ok()?;
            Some((dir, meta))
        })
        .collect();
    found.sort_by(|(_, a), (_, b)| (&a.name, a.attempt).cmp(&(&b.name, b.attempt)));
    found
}
