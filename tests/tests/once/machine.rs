//! A machine with a site on it that can be cut off, lose its processes or its power, and be started again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Host, Lan, Member, Process, cargo_binary, tombolo, wait_for};

/// How the site's node runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// In the site's process.
    Inside,
    /// In a process of its own: it lives on when the site's process, and the agent in it, is killed.
    Beside,
}

pub struct Machine {
    pub name: &'static str,
    pub host: Host,
    nodes: Nodes,
    image: PathBuf,
    pub site: Option<Process>,
    pub node: Option<Process>,
    /// Holds the mount namespace that is this boot of the machine: it has a boot id of its own.
    boot: Option<Process>,
    boots: u32,
    pub linked: bool,
}

impl Machine {
    pub fn start(lan: &mut Lan, name: &'static str, nodes: Nodes, image: &Path) -> Result<Self> {
        let host = lan.host(name)?;
        let mut machine = Self {
            name,
            host,
            nodes,
            image: image.to_owned(),
            site: None,
            node: None,
            boot: None,
            boots: 0,
            linked: true,
        };
        machine.power_on(None)?;
        Ok(machine)
    }

    fn dir(&self, of: &str) -> String {
        self.host.dir.join(of).display().to_string()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.host.dir.join("site/admin.kubeconfig")
    }

    /// `tombolo …` at this machine, in its present boot.
    fn here(&self, args: &[&str]) -> Result<Command> {
        let boot = self.boot.as_ref().context("the machine is off")?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &boot.pid().to_string(), "--mount", "--"]).arg(cargo_binary("tombolo"));
        command.args(args);
        Ok(command)
    }

    /// Boots; with `hub`, ties the site to it, as its owner does once.
    pub fn power_on(&mut self, hub: Option<&Member>) -> Result<()> {
        if self.boot.is_none() {
            self.boots += 1;
            let id = self.host.dir.join("boot_id");
            std::fs::write(
                &id,
                format!("{:08x}-0000-4000-8000-{:012x}\n", self.boots, self.host.address.to_bits()),
            )?;
            let mut command = Command::new("unshare");
            let script =
                format!("mount --bind {} /proc/sys/kernel/random/boot_id && exec sleep 100000", id.display());
            command.args(["--mount", "sh", "-c", &script]);
            let boot = Process::start("boot", command, &self.host.dir)?;
            let seen = format!("/proc/{}/root/proc/sys/kernel/random/boot_id", boot.pid());
            let wanted = std::fs::read_to_string(&id)?;
            wait_for("the boot", Duration::from_secs(10), || {
                ensure!(std::fs::read_to_string(&seen)? == wanted, "another boot id");
                Ok(())
            })?;
            self.boot = Some(boot);
        }
        self.start_site()?;
        if let Some(hub) = hub {
            let line = hub.tombolo(&["token", "create", "--uses", "1"])?;
            let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--name", self.name]).collect();
            tombolo(&self.kubeconfig(), &words)?;
        }
        self.start_node()
    }

    pub fn start_site(&mut self) -> Result<()> {
        if self.site.is_some() {
            return Ok(());
        }
        let _ = std::fs::remove_file(self.kubeconfig());
        let (data, listen) = (self.dir("site"), format!("{}:6443", self.host.address));
        let mut args = vec!["site", "--name", self.name, "--data-dir", &data, "--listen", &listen];
        args.extend(["--netns", self.host.netns()]);
        if self.nodes == Nodes::Inside {
            args.push("--node");
        }
        let mut process = Process::start("tombolo-site", self.here(&args)?, &self.host.dir)?;
        let kubeconfig = self.kubeconfig();
        wait_for(&format!("{} to be ready", self.name), Duration::from_secs(60), || {
            process.alive()?;
            ensure!(kubeconfig.exists(), "no admin.kubeconfig yet");
            Ok(())
        })?;
        self.site = Some(process);
        if self.nodes == Nodes::Inside && self.boots == 1 {
            self.import("site")?;
        }
        Ok(())
    }

    /// The node beside the site, if that is how it runs here.
    pub fn start_node(&mut self) -> Result<()> {
        if self.nodes == Nodes::Inside || self.node.is_some() {
            return Ok(());
        }
        let (data, address) = (self.dir("node"), self.host.address.to_string());
        let mut args = vec!["node", "--name", self.name, "--data-dir", &data, "--address", &address];
        args.extend(["--netns", self.host.netns()]);
        let known = Path::new(&data).exists();
        let ticket = match known {
            true => String::new(),
            false => tombolo(&self.kubeconfig(), &["token", "create", "--node"])?,
        };
        args.extend(ticket.split_whitespace().skip_while(|word| *word != "--join"));
        self.node = Some(Process::start("tombolo-node", self.here(&args)?, &self.host.dir)?);
        if !known {
            wait_for("the node to have a folder for images", Duration::from_secs(60), || {
                self.import("node")
            })?;
        }
        Ok(())
    }

    fn import(&self, into: &str) -> Result<()> {
        let image = self.image.display().to_string();
        let output = self.here(&["image", "import", &image, "--data-dir", &self.dir(into)])?.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// The site's process and with it the agent; containers go on, and so does a node beside it.
    pub fn kill_site(&mut self) {
        self.site = None;
    }

    pub fn kill_node(&mut self) {
        self.node = None;
    }

    /// Every process of the machine ends at once; its disk stays.
    pub fn power_off(&mut self) {
        (self.site, self.node) = (None, None);
        for folder in ["site/node/pods", "node/pods"] {
            let pods = std::fs::read_dir(self.host.dir.join(folder)).into_iter().flatten().flatten();
            for pod in pods {
                let shims = std::fs::read_to_string(pod.path().join("shim.pid")).unwrap_or_default();
                for shim in shims.lines().filter_map(|pid| pid.parse::<u32>().ok()).filter(|pid| *pid > 1) {
                    let children = format!("/proc/{shim}/task/{shim}/children");
                    let children = std::fs::read_to_string(children).unwrap_or_default();
                    // The shim first, so that it notices nothing.
                    for pid in std::iter::once(shim.to_string())
                        .chain(children.split_whitespace().map(str::to_owned))
                    {
                        let _ = Command::new("kill")
                            .args(["-KILL", &pid])
                            .stderr(std::process::Stdio::null())
                            .status();
                    }
                }
            }
        }
        self.boot = None;
    }

    pub fn is_on(&self) -> bool {
        self.boot.is_some()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.host.dir.join("tombolo-site.log")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.power_off();
        for folder in ["site", "node"] {
            let mut wipe = Command::new(cargo_binary("tombolo"));
            let _ =
                wipe.args(["wipe", "--data-dir", &self.dir(folder), "--netns", self.host.netns()]).output();
        }
    }
}
