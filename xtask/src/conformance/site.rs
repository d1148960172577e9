//! The site under test.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{images, ip};
use crate::run::{cargo, check, output};

const ADDRESS: &str = "10.9.0.1";

/// A `tombolo site`: without a node on loopback, or with one in a network namespace of its own, so that nothing of this
/// machine is in its way.
pub struct Site {
    child: Child,
    pub kubeconfig: PathBuf,
    pub has_node: bool,
    binary: PathBuf,
    data: PathBuf,
    netns: Option<String>,
}

impl Site {
    pub fn start(work: &Path, has_node: bool, binary: Option<&Path>) -> Result<Self> {
        let binary = match binary {
            Some(path) => path.to_owned(),
            None => build()?,
        };
        let data = work.join("data");
        let netns = has_node.then(|| format!("tombolo-e2e-{}", std::process::id()));
        let mut command = Command::new(&binary);
        command.args(["site", "--name", "conformance", "--data-dir"]).arg(&data);
        match &netns {
            Some(netns) => {
                make_network(netns)?;
                command.args(["--node", "--netns", netns, "--listen", &format!("{ADDRESS}:6443")]);
            }
            None => drop(command.args(["--listen", "127.0.0.1:0"])),
        }
        let log = work.join("site.log");
        let child = command
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .context("could not start tombolo site")?;
        let kubeconfig = data.join("admin.kubeconfig");
        let mut site = Self { child, kubeconfig, has_node, binary, data, netns };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !site.kubeconfig.exists() {
            if let Some(status) = site.child.try_wait()? {
                bail!("tombolo site ended early ({status}); see {}", log.display());
            }
            if Instant::now() > deadline {
                bail!("tombolo site was not ready after 60 s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if has_node {
            for file in images::make(work)? {
                let import = [OsStr::new("image"), OsStr::new("import"), file.as_os_str()];
                output(Command::new(&site.binary).args(import).arg("--data-dir").arg(&site.data))?;
                fs::remove_file(file)?;
            }
        }
        Ok(site)
    }

    /// A program where it can reach the site.
    pub fn inside(&self, program: &Path) -> Command {
        match &self.netns {
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(program);
                command
            }
            None => Command::new(program),
        }
    }
}

fn build() -> Result<PathBuf> {
    check(cargo().args(["build", "--release", "--quiet", "--package", "tombolo"]))?;
    let metadata = output(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target folder")?;
    Ok(Path::new(target).join("release/tombolo"))
}

fn make_network(netns: &str) -> Result<()> {
    ip(&["netns", "add", netns])
        .context("the tests with containers run in a network namespace; making one needs root")?;
    ip(&["-n", netns, "link", "set", "lo", "up"])?;
    // Only the one end is used; kernels of small machines have no dummy links.
    ip(&["-n", netns, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"])?;
    ip(&["-n", netns, "addr", "add", &format!("{ADDRESS}/24"), "dev", "eth0"])?;
    for link in ["eth0", "eth1"] {
        ip(&["-n", netns, "link", "set", link, "up"])?;
    }
    ip(&["-n", netns, "route", "add", "default", "dev", "eth0"])
}

impl Drop for Site {
    fn drop(&mut self) {
        // Containers outlive the process.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(netns) = &self.netns {
            let mut remove = self.inside(&self.binary);
            let _ = remove.args(["wipe", "--data-dir"]).arg(self.data.join("node")).status();
            let _ = ip(&["netns", "delete", netns]);
        }
    }
}
