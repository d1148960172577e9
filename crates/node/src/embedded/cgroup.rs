//! Control groups, version 1 and 2: one group per node, per pod, per container.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::runtime::{Resources, Usage};

const ROOT: &str = "/sys/fs/cgroup";
/// How often what does not end is killed again.
const ROUNDS: usize = 5;
const CONTROLLERS: &[&str] = &["cpu", "memory", "pids", "cpuset", "io"];

/// The groups of one node, all below `/tombolo-<id>`.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    node: String,
    pub v2: bool,
}

impl Cgroups {
    pub fn new(id: &str) -> Cgroups {
        Cgroups { node: format!("tombolo-{id}"), v2: Path::new(ROOT).join("cgroup.controllers").exists() }
    }

    pub fn pod(&self, uid: &str) -> String {
        format!("/{}/pod{uid}", self.node)
    }

    pub fn container(&self, uid: &str, id: &str) -> String {
        format!("{}/{id}", self.pod(uid))
    }

    /// The folders of a group: one with version 2, one per controller with version 1.
    fn folders(&self, group: &str) -> Vec<PathBuf> {
        let group = group.trim_start_matches('/');
        if self.v2 {
            return vec![Path::new(ROOT).join(group)];
        }
        let mounts = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
        // Symbolic links (`cpu` -> `cpu,cpuacct`) would count a folder twice.
        mounts.filter(|path| path.is_dir() && !path.is_symlink()).map(|path| path.join(group)).collect()
    }

    fn folder(&self, controller: &str, group: &str) -> PathBuf {
        let group = group.trim_start_matches('/');
        if self.v2 { Path::new(ROOT).join(group) } else { Path::new(ROOT).join(controller).join(group) }
    }

    /// Makes a pod's group with its limits and moves the pod's shim into it: the shim then does not die with
    /// whatever group the node was started in.
    pub fn create_pod(&self, uid: &str, limits: &Resources, shim: u32) -> io::Result<()> {
        let group = self.pod(uid);
        if self.v2 {
            self.create_v2(&group, limits)?;
            // Version 2 allows processes only in leaves.
            let leaf = self.folder("", &group).join("shim");
            fs::create_dir_all(&leaf)?;
            return fs::write(leaf.join("cgroup.procs"), shim.to_string());
        }
        for controller in ["cpu", "memory", "pids", "systemd", "freezer"] {
            let folder = self.folder(controller, &group);
            if !Path::new(ROOT).join(controller).exists() {
                continue;
            }
            fs::create_dir_all(&folder)?;
            match controller {
                "cpu" => {
                    set(&folder.join("cpu.shares"), limits.cpu_shares)?;
                    set(&folder.join("cpu.cfs_quota_us"), limits.cpu_quota)?;
                }
                "memory" => set(&folder.join("memory.limit_in_bytes"), limits.memory_limit)?,
                "pids" => set(&folder.join("pids.max"), limits.pids_limit)?,
                _ => {}
            }
            if matches!(controller, "systemd" | "freezer") {
                fs::write(folder.join("cgroup.procs"), shim.to_string())?;
            }
        }
        Ok(())
    }

    fn create_v2(&self, group: &str, limits: &Resources) -> io::Result<()> {
        let folder = self.folder("", group);
        fs::create_dir_all(&folder)?;
        let mut path = PathBuf::from(ROOT);
        for part in std::iter::once("").chain(group.trim_start_matches('/').split('/')) {
            path.push(part);
            for controller in CONTROLLERS {
                // A controller this kernel does not have, or does not delegate, is not limited.
                let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        set(&folder.join("cpu.weight"), limits.cpu_shares.map(weight))?;
        set(&folder.join("cpu.max"), limits.cpu_quota.map(|quota| format!("{quota} 100000")))?;
        set(&folder.join("memory.max"), limits.memory_limit)?;
        set(&folder.join("pids.max"), limits.pids_limit)
    }

    /// Kills every process in a group and below: whoever lost track of them, the kernel did not.
    pub fn kill(&self, group: &str) {
        fn walk(folder: &Path) {
            let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            for pid in listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    walk(&entry.path());
                }
            }
        }
        self.folders(group).iter().for_each(|folder| walk(folder));
    }

    /// Removes a group and all below it. Processes may need a moment to leave after they were killed.
    pub fn remove(&self, group: &str) {
        for folder in self.folders(group) {
            for _ in 0..50 {
                if !folder.exists() || remove_tree(&folder).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Ends and removes everything of this node. Who starts something while it is killed is killed in the next round.
    pub fn remove_all(&self) -> io::Result<()> {
        let node = format!("/{}", self.node);
        for _ in 0..ROUNDS {
            self.kill(&node);
            self.remove(&node);
            if !self.folders(&node).iter().any(|folder| folder.exists()) {
                return Ok(());
            }
        }
        Err(io::Error::other(format!("cgroup {node} cannot be removed: its processes do not end")))
    }

    /// Whether the kernel killed a process of the group for want of memory.
    pub fn out_of_memory(&self, group: &str) -> bool {
        let file = if self.v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.folder("memory", group).join(file)).unwrap_or_default();
        text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|n| n.trim() != "0"))
    }

    pub fn usage(&self, group: &str) -> io::Result<Usage> {
        if self.v2 {
            let folder = self.folder("", group);
            let cpu = entry(&fs::read_to_string(folder.join("cpu.stat"))?, "usage_usec") * 1000;
            let memory = number(&folder.join("memory.current"))?;
            let inactive = entry(&fs::read_to_string(folder.join("memory.stat"))?, "inactive_file");
            return Ok(Usage {
                cpu_nanos: cpu,
                memory_bytes: memory,
                working_set_bytes: memory.saturating_sub(inactive),
            });
        }
        let memory_folder = self.folder("memory", group);
        let memory = number(&memory_folder.join("memory.usage_in_bytes"))?;
        let inactive = entry(&fs::read_to_string(memory_folder.join("memory.stat"))?, "total_inactive_file");
        let cpu = number(&self.folder("cpuacct", group).join("cpuacct.usage")).unwrap_or(0);
        Ok(Usage { cpu_nanos: cpu, memory_bytes: memory, working_set_bytes: memory.saturating_sub(inactive) })
    }
}

/// Version 1 shares (2 to 262144) as version 2 weight (1 to 10000).
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

fn set(path: &Path, value: Option<impl ToString>) -> io::Result<()> {
    match value {
        Some(value) if path.exists() => fs::write(path, value.to_string()),
        _ => Ok(()),
    }
}

fn number(path: &Path) -> io::Result<u64> {
    fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}

fn entry(text: &str, key: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}
