//! A real node: upstream's kubelet over Debian's containerd and runc, in a host of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{Containerd, Fixture, Host, Process};

/// kubelet and containerd. Dropped, it ends them with all their containers, the kubelet first: it would start them again.
pub struct RealNode {
    pub kubelet: Process,
    _containerd: Containerd,
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
        let images: Vec<PathBuf> = images.iter().map(|image| (*image).to_owned()).collect();
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("cni/10-test.conflist"), CNI)?;
        fs::write(dir.join("kubelet.yaml"), kubelet_config(&dir, &host.address.to_string()))?;
        let folder = dir.clone();
        let containerd = host.run(move || Containerd::start(&folder, &images))??;
        let mut command = Command::new(Fixture::Kubelet.must());
        command.arg("--config").arg(dir.join("kubelet.yaml")).arg("--kubeconfig").arg(kubeconfig);
        command.arg("--root-dir").arg(dir.join("kubelet")).arg("--cert-dir").arg(dir.join("kubelet-pki"));
        command.args(["--hostname-override", &host.name, "--node-ip", &host.address.to_string()]);
        let kubelet = host.start("kubelet", command)?;
        Ok(Self { kubelet, _containerd: containerd })
    }
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
