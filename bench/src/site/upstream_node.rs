//! A real kubelet with containerd, with lifted limits and the real pause program, as a fair opponent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use tombolo_testkit::{Fixture, Image, Kubectl, Process, free_port, wait_for};

/// The name under which containerd finds the pause program.
const PAUSE: &str = "registry.k8s.io/pause:3.10.2";

/// containerd and kubelet, with all their state in one folder. Ends when dropped; remove its pods before.
pub struct UpstreamNode {
    socket: PathBuf,
    pub processes: Vec<Process>,
}

/// Where containerd keeps mounts and shims' sockets: those have a limit on their length.
fn state(dir: &Path) -> PathBuf {
    let end = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    PathBuf::from("/run").join(format!("tombolo-test-{}", end.trim_start_matches('.')))
}

impl UpstreamNode {
    /// Starts them and waits until the node is ready. Needs root, and programs of Debian's `containerd`, `runc` and
    /// `containernetworking-plugins`.
    pub fn start(name: &str, kubeconfig: &Path, dir: &Path) -> Result<Self> {
        let socket = state(dir).join("containerd.sock");
        fs::create_dir_all(state(dir))?;
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("cni/10-bridge.conflist"), network(dir))?;
        let config = dir.join("containerd.toml");
        fs::write(&config, containerd(dir, &socket))?;
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&config);
        let mut node = Self { socket, processes: Vec::new() };
        node.processes.push(Process::start("containerd", command, dir)?);
        wait_for("containerd", Duration::from_secs(30), || {
            ensure!(node.ctr(&["version"]).is_ok(), "it does not answer yet");
            Ok(())
        })?;
        let pause = dir.join("pause.tar");
        let mut image = Image::new(&[PAUSE]).with("Entrypoint", serde_json::json!(["/pause"]));
        image.file("pause", 0o755, &fs::read(Fixture::Pause.must())?)?;
        image.save(&pause)?;
        node.import(&pause)?;

        let config = dir.join("kubelet.yaml");
        fs::write(&config, kubelet(&node.socket))?;
        let mut command = Command::new(Fixture::Kubelet.must());
        command.arg("--config").arg(&config).arg("--kubeconfig").arg(kubeconfig);
        // Without its address the kubelet asks a name server for it, and waits long where there is none.
        command.args(["--node-ip", super::cluster::ADDRESS, "--cert-dir"]).arg(dir.join("kubelet-pki"));
        command.args(["--hostname-override", name, "--root-dir"]).arg(dir.join("kubelet"));
        node.processes.push(Process::start("kubelet", command, dir)?);
        let kubectl = Kubectl::new(kubeconfig);
        wait_for("the kubelet's node to be ready", Duration::from_secs(60), || {
            node.processes.iter_mut().try_for_each(Process::alive)?;
            let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}"#;
            let ready = kubectl.run(&["get", "node", name, "-o", ready])?;
            ensure!(ready.starts_with("True"), "{ready}");
            Ok(())
        })?;
        Ok(node)
    }

    /// Adds an image archive.
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.ctr(&["-n", "k8s.io", "images", "import", &archive.display().to_string()]).map(drop)
    }

    fn ctr(&self, words: &[&str]) -> Result<String> {
        let output = Command::new("ctr").arg("--address").arg(&self.socket).args(words).output();
        let output = output.context("could not start ctr, which comes with containerd")?;
        ensure!(output.status.success(), "ctr {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for UpstreamNode {
    fn drop(&mut self) {
        // The kubelet first, or it starts again what is ended here.
        if let Some(kubelet) = self.processes.get_mut(1) {
            kubelet.kill();
        }
        let tasks = self.ctr(&["-n", "k8s.io", "tasks", "list", "-q"]).unwrap_or_default();
        for task in tasks.lines() {
            let _ = self.ctr(&["-n", "k8s.io", "tasks", "delete", "--force", task]);
        }
        // Sandboxes of pods that went a moment ago still have their network and their shared memory.
        let containers = self.ctr(&["-n", "k8s.io", "containers", "list", "-q"]).unwrap_or_default();
        for container in containers.lines() {
            let info = self.ctr(&["-n", "k8s.io", "containers", "info", container]).unwrap_or_default();
            if let Some(network) = network_of(&info) {
                let _ = Command::new("umount").args(["-l", &network]).output();
                let _ = fs::remove_file(network);
            }
        }
        self.processes.clear();
        let Some(folder) = self.socket.parent() else { return };
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split_whitespace().nth(1));
        let mut below: Vec<&str> = places.filter(|place| Path::new(place).starts_with(folder)).collect();
        below.sort_by_key(|place| std::cmp::Reverse(place.len()));
        for place in below {
            let _ = Command::new("umount").args(["-l", place]).output();
        }
        let _ = fs::remove_dir_all(folder);
    }
}

/// The network namespace that was made for a container.
fn network_of(info: &str) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let spaces = info.pointer("/Spec/linux/namespaces")?.as_array()?;
    let network = spaces.iter().find(|space| space["type"] == "network")?;
    network["path"].as_str().filter(|path| path.contains("/netns/cni-")).map(str::to_owned)
}

fn network(dir: &Path) -> String {
    serde_json::json!({"cniVersion": "0.4.0", "name": "bench", "plugins": [
        {"type": "bridge", "bridge": "cni-bench", "isGateway": true, "ipMasq": false, "hairpinMode": true,
         "ipam": {"type": "host-local", "dataDir": dir.join("addresses"), "ranges": [[{"subnet": "10.66.0.0/16"}]],
                  "routes": [{"dst": "0.0.0.0/0"}]}},
    ]})
    .to_string()
}

fn containerd(dir: &Path, socket: &Path) -> String {
    let show = |path: PathBuf| path.display().to_string();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{cni}"
"#,
        root = show(dir.join("containerd")),
        state = show(state(dir).join("state")),
        socket = socket.display(),
        cni = show(dir.join("cni")),
    )
}

fn kubelet(socket: &Path) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: cgroupfs\ncgroupsPerQOS: false\n\
         enforceNodeAllocatable: []\nlocalStorageCapacityIsolation: false\nfailSwapOn: false\nfailCgroupV1: false\n\
         containerRuntimeEndpoint: unix://{}\nauthentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}\n\
         authorization: {{mode: AlwaysAllow}}\nport: {}\nhealthzPort: 0\nmaxPods: 110\nresolvConf: \"\"\n\
         kubeAPIQPS: 5000\nkubeAPIBurst: 5000\neventRecordQPS: 0\nserializeImagePulls: false\n",
        socket.display(),
        free_port()
    )
}
