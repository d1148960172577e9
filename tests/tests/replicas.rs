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

/// The addresses and ports in Endpoints and EndpointSlices, which must agree.
fn leads_to(server: &Tombolo) -> Result<Vec<String>> {
    let get = |args: &[&str]| -> Result<serde_json::Value> {
        let output = server.kubectl().command(args).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    // kubectl says that Endpoints are deprecated; the words are on the other stream.
    let endpoints = get(&["get", "endpoints", "kubernetes", "-o", "json"])?;
    let slices =
        get(&["get", "endpointslices", "-l", "kubernetes.io/service-name=kubernetes", "-o", "json"])?;
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let mut old = Vec::new();
    for subset in list(&endpoints["subsets"]) {
        for address in list(&subset["addresses"]) {
            old.push(format!(
                "{}:{}",
                address["ip"].as_str().unwrap_or_default(),
                subset["ports"][0]["port"]
            ));
        }
    }
    let mut new = Vec::new();
    for slice in list(&slices["items"]) {
        for endpoint in list(&slice["endpoints"]) {
            let address = endpoint["addresses"][0].as_str().unwrap_or_default();
            new.push(format!("{address}:{}", slice["ports"][0]["port"]));
        }
    }
    old.sort();
    new.sort();
    ensure!(old == new, "Endpoints say {old:?}, the slices say {new:?}");
    Ok(new)
}

#[test]
fn two_servers_over_one_etcd_are_one_and_a_killed_one_is_forgotten() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (_etcd, url) = etcd(dir.path())?;
    let store = format!("etcd={url}");
    // Two share a port, the third has one of its own, as replicas on one machine have.
    let (port, other_port) = (free_port(), free_port());
    let [one, two] = ["127.0.0.2", "127.0.0.3"].map(|ip| format!("{ip}:{port}"));
    let three = format!("127.0.0.2:{other_port}");
    let serve = |address: &str| {
        let folder = dir.path().join(address);
        std::fs::create_dir_all(&folder)?;
        Tombolo::start("serve", &folder, &["--listen", address, "--store", &store])
    };
    let first = serve(&one)?;
    let mut second = serve(&two)?;
    let leads = |server: &Tombolo, wanted: &[&String]| {
        let mut wanted = wanted.to_vec();
        wanted.sort();
        wait_for(&format!("the Service to lead to {wanted:?}"), Duration::from_secs(60), || {
            let found = leads_to(server)?;
            ensure!(found.iter().eq(wanted.iter().copied()), "it leads to {found:?}");
            Ok(())
        })
    };
    leads(&first, &[&one, &two])?;
    let mut third = serve(&three)?;
    leads(&first, &[&one, &two, &three])?;
    third.process.kill();
    leads(&first, &[&one, &two])?;

    // What one was told, the other knows at once; and one CA signs for both.
    first.kubectl().run(&["create", "configmap", "shared", "--from-literal=a=1"])?;
    let seen = second.kubectl().run(&["get", "configmap", "shared", "-o", "jsonpath={.data.a}"])?;
    ensure!(seen == "1", "the second server sees {seen:?}");

    second.process.kill();
    leads(&first, &[&one])?;
    first.kubectl().run(&["create", "configmap", "alone"])?;

    let second = serve(&two)?;
    leads(&second, &[&one, &two])?;
    second.kubectl().run(&["get", "configmap", "alone"])?;
    Ok(())
}
