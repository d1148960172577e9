//! The real kube-controller-manager and kube-scheduler work against `tombolo serve`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{
    Fixture, Kubectl, Tombolo, Upstream, UpstreamOptions, control_loops, require, wait_for,
};

const NEEDED: &[Fixture] = &[
    Fixture::Kubectl,
    Fixture::KubeApiserver,
    Fixture::KubeControllerManager,
    Fixture::KubeScheduler,
    Fixture::Etcd,
];
const PATIENCE: Duration = Duration::from_secs(90);

fn options() -> UpstreamOptions {
    UpstreamOptions {
        controllers: Some("*,-node-lifecycle-controller".into()),
        scheduler: true,
        lift_limits: true,
        ..Default::default()
    }
}

#[test]
fn upstream_controllers_drive_upstream() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let upstream = Upstream::start(&options())?;
    walk(&upstream.kubeconfig)
}

#[test]
fn upstream_controllers_drive_tombolo() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let server = Tombolo::serve(dir.path())?;
    let _loops = control_loops(&server.kubeconfig, dir.path(), &options())?;
    walk(&server.kubeconfig)
}

const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
"#;

const NODE_STATUS: &str = r#"{"status":{"capacity":{"cpu":"8","memory":"16Gi","pods":"110"},
 "allocatable":{"cpu":"8","memory":"16Gi","pods":"110"},
 "conditions":[{"type":"Ready","status":"True","reason":"Test","message":"a node object only"}]}}"#;

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "example.com/web:1"}]}
"#;

/// A Deployment becomes a ReplicaSet and scheduled Pods; garbage collection and namespace deletion finish.
fn walk(kubeconfig: &Path) -> Result<()> {
    let kubectl = Kubectl::new(kubeconfig);
    kubectl.apply(NODE)?;
    kubectl.run(&["patch", "node", "n1", "--subresource=status", "--type=merge", "-p", NODE_STATUS])?;
    // Upstream's admission taints new nodes; with the lifecycle controller off nobody else removes that.
    kubectl.run(&["patch", "node", "n1", "--type=merge", "-p", r#"{"spec":{"taints":null}}"#])?;
    kubectl.run(&["create", "namespace", "shop"])?;
    wait_for("the default service account", PATIENCE, || {
        kubectl.run(&["-n", "shop", "get", "sa", "default"])
    })?;
    kubectl.apply(DEPLOYMENT)?;
    let names = ["-n", "shop", "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"];
    kubectl.until(&names, "n1 n1 n1", PATIENCE)?;
    ensure!(kubectl.run(&["-n", "shop", "get", "rs", "-o", "name"])?.lines().count() == 1);

    kubectl.run(&["-n", "shop", "delete", "deploy", "web", "--wait=false"])?;
    wait_for("the ReplicaSet to be collected", PATIENCE, || {
        let left = kubectl.run(&["-n", "shop", "get", "rs", "-o", "name"])?;
        ensure!(!left.contains("replicaset"), "still there: {left}");
        Ok(())
    })?;
    // Bound pods wait for a kubelet that is not there; stand in for its last word.
    kubectl.run(&["-n", "shop", "delete", "pods", "--all", "--force", "--grace-period=0"])?;
    kubectl.run(&["create", "configmap", "-n", "shop", "left-behind"])?;
    kubectl.run(&["delete", "namespace", "shop", "--timeout=90s"])?;
    Ok(())
}
