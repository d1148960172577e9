//! The real kubectl, two releases of it, against a real kube-apiserver and against `tombolo serve`: both servers
//! run the same list of steps.

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, Tombolo, Upstream, UpstreamOptions, require};
use tombolo_tests::kubectl::both_releases;

const NEEDED: &[Fixture] = &[Fixture::Kubectl, Fixture::KubectlOld, Fixture::KubeApiserver, Fixture::Etcd];

#[test]
fn kubectl_works_the_same_on_upstream() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let upstream = Upstream::start(&UpstreamOptions::default())?;
    both_releases(&upstream.kubeconfig)
}

#[test]
fn kubectl_works_the_same_on_tombolo() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let server = Tombolo::serve(dir.path())?;
    both_releases(&server.kubeconfig)
}

/// What clients older than kubectl 1.27 do always, newer ones can be asked to: read OpenAPI v2 as protobuf.
fn explain_by_the_old_document(kubeconfig: &std::path::Path) -> Result<()> {
    let kubectl = Kubectl::with(Fixture::KubectlOld, kubeconfig);
    for (field, wanted) in [
        ("deployment.spec.strategy", ["rollingUpdate\t<Object>", "type\t<string>"]),
        ("pod.spec.containers.ports", ["containerPort\t<integer> -required-", "hostIP\t<string>"]),
    ] {
        let out = kubectl.run(&["explain", field, "--output", "plaintext-openapiv2"])?;
        for part in wanted {
            ensure!(out.contains(part), "{field}: no {part:?} in {out}");
        }
    }
    Ok(())
}

#[test]
fn older_clients_read_the_openapi_document_of_upstream_and_of_tombolo() -> Result<()> {
    if !require(NEEDED) {
        return Ok(());
    }
    let upstream = Upstream::start(&UpstreamOptions::default())?;
    explain_by_the_old_document(&upstream.kubeconfig)?;
    let dir = tempfile::tempdir()?;
    let server = Tombolo::serve(dir.path())?;
    explain_by_the_old_document(&server.kubeconfig)
}
