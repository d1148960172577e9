//! What must survive: the node's own death, the machine's, and the API's silence.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::machine::{Site, phase};

crate::tests![containers_outlive_the_node_and_are_adopted, pods_come_back_without_the_api_after_a_reboot];

fn container_id(pod: &Pod) -> String {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()).expect("statuses");
    statuses[0].container_id.clone().expect("id")
}

async fn containers_outlive_the_node_and_are_adopted() {
    let Some(mut site) = Site::start("adopt").await else { return };
    site.create(
        "stays",
        json!({"containers": [{"name": "main", "command": ["sh", "-c", "echo up; sleep 1000"],
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}}]}),
    )
    .await;
    site.create("ends", json!({"restartPolicy": "Never", "containers": [{"name": "main", "command": ["sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 5"]}]})).await;
    site.create("gone", json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
    let before = site.ready("stays").await;
    site.ready("ends").await;
    site.ready("gone").await;
    // One ends by itself and one is deleted while no node is there.
    site.run(&["exec", "ends", "--", "touch", "/tmp/go"]).await.expect("touch");
    site.halt().await;
    site.run(&["delete", "pod", "gone", "--force", "--grace-period=0"]).await.expect("delete");
    site.boot().await;
    let pod = site.until("ends", "reported", |pod| phase(pod) == "Failed").await;
    let code = pod
        .status
        .and_then(|s| s.container_statuses)
        .and_then(|c| c[0].state.clone()?.terminated)
        .map(|t| t.exit_code);
    assert_eq!(code, Some(5), "the end was recorded while nobody looked");
    let after = site.ready("stays").await;
    assert_eq!(container_id(&before), container_id(&after));
    assert_eq!(after.status.and_then(|s| s.container_statuses).map(|c| c[0].restart_count), Some(0));
    assert_eq!(site.run(&["exec", "stays", "--", "echo", "still here"]).await.expect("exec"), "still here\n");
    assert_eq!(site.run(&["logs", "stays"]).await.expect("logs"), "up\n");
    let gone = site.machine.dir().join("pods").join(before.metadata.uid.expect("uid"));
    assert!(gone.exists());
    crate::machine::eventually(Duration::from_secs(30), || {
        std::fs::read_dir(site.machine.dir().join("pods")).expect("pods").count() == 2
    })
    .await;
    site.tear_down().await;
}

/// Ends everything a reboot would end: every process of every pod. Mounts and network namespaces go with them.
pub fn power_cut(site: &Site) {
    let dir = site.machine.dir().to_string_lossy().into_owned();
    for entry in std::fs::read_dir(format!("{dir}/pods")).expect("pods").flatten() {
        for pid in std::fs::read_to_string(entry.path().join("shim.pid")).unwrap_or_default().lines() {
            let Ok(pid) = pid.parse::<i32>() else { continue };
            let children =
                std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            for victim in std::iter::once(pid)
                .chain(children.split_whitespace().filter_map(|c| c.parse().ok()))
                .filter(|p| *p > 1)
            {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(victim),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
    }
}

async fn pods_come_back_without_the_api_after_a_reboot() {
    let Some(mut site) = Site::start("reboot").await else { return };
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(site.client.clone(), &site.namespace);
    let map = json!({"metadata": {"name": "settings"}, "data": {"word": "kept"}});
    maps.create(&Default::default(), &serde_json::from_value(map).expect("map")).await.expect("map");
    for index in 0..10 {
        let command = "cat /etc/settings/word; echo; mkdir -p /www && busybox httpd -f -p 8080 -h /www";
        site.create(
            &format!("web-{index}"),
            json!({
                "containers": [{"name": "main", "command": ["sh", "-c", command],
                    "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}]}],
                "volumes": [{"name": "settings", "configMap": {"name": "settings"}}]
            }),
        )
        .await;
    }
    for index in 0..10 {
        site.ready(&format!("web-{index}")).await;
    }
    site.halt().await;
    power_cut(&site);
    // The API is out of reach: a client that talks to a closed port.
    let real = site.client.clone();
    let mut config = kube::Config::new("https://127.0.0.1:9".parse().expect("uri"));
    config.connect_timeout = Some(Duration::from_millis(200));
    site.client = kube::Client::try_from(config).expect("client");
    let start = Instant::now();
    site.boot().await;
    let up = |site: &Site| {
        let pods = std::fs::read_dir(site.machine.dir().join("pods")).expect("pods").flatten();
        pods.filter(|pod| {
            let logs = std::fs::read_dir(pod.path().join("logs/main")).into_iter().flatten().flatten();
            logs.filter(|log| std::fs::read_to_string(log.path()).unwrap_or_default().contains("kept"))
                .count()
                >= 2
        })
        .count()
    };
    crate::machine::eventually(Duration::from_secs(60), || up(&site) == 10).await;
    println!(
        "    10 pods were back {:.2} s after the node started, without the API",
        start.elapsed().as_secs_f32()
    );
    site.halt().await;
    site.client = real;
    site.boot().await;
    for index in 0..10 {
        let pod = site
            .until(&format!("web-{index}"), "reported", |pod| {
                let count = pod
                    .status
                    .as_ref()
                    .and_then(|s| s.container_statuses.as_ref())
                    .map_or(0, |c| c[0].restart_count);
                count == 1 && crate::machine::condition(pod, "Ready") == Some("True")
            })
            .await;
        assert_eq!(phase(&pod), "Running");
    }
    site.tear_down().await;
}
