//! Several `tombolo serve` processes over one etcd are one API server, and `default/kubernetes` leads to the living.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Process, Tombolo, free_port, require, wait_for};

fn etcd(dir: &Path) -> Result<(Process, String)> {
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("http://{address}");
    let mut command = Command::new(Fixture::Etcd.must());
    command.arg("--data-dir").arg(dir.join("etcd")).args(["--log-level", "error"]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())]);
    let process = Process::start("etcd", command, dir)?;
    // A server that finds no store at its start says so and ends.
    wait_for("etcd to listen", Duration::from_secs(30), || {
        Ok(std::net::TcpStream::connect(&address).map(drop)?)
    })?;
    Ok((process, url))
}

/// The addresses in Endpoints and EndpointSlice, which must agree.
fn leads_to(server: &Tombolo) -> Result<Vec<String>> {
    let words = |text: String| {
        let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    let kubectl = server.kubectl();
    let endpoints = words(kubectl.run(&[
        "get",
        "endpoints",
        "kubernetes",
        "-o",
        "jsonpath={.subsets[*].addresses[*].ip}",
    ])?);
    let path = "jsonpath={.endpoints[*].addresses[*]}";
    let slice = words(kubectl.run(&["get", "endpointslice", "kubernetes", "-o", path])?);
    // kubectl 1.33 and later says that Endpoints are deprecated, in words after the addresses.
    let endpoints: Vec<_> = endpoints.into_iter().filter(|w| w.starts_with("127.")).collect();
    ensure!(endpoints == slice, "Endpoints say {endpoints:?}, the slice says {slice:?}");
    Ok(slice)
}

#[test]
fn two_servers_over_one_etcd_are_one_and_a_killed_one_is_forgotten() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (_etcd, url) = etcd(dir.path())?;
    let store = format!("etcd={url}");
    let port = free_port();
    let serve = |ip: &str| {
        let folder = dir.path().join(ip);
        std::fs::create_dir_all(&folder)?;
        Tombolo::start("serve", &folder, &["--listen", &format!("{ip}:{port}"), "--store", &store])
    };
    let first = serve("127.0.0.2")?;
    let mut second = serve("127.0.0.3")?;
    let leads = |server: &Tombolo, wanted: &[&str]| {
        wait_for(&format!("the Service to lead to {wanted:?}"), Duration::from_secs(60), || {
            let found = leads_to(server)?;
            ensure!(found == wanted, "it leads to {found:?}");
            Ok(())
        })
    };
    leads(&first, &["127.0.0.2", "127.0.0.3"])?;

    // What one was told, the other knows at once; and one CA signs for both.
    first.kubectl().run(&["create", "configmap", "shared", "--from-literal=a=1"])?;
    let seen = second.kubectl().run(&["get", "configmap", "shared", "-o", "jsonpath={.data.a}"])?;
    ensure!(seen == "1", "the second server sees {seen:?}");

    second.process.kill();
    leads(&first, &["127.0.0.2"])?;
    first.kubectl().run(&["create", "configmap", "alone"])?;

    let second = serve("127.0.0.3")?;
    leads(&second, &["127.0.0.2", "127.0.0.3"])?;
    second.kubectl().run(&["get", "configmap", "alone"])?;
    Ok(())
}
