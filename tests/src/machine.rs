//! One machine, as far as the network is concerned, with a site that has a node in its process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Image, Kubectl, Process, cargo_binary, control_groups, traces, wait_for, wipe};
use tombolo_wan::Namespace;

use crate::site::{IMAGE, link_up};

const PATIENCE: Duration = Duration::from_secs(120);

/// Ends with everything on it when dropped; [`Machine::end`] also tells what is left.
pub struct Machine {
    dir: tempfile::TempDir,
    space: Option<Namespace>,
    name: String,
    site: Option<Process>,
    /// Of further sites here, which are removed after the first one.
    other_nodes: Vec<PathBuf>,
}

impl Machine {
    /// With this address and prefix (`10.1.2.3/24`), or without a network so far.
    pub fn new(prefix: &str, address: Option<&str>) -> Result<Self> {
        let name = format!("{prefix}{}", std::process::id());
        let space = Namespace::create(&name)?;
        if let Some(address) = address {
            link_up(&name, address)?;
        }
        Ok(Self { dir: tempfile::tempdir()?, space: Some(space), name, site: None, other_nodes: Vec::new() })
    }

    /// Where a test may put files; it goes with the machine.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The site's data folder.
    pub fn data(&self) -> PathBuf {
        self.dir().join("site")
    }

    /// The data folder of another site on this machine.
    pub fn other_data(&mut self, name: &str) -> PathBuf {
        let data = self.dir().join(name);
        self.other_nodes.push(data.join("node"));
        data
    }

    /// Its network namespace.
    pub fn space(&self) -> &str {
        &self.name
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data().join("admin.kubeconfig")
    }

    /// Arguments of a site here, for any way to start it.
    pub fn site_args(&self, listen: &str) -> Vec<String> {
        let data = self.data().display().to_string();
        ["site", "--node", "--name", "box", "--listen", listen, "--netns", &self.name, "--data-dir", &data]
            .map(str::to_owned)
            .into()
    }

    pub fn site_command(&self, listen: &str) -> Command {
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(self.site_args(listen));
        command
    }

    /// Starts the site's process; see [`Machine::until_ready`].
    pub fn start(&mut self, command: Command) -> Result<()> {
        // It says when a site is ready, and must not be that of an earlier one.
        let _ = std::fs::remove_file(self.kubeconfig());
        self.site = Some(Process::start("site", command, self.dir.path())?);
        Ok(())
    }

    pub fn until_ready(&mut self) -> Result<()> {
        wait_for("the site", PATIENCE, || {
            self.alive()?;
            ensure!(self.kubeconfig().exists(), "no admin.kubeconfig yet");
            Ok(())
        })
    }

    pub fn alive(&mut self) -> Result<()> {
        self.site.as_mut().map_or(Ok(()), Process::alive)
    }

    /// What all sites of this machine said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("site.log")).unwrap_or_default()
    }

    /// SIGKILL; containers run on.
    pub fn kill(&mut self) {
        self.site = None;
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig()).inside(&self.name)
    }

    /// Brings the image that the tests' pods run.
    pub fn import_image(&self) -> Result<()> {
        let archive = self.dir().join("busybox.tar");
        Image::busybox(&[IMAGE])?.save(&archive)?;
        let mut import = Command::new(cargo_binary("tombolo"));
        let output =
            import.args(["image", "import"]).arg(&archive).arg("--data-dir").arg(self.data()).output()?;
        ensure!(output.status.success(), "image import: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// What of the node is to be found on this machine; see [`traces`].
    pub fn traces(&self) -> Result<Vec<String>> {
        let node = self.data().join("node");
        Ok(Namespace::of_another(&self.name).run(move || traces(&node))?)
    }

    /// The power goes: every process ends at once, and nothing is left of cgroups and network. The machine that comes back
    /// has no network yet.
    pub fn cut_power(&mut self) -> Result<()> {
        self.kill();
        let groups = control_groups(&self.data().join("node"));
        ensure!(!groups.is_empty(), "no node has run here");
        wait_for("everything to end", Duration::from_secs(20), || {
            groups.iter().for_each(|group| sweep(group));
            ensure!(groups.iter().all(|group| !group.exists()), "cgroups are left");
            Ok(())
        })?;
        self.space = None;
        self.space = Some(Namespace::create(&self.name)?);
        Ok(())
    }

    /// The end of a test: shows what the site said if it failed, removes everything, and fails if something stays.
    pub fn end(mut self, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() || std::env::var_os("TOMBOLO_SHOW_LOGS").is_some() {
            eprintln!("{}", self.log());
        }
        let wiped = self.wipe();
        outcome.and(wiped)
    }

    fn wipe(&mut self) -> Result<()> {
        self.kill();
        let Some(space) = self.space.take() else { return Ok(()) };
        wipe(&self.data().join("node"), Some(&space))?;
        self.other_nodes.iter().try_for_each(|node| wipe(node, Some(&space)))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Err(error) = self.wipe() {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}

/// Ends all processes of a cgroup and removes it, from the leaves up.
fn sweep(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sweep(&entry.path());
        }
    }
    for pid in std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        let _ = Command::new("kill").args(["-9", pid]).output();
    }
    let _ = std::fs::remove_dir(group);
}
