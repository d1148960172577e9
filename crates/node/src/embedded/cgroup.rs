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
    root: PathBuf,
    node: String,
    pub v2: bool,
}

impl Cgroups {
    pub fn new(id: &str) -> Cgroups {
        Cgroups::below(ROOT, id)
    }

    /// Where the kernel shows its groups says which version they are.
    fn below(root: impl Into<PathBuf>, id: &str) -> Cgroups {
        let root = root.into();
        let v2 = root.join("cgroup.controllers").exists();
        Cgroups { root, node: format!("tombolo-{id}"), v2 }
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
            return vec![self.root.join(group)];
        }
        let mounts = fs::read_dir(&self.root).into_iter().flatten().flatten().map(|entry| entry.path());
        // Symbolic links (`cpu` -> `cpu,cpuacct`) would count a folder twice.
        mounts.filter(|path| path.is_dir() && !path.is_symlink()).map(|path| path.join(group)).collect()
    }

    fn folder(&self, controller: &str, group: &str) -> PathBuf {
        let group = group.trim_start_matches('/');
        if self.v2 { self.root.join(group) } else { self.root.join(controller).join(group) }
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
            if !self.root.join(controller).exists() {
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
        let mut path = self.root.clone();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Resources {
        Resources {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            memory_limit: Some(64 << 20),
            pids_limit: Some(100),
            oom_score_adj: None,
        }
    }

    /// Writes files as the kernel would show them, folders included.
    fn show(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
            fs::write(path, text).expect("file");
        }
    }

    fn read(root: &Path, path: &str) -> String {
        fs::read_to_string(root.join(path)).unwrap_or_default()
    }

    #[test]
    fn version_2_has_one_folder_per_group_and_the_shim_in_a_leaf() {
        let dir = tempfile::tempdir().expect("folder");
        let root = dir.path();
        show(
            root,
            &[
                ("cgroup.controllers", "cpu memory pids\n"),
                ("tombolo-x/podu/cpu.weight", "100"),
                ("tombolo-x/podu/cpu.max", "max 100000"),
                ("tombolo-x/podu/memory.max", "max"),
                ("tombolo-x/podu/pids.max", "max"),
                ("tombolo-x/podu/c/cpu.stat", "usage_usec 7\nuser_usec 5\n"),
                ("tombolo-x/podu/c/memory.current", "4096\n"),
                ("tombolo-x/podu/c/memory.stat", "anon 1\ninactive_file 1096\n"),
                ("tombolo-x/podu/c/memory.events", "oom 1\noom_kill 1\n"),
                ("tombolo-x/podu/d/memory.events", "oom 1\noom_kill 0\n"),
            ],
        );
        let groups = Cgroups::below(root, "x");
        assert!(groups.v2);
        groups.create_pod("u", &limits(), 42).expect("made");
        let of = |file: &str| read(root, &format!("tombolo-x/podu/{file}"));
        assert_eq!((of("cpu.weight").as_str(), of("cpu.max").as_str()), ("39", "50000 100000"));
        assert_eq!((of("memory.max").as_str(), of("pids.max").as_str()), ("67108864", "100"));
        // Processes are only in leaves; what is above hands its controllers down.
        assert_eq!(of("shim/cgroup.procs"), "42");
        assert_eq!(of("cgroup.procs"), "");
        for group in ["", "tombolo-x/", "tombolo-x/podu/"] {
            assert!(read(root, &format!("{group}cgroup.subtree_control")).starts_with('+'), "{group}");
        }
        let used = groups.usage(&groups.container("u", "c")).expect("figures");
        assert_eq!(used, Usage { cpu_nanos: 7000, memory_bytes: 4096, working_set_bytes: 3000 });
        assert!(groups.out_of_memory(&groups.container("u", "c")));
        assert!(!groups.out_of_memory(&groups.container("u", "d")));
    }

    #[test]
    fn version_1_has_one_folder_per_controller_and_the_shim_in_none_that_limits() {
        let dir = tempfile::tempdir().expect("folder");
        let root = dir.path();
        show(
            root,
            &[
                ("cpu,cpuacct/tombolo-x/podu/cpu.shares", "1024"),
                ("cpu,cpuacct/tombolo-x/podu/cpu.cfs_quota_us", "-1"),
                ("cpu,cpuacct/tombolo-x/podu/c/cpuacct.usage", "7000\n"),
                ("memory/tombolo-x/podu/memory.limit_in_bytes", "9223372036854771712"),
                ("memory/tombolo-x/podu/c/memory.usage_in_bytes", "4096\n"),
                ("memory/tombolo-x/podu/c/memory.stat", "inactive_file 9\ntotal_inactive_file 1096\n"),
                (
                    "memory/tombolo-x/podu/c/memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
                ),
                ("pids/tombolo-x/podu/pids.max", "max"),
            ],
        );
        for name in ["systemd", "freezer"] {
            fs::create_dir(root.join(name)).expect("folder");
        }
        for name in ["cpu", "cpuacct"] {
            std::os::unix::fs::symlink("cpu,cpuacct", root.join(name)).expect("link");
        }
        let groups = Cgroups::below(root, "x");
        assert!(!groups.v2);
        groups.create_pod("u", &limits(), 42).expect("made");
        assert_eq!(read(root, "cpu/tombolo-x/podu/cpu.cfs_quota_us"), "50000");
        assert_eq!(read(root, "memory/tombolo-x/podu/memory.limit_in_bytes"), "67108864");
        assert_eq!(read(root, "pids/tombolo-x/podu/pids.max"), "100");
        for (controller, pids) in [("systemd", "42"), ("freezer", "42"), ("memory", ""), ("cpu", "")] {
            assert_eq!(
                read(root, &format!("{controller}/tombolo-x/podu/cgroup.procs")),
                pids,
                "{controller}"
            );
        }
        let used = groups.usage(&groups.container("u", "c")).expect("figures");
        assert_eq!(used, Usage { cpu_nanos: 7000, memory_bytes: 4096, working_set_bytes: 3000 });
        assert!(groups.out_of_memory(&groups.container("u", "c")));
        // Links are the same folder again.
        assert_eq!(groups.folders("/tombolo-x").len(), 5);
    }

    #[test]
    fn everything_of_a_node_is_removed_in_both_versions_and_nothing_else() {
        for v2 in [true, false] {
            let dir = tempfile::tempdir().expect("folder");
            if v2 {
                show(dir.path(), &[("cgroup.controllers", "")]);
            }
            let hierarchies: &[&str] = if v2 { &[""] } else { &["memory/", "systemd/"] };
            for hierarchy in hierarchies {
                for group in ["tombolo-x/podu/c", "tombolo-y/podu"] {
                    fs::create_dir_all(dir.path().join(format!("{hierarchy}{group}"))).expect("folder");
                }
            }
            Cgroups::below(dir.path(), "x").remove_all().expect("removed");
            for hierarchy in hierarchies {
                assert!(!dir.path().join(format!("{hierarchy}tombolo-x")).exists());
                assert!(dir.path().join(format!("{hierarchy}tombolo-y/podu")).exists());
            }
        }
    }
}
