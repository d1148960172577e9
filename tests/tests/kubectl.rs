//! The real kubectl, two releases of it, against a real kube-apiserver and against `tombolo serve`: both servers
//! run the same list of steps.

use anyhow::Result;
use tombolo_testkit::{Fixture, Tombolo, Upstream, UpstreamOptions, require};
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
