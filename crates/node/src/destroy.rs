//! Takes away everything a node made on its machine.
//!
//! A node may be killed at any moment, also between starting a process and writing down that it did. So what is found on
//! disk is asked to end first, and then the kernel is asked what is still there.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tombolo_net::{Overlay, Plugins, PodNetwork, ServiceProxy};

use crate::config::NodeError;
use crate::cri::Cri;
use crate::embedded::cgroup::Cgroups;
use crate::embedded::shim;
use crate::identity::Identity;
use crate::lock::Lock;
use crate::node::{Node, attachments};
use crate::reexec;

/// Names the runtime whose pods have to go when the node is removed.
pub(crate) const CRI_SOCKET: &str = "cri-socket";
/// A killed process is gone after a moment, unless the kernel waits for a disk.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

impl Node {
    /// Removes every container, mount, cgroup and link of the node in a data folder. Safe to repeat, and when half
    /// of it is gone. The folder itself stays. One thing that cannot be removed does not keep the others; the first is
    /// the error. Refused while the node runs, and no node starts there meanwhile.
    pub async fn destroy(data_dir: &Path) -> Result<(), NodeError> {
        let data_dir = &fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let Some(identity) = Identity::load(data_dir) else { return Ok(()) };
        let _lock = Lock::take(data_dir).await?;
        let folder = data_dir.join("pods");
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let pods: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        futures::future::join_all(pods.iter().map(|pod| (pod, folder.join(pod))).map(
            |(pod, dir)| async move {
                if let Err(error) = shim::retire(&dir).await {
                    tracing::warn!(pod, %error, "a pod's shim does not end by itself");
                }
            },
        ))
        .await;
        let mut left = Vec::new();
        if let Err(error) = Plugins::detach_all(&attachments(data_dir)).await {
            left.push(format!("a pod's network could not be given back: {error}"));
        }
        if let Ok(socket) = fs::read_to_string(data_dir.join(CRI_SOCKET))
            && let Err(error) = Cri::destroy(Path::new(&socket), &identity, data_dir).await
        {
            left.push(format!("pods may be left in the container runtime at {socket}: {error}"));
        }
        // Before the folder goes: a shim that comes late finds it and is found; after that it cannot start.
        end_strays(data_dir).await;
        let cgroups = Cgroups::new(&identity.id);
        match tokio::task::spawn_blocking(move || cgroups.remove_all()).await {
            Ok(Err(error)) => left.push(error.to_string()),
            Ok(Ok(())) => {}
            Err(error) => left.push(error.to_string()),
        }
        if let Err(error) = remove_folder(&folder) {
            left.push(format!("{}: {error}", folder.display()));
        }
        left.extend(end_strays(data_dir).await);
        if let Err(error) = PodNetwork::destroy(&identity.bridge(), &pods) {
            left.push(error.to_string());
        }
        if let Err(error) = Overlay::destroy(&identity.overlay()) {
            left.push(format!("the node's overlay link: {error}"));
        }
        if let Err(error) = ServiceProxy::destroy(&identity.id) {
            left.push(format!("the node's service rules: {error}"));
        }
        match left.first() {
            None => Ok(()),
            Some(_) => Err(NodeError::Left(left.join("; "))),
        }
    }
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Kills the shims and makers of containers of a data folder until none is there, and says which would not go.
async fn end_strays(data_dir: &Path) -> Option<String> {
    let give_up = tokio::time::Instant::now() + PATIENCE;
    loop {
        let found = strays(data_dir);
        if found.is_empty() {
            return None;
        }
        if tokio::time::Instant::now() > give_up {
            return Some(format!("processes {found:?} do not end although they were killed"));
        }
        for pid in found {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn strays(data_dir: &Path) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.filter(|pid| is_stray(data_dir, *pid)).collect()
}

/// A shim runs from the node's own folder; a maker is told by its arguments which container to make. A zombie has
/// neither, and needs no killing.
fn is_stray(data_dir: &Path, pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    if program.starts_with(data_dir.join("bin")) {
        return true;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let pods = data_dir.join("pods");
    words.get(1).is_some_and(|word| *word == reexec::CREATE.as_bytes())
        && words.iter().any(|word| word.starts_with(pods.as_os_str().as_encoded_bytes()))
}
