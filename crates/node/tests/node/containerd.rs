//! The same pods through another runtime: a real containerd behind its CRI socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod};
use kube::Api;
use serde_json::json;
use tombolo_node::RuntimeChoice;
use tombolo_testkit::{busybox_archive, real_node_possible};

use crate::machine::{BUSYBOX, Site, eventually, phase};

crate::tests![pods_live_and_end_through_containerd];

const PAUSE: &str = "localhost/pause:1";

struct Containerd {
    process: Child,
    dir: tempfile::TempDir,
}

impl Containerd {
    async fn start() -> Containerd {
        let dir = tempfile::Builder::new().prefix("tmbn-ctd-").tempdir().expect("folder");
        let root = dir.path().display();
        let config = format!(
            r#"version = 2
root = "{root}/root"
state = "{root}/state"
[grpc]
address = "{root}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{root}/cni"
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"
"#
        );
        std::fs::write(dir.path().join("config.toml"), config).expect("configuration");
        let log = std::fs::File::create(dir.path().join("log")).expect("log");
        let process = Command::new("/usr/bin/containerd")
            .arg("--config")
            .arg(dir.path().join("config.toml"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd starts");
        let containerd = Containerd { process, dir };
        eventually(Duration::from_secs(30), || containerd.ctr(&["version"]).is_some()).await;
        for (image, command) in [(PAUSE, vec!["/bin/sleep", "1000000"]), (BUSYBOX, vec!["/bin/sh"])] {
            let archive = busybox_archive(containerd.dir.path(), image, &command).expect("image");
            assert!(
                containerd.ctr(&["images", "import", &archive.display().to_string()]).is_some(),
                "{image}"
            );
        }
        containerd
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("containerd.sock")
    }

    /// What ctr says, if it succeeds.
    fn ctr(&self, args: &[&str]) -> Option<String> {
        let mut command = Command::new("/usr/bin/ctr");
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]).args(args);
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if Path::new(point).starts_with(self.dir.path()) {
                let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
            }
        }
    }
}

fn status(pod: &Pod) -> ContainerStatus {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.and_then(|s| s.first().cloned()).unwrap_or_default()
}

async fn pods_live_and_end_through_containerd() {
    if !real_node_possible() {
        println!("SKIPPED: containerd, runc and the CNI plugins are missing");
        return;
    }
    // Older than the site, so that a test that fails still has it to end its pods.
    let containerd = Containerd::start().await;
    let Some(mut site) = Site::start("ctd").await else { return };
    site.halt().await;
    site.runtime = RuntimeChoice::Cri(containerd.socket());
    site.boot().await;
    let maps: Api<ConfigMap> = Api::namespaced(site.client.clone(), &site.namespace);
    let map = json!({"metadata": {"name": "settings"}, "data": {"word": "kept"}});
    maps.create(&Default::default(), &serde_json::from_value(map).expect("map")).await.expect("map");
    site.create("web", json!({
        "initContainers": [{"name": "first", "command": ["sh", "-c", "echo made > /shared/by-init"],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}],
        "containers": [{"name": "main", "env": [{"name": "COLOR", "value": "blue"}],
            "command": ["sh", "-c", "trap 'exit 0' TERM; cat /shared/by-init /etc/settings/word; echo; echo $COLOR; while true; do sleep 0.1; done"],
            "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}, {"name": "settings", "mountPath": "/etc/settings"}]}],
        "volumes": [{"name": "shared", "emptyDir": {"medium": "Memory"}}, {"name": "settings", "configMap": {"name": "settings"}}]
    }))
    .await;
    let web = site.ready("web").await;
    assert!(status(&web).container_id.is_some_and(|id| id.starts_with("containerd://")));
    let ip = web.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
    assert!(ip.starts_with("10.213.77."), "an address of the node's network: {ip}");
    assert_eq!(site.run(&["logs", "web", "-c", "main"]).await.expect("logs"), "made\nkept\nblue\n");
    assert_eq!(site.run(&["exec", "web", "-c", "main", "--", "hostname"]).await.expect("exec"), "web\n");
    let (kubectl, namespace) = (site.kubectl(), site.namespace.clone());
    let cat = move || {
        kubectl.run_with_input(
            &["-n", &namespace, "exec", "-i", "web", "-c", "main", "--", "cat"],
            "there and back\n",
        )
    };
    let echoed = tokio::task::spawn_blocking(cat).await.expect("ran").expect("exec with input");
    assert_eq!(echoed, "there and back\n");
    let failed = site
        .run(&["exec", "web", "-c", "main", "--", "sh", "-c", "exit 3"])
        .await
        .expect_err("a failing command");
    assert!(format!("{failed:#}").contains("exit code 3"), "{failed:#}");

    // A container that ends is started again, and how it ended is known.
    site.create(
        "crash",
        json!({"containers": [{"name": "main", "command": ["sh", "-c", "echo once; exit 7"]}]}),
    )
    .await;
    let crash = site.until("crash", "restarted", |pod| status(pod).restart_count >= 1).await;
    let last = status(&crash).last_state.and_then(|s| s.terminated).map(|t| t.exit_code);
    assert_eq!(last, Some(7));
    // Nothing here can stop a pod by a deadline.
    let once = json!({"metadata": {"name": "once", "annotations": {"tombolo.dev/at-most-once-seconds": "60"}},
        "spec": {"nodeName": site.name, "containers": [{"name": "main", "image": BUSYBOX, "command": ["sleep", "1000"]}]}});
    site.pods()
        .create(&Default::default(), &serde_json::from_value(once).expect("pod"))
        .await
        .expect("create");
    let waiting = |pod: &Pod| status(pod).state.and_then(|s| s.waiting).and_then(|w| w.reason);
    site.until("once", "refused", |pod| waiting(pod).as_deref() == Some("AwaitingLease")).await;

    // Another node process takes over what runs.
    site.halt().await;
    site.boot().await;
    site.create(
        "later",
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "command": ["true"]}]}),
    )
    .await;
    site.until("later", "done", |pod| phase(pod) == "Succeeded").await;
    let after = site.ready("web").await;
    assert_eq!(status(&web).container_id, status(&after).container_id);
    for pod in ["web", "crash", "later", "once"] {
        site.delete(pod).await;
    }
    let folders = || std::fs::read_dir(site.machine.dir().join("pods")).expect("pods").count();
    eventually(Duration::from_secs(30), || folders() == 0).await;
    assert_eq!(
        containerd.ctr(&["containers", "list", "--quiet"]).as_deref(),
        Some(""),
        "containers are left"
    );
    site.tear_down().await;
}
