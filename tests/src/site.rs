//! Two machines, as far as the network is concerned: a site with its own node, and a node that joined it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Containerd, Fixture, Image, Kubectl, Process, cargo_binary, wait_for, wipe};
use tombolo_wan::Namespace;

use crate::clock::Clock;

/// Addresses of the two machines.
pub const FIRST: &str = "10.77.0.1";
pub const SECOND: &str = "10.77.0.2";
/// What every container of the tests runs.
pub const IMAGE: &str = "test.example/busybox:1";

/// What makes the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Embedded,
    /// One containerd at each machine.
    Containerd,
}

pub struct TwoNodes {
    /// Of the site and of the second node, where a test needs other ones than the machine's.
    clocks: Option<[Clock; 2]>,
    dir: tempfile::TempDir,
    spaces: [Namespace; 2],
    site: Option<Process>,
    node: Option<Process>,
    /// Dropped last: what the nodes left is removed through them.
    containerds: Vec<Containerd>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Whether the test can run; in CI it must.
pub fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    assert!(root || std::env::var_os("CI").is_none(), "CI must run this as root");
    if !root {
        eprintln!("SKIPPED: containers need root");
    }
    root
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("could not start ip")?;
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A network namespace's own link, with a default route.
pub fn link_up(space: &str, address: &str) -> Result<()> {
    ip(&["-n", space, "link", "set", "lo", "up"])?;
    ip(&["-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"])?;
    ip(&["-n", space, "addr", "add", address, "dev", "eth0"])?;
    ip(&["-n", space, "link", "set", "eth0", "up"])?;
    ip(&["-n", space, "link", "set", "eth1", "up"])?;
    ip(&["-n", space, "route", "add", "default", "dev", "eth0"])
}

fn tombolo(args: &[&str]) -> Result<String> {
    let output = Command::new(cargo_binary("tombolo")).args(args).output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "tombolo {}: {error}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl TwoNodes {
    /// Starts the site, joins the second node with a token, and waits until both are ready.
    pub fn start(runtime: Runtime) -> Result<Self> {
        Self::start_with(runtime, None)
    }

    pub fn start_with(runtime: Runtime, clocks: Option<[Clock; 2]>) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("tts{}-{number}{end}", std::process::id());
        let spaces = [Namespace::create(&name("a"))?, Namespace::create(&name("b"))?];
        let (a, b) = (spaces[0].name(), spaces[1].name());
        ip(&["-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b])?;
        for (space, address) in [(a, FIRST), (b, SECOND)] {
            ip(&["-n", space, "link", "set", "lo", "up"])?;
            ip(&["-n", space, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", space, "link", "set", "eth0", "up"])?;
        }
        let dir = tempfile::tempdir()?;
        let mut two = Self { clocks, dir, spaces, site: None, node: None, containerds: Vec::new() };
        if runtime == Runtime::Containerd {
            two.start_containerds()?;
        }
        two.start_site()?;
        let kubeconfig = two.path("site/admin.kubeconfig");
        let ticket = two.inside_first(&["token", "create", "--node", "--kubeconfig", &kubeconfig])?;
        let words: Vec<String> = ticket.split_whitespace().map(str::to_owned).collect();
        let join = words.iter().position(|w| w == "--join").context("a join command")?;
        two.start_second(&words[join..])?;
        for node in ["first", "second"] {
            two.kubectl().run(&[
                "wait",
                &format!("node/{node}"),
                "--for=condition=Ready",
                "--timeout=60s",
            ])?;
        }
        if runtime == Runtime::Embedded {
            two.import_images()?;
        }
        Ok(two)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The network namespace of the first machine.
    pub fn first(&self) -> &str {
        self.spaces[0].name()
    }

    pub fn kubectl(&self) -> Kubectl {
        self.kubectl_of(Fixture::Kubectl)
    }

    /// A release of kubectl, at the first machine.
    pub fn kubectl_of(&self, release: Fixture) -> Kubectl {
        Kubectl::with(release, &self.dir.path().join("site/admin.kubeconfig")).inside(self.first())
    }

    /// Where a test may put files; it goes with the machines.
    pub fn scratch(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn node_log(&self) -> String {
        self.node.as_ref().map(Process::log).unwrap_or_default()
    }

    fn inside_first(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.first()]).arg(cargo_binary("tombolo")).args(args);
        let output = command.output()?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn start_site(&mut self) -> Result<()> {
        let kubeconfig = self.dir.path().join("site/admin.kubeconfig");
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(["site", "--node", "--name", "first", "--netns", self.first()]);
        command.args(["--listen", &format!("{FIRST}:6443"), "--data-dir", &self.path("site")]);
        command.args(self.runtime_args(0));
        if let Some([clock, _]) = &self.clocks {
            clock.rule(&mut command);
        }
        let mut process = Process::start("site", command, self.dir.path())?;
        wait_for("the site", Duration::from_secs(60), || {
            process.alive()?;
            ensure!(kubeconfig.exists(), "no admin.kubeconfig yet");
            Ok(())
        })?;
        self.site = Some(process);
        Ok(())
    }

    fn start_second(&mut self, join: &[String]) -> Result<()> {
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(["node", "--name", "second", "--netns", self.spaces[1].name()]);
        command.args(["--address", SECOND, "--data-dir", &self.path("node")]);
        command.args(join).args(self.runtime_args(1));
        if let Some([_, clock]) = &self.clocks {
            clock.rule(&mut command);
        }
        self.node = Some(Process::start("node", command, self.dir.path())?);
        Ok(())
    }

    fn runtime_args(&self, machine: usize) -> Vec<String> {
        match self.containerds.get(machine) {
            None => Vec::new(),
            Some(containerd) => vec!["--runtime".into(), format!("cri={}", containerd.socket().display())],
        }
    }

    fn archive(&self) -> Result<PathBuf> {
        let file = self.dir.path().join("busybox.tar");
        Image::busybox(&[IMAGE])?.save(&file)?;
        Ok(file)
    }

    fn start_containerds(&mut self) -> Result<()> {
        let images = vec![self.archive()?];
        for (space, folder) in self.spaces.iter().zip(["ctd-a", "ctd-b"]) {
            let (dir, images) = (self.dir.path().join(folder), images.clone());
            self.containerds.push(space.run(move || Containerd::start(&dir, &images))??);
        }
        Ok(())
    }

    fn import_images(&self) -> Result<()> {
        let file = self.archive()?.display().to_string();
        for data in ["site", "node"] {
            tombolo(&["image", "import", &file, "--data-dir", &self.path(data)])?;
        }
        Ok(())
    }

    /// As if the second machine lost its power: nothing of it answers any more.
    pub fn kill_second(&mut self) -> Result<()> {
        ip(&["-n", self.first(), "link", "set", "eth0", "down"])?;
        self.node = None;
        Ok(())
    }

    /// The processes of both machines end, as when their power is switched off for the night; containers run on.
    pub fn stop_both(&mut self) {
        self.site = None;
        self.node = None;
    }

    pub fn start_both(&mut self) -> Result<()> {
        std::fs::remove_file(self.path("site/admin.kubeconfig"))?;
        self.start_site()?;
        self.start_second(&[])
    }

    /// Only the second node's process ends and starts again.
    pub fn restart_second(&mut self, between: impl FnOnce() -> Result<()>) -> Result<()> {
        self.node = None;
        between()?;
        self.start_second(&[])
    }

    /// It comes back with what it remembers; no token is given again.
    pub fn revive_second(&mut self) -> Result<()> {
        ip(&["-n", self.first(), "link", "set", "eth0", "up"])?;
        self.start_second(&[])
    }
}

impl Drop for TwoNodes {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("TOMBOLO_SHOW_LOGS").is_some() {
            for process in [&self.site, &self.node].into_iter().flatten() {
                eprintln!("{}", process.log());
            }
        }
        self.site = None;
        self.node = None;
        for (space, folder) in self.spaces.iter().zip(["site/node", "node"]) {
            if let Err(error) = wipe(&self.dir.path().join(folder), Some(space)) {
                assert!(std::thread::panicking(), "{folder}: {error:#}");
                eprintln!("{folder}: {error:#}");
            }
        }
    }
}
