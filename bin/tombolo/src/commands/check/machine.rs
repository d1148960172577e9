//! What this machine lets Tombolo do.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::{Area, Finding};
use crate::output::bytes;

const LEAST_DISK: u64 = 1 << 30;
const LEAST_MEMORY: u64 = 256 << 20;
const LEAST_FILES: u64 = 4096;
/// What containers are limited with.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub fn look(data_dir: &Path) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    vec![
        root(),
        cgroups(&read("/sys/fs/cgroup/cgroup.controllers"), |name| {
            Path::new("/sys/fs/cgroup").join(name).is_dir()
        }),
        overlay(&read("/proc/filesystems")),
        nftables(),
        tun(),
        disk(data_dir),
        memory(&read("/proc/meminfo")),
        files(),
        clock(),
    ]
}

fn ok(what: &'static str, found: impl Into<String>) -> Finding {
    Finding::ok(Area::Machine, what, found)
}

fn wrong(what: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding::wrong(Area::Machine, what, found, mend)
}

fn warning(what: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding::warning(Area::Machine, what, found, mend)
}

fn root() -> Finding {
    if nix::unistd::geteuid().is_root() {
        return ok("root", "yes");
    }
    warning(
        "root",
        "no",
        "`tombolo up`, `site --node` and `node` make containers and need root; hub, agent and client commands do not",
    )
}

/// `old` tells whether a controller of version 1 is mounted.
fn cgroups(controllers: &str, old: impl Fn(&str) -> bool) -> Finding {
    let version = if controllers.is_empty() { 1 } else { 2 };
    let is_there = |name: &str| match version {
        1 => old(name),
        _ => controllers.split_whitespace().any(|word| word == name),
    };
    let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !is_there(name)).collect();
    if missing.len() == CONTROLLERS.len() {
        let mend =
            "mount -t cgroup2 none /sys/fs/cgroup; to keep it, boot with systemd.unified_cgroup_hierarchy=1";
        return wrong("cgroups", "not mounted at /sys/fs/cgroup", mend);
    }
    if missing.is_empty() {
        return ok("cgroups", format!("version {version} with {}", CONTROLLERS.join(", ")));
    }
    let mend = "enable them in the kernel's command line (for memory: cgroup_enable=memory) and boot again";
    wrong("cgroups", format!("no controller for {}", missing.join(", ")), mend)
}

fn overlay(filesystems: &str) -> Finding {
    let known = filesystems.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if known {
        return ok("overlayfs", "known to the kernel");
    }
    wrong(
        "overlayfs",
        "not known to the kernel",
        "modprobe overlay; to keep it: echo overlay > /etc/modules-load.d/tombolo.conf",
    )
}

fn nftables() -> Finding {
    match tombolo_net::probe() {
        Ok(()) => ok("nftables", "rules can be set"),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            warning("nftables", "cannot be looked at without root", "run `tombolo check` as root")
        }
        Err(error) => wrong(
            "nftables",
            error.to_string(),
            "modprobe nf_tables; the kernel needs CONFIG_NF_TABLES and NFT_NAT",
        ),
    }
}

fn tun() -> Finding {
    if Path::new("/dev/net/tun").exists() {
        return ok("tun", "/dev/net/tun is there");
    }
    warning("tun", "no /dev/net/tun", "only `tombolo up --wan` needs it: modprobe tun")
}

/// The disk below the nearest folder that exists.
fn disk(dir: &Path) -> Finding {
    let Some(stat) = dir.ancestors().find_map(|folder| statvfs(folder).ok()) else {
        return wrong("disk", format!("{} cannot be looked at", dir.display()), "give another --data-dir");
    };
    let free = stat.blocks_available() * stat.fragment_size();
    let found = format!("{} free for {}", bytes(i64::try_from(free).unwrap_or(i64::MAX)), dir.display());
    if free < LEAST_DISK {
        return wrong(
            "disk",
            found,
            "free at least 1Gi, or use another --data-dir; `tombolo image remove` frees some",
        );
    }
    ok("disk", found)
}

fn memory(meminfo: &str) -> Finding {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kb: u64 = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    let found = format!("{} available", bytes(i64::try_from(kb * 1024).unwrap_or(i64::MAX)));
    if kb * 1024 < LEAST_MEMORY {
        return warning("memory", found, "`tombolo up` takes about 250Mi, one site with ten pods 60Mi");
    }
    ok("memory", found)
}

fn files() -> Finding {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
    let found = format!("up to {most}");
    if most < LEAST_FILES {
        return warning("open files", found, "ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit");
    }
    ok("open files", found)
}

/// A clock before the time this program was built is certainly wrong; others show against the servers' clocks.
fn clock() -> Finding {
    let now = SystemTime::now();
    let built = std::env::current_exe().and_then(fs::metadata).and_then(|file| file.modified());
    let text = k8s_openapi::jiff::Timestamp::try_from(now).map(|t| format!("{t:.0}")).unwrap_or_default();
    match built {
        Ok(built) if built > now => wrong(
            "clock",
            format!("{text}, before this program was built"),
            "set the time: chronyc makestep, or timedatectl set-ntp true",
        ),
        _ => ok("clock", text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_way_to_mend_it() {
        assert_eq!(cgroups("cpuset cpu io memory pids", |_| false).found, "version 2 with cpu, memory, pids");
        assert_eq!(cgroups("", |_| true).found, "version 1 with cpu, memory, pids");
        let finding = cgroups("cpuset cpu io pids", |_| false);
        assert_eq!(finding.state, State::Wrong);
        assert!(finding.found.contains("memory") && finding.mend.contains("cgroup_enable=memory"));
        assert!(cgroups("", |_| false).mend.contains("cgroup2"));
        assert_eq!(overlay("nodev\tsysfs\nnodev\toverlay\n").state, State::Ok);
        assert_eq!(overlay("nodev\tsysfs\n\text4\n").state, State::Wrong);
        assert_eq!(memory("MemTotal: 9 kB\nMemAvailable:   1048576 kB\n").found, "1.0Gi available");
        assert_eq!(memory("MemAvailable: 1000 kB\n").state, State::Warning);
    }
}
