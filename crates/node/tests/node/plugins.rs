//! A node in a cluster that has network plugins of its own.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::Api;
use serde_json::json;
use tombolo_node::{Network, Node};

use crate::machine::{BUSYBOX, Site};

crate::tests![a_clusters_network_plugins_connect_pods];

const PROGRAMS: &str = "/usr/lib/cni";

async fn readiness(site: &Site) -> Option<(String, String)> {
    let nodes: Api<ApiNode> = Api::all(site.client.clone());
    let node = nodes.get_opt(&site.name).await.expect("node")?;
    let ready = node.status?.conditions?.into_iter().find(|condition| condition.type_ == "Ready")?;
    Some((ready.status, ready.message.unwrap_or_default()))
}

async fn until_ready(site: &Site, wanted: &str) -> String {
    let start = std::time::Instant::now();
    loop {
        match readiness(site).await {
            Some((status, message)) if status == wanted => return message,
            other => assert!(start.elapsed().as_secs() < 60, "the node is {other:?}, not {wanted}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn a_clusters_network_plugins_connect_pods() {
    if !Path::new(PROGRAMS).join("bridge").exists() {
        assert!(std::env::var_os("CI").is_none(), "network plugins are missing in CI");
        println!("SKIPPED: no plugins in {PROGRAMS}; run `cargo xtask fixtures`, then this test again");
        return;
    }
    let Some(mut site) = Site::start("plugins").await else { return };
    site.halt().await;
    Node::destroy(site.machine.dir()).await.expect("destroy");
    let folder = tempfile::tempdir().expect("folder");
    let configurations = folder.path().join("net.d");
    fs::create_dir(&configurations).expect("folder");
    site.network =
        Network::Plugins { configurations: configurations.clone(), programs: vec![PROGRAMS.into()] };
    site.boot().await;

    // The network comes after the node, as it does where a DaemonSet brings it.
    let why = until_ready(&site, "False").await;
    assert!(why.contains("no network configuration in"), "{why}");
    let chain = json!({"cniVersion": "1.0.0", "name": "cluster", "plugins": [
        {"type": "bridge", "bridge": "tbrplugins", "isGateway": true, "ipam": {
            "type": "host-local", "subnet": "10.213.88.0/24", "dataDir": folder.path().join("ipam"),
        }},
    ]});
    fs::write(configurations.join("10-cluster.conflist"), chain.to_string()).expect("configuration");
    until_ready(&site, "True").await;

    let server = "hostname > /tmp/index.html && busybox httpd -f -p 8080 -h /tmp";
    let web = json!({"containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", server],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}}]});
    site.create("web", web).await;
    let address = site.ready("web").await.status.and_then(|status| status.pod_ip).expect("address");
    assert!(address.starts_with("10.213.88."), "the plugins' address, not {address}");
    let get = format!("busybox wget -qO- http://{address}:8080/");
    let client =
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "command": ["sh", "-c", get]}]});
    site.create("client", client).await;
    let ended = |pod: &k8s_openapi::api::core::v1::Pod| {
        matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
    };
    let client = site.until("client", "ended", ended).await;
    assert_eq!(client.status.and_then(|s| s.phase).as_deref(), Some("Succeeded"), "pods reach each other");

    // A node process that ends leaves the pod's network alone; the next one undoes it.
    site.halt().await;
    site.boot().await;
    let kept = site.ready("web").await;
    assert_eq!(kept.status.and_then(|status| status.pod_ip), Some(address));
    site.delete("web").await;
    site.delete("client").await;
    let leases = fs::read_dir(folder.path().join("ipam/cluster")).expect("leases").flatten();
    let left: Vec<_> =
        leases.map(|lease| lease.file_name()).filter(|n| n.to_string_lossy().starts_with("10.")).collect();
    assert!(left.is_empty(), "addresses are left: {left:?}");
    let removed = std::process::Command::new("ip").args(["link", "delete", "tbrplugins"]).status();
    assert!(removed.expect("ip").success(), "the plugin's bridge");
    site.tear_down().await;
}
