//! What goes wrong on small machines: a full disk, a runtime that hangs, a damaged image, probes that never answer, an
//! API that is away, files that a power cut emptied. Each costs as little as possible, and the API shows the truth.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tombolo_node::image::{ImageConfig, Store};

use crate::machine::{Machine, Site, condition, eventually, phase};

crate::tests![
    a_full_disk_costs_the_pod_that_filled_it,
    a_runtime_that_hangs_holds_up_nobody_else,
    a_damaged_image_is_named_and_mended_by_fetching_it_again,
    a_probe_that_never_answers_counts_as_failed_and_leaves_nothing_behind,
    without_the_api_a_restarted_node_keeps_probes_and_restarts,
    files_that_a_power_cut_left_empty_keep_no_node_from_starting,
];

fn container_id(pod: &Pod) -> String {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.and_then(|s| s.first()?.container_id.clone()).unwrap_or_default()
}

fn waiting(pod: &Pod) -> (String, String) {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    let waiting = statuses.and_then(|s| s.first()?.state.clone()?.waiting);
    waiting.map(|w| (w.reason.unwrap_or_default(), w.message.unwrap_or_default())).unwrap_or_default()
}

/// Processes of the machine whose command line contains a text.
fn processes(text: &str) -> usize {
    let all = std::fs::read_dir("/proc").expect("proc").flatten();
    let has = |command: Vec<u8>| String::from_utf8_lossy(&command).replace('\0', " ").contains(text);
    all.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(has)).count()
}

/// An API that is out of reach.
fn nowhere() -> kube::Client {
    let mut config = kube::Config::new("https://127.0.0.1:9".parse().expect("uri"));
    config.connect_timeout = Some(Duration::from_millis(200));
    kube::Client::try_from(config).expect("client")
}

async fn a_full_disk_costs_the_pod_that_filled_it() {
    let machine = Machine::with_small_disk("disk", 48);
    let Some(mut site) = Site::start_on(machine, "disk").await else { return };
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    site.create(
        "keeps",
        json!({"priorityClassName": "system-node-critical",
            "containers": [{"name": "main", "command": ["sleep", "1000"], "readinessProbe": probe}]}),
    )
    .await;
    let before = site.ready("keeps").await;
    site.create(
        "greedy",
        json!({"containers": [{"name": "main", "volumeMounts": [{"name": "space", "mountPath": "/space"}],
            "command": ["sh", "-c", "busybox dd if=/dev/zero of=/space/fill bs=65536; sleep 1000"]}],
            "volumes": [{"name": "space", "emptyDir": {}}]}),
    )
    .await;
    let free = |site: &Site| {
        let disk = nix::sys::statvfs::statvfs(site.machine.dir()).expect("disk");
        disk.blocks_available() * disk.fragment_size()
    };
    eventually(Duration::from_secs(60), || free(&site) == 0).await;
    // A node that starts on a full disk takes over what runs.
    site.halt().await;
    site.boot().await;
    site.create("later", json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
    let evicted = site.until("greedy", "evicted", |pod| phase(pod) == "Failed").await;
    assert_eq!(evicted.status.as_ref().and_then(|s| s.reason.as_deref()), Some("Evicted"));
    eventually(Duration::from_secs(60), || free(&site) > 0).await;
    site.ready("later").await;
    let after = site.ready("keeps").await;
    assert_eq!(container_id(&before), container_id(&after), "nobody else paid for it");
    site.tear_down().await;
}

async fn a_runtime_that_hangs_holds_up_nobody_else() {
    let Some(mut site) = Site::start("hang").await else { return };
    site.halt().await;
    // Hangs whenever the flag is up; its number tells its processes from others.
    let (flag, program) = (site.machine.dir().join("hang"), site.machine.dir().join("runtime"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = container-create ] && [ -e {} ] && exec sleep 47114711\nexec {} \"$@\"\n",
        flag.display(),
        Machine::program().display()
    );
    std::fs::write(&program, script).expect("script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("mode");
    std::fs::write(&flag, "").expect("flag");
    site.program = program;
    site.boot().await;
    let sleeper = json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]});
    site.create("stuck", sleeper.clone()).await;
    eventually(Duration::from_secs(60), || processes("sleep 47114711") == 1).await;
    std::fs::remove_file(&flag).expect("flag");
    site.create("fine", sleeper).await;
    site.ready("fine").await;
    let stuck = site.pods().get("stuck").await.expect("pod");
    assert_ne!(condition(&stuck, "Ready"), Some("True"));
    site.delete("stuck").await;
    eventually(Duration::from_secs(10), || processes("sleep 47114711") == 0).await;
    site.tear_down().await;
}

