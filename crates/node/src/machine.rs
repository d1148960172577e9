//! What this machine has.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

fn field(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = |line: &str| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok();
    text.lines().find_map(value).unwrap_or(0)
}

pub fn memory_bytes() -> u64 {
    field(Path::new("/proc/meminfo"), "MemTotal:") * 1024
}

pub fn memory_available_bytes() -> u64 {
    memory_available_in(Path::new("/proc/meminfo"))
}

pub fn memory_available_in(meminfo: &Path) -> u64 {
    field(meminfo, "MemAvailable:") * 1024
}

pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of the file system a path is on: total and free for us.
pub fn disk_bytes(path: &Path) -> Option<(u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    Some((stat.blocks() * stat.fragment_size(), stat.blocks_available() * stat.fragment_size()))
}

pub fn machine_id() -> String {
    let read =
        |path: &str| fs::read_to_string(path).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
    read("/etc/machine-id").or_else(|| read("/var/lib/dbus/machine-id")).unwrap_or_default()
}

pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Milliseconds since the machine was started, time asleep included.
pub fn boot_millis() -> i64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: f64 = text.split_whitespace().next().and_then(|t| t.parse().ok()).unwrap_or(0.0);
    (seconds * 1000.0) as i64
}

pub fn kernel_version() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

pub fn os_image() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches('"').to_owned())
}

/// The address other machines reach us at: the one a packet to the outside would carry. Nothing is sent.
pub fn default_address() -> IpAddr {
    let probe = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    probe().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
