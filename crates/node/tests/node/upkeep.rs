//! What a node does so that a machine does not fill up: logs are rotated, what is not needed is removed, and when that is
//! not enough a pod has to go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tombolo_node::image::{Registries, Store};
use tombolo_node::runtime::PullSecret;

use crate::images::{gzip, registry, sha};
use crate::machine::{Machine, Site, eventually, phase};

crate::tests![
    a_log_is_rotated_and_still_read_as_one,
    ended_containers_are_removed_but_for_the_last,
    an_image_nobody_uses_goes_when_the_disk_fills_up,
    when_memory_runs_short_the_pod_that_uses_more_than_it_asked_for_goes,
];

async fn quick(name: &str, machine: Machine, change: impl FnOnce(&mut Site)) -> Option<Site> {
    let mut site = Site::start_on(machine, name).await?;
    site.halt().await;
    site.upkeep.round = Duration::from_millis(300);
    change(&mut site);
    site.boot().await;
    Some(site)
}

async fn a_log_is_rotated_and_still_read_as_one() {
    let small = |site: &mut Site| {
        site.upkeep.largest_log = 64 << 10;
        site.upkeep.log_files = 3;
    };
    let Some(site) = quick("rotate", Machine::new("rotate"), small).await else { return };
    // About 100 KiB a second, for as long as it is looked at; every line is counted.
    let script = "i=0; while true; do n=0; while [ $n -lt 100 ]; do i=$((i+1)); n=$((n+1)); \
        echo line-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done; sleep 0.1; done";
    let pod = site
        .create("talker", json!({"containers": [{"name": "main", "command": ["sh", "-c", script]}]}))
        .await;
    site.ready("talker").await;
    let logs = site.machine.dir().join("pods").join(pod.metadata.uid.expect("uid")).join("logs/main");
    let files = || std::fs::read_dir(&logs).map_or(0, |files| files.count());
    eventually(Duration::from_secs(60), || files() == 3).await;
    // Followed over several rotations, no line is missing.
    let (kubectl, namespace) = (site.kubectl(), site.namespace.clone());
    let follow = move || {
        use std::io::BufRead;
        let mut child = kubectl
            .command(&["-n", &namespace, "logs", "-f", "--tail=1", "talker"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("logs -f");
        let lines = std::io::BufReader::new(child.stdout.take().expect("stdout")).lines();
        let number =
            |line: String| line.split('-').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number");
        let seen: Vec<u64> = lines.take(6000).map(|line| number(line.expect("line"))).collect();
        let _ = child.kill();
        let _ = child.wait();
        seen
    };
    let seen = tokio::task::spawn_blocking(follow).await.expect("followed");
    let missing: Vec<_> = seen.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
    assert!(missing.is_empty(), "lines are missing or doubled: {missing:?}");
    let sizes =
        std::fs::read_dir(&logs).expect("logs").flatten().map(|f| f.metadata().map_or(0, |m| m.len()));
    let total: u64 = sizes.sum();
    assert!(files() <= 4 && total < 1 << 20, "{} files, {total} bytes", files());
    site.tear_down().await;
}

async fn ended_containers_are_removed_but_for_the_last() {
    let Some(site) = Site::start("dead").await else { return };
    let pod = site
        .create(
            "ends",
            json!({"containers": [{"name": "main", "command": ["sh", "-c", "echo once; exit 1"]}]}),
        )
        .await;
    let restarts = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        statuses.map_or(0, |s| s[0].restart_count)
    };
    site.until("ends", "restarted three times", |pod| restarts(pod) >= 3).await;
    let dir = site.machine.dir().join("pods").join(pod.metadata.uid.expect("uid"));
    let count = |path: &str| std::fs::read_dir(dir.join(path)).map_or(0, |entries| entries.count());
    eventually(Duration::from_secs(30), || count("containers/main") <= 2).await;
    assert!(count("logs/main") <= 2, "{} logs", count("logs/main"));
    assert_eq!(site.run(&["logs", "--previous", "ends"]).await.expect("previous"), "once\n");
    site.tear_down().await;
}

/// A busybox that came from a registry, with a file that makes it another image.
async fn pulled(site: &Site, mark: &str) -> String {
    let mut layer = tar::Builder::new(Vec::new());
    let program = std::fs::read("/bin/busybox").expect("busybox");
    for (path, bytes) in [("bin/sleep", program.as_slice()), ("etc/mark", mark.as_bytes())] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_cksum();
        layer.append_data(&mut header, path, bytes).expect("entry");
    }
    let layer = layer.into_inner().expect("tar");
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({"architecture": arch, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [sha(&layer)]}})
        .to_string()
        .into_bytes();
    let zipped = gzip(&layer);
    let manifest =
        json!({"schemaVersion": 2, "config": {"digest": sha(&config)}, "layers": [{"digest": sha(&zipped)}]})
            .to_string()
            .into_bytes();
    let blobs = HashMap::from([
        ("v1".to_owned(), manifest.clone()),
        (sha(&manifest), manifest),
        (sha(&config), config),
        (sha(&zipped), zipped),
    ]);
    let (address, _) = registry(blobs).await;
    let store = Arc::new(Store::open(site.machine.dir().join("images")).expect("store"));
    let secret =
        PullSecret { registry: address.clone(), username: "robot".into(), password: "secret".into() };
    let registries = Registries { insecure: vec![address.clone()], ..Registries::default() };
    let name = format!("{address}/{mark}:v1");
    registries.pull(&store, &name, &[secret]).await.expect("pulled");
    name
}