async fn a_damaged_image_is_named_and_mended_by_fetching_it_again() {
    let Some(site) = Site::start("damage").await else { return };
    const IMAGE: &str = "localhost/damaged:1";
    let program = std::fs::read("/bin/busybox").expect("busybox");
    let add = || {
        let store = Store::open(site.machine.dir().join("images")).expect("store");
        let files = [("bin/sleep", 0o755, program.as_slice()), ("etc/mark", 0o644, b"1".as_slice())];
        let image = store.add_builtin(IMAGE, &files, ImageConfig::default()).expect("image");
        store.layers(&image).remove(0)
    };
    let layer = add();
    std::fs::remove_dir_all(&layer).expect("a layer is lost");
    site.create(
        "hurt",
        json!({"containers": [{"name": "main", "image": IMAGE, "command": ["/bin/sleep", "1000"]}]}),
    )
    .await;
    let pod = site.until("hurt", "refused", |pod| waiting(pod).0 == "ErrImagePull").await;
    assert!(waiting(&pod).1.contains(IMAGE), "{:?}", waiting(&pod));
    add();
    site.ready("hurt").await;
    site.tear_down().await;
}

async fn a_probe_that_never_answers_counts_as_failed_and_leaves_nothing_behind() {
    let Some(site) = Site::start("mute").await else { return };
    let mute = |kind: &str, probe: serde_json::Value| {
        let mut container =
            json!({"name": "main", "command": ["sh", "-c", "busybox nc -ll -p 8080 -e sleep 1000"]});
        container[kind] = probe;
        container[kind]["periodSeconds"] = 1.into();
        container[kind]["failureThreshold"] = 2.into();
        json!({"containers": [container]})
    };
    let exec = json!({"exec": {"command": ["sleep", "36473647"]}});
    site.create("hook", mute("readinessProbe", exec)).await;
    // It accepts connections and says nothing.
    site.create("http", mute("livenessProbe", json!({"httpGet": {"port": 8080}}))).await;
    let restarts = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        statuses.map_or(0, |s| s[0].restart_count)
    };
    let http = site.until("http", "restarted", |pod| restarts(pod) >= 1).await;
    assert_eq!(phase(&http), "Running");
    for (pod, words) in [("http", "Liveness probe failed"), ("hook", "Readiness probe failed")] {
        let about = format!("involvedObject.name={pod}");
        let start = std::time::Instant::now();
        while !site.run(&["get", "events", "--field-selector", &about]).await.expect("events").contains(words)
        {
            assert!(start.elapsed() < Duration::from_secs(60), "no event says {words:?}");
        }
    }
    let hook = site.pods().get("hook").await.expect("pod");
    assert_eq!((phase(&hook), condition(&hook, "Ready"), restarts(&hook)), ("Running", Some("False"), 0));
    assert!(processes("sleep 36473647") <= 3, "probes that timed out are still there");
    site.delete("hook").await;
    eventually(Duration::from_secs(10), || processes("sleep 36473647") == 0).await;
    site.tear_down().await;
}

