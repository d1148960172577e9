//! The same pods through another runtime: a real containerd behind its CRI socket.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod};
use kube::Api;
use serde_json::json;
use tombolo_node::RuntimeChoice;
use tombolo_testkit::{Containerd, busybox_archive, real_node_possible};

use crate::machine::{BUSYBOX, Site, condition, eventually, phase};
use crate::streams::forwarded;

crate::tests![pods_live_and_end_through_containerd, a_runtime_that_is_late_or_hangs_is_waited_for];

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
    let dir = tempfile::Builder::new().prefix("tmbn-ctd-").tempdir().expect("folder");
    let image = busybox_archive(dir.path(), BUSYBOX, &["/bin/sh"]).expect("image");
    let containerd = Containerd::start(dir.path(), &[image]).expect("containerd");
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

    streams_and_figures(&site).await;

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
    assert_eq!(containerd.ctr(&["containers", "list", "--quiet"]).expect("ctr"), "", "containers are left");
    site.tear_down().await;
    let left = std::fs::read_dir(containerd.network_folder()).expect("folder").count();
    assert_eq!(left, 0, "our network configuration is left");
}

/// Attached input, a forwarded port, and what the pod uses.
async fn streams_and_figures(site: &Site) {
    site.create(
        "reader",
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "stdin": true, "stdinOnce": true,
            "command": ["sh", "-c", "while read line; do echo got $line; done; echo end"]}]}),
    )
    .await;
    site.ready("reader").await;
    let (kubectl, namespace) = (site.kubectl(), site.namespace.clone());
    let attach = move || kubectl.run_with_input(&["-n", &namespace, "attach", "-i", "reader"], "one\ntwo\n");
    let seen = tokio::task::spawn_blocking(attach).await.expect("ran").expect("attach");
    assert!(seen.contains("got one") && seen.contains("got two"), "{seen}");
    site.until("reader", "done", |pod| phase(pod) == "Succeeded").await;

    site.create(
        "page",
        json!({"containers": [{"name": "main", "command": ["sh", "-c", "mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www"],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}]}),
    )
    .await;
    site.ready("page").await;
    let (kubectl, namespace) = (site.kubectl(), site.namespace.clone());
    let page =
        tokio::task::spawn_blocking(move || forwarded(&kubectl, &namespace, "page")).await.expect("ran");
    assert!(page.ends_with("served\n"), "{page:?}");

    let raw = format!("/api/v1/nodes/{}/proxy/stats/summary", site.name);
    let start = std::time::Instant::now();
    loop {
        let text = site.run(&["get", "--raw", &raw]).await.expect("stats");
        let stats: serde_json::Value = serde_json::from_str(&text).expect("stats");
        let pods = stats["pods"].as_array().cloned().unwrap_or_default();
        let page = pods.iter().find(|pod| pod["podRef"]["name"] == "page").cloned().unwrap_or_default();
        let used = &page["containers"][0];
        // The runtime counts now and then, not at once.
        if used["memory"]["workingSetBytes"].as_u64() > Some(0)
            && used["cpu"]["usageCoreNanoSeconds"].as_u64() > Some(0)
        {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no figures: {stats:#}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    for pod in ["reader", "page"] {
        site.delete(pod).await;
    }
}

/// The status and the message of the node's condition Ready.
async fn node_ready(site: &Site) -> (String, String) {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(site.client.clone());
    let node = nodes.get_opt(&site.name).await.expect("node");
    let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.map(|r| (r.status, r.message.unwrap_or_default())).unwrap_or_default()
}

async fn until_node(site: &Site, wanted: &str) -> String {
    let start = std::time::Instant::now();
    loop {
        let (status, message) = node_ready(site).await;
        if status == wanted {
            return message;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the node's Ready is {status}: {message}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A process that hangs until this is dropped, also by a test that fails: what cleans up needs it.
struct Stopped(nix::unistd::Pid);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        let pid = nix::unistd::Pid::from_raw(pid as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("stopped");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.0, nix::sys::signal::Signal::SIGCONT);
    }
}

async fn a_runtime_that_is_late_or_hangs_is_waited_for() {
    if !real_node_possible() {
        println!("SKIPPED: containerd, runc and the CNI plugins are missing");
        return;
    }
    let dir = tempfile::Builder::new().prefix("tmbn-cth-").tempdir().expect("folder");
    let image = busybox_archive(dir.path(), BUSYBOX, &["/bin/sh"]).expect("image");
    // As when the machine starts: the node is there first. It also goes first, or it would start its pods again.
    let containerd;
    let Some(mut site) = Site::start("cth").await else { return };
    site.halt().await;
    site.runtime = RuntimeChoice::Cri(dir.path().join("containerd.sock"));
    site.boot().await;
    let why = until_node(&site, "False").await;
    assert!(why.contains("is it running?"), "{why}");
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    site.create(
        "web",
        json!({"containers": [{"name": "main", "command": ["sleep", "100000"],
        "readinessProbe": probe, "livenessProbe": probe}]}),
    )
    .await;
    containerd = Containerd::start(dir.path(), &[image]).expect("containerd");
    until_node(&site, "True").await;
    let before = site.ready("web").await;

    let stopped = Stopped::new(containerd.pid());
    let why = until_node(&site, "False").await;
    assert!(why.contains("container runtime is down") && why.contains("does not answer"), "{why}");
    // Longer than any one call may take.
    tokio::time::sleep(Duration::from_secs(13)).await;
    let during = site.pods().get("web").await.expect("pod");
    let told = |pod: &Pod| (phase(pod).to_owned(), condition(pod, "Ready").map(str::to_owned), status(pod));
    assert_eq!(told(&before), told(&during), "nothing is known, so nothing is told");
    drop(stopped);
    until_node(&site, "True").await;
    // Long enough for the probes to be asked again.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = site.ready("web").await;
    assert_eq!(status(&before).container_id, status(&after).container_id);
    assert_eq!(status(&after).restart_count, 0);
    site.delete("web").await;
    site.tear_down().await;
}
