//! Init containers, sidecars, probes, restarts, hooks and ends.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::json;

use crate::machine::{Site, phase};

crate::tests![
    init_containers_run_in_order_and_sidecars_beside,
    probes_decide_over_readiness_and_restarts,
    a_failing_container_backs_off_and_says_why,
    hooks_run_and_the_end_is_graceful,
    limits_and_identities_are_enforced,
    the_default_system_call_filter_is_applied,
];

fn status(pod: &Pod, name: &str) -> ContainerStatus {
    let status = pod.status.clone().unwrap_or_default();
    let mut all = status.container_statuses.into_iter().chain(status.init_container_statuses).flatten();
    all.find(|s| s.name == name).unwrap_or_default()
}

async fn init_containers_run_in_order_and_sidecars_beside() {
    let Some(site) = Site::start("init").await else { return };
    let mounts = json!([{"name": "w", "mountPath": "/w"}]);
    site.create("steps", json!({
        "restartPolicy": "Never",
        "initContainers": [
            {"name": "first", "command": ["sh", "-c", "echo first >> /w/log"], "volumeMounts": mounts},
            {"name": "side", "restartPolicy": "Always", "command": ["sh", "-c", "echo side >> /w/log; trap 'exit 0' TERM; while true; do sleep 0.1; done"], "volumeMounts": mounts,
             "startupProbe": {"exec": {"command": ["grep", "side", "/w/log"]}, "periodSeconds": 1}},
            {"name": "second", "command": ["sh", "-c", "echo second >> /w/log"], "volumeMounts": mounts}
        ],
        "containers": [{"name": "main", "command": ["sh", "-c", "cat /w/log; sleep 1"], "volumeMounts": mounts}],
        "volumes": [{"name": "w", "emptyDir": {}}]
    }))
    .await;
    let pod = site.until("steps", "done", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(site.run(&["logs", "steps", "-c", "main"]).await.expect("logs"), "first\nside\nsecond\n");
    let ended = |name: &str| status(&pod, name).state.and_then(|s| s.terminated).map(|t| t.exit_code);
    assert_eq!(
        (ended("first"), ended("second"), ended("main"), ended("side")),
        (Some(0), Some(0), Some(0), Some(0))
    );

    site.create(
        "broken",
        json!({"restartPolicy": "Never", "initContainers": [{"name": "bad", "command": ["false"]}],
        "containers": [{"name": "main", "command": ["sleep", "1000"]}]}),
    )
    .await;
    let pod = site.until("broken", "failed", |pod| phase(pod) == "Failed").await;
    let waiting = status(&pod, "main").state.and_then(|s| s.waiting).and_then(|w| w.reason);
    assert_eq!(waiting.as_deref(), Some("PodInitializing"));
    site.tear_down().await;
}

async fn probes_decide_over_readiness_and_restarts() {
    let Some(site) = Site::start("probes").await else { return };
    site.create("flips", json!({"containers": [{"name": "main", "command": ["sleep", "1000"],
        "readinessProbe": {"exec": {"command": ["ls", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1}}]}))
        .await;
    site.until("flips", "running", |pod| status(pod, "main").state.is_some_and(|s| s.running.is_some()))
        .await;
    assert!(!status(&site.pods().get("flips").await.expect("pod"), "main").ready);
    site.run(&["exec", "flips", "--", "touch", "/tmp/ready"]).await.expect("touch");
    site.ready("flips").await;
    site.run(&["exec", "flips", "--", "rm", "/tmp/ready"]).await.expect("rm");
    site.until("flips", "unready", |pod| !status(pod, "main").ready).await;

    site.create("dies", json!({"containers": [{"name": "main", "command": ["sh", "-c", "touch /tmp/alive; sleep 2; rm /tmp/alive; sleep 1000"],
        "livenessProbe": {"exec": {"command": ["cat", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 2, "initialDelaySeconds": 1}}]}))
        .await;
    let pod = site.until("dies", "restarted", |pod| status(pod, "main").restart_count >= 1).await;
    let last = status(&pod, "main").last_state.and_then(|s| s.terminated).expect("a last state");
    assert_eq!(last.exit_code, 137, "killed after its grace");
    let events =
        site.run(&["get", "events", "--field-selector", "involvedObject.name=dies"]).await.expect("events");
    assert!(events.contains("Liveness probe failed"), "{events}");
    site.tear_down().await;
}

async fn a_failing_container_backs_off_and_says_why() {
    let Some(site) = Site::start("backoff").await else { return };
    site.create("crash", json!({"containers": [{"name": "main", "command": ["sh", "-c", "echo last words > /dev/termination-log; exit 9"]}]})).await;
    let pod = site
        .until("crash", "backing off", |pod| {
            status(pod, "main").state.and_then(|s| s.waiting).and_then(|w| w.reason).as_deref()
                == Some("CrashLoopBackOff")
        })
        .await;
    let status_now = status(&pod, "main");
    let last = status_now.last_state.and_then(|s| s.terminated).expect("a last state");
    assert_eq!(
        (last.exit_code, last.message.as_deref(), last.reason.as_deref()),
        (9, Some("last words\n"), Some("Error"))
    );
    assert_eq!(phase(&pod), "Running");

    site.create("typo", json!({"containers": [{"name": "main", "command": ["/no/such/program"]}]})).await;
    let pod = site
        .until("typo", "refused", |pod| {
            status(pod, "main").state.and_then(|s| s.waiting).is_some_and(|w| w.message.is_some())
        })
        .await;
    let waiting = status(&pod, "main").state.and_then(|s| s.waiting).expect("waiting");
    assert_eq!(waiting.reason.as_deref(), Some("RunContainerError"));
    assert!(
        waiting.message.as_deref().is_some_and(|m| m.contains("no such file or directory")),
        "{waiting:?}"
    );

    site.create("unknown", json!({"containers": [{"name": "main", "image": "localhost/nothing:here", "imagePullPolicy": "Never"}]})).await;
    let pod = site
        .until("unknown", "refused", |pod| {
            status(pod, "main").state.and_then(|s| s.waiting).is_some_and(|w| w.message.is_some())
        })
        .await;
    assert_eq!(
        status(&pod, "main").state.and_then(|s| s.waiting).and_then(|w| w.reason).as_deref(),
        Some("ErrImageNeverPull")
    );
    site.tear_down().await;
}

async fn hooks_run_and_the_end_is_graceful() {
    let Some(site) = Site::start("hooks").await else { return };
    let dir = tempfile::tempdir().expect("folder");
    let host = dir.path().to_string_lossy().into_owned();
    site.create("polite", json!({
        "terminationGracePeriodSeconds": 20,
        "containers": [{"name": "main", "command": ["sh", "-c", "trap 'echo term >> /out/log; exit 0' TERM; while true; do sleep 0.1; done"],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}],
            "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo start >> /out/log"]}},
                          "preStop": {"exec": {"command": ["sh", "-c", "echo stop >> /out/log"]}}}}],
        "volumes": [{"name": "out", "hostPath": {"path": host, "type": "Directory"}}]
    }))
    .await;
    site.ready("polite").await;
    let start = Instant::now();
    site.delete("polite").await;
    assert!(start.elapsed() < Duration::from_secs(15), "it ended by itself, not by force");
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).expect("log"), "start\nstop\nterm\n");

    // One that does not listen is killed when its grace is over.
    site.create("deaf", json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "command": ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]}]})).await;
    site.ready("deaf").await;
    site.delete("deaf").await;
    site.tear_down().await;
}

