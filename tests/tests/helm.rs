//! Helm installs, upgrades, rolls back and uninstalls a chart with a CRD, hooks and a dozen kinds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, Tombolo, Upstream, UpstreamOptions, require};

const NEEDED: &[Fixture] = &[Fixture::Kubectl, Fixture::Helm, Fixture::KubeApiserver, Fixture::Etcd];

#[test]
fn helm_manages_a_release_on_upstream() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let upstream = Upstream::start(&UpstreamOptions::default())?;
    release(&upstream.kubeconfig)
}

#[test]
fn helm_manages_a_release_on_tombolo() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let server = Tombolo::serve(dir.path())?;
    release(&server.kubeconfig)
}

fn release(kubeconfig: &Path) -> Result<()> {
    let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("charts/harbour");
    let chart = chart.to_str().expect("the checkout's path is text");
    let helm = |args: &[&str]| -> Result<String> {
        let home = kubeconfig.with_extension("helm");
        let output = Command::new(Fixture::Helm.must())
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(args)
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"))
            .output()?;
        ensure!(
            output.status.success(),
            "helm {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let kubectl = Kubectl::new(kubeconfig);
    let image = || {
        kubectl.run(&["get", "deploy", "port", "-o", "jsonpath={.spec.template.spec.containers[0].image}"])
    };
    let hook = || kubectl.run(&["get", "cm", "port-hook", "-o", "jsonpath={.data.revision}"]);

    helm(&["install", "port", chart])?;
    ensure!(image()? == "example.com/harbour:1" && hook()? == "1");
    kubectl.run(&["get", "sa,cm,secret,role,rolebinding,svc,deploy,sts,cronjob,ing,netpol,pdb,buoy"])?;

    helm(&["upgrade", "port", chart, "--set", "image=example.com/harbour:2,replicas=4"])?;
    ensure!(image()? == "example.com/harbour:2" && hook()? == "2");
    ensure!(kubectl.run(&["get", "deploy", "port", "-o", "jsonpath={.spec.replicas}"])? == "4");

    helm(&["rollback", "port", "1"])?;
    ensure!(image()? == "example.com/harbour:1");
    ensure!(helm(&["list"])?.contains("deployed") && helm(&["history", "port"])?.contains("Rollback to 1"));

    helm(&["uninstall", "port"])?;
    ensure!(kubectl.run(&["get", "deploy", "port"]).is_err(), "the Deployment outlived the release");
    kubectl.run(&["get", "crd", "buoys.harbour.example.com"])?;
    Ok(())
}
