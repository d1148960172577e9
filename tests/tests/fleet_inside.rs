//! `tombolo agent manifest | kubectl apply -f -`: the agent as a pod of the cluster that it ties, with a real kubelet and
//! containerd. The image is the program under test and its libraries, nothing else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tombolo_testkit::{
    Fixture, Image, Lan, RealNode, Upstream, UpstreamOptions, busybox_archive, cargo_binary,
    real_node_possible, require, wait_for,
};
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

const NEEDED: &[Fixture] = &[
    Fixture::Kubectl,
    Fixture::KubeApiserver,
    Fixture::KubeControllerManager,
    Fixture::KubeScheduler,
    Fixture::Kubelet,
    Fixture::Etcd,
];
const PATIENCE: Duration = Duration::from_secs(120);
const IMAGE: &str = "test.local/tombolo:1";

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sh, -c, "echo hello; exec sleep 100000"]}
"#;

#[test]
fn an_agent_runs_inside_the_cluster_it_ties() -> Result<()> {
    if !require(NEEDED) || !is_root() || !real_node_possible() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfi", [198, 18, 80], dir.path(), Link::default())?;
    let app = busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?;
    let program = cargo_binary("tombolo").display().to_string();
    let mut image = Image::new(&[IMAGE]).with("Entrypoint", json!([program]));
    image.program(&program)?;
    let own = dir.path().join("tombolo.tar");
    image.save(&own)?;
    let (hub_host, frankfurt) = (lan.host("hub")?, lan.host("frankfurt")?);
    let hub = hub_host.tombolo("hub", &["--lease-seconds", "6"])?;
    let address = frankfurt.address;
    let (upstream, _pki) = frankfurt.run(move || {
        let options = UpstreamOptions {
            controllers: Some("*".into()),
            scheduler: true,
            lift_limits: true,
            ..Default::default()
        };
        Upstream::start_with_certificates_at(address, &options)
    })??;
    let node = RealNode::start(&frankfurt, &upstream.kubeconfig, &[&app, &own])?;
    let (kubectl, member) = (hub.kubectl(), upstream.kubectl());
    member.until(&["get", "nodes", "--no-headers"], " Ready ", PATIENCE)?;

    let line = hub.tombolo(&["token", "create", "--uses", "1"])?;
    let words: Vec<&str> = line.split_whitespace().skip(2).collect();
    let mut args =
        vec!["agent", "manifest", "--name", "frankfurt", "--tier", "cloud", "--image", IMAGE, "--hub"];
    args.extend(words);
    let manifest = hub.tombolo(&args)?;
    member.apply(&without_service_network(&manifest, &upstream.url)?)?;
    let agent = ["get", "pods", "-n", "tombolo-system", "-l", "app=tombolo-agent"];
    member.until(&agent, "Running", PATIENCE).with_context(|| describe(&member))?;
    kubectl.until(&["get", "sites"], "True", PATIENCE).with_context(|| describe(&member))?;

    kubectl.apply(WEB)?;
    kubectl.run(&["rollout", "status", "deploy/web", "--timeout=90s"])?;
    let pod = kubectl.run(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"])?;
    ensure!(pod.ends_with(".frankfurt"), "{pod}");
    ensure!(kubectl.run(&["logs", &pod])?.contains("hello"));
    // Its pod goes: another one takes over with what the cluster keeps, and nothing restarts.
    let uids = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}"];
    let before = member.run(&uids)?;
    member.run(&["delete", "pods", "-n", "tombolo-system", "-l", "app=tombolo-agent", "--wait=true"])?;
    wait_for("the agent to be back", PATIENCE, || {
        kubectl.run(&["scale", "deploy/web", "--replicas=2"])?;
        let ready = member.run(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"])?;
        ensure!(ready == "2", "{ready}");
        Ok(())
    })?;
    ensure!(member.run(&uids)?.contains(before.trim()), "the pod of before is gone");
    drop(node);
    Ok(())
}

fn describe(member: &tombolo_testkit::Kubectl) -> String {
    let say = |args: &[&str]| member.run(args).unwrap_or_else(|error| format!("{error:#}"));
    format!(
        "{}\n{}",
        say(&["describe", "pods", "-n", "tombolo-system"]),
        say(&["logs", "-n", "tombolo-system", "deploy/tombolo-agent", "--tail=30"])
    )
}

/// The fixture has no kube-proxy, so the address of the Service `kubernetes` leads nowhere: the pod uses the node's network
/// and the API server's own address. All else is as printed.
fn without_service_network(manifest: &str, url: &str) -> Result<String> {
    let (host, port) =
        url.trim_start_matches("https://").rsplit_once(':').context("an address with a port")?;
    let mut out = String::new();
    for document in manifest.split("---\n").filter(|text| !text.trim().is_empty()) {
        let mut object: Value = serde_yaml_ng::from_str(document)?;
        if object["kind"] == "Deployment" {
            let spec = &mut object["spec"]["template"]["spec"];
            spec["hostNetwork"] = json!(true);
            let env = spec["containers"][0]["env"].as_array_mut().context("an env")?;
            env.push(json!({"name": "KUBERNETES_SERVICE_HOST", "value": host}));
            env.push(json!({"name": "KUBERNETES_SERVICE_PORT", "value": port}));
        }
        out.push_str("---\n");
        out.push_str(&serde_yaml_ng::to_string(&object)?);
    }
    Ok(out)
}