async fn without_the_api_a_restarted_node_keeps_probes_and_restarts() {
    let Some(mut site) = Site::start("alone").await else { return };
    site.create("stays", json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
    site.create(
        "ends",
        json!({"containers": [{"name": "main", "command": ["sh", "-c",
        "echo started; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 5"]}]}),
    )
    .await;
    site.create("sick", json!({"containers": [{"name": "main", "command": ["sh", "-c", "echo started; touch /tmp/well; sleep 1000"],
        "livenessProbe": {"exec": {"command": ["ls", "/tmp/well"]}, "periodSeconds": 1, "failureThreshold": 1}}]}))
        .await;
    let before = site.ready("stays").await;
    let log = |site: &Site, pod: &Pod| {
        let uid = pod.metadata.uid.clone().expect("uid");
        let logs = std::fs::read_dir(site.machine.dir().join("pods").join(uid).join("logs/main"));
        let logs = logs.into_iter().flatten().flatten();
        logs.filter_map(|l| std::fs::read_to_string(l.path()).ok()).collect::<String>()
    };
    let (ends, sick) = (site.ready("ends").await, site.ready("sick").await);
    site.run(&["exec", "sick", "--", "rm", "/tmp/well"]).await.expect("rm");
    site.run(&["exec", "ends", "--", "touch", "/tmp/go"]).await.expect("touch");
    site.halt().await;
    let real = site.client.clone();
    site.client = nowhere();
    site.boot().await;
    let starts = |site: &Site, pod: &Pod| log(site, pod).matches("started").count();
    eventually(Duration::from_secs(60), || starts(&site, &ends) >= 2 && starts(&site, &sick) >= 2).await;
    site.halt().await;
    site.client = real;
    site.boot().await;
    for name in ["ends", "sick"] {
        let restarted = |pod: &Pod| {
            let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
            statuses.is_some_and(|s| s[0].restart_count >= 1) && condition(pod, "Ready") == Some("True")
        };
        site.until(name, "reported as restarted", restarted).await;
    }
    assert_eq!(container_id(&before), container_id(&site.ready("stays").await));
    site.tear_down().await;
}

async fn files_that_a_power_cut_left_empty_keep_no_node_from_starting() {
    let Some(mut site) = Site::start("empty").await else { return };
    let sleeper = json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]});
    site.create("cut", sleeper.clone()).await;
    site.create("whole", sleeper).await;
    let (cut, whole) = (site.ready("cut").await, site.ready("whole").await);
    site.halt().await;
    crate::stubborn::power_cut(&site);
    let dir = site.machine.dir().to_owned();
    let pod = |pod: &Pod| dir.join("pods").join(pod.metadata.uid.clone().expect("uid"));
    let folder = pod(&cut);
    let emptied =
        ["images/images.json", "kubelet.crt", "kubelet.key", "services.json"].map(|file| dir.join(file));
    let of_the_pod =
        ["pod.json", "objects.json", "tokens.json", "sandbox.json"].map(|file| folder.join(file));
    for file in emptied.iter().chain(&of_the_pod) {
        assert!(file.exists(), "{}", file.display());
        std::fs::write(file, "").expect("emptied");
    }
    let client = site.client.clone();
    site.client = nowhere();
    site.boot().await;
    // What can be read runs; what cannot waits for somebody who knows it.
    let logs = |pod: std::path::PathBuf| std::fs::read_dir(pod.join("logs/main")).map_or(0, Iterator::count);
    eventually(Duration::from_secs(60), || logs(pod(&whole)) == 2).await;
    assert!(folder.exists() && logs(folder.clone()) == 1, "nothing is done about a pod that nobody knows");
    site.halt().await;
    site.client = client;
    site.boot().await;
    for (name, before) in [("cut", &cut), ("whole", &whole)] {
        let again =
            |pod: &Pod| condition(pod, "Ready") == Some("True") && container_id(pod) != container_id(before);
        site.until(name, "running again", again).await;
    }
    site.tear_down().await;
}