async fn limits_and_identities_are_enforced() {
    let Some(site) = Site::start("limits").await else { return };
    site.create(
        "hungry",
        json!({"restartPolicy": "Never", "containers": [{"name": "main",
        "command": ["busybox", "dd", "if=/dev/zero", "of=/dev/shm/x", "bs=1M", "count=60"],
        "resources": {"limits": {"memory": "32Mi", "cpu": "500m"}}}]}),
    )
    .await;
    let pod = site.until("hungry", "ended", |pod| phase(pod) == "Failed").await;
    let ended = status(&pod, "main").state.and_then(|s| s.terminated).expect("ended");
    assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some("OOMKilled"), 137), "{ended:?}");
    assert_eq!(pod.status.and_then(|s| s.qos_class).as_deref(), Some("Guaranteed"));

    let script = "id -u; id -g; grep CapEff /proc/self/status | busybox tr -d '\\t'; grep NoNewPrivs /proc/self/status | busybox tr -d '\\t'; touch /x 2>&1 || true; touch /w/y && echo wrote; stat -c %g /w";
    site.create("modest", json!({
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456},
        "containers": [{"name": "main", "command": ["sh", "-c", script],
            "securityContext": {"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "w", "mountPath": "/w"}]}],
        "volumes": [{"name": "w", "emptyDir": {}}]
    }))
    .await;
    site.until("modest", "done", |pod| phase(pod) == "Succeeded").await;
    let expected =
        "1234\n2345\nCapEff:0000000000000000\nNoNewPrivs:1\ntouch: /x: Read-only file system\nwrote\n3456\n";
    assert_eq!(site.run(&["logs", "modest"]).await.expect("logs"), expected);

    site.create("root", json!({"securityContext": {"runAsNonRoot": true}, "containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
    let pod = site
        .until("root", "refused", |pod| {
            status(pod, "main").state.and_then(|s| s.waiting).is_some_and(|w| w.message.is_some())
        })
        .await;
    let waiting = status(&pod, "main").state.and_then(|s| s.waiting).expect("waiting");
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerConfigError"), "{waiting:?}");

    site.create("boss", json!({"restartPolicy": "Never", "containers": [{"name": "main", "securityContext": {"privileged": true},
        "command": ["sh", "-c", "mkdir /m && busybox mount -t tmpfs none /m && echo mounted"]}]}))
        .await;
    site.until("boss", "done", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(site.run(&["logs", "boss"]).await.expect("logs"), "mounted\n");

    // Whoever runs in a container may look into the folders that were made for its mounts, and what it makes is not closed.
    site.create("guest", json!({"securityContext": {"runAsUser": 65532},
        "containers": [{"name": "main", "command": ["sleep", "1000"], "volumeMounts": [{"name": "deep", "mountPath": "/deep/down/here"}]}],
        "volumes": [{"name": "deep", "emptyDir": {}}]}))
        .await;
    site.ready("guest").await;
    let look = "umask; grep Umask /proc/1/status; ls -d /deep/down/here";
    let seen = site.run(&["exec", "guest", "--", "sh", "-c", look]).await.expect("exec");
    assert_eq!(seen, "0022\nUmask:\t0022\n/deep/down/here\n");
    site.tear_down().await;
}

async fn the_default_system_call_filter_is_applied() {
    let Some(site) = Site::start("filter").await else { return };
    // Without the filter root may make a new user namespace; with it that is refused.
    let container = |profile: &str| {
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "command": ["sh", "-c", "busybox unshare -U true && echo made; grep Seccomp: /proc/self/status | busybox tr -d '\\t'; grep CapBnd /proc/self/status | busybox tr -d '\\t'"],
        "securityContext": {"seccompProfile": {"type": profile}}}]})
    };
    site.create("open", container("Unconfined")).await;
    site.create("filtered", container("RuntimeDefault")).await;
    site.until("open", "done", |pod| phase(pod) == "Succeeded").await;
    site.until("filtered", "done", |pod| phase(pod) == "Succeeded").await;
    let (open, filtered) = (
        site.run(&["logs", "open"]).await.expect("logs"),
        site.run(&["logs", "filtered"]).await.expect("logs"),
    );
    assert!(open.contains("made") && open.contains("Seccomp:0"), "{open}");
    assert!(!filtered.contains("made\n") && filtered.contains("Seccomp:2"), "{filtered}");
    let bounds = |text: &str| text.lines().find(|l| l.starts_with("CapBnd")).map(str::to_owned);
    assert_eq!(bounds(&open), bounds(&filtered), "the filter leaves no capability behind and takes none");
    site.create("custom", json!({"containers": [{"name": "main", "command": ["true"], "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}}]})).await;
    let pod = site
        .until("custom", "refused", |pod| {
            status(pod, "main").state.and_then(|s| s.waiting).is_some_and(|w| w.message.is_some())
        })
        .await;
    assert_eq!(
        status(&pod, "main").state.and_then(|s| s.waiting).and_then(|w| w.reason).as_deref(),
        Some("CreateContainerConfigError")
    );
    site.tear_down().await;
}
