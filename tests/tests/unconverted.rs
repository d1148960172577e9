//! Custom resources that only a webhook could convert: nothing shows them wrongly, and whoever cleans up gets rid of them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, Tombolo, UpstreamOptions, control_loops, require, wait_for};

const PATIENCE: Duration = Duration::from_secs(90);

/// Kept in an earlier version than the one that clients prefer.
const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boxes.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {plural: boxes, singular: box, kind: Box}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://convert.example.com"}}
  versions:
  - name: v1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: string}}}}}}
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {width: {type: integer}}}}}}
"#;

const STORED: &str = "boxes.v1beta1.shop.example.com";

#[test]
fn tombolo_s_controllers_end_what_cannot_be_converted() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let site = Tombolo::start("site", dir.path(), &["--name", "s", "--listen", "127.0.0.1:0"])?;
    walk(&site.kubeconfig)
}

#[test]
fn upstream_s_controllers_end_what_cannot_be_converted() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::KubeControllerManager]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let server = Tombolo::serve(dir.path())?;
    let options = UpstreamOptions {
        controllers: Some("*,-node-lifecycle-controller".into()),
        lift_limits: true,
        ..Default::default()
    };
    let _loops = control_loops(&server.kubeconfig, dir.path(), &options)?;
    walk(&server.kubeconfig)
}

fn walk(kubeconfig: &Path) -> Result<()> {
    let kubectl = Kubectl::new(kubeconfig);
    kubectl.apply(DEFINITION)?;
    kubectl.run(&["wait", "crd/boxes.shop.example.com", "--for=condition=Established", "--timeout=60s"])?;
    kubectl.run(&["create", "namespace", "shop"])?;
    for name in ["foreground", "orphan", "owned", "rest"] {
        kubectl.apply(&format!(
            "{{apiVersion: shop.example.com/v1beta1, kind: Box, metadata: {{name: {name}, namespace: shop}}, spec: {{width: 3}}}}"
        ))?;
    }
    let shown = kubectl.run(&["get", "boxes", "-n", "shop"]);
    let refused = shown.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("use shop.example.com/v1beta1"), "{refused:?}");

    // A dependent, named by the version that its owner is not kept in.
    let uid = kubectl.run(&["get", STORED, "owned", "-n", "shop", "-o", "jsonpath={.metadata.uid}"])?;
    kubectl.apply(&format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: dependent, namespace: shop, ownerReferences: \
         [{{apiVersion: shop.example.com/v1, kind: Box, name: owned, uid: {uid}}}]}}}}"
    ))?;
    for (name, cascade) in [("foreground", "foreground"), ("orphan", "orphan"), ("owned", "background")] {
        let cascade = format!("--cascade={cascade}");
        kubectl.run(&["delete", "box", name, "-n", "shop", &cascade, "--wait=false"])?;
    }
    let left = |wanted: &str| {
        let left = kubectl.run(&["get", STORED, "-n", "shop", "--ignore-not-found", "-o", "name"])?;
        ensure!(left.trim() == wanted, "{left}");
        Ok(())
    };
    wait_for("what was deleted to be gone", PATIENCE, || left("box.shop.example.com/rest"))?;
    wait_for("the dependent to be gone", PATIENCE, || {
        let left =
            kubectl.run(&["get", "cm", "dependent", "-n", "shop", "--ignore-not-found", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })?;
    kubectl.run(&["delete", "namespace", "shop", "--timeout=90s"])?;
    kubectl.run(&["delete", "crd", "boxes.shop.example.com", "--timeout=90s"]).map(drop)
}
