//! Services, names and node ports from inside pods and from the node.

use serde_json::{Value, json};

use crate::machine::{BUSYBOX, GATEWAY, Site};

crate::tests![services_balance_names_resolve_and_node_ports_answer];

fn object(kind: &str, api: &str, name: &str, body: Value) -> String {
    let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
    for (key, value) in body.as_object().expect("object") {
        object[key] = value.clone();
    }
    object.to_string()
}

/// What the endpoint controller would write.
fn slice(service: &str, ips: &[&str]) -> String {
    let endpoints: Vec<Value> = ips
        .iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}, "nodeName": GATEWAY}))
        .collect();
    let mut slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
    slice["endpoints"] = endpoints.into();
    slice.to_string()
}

async fn services_balance_names_resolve_and_node_ports_answer() {
    let Some(site) = Site::start("services").await else { return };
    let server = "mkdir -p /www && hostname > /www/index.html && busybox httpd -f -p 8080 -h /www";
    let mut ips = Vec::new();
    for name in ["one", "two"] {
        site.create(
            name,
            json!({"containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", server],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}]}),
        )
        .await;
        ips.push(site.ready(name).await.status.and_then(|s| s.pod_ip).expect("address"));
    }
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30777}]);
    let manifests = [
        object(
            "Service",
            "v1",
            "web",
            json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.77", "ports": ports}}),
        ),
        object(
            "Service",
            "v1",
            "sticky",
            json!({"spec": {"clusterIP": "10.0.0.78", "sessionAffinity": "ClientIP", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
        ),
        object(
            "Service",
            "v1",
            "bare",
            json!({"spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]}}),
        ),
        object(
            "Service",
            "v1",
            "empty",
            json!({"spec": {"clusterIP": "10.0.0.79", "ports": [{"port": 80}]}}),
        ),
        slice("web", &[&ips[0], &ips[1]]),
        slice("sticky", &[&ips[0], &ips[1]]),
        slice("bare", &[&ips[0]]),
    ];
    let (kubectl, namespace) = (site.kubectl(), site.namespace.clone());
    tokio::task::spawn_blocking(move || {
        for manifest in manifests {
            kubectl.run_with_input(&["-n", &namespace, "apply", "-f", "-"], &manifest).expect("apply");
        }
    })
    .await
    .expect("applied");

    site.create(
        "client",
        json!({"containers": [{"name": "main", "image": BUSYBOX, "command": ["sleep", "1000"]}]}),
    )
    .await;
    site.ready("client").await;
    let script = |text: &'static str| ["exec", "client", "--", "sh", "-c", text];
    // By name, often enough that each endpoint answers: the chance that one never does is below 1 in 10^8.
    let all = site
        .run(&script("for i in $(busybox seq 30); do wget -q -O - http://web; done"))
        .await
        .expect("by name");
    assert!(all.contains("one") && all.contains("two"), "{all}");
    let sticky = site
        .run(&script(
            "for i in $(busybox seq 12); do wget -q -O - http://sticky.ns-services.svc.cluster.local; done",
        ))
        .await
        .expect("sticky");
    let first = sticky.lines().next().expect("an answer");
    assert!(sticky.lines().all(|line| line == first), "{sticky}");
    let bare =
        site.run(&script("busybox nslookup bare.ns-services.svc.cluster.local")).await.expect("headless");
    assert!(bare.contains(&ips[0]), "{bare}");
    let refused =
        site.run(&script("busybox nc 10.0.0.79 80 </dev/null")).await.expect_err("no endpoints").to_string();
    assert!(refused.contains("refused"), "{refused}");
    // A pod reaches itself through its own service.
    let itself = site
        .run(&[
            "exec",
            "one",
            "--",
            "sh",
            "-c",
            "for i in $(busybox seq 20); do wget -q -O - http://web; done",
        ])
        .await
        .expect("hairpin");
    assert!(itself.contains("one") && itself.contains("two"), "{itself}");
    site.create("door", json!({"containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", server],
        "ports": [{"containerPort": 8080, "hostPort": 8123}], "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}]}))
        .await;
    site.ready("door").await;
    let fetch = || {
        std::process::Command::new("/bin/busybox")
            .args(["wget", "-q", "-O", "-", "http://127.0.0.1:8123"])
            .output()
    };
    let door = tokio::task::spawn_blocking(fetch).await.expect("ran").expect("busybox");
    assert_eq!(String::from_utf8_lossy(&door.stdout), "door\n", "the host's port leads to the pod");
    // From the node, by node port and by cluster address.
    for url in [format!("{GATEWAY}:30777"), "127.0.0.1:30777".into(), "10.0.0.77:80".into()] {
        let fetch = move || {
            let args = ["wget", "-q", "-O", "-", &format!("http://{url}")];
            std::process::Command::new("/bin/busybox").args(args).output().map(|o| (url, o))
        };
        let (url, output) = tokio::task::spawn_blocking(fetch).await.expect("ran").expect("busybox");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text == "one\n" || text == "two\n",
            "{url}: {text:?} {:?}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let id = std::fs::read_to_string(site.machine.dir().join("node.json")).expect("identity");
    let id = serde_json::from_str::<Value>(&id).expect("json")["id"].as_str().expect("id").to_owned();
    site.tear_down().await;
    let tables = std::process::Command::new("nft").args(["list", "tables"]).output();
    if let Ok(tables) = tables {
        assert!(!String::from_utf8_lossy(&tables.stdout).contains(&id), "rules are left");
    }
}
