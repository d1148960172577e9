//! Several `tombolo serve` processes over one etcd are one API server, and `default/kubernetes` leads to the living.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Pki, Tombolo, cargo_binary, free_port, require, wait_for};
use tombolo_tests::etcd::{Credentials, Etcd};

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
    let etcd = Etcd::start(dir.path(), Ipv4Addr::LOCALHOST)?;
    let store = format!("etcd={}", etcd.url);
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

#[test]
fn an_etcd_that_asks_for_certificates_is_reached_with_them_only() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let text = |path: &Path| path.display().to_string();
    let foreign = dir.path().join("foreign");
    std::fs::create_dir_all(&foreign)?;
    let foreign = Pki::new(&foreign)?;
    let (etcd, Credentials { ca, client }) = Etcd::start_with_certificates(dir.path(), Ipv4Addr::LOCALHOST)?;
    let (url, ca) = (&etcd.url, text(&ca));
    let (certificate, key) = (text(&client.certificate), text(&client.key));
    let store = format!("etcd={url}");
    let trust = ["--etcd-ca", &ca];
    let files = ["--etcd-cert", &certificate, "--etcd-key", &key];
    let serve = |name: &str| {
        let folder = dir.path().join(name);
        std::fs::create_dir_all(&folder)?;
        let args = [&["--listen", "127.0.0.1:0", "--store", &store][..], &trust, &files].concat();
        Tombolo::start("serve", &folder, &args)
    };
    let (first, second) = (serve("first")?, serve("second")?);
    first.kubectl().run(&["create", "configmap", "shared", "--from-literal=a=1"])?;
    let seen = second.kubectl().run(&["get", "configmap", "shared", "-o", "jsonpath={.data.a}"])?;
    ensure!(seen == "1", "the second server sees {seen:?}");

    // Everything else is refused at the start, in one line.
    let data = text(&dir.path().join("other"));
    let (absent, strange) = (text(&dir.path().join("absent")), text(&foreign.ca()));
    let plain = store.replace("https", "http");
    for (store, args, wanted) in [
        (&store, &[][..], format!("{url} needs --etcd-ca FILE")),
        (&plain, &trust, "--etcd-ca goes with https URLs".to_owned()),
        (&"memory".to_owned(), &trust, "--etcd-ca goes with --store etcd=https://HOST:PORT".to_owned()),
        (&store, &files, "--etcd-ca <FILE>".to_owned()),
        (&store, &["--etcd-ca", &absent], format!("cannot read {absent}: No such file")),
        (&store, &["--etcd-ca", &key], format!("{key} holds no CERTIFICATE in PEM")),
        (&store, &["--etcd-ca", &strange], "invalid peer certificate".to_owned()),
        // Whether etcd's reason is heard before it closes the connection is a matter of luck.
        (&store, &trust, format!("nothing can be read from {url}")),
    ] {
        let mut command = Command::new(cargo_binary("tombolo"));
        command.args(["serve", "--data-dir", &data, "--listen", "127.0.0.1:0", "--store", store]).args(args);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2), "{args:?}: {:?}: {said}", output.status);
        ensure!(said.contains(&wanted) && said.lines().count() == 1, "{args:?}: {said}");
    }
    Ok(())
}
