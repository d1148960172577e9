//! Debian's containerd and runc, with folders of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{Process, busybox_archive, wait_for};

const PAUSE: &str = "test.local/pause:1";

/// A running containerd. Dropped, it ends with all its containers.
pub struct Containerd {
    process: Process,
    dir: PathBuf,
}

impl Containerd {
    /// Starts it with these images in `dir`, in the network namespace of the calling thread.
    pub fn start(dir: &Path, images: &[PathBuf]) -> Result<Self> {
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("containerd.toml"), configuration(dir))?;
        let mut command = Command::new("/usr/bin/containerd");
        command.arg("--config").arg(dir.join("containerd.toml"));
        let process = Process::start("containerd", command, dir)?;
        let this = Self { process, dir: dir.to_owned() };
        wait_for("containerd", Duration::from_secs(20), || this.ctr(&["version"]))?;
        let pause = busybox_archive(dir, PAUSE, &["/bin/sleep", "1000000"])?;
        for image in images.iter().chain([&pause]) {
            this.ctr(&["images", "import", &image.display().to_string()])?;
        }
        Ok(this)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// Where it looks for the configuration of its network plugins.
    pub fn network_folder(&self) -> PathBuf {
        self.dir.join("cni")
    }

    /// What ctr says about the containers of Kubernetes.
    pub fn ctr(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("/usr/bin/ctr");
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]).args(args);
        let output = command.output().context("could not start ctr")?;
        ensure!(output.status.success(), "ctr {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Containers outlive their maker: without this they would stay on the machine.
        let list = |what: &str| self.ctr(&[what, "list", "-q"]).unwrap_or_default();
        for task in list("tasks").lines() {
            let _ = self.ctr(&["tasks", "rm", "--force", task]);
        }
        for container in list("containers").lines() {
            let info = self.ctr(&["containers", "info", container]).unwrap_or_default();
            if let Some(namespace) = network_namespace(&info) {
                let _ = Command::new("umount").args(["-l", &namespace]).output();
                let _ = fs::remove_file(namespace);
            }
            let _ = self.ctr(&["containers", "rm", container]);
        }
        self.process.kill();
        unmount_below(&self.dir);
    }
}

fn network_namespace(info: &str) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let all = info.pointer("/Spec/linux/namespaces")?.as_array()?;
    let network = all.iter().find(|n| n["type"] == "network")?;
    network["path"].as_str().filter(|path| path.contains("/netns/")).map(str::to_owned)
}

fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below = mounts.lines().filter_map(|line| line.split_whitespace().nth(1));
    let mut below: Vec<&str> = below.filter(|at| Path::new(at).starts_with(dir)).collect();
    below.sort_by_key(|at| std::cmp::Reverse(at.len()));
    for at in below {
        let _ = Command::new("umount").args(["-l", at]).output();
    }
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "{dir}/containerd-run"
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{dir}/cni"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
"#
    )
}