async fn an_image_nobody_uses_goes_when_the_disk_fills_up() {
    let Some(site) = quick("images", Machine::with_small_disk("images", 64), |_| ()).await else { return };
    let (used, unused) = (pulled(&site, "used").await, pulled(&site, "unused").await);
    site.create(
        "user",
        json!({"containers": [{"name": "main", "image": used, "command": ["/bin/sleep", "1000"]}]}),
    )
    .await;
    site.ready("user").await;
    let has = |name: &str| Store::open(site.machine.dir().join("images")).expect("store").get(name).is_some();
    assert!(has(&used) && has(&unused), "while there is room nothing is removed");
    let disk = nix::sys::statvfs::statvfs(site.machine.dir()).expect("disk");
    let (total, free) =
        (disk.blocks() * disk.fragment_size(), disk.blocks_available() * disk.fragment_size());
    // 87 % in use: enough for images to go, not for pods.
    std::fs::write(site.machine.dir().join("fill"), vec![1; (free - total * 13 / 100) as usize])
        .expect("fill");
    eventually(Duration::from_secs(30), || !has(&unused)).await;
    assert!(has(&used), "what a pod uses stays");
    assert!(has(crate::machine::BUSYBOX), "what cannot be fetched again stays");
    assert_eq!(phase(&site.ready("user").await), "Running");
    site.tear_down().await;
}

async fn when_memory_runs_short_the_pod_that_uses_more_than_it_asked_for_goes() {
    let machine = Machine::new("memory");
    let meminfo = machine.dir().join("meminfo");
    let say = {
        let meminfo = meminfo.clone();
        move |mebibytes: u64| {
            let text = format!("MemTotal: 8388608 kB\nMemAvailable: {} kB\n", mebibytes * 1024);
            std::fs::write(&meminfo, text).expect("meminfo");
        }
    };
    say(4096);
    let Some(site) = quick("memory", machine, |site| site.upkeep.meminfo = meminfo).await else { return };
    let holds = |mebibytes: u64| {
        let script = format!(
            "busybox dd if=/dev/zero of=/mem/fill bs=1M count={mebibytes} && mkdir /mem/full; sleep 1000"
        );
        json!({"name": "main", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "mem", "mountPath": "/mem"}],
            "resources": {"requests": {"memory": "64Mi"}},
            "readinessProbe": {"exec": {"command": ["ls", "/mem/full"]}, "periodSeconds": 1}})
    };
    let volumes = json!([{"name": "mem", "emptyDir": {"medium": "Memory"}}]);
    site.create("modest", json!({"containers": [holds(8)], "volumes": volumes})).await;
    site.create("greedy", json!({"containers": [holds(128)], "volumes": volumes})).await;
    site.ready("modest").await;
    site.ready("greedy").await;
    say(50);
    let evicted = site.until("greedy", "evicted", |pod| phase(pod) == "Failed").await;
    assert_eq!(crate::machine::condition(&evicted, "DisruptionTarget"), Some("True"));
    let status = evicted.status.expect("status");
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(status.message.is_some_and(|m| m.contains("low on resource: memory")));
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(site.client.clone());
    let pressed = |node: &k8s_openapi::api::core::v1::Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "MemoryPressure" && c.status == "True")
    };
    for (expected, memory) in [(true, 50), (false, 4096)] {
        say(memory);
        let start = Instant::now();
        while pressed(&nodes.get(&site.name).await.expect("node")) != expected {
            assert!(start.elapsed() < Duration::from_secs(30), "MemoryPressure does not become {expected}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(phase(&site.ready("modest").await), "Running", "nobody else paid for it");
    site.tear_down().await;
}
