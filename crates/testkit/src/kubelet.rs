//! A real node: upstream's kubelet over Debian's containerd and runc, in a host of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{Fixture, Host, Process, busybox_archive, wait_for};

const PAUSE: &str = "test.local/pause:1";

/// kubelet and containerd. Dropped, it ends them with all their containers.
pub struct RealNode {
    pub kubelet: Process,
    containerd: Process,
    dir: PathBuf,
}

/// Whether containerd, runc and the CNI plugins are installed; `cargo xtask fixtures` does that.
pub fn real_node_possible() -> bool {
    let there = ["/usr/bin/containerd", "/usr/bin/ctr", "/usr/sbin/runc", "/usr/lib/cni/bridge"];
    let possible = there.iter().all(|file| Path::new(file).exists());
    assert!(
        possible || std::env::var_os("CI").is_none(),
        "no containerd in CI; `cargo xtask fixtures` installs it"
    );
    possible
}

impl RealNode {
    /// Joins `host` to the cluster of `kubeconfig` as a node with these images.
    pub fn start(host: &Host, kubeconfig: &Path, images: &[&Path]) -> Result<Self> {
        let dir = host.dir.clone();
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("containerd.toml"), containerd_config(&dir))?;
        fs::write(dir.join("cni/10-test.conflist"), CNI)?;
        fs::write(dir.join("kubelet.yaml"), kubelet_config(&dir, &host.address.to_string()))?;
        let mut command = Command::new("/usr/bin/containerd");
        command.arg("--config").arg(dir.join("containerd.toml"));
        let containerd = host.start("containerd", command)?;
        let pause = busybox_archive(&dir, PAUSE, &["/bin/sleep", "1000000"])?;
        wait_for("containerd", Duration::from_secs(20), || ctr(&dir, &["version"]))?;
        for image in images.iter().copied().chain([pause.as_path()]) {
            ctr(&dir, &["images", "import", &image.display().to_string()])?;
        }
        let mut command = Command::new(Fixture::Kubelet.must());
        command.arg("--config").arg(dir.join("kubelet.yaml")).arg("--kubeconfig").arg(kubeconfig);
        command.arg("--root-dir").arg(dir.join("kubelet")).arg("--cert-dir").arg(dir.join("kubelet-pki"));
        command.args(["--hostname-override", &host.name, "--node-ip", &host.address.to_string()]);
        let kubelet = host.start("kubelet", command)?;
        Ok(Self { kubelet, containerd, dir })
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        self.kubelet.kill();
        // Containers outlive their makers: without this they would stay on the machine.
        let list = |what: &str| ctr(&self.dir, &[what, "list", "-q"]).unwrap_or_default();
        for task in list("tasks").lines() {
            let _ = ctr(&self.dir, &["tasks", "rm", "--force", task]);
        }
        for container in list("containers").lines() {
            let info = ctr(&self.dir, &["containers", "info", container]).unwrap_or_default();
            if let Some(namespace) = network_namespace(&info) {
                let _ = Command::new("umount").args(["-l", &namespace]).output();
                let _ = fs::remove_file(namespace);
            }
            let _ = ctr(&self.dir, &["containers", "rm", container]);
        }
        self.containerd.kill();
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

fn ctr(dir: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new("/usr/bin/ctr");
    command.arg("--address").arg(dir.join("containerd.sock")).args(["--namespace", "k8s.io"]).args(args);
    let output = command.output().context("could not start ctr")?;
    ensure!(output.status.success(), "ctr {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn containerd_config(dir: &Path) -> String {
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

const CNI: &str = r#"{"cniVersion": "0.4.0", "name": "test", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "/run/cni-test",
     "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}"#;

fn kubelet_config(dir: &Path, address: &str) -> String {
    let dir = dir.display();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix://{dir}/containerd.sock
resolvConf: ""
registerNode: true
nodeStatusUpdateFrequency: 2s
syncFrequency: 2s
"#
    )
}
