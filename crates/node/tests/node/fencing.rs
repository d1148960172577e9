//! Pods that may run at most once: their shim ends them when the hub's lease is not renewed, whoever is dead.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tombolo_api::{RenewalSent, names};

use crate::churn::Victim;
use crate::machine::{BUSYBOX, Site, condition};

crate::tests![
    the_shim_ends_a_pod_at_its_deadline_when_node_and_agent_are_dead,
    after_a_reboot_a_pod_waits_for_a_fresh_lease,
];

/// Milliseconds on the boot clock.
fn boot_millis() -> i64 {
    let text = std::fs::read_to_string("/proc/uptime").expect("uptime");
    let seconds: f64 = text.split_whitespace().next().and_then(|t| t.parse().ok()).expect("seconds");
    (seconds * 1000.0) as i64
}

/// What the agent does when the hub acknowledged a heartbeat that was sent `age` milliseconds ago.
async fn renew(site: &Site, hub: &str, age: i64) -> i64 {
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    let namespace = json!({"metadata": {"name": names::SYSTEM_NAMESPACE}});
    let _ = namespaces
        .create(&PostParams::default(), &serde_json::from_value(namespace).expect("namespace"))
        .await;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let millis = boot_millis() - age;
    let sent = RenewalSent {
        machine: read("/etc/machine-id"),
        boot: read("/proc/sys/kernel/random/boot_id"),
        millis,
    };
    let name = format!("hub-{hub}");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "annotations": {names::RENEWAL_ANNOTATION: sent.to_string()}},
        "spec": {"holderIdentity": hub}});
    let leases: Api<Lease> = Api::namespaced(site.client.clone(), names::SYSTEM_NAMESPACE);
    leases.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&lease)).await.expect("lease");
    millis
}

/// A pod that may run `seconds` without a renewal, of which one is for stopping.
async fn create(site: &Site, name: &str, hub: &str, seconds: i64) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {
            names::AT_MOST_ONCE_ANNOTATION: seconds.to_string(), names::HUB_LABEL: hub}},
        "spec": {"nodeName": site.name, "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": BUSYBOX,
            "command": ["sh", "-c", "trap 'echo asked to end; exit 0' TERM; echo up; while true; do sleep 0.05; done"]}]}
    }))
    .expect("pod");
    site.pods().create(&PostParams::default(), &pod).await.expect("create");
}

fn pod_dir(site: &Site, pod: &Pod) -> std::path::PathBuf {
    site.machine.dir().join("pods").join(pod.metadata.uid.as_deref().expect("uid"))
}

/// The pod's shim, and so everything it keeps, is there.
fn runs(dir: &std::path::Path) -> bool {
    let pid = std::fs::read_to_string(dir.join("shim.pid")).unwrap_or_default();
    pid.lines().next().is_some_and(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists())
}

async fn the_shim_ends_a_pod_at_its_deadline_when_node_and_agent_are_dead() {
    let Some(mut site) = Site::start("fence").await else { return };
    site.halt().await;
    let victim = Victim::start(&site);
    create(&site, "once", "north", 8).await;
    // No lease, no start; and another hub's lease is no lease.
    renew(&site, "south", 0).await;
    let waits = |pod: &Pod| {
        let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()?.first());
        let waiting = status.and_then(|s| s.state.as_ref()?.waiting.as_ref()?.reason.clone());
        waiting.as_deref() == Some("AwaitingLease")
    };
    site.until("once", "waiting for a lease", waits).await;
    renew(&site, "north", 0).await;
    let pod = site.ready("once").await;
    let dir = pod_dir(&site, &pod);
    // Renewals keep it running beyond its first deadline.
    let start = Instant::now();
    let mut last = 0;
    while start.elapsed() < Duration::from_secs(10) {
        last = renew(&site, "north", 0).await;
        assert!(runs(&dir), "it was ended although its lease was renewed");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    victim.kill();
    let log = || {
        let files = std::fs::read_dir(dir.join("logs/main")).into_iter().flatten().flatten();
        files.map(|f| std::fs::read_to_string(f.path()).unwrap_or_default()).collect::<String>()
    };
    assert!(runs(&dir), "a container outlives its node");
    crate::machine::eventually(Duration::from_secs(30), || !runs(&dir)).await;
    let ended = boot_millis() - last;
    assert!(
        (5_000..=8_000).contains(&ended),
        "ended {ended} ms after the last renewal was sent, 8000 allowed"
    );
    assert!(log().contains("asked to end"), "the program is asked before it is killed: {}", log());
    // The node is back: it does not start the pod again before the hub is heard.
    site.boot().await;
    site.until("once", "waiting again", |pod| condition(pod, "Ready") == Some("False") && !runs(&dir)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!runs(&dir));
    renew(&site, "north", 9_000).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!runs(&dir), "a renewal that was sent too long ago is none");
    renew(&site, "north", 0).await;
    site.ready("once").await;
    site.tear_down().await;
}

async fn after_a_reboot_a_pod_waits_for_a_fresh_lease() {
    let Some(mut site) = Site::start("fenceboot").await else { return };
    renew(&site, "north", 0).await;
    create(&site, "once", "north", 4).await;
    site.create("plain", json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
    let pod = site.ready("once").await;
    let plain = site.ready("plain").await;
    let (dir, plain) = (pod_dir(&site, &pod), pod_dir(&site, &plain));
    site.halt().await;
    crate::stubborn::power_cut(&site);
    // The lease of before has run out when the machine is up again.
    tokio::time::sleep(Duration::from_secs(4)).await;
    site.boot().await;
    crate::machine::eventually(Duration::from_secs(30), || runs(&plain)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!runs(&dir), "it may be running elsewhere by now");
    renew(&site, "north", 0).await;
    crate::machine::eventually(Duration::from_secs(30), || runs(&dir)).await;
    site.tear_down().await;
}
