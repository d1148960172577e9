//! Helm installs, upgrades, rolls back and uninstalls a chart with a CRD, hooks and a dozen kinds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
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

/// Every kind of the chart, with the end of its object's name after the release's.
const OBJECTS: &[(&str, &str)] = &[
    ("serviceaccount", ""),
    ("configmap", "-settings"),
    ("secret", "-key"),
    ("role", ""),
    ("rolebinding", ""),
    ("service", ""),
    ("deployment", ""),
    ("statefulset", "-store"),
    ("cronjob", ""),
    ("ingress", ""),
    ("networkpolicy", ""),
    ("poddisruptionbudget", ""),
    ("buoy", ""),
];

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
    let after = || kubectl.run(&["get", "cm", "port-after", "-o", "jsonpath={.data.revision}"]);

    helm(&["install", "port", chart])?;
    ensure!(image()? == "example.com/harbour:1" && hook()? == "1");
    ensure!(after()? == "1", "the hook after the installation did not run");
    for (kind, end) in OBJECTS {
        kubectl.run(&["get", kind, &format!("port{end}")])?;
    }
    // A hook that removes itself can only be seen in what Helm kept of it.
    let status: Value = serde_json::from_str(&helm(&["status", "port", "--output", "json"])?)?;
    let check = status["hooks"].as_array().into_iter().flatten().find(|hook| hook["name"] == "port-check");
    ensure!(check.is_some_and(|hook| hook["last_run"]["phase"] == "Succeeded"), "{}", status["hooks"]);
    expect_gone(&kubectl, "configmap", "port-check")?;

    helm(&["upgrade", "port", chart, "--set", "image=example.com/harbour:2,replicas=4"])?;
    ensure!(image()? == "example.com/harbour:2" && hook()? == "2");
    ensure!(after()? == "2", "the hook after the upgrade did not run");
    ensure!(kubectl.run(&["get", "deploy", "port", "-o", "jsonpath={.spec.replicas}"])? == "4");

    helm(&["rollback", "port", "1"])?;
    ensure!(image()? == "example.com/harbour:1");
    ensure!(helm(&["list"])?.contains("deployed") && helm(&["history", "port"])?.contains("Rollback to 1"));

    helm(&["uninstall", "port"])?;
    for (kind, end) in OBJECTS {
        expect_gone(&kubectl, kind, &format!("port{end}"))?;
    }
    kubectl.run(&["get", "crd", "buoys.harbour.example.com"])?;
    Ok(())
}

/// That there is no such object; any other failure to get it proves nothing.
fn expect_gone(kubectl: &Kubectl, kind: &str, name: &str) -> Result<()> {
    match kubectl.run(&["get", kind, name]) {
        Ok(found) => bail!("{kind} {name} is still there:\n{found}"),
        Err(error) if format!("{error:#}").contains("(NotFound)") => Ok(()),
        Err(error) => Err(error),
    }
}
