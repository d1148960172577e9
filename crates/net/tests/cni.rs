//! The plugins of a cluster, with those that Debian ships. Needs root.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tombolo_net::{CniError, Plugins, PodIdentity};

const PROGRAMS: &str = "/usr/lib/cni";

/// A network namespace of its own, as a pod has one, and a host's in which bridges are made: the test's thread.
struct Pod(Child);

impl Pod {
    fn start() -> Pod {
        let child = Command::new("unshare").args(["--net", "sleep", "60"]).stdin(Stdio::null()).spawn();
        let pod = Pod(child.expect("unshare"));
        let ours = fs::read_link("/proc/self/ns/net").expect("own namespace");
        while fs::read_link(format!("/proc/{}/ns/net", pod.0.id())).is_ok_and(|theirs| theirs == ours) {
            std::thread::yield_now();
        }
        pod
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn addresses(&self) -> String {
        let program =
            ["--net", "--target", &self.pid().to_string(), "ip", "-4", "-br", "address"].map(str::to_owned);
        let output = Command::new("nsenter").args(program).output().expect("nsenter");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn identity(name: &str) -> PodIdentity {
    PodIdentity { uid: format!("uid-{name}"), namespace: "default".into(), name: name.into() }
}

fn plugins(folder: &Path) -> Plugins {
    let programs = [folder.join("bin"), PathBuf::from(PROGRAMS)];
    Plugins::new(&folder.join("net.d"), &programs, &folder.join("attached"))
}

/// `ptp` needs no bridge, so nothing but the pods' own links is made in the namespace the test runs in.
fn configure(folder: &Path) {
    let chain = json!({"cniVersion": "1.0.0", "name": "tombolo-test", "plugins": [
        {"type": "ptp", "ipam": {
            "type": "host-local", "subnet": "10.251.7.0/29", "dataDir": folder.join("ipam"),
        }},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}},
    ]});
    fs::create_dir_all(folder.join("net.d")).expect("folder");
    fs::write(folder.join("net.d/10-test.conflist"), chain.to_string()).expect("configuration");
}

#[tokio::test]
async fn pods_get_addresses_from_the_clusters_plugins_and_give_them_back() {
    if !Path::new(PROGRAMS).join("ptp").exists() {
        assert!(std::env::var_os("CI").is_none(), "network plugins are missing in CI");
        eprintln!("SKIPPED: no plugins in {PROGRAMS}; run `cargo xtask fixtures`, then this test again");
        return;
    }
    let folder = tempfile::tempdir().expect("folder");
    configure(folder.path());
    let plugins = plugins(folder.path());
    plugins.ready().expect("configured");
    let (first, second) = (Pod::start(), Pod::start());
    let one = plugins.attach(&identity("one"), first.pid()).await.expect("attach");
    let two = plugins.attach(&identity("two"), second.pid()).await.expect("attach");
    assert_ne!(one, two);
    assert!(first.addresses().contains(&one.to_string()), "{}", first.addresses());
    assert_eq!(plugins.attached().len(), 2);

    // Attaching again replaces, and does not use up the small network.
    let mut again = Ipv4Addr::UNSPECIFIED;
    for _ in 0..8 {
        plugins.detach("uid-one", Some(first.pid())).await.expect("detach");
        assert!(!first.addresses().contains("eth0"), "{}", first.addresses());
        again = plugins.attach(&identity("one"), first.pid()).await.expect("attach again");
    }
    assert!(first.addresses().contains(&again.to_string()));

    // A pod whose process is gone is undone too, by its name alone, and what was undone stays undone.
    drop(second);
    plugins.detach("uid-two", None).await.expect("detach a dead pod");
    plugins.detach("uid-two", None).await.expect("nothing to undo");
    plugins.detach("uid-one", Some(first.pid())).await.expect("detach");
    assert!(plugins.attached().is_empty());
    let leases = fs::read_dir(folder.path().join("ipam/tombolo-test")).expect("leases").flatten();
    let left: Vec<_> = leases
        .map(|lease| lease.file_name())
        .filter(|name| name.to_string_lossy().starts_with("10."))
        .collect();
    assert!(left.is_empty(), "addresses left behind: {left:?}");
}

#[tokio::test]
async fn what_stands_in_the_way_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let plugins = plugins(folder.path());
    let nothing = plugins.attach(&identity("one"), 1).await.expect_err("no configuration");
    assert!(matches!(nothing, CniError::NoConfiguration(_)), "{nothing}");

    fs::create_dir_all(folder.path().join("net.d")).expect("folder");
    fs::write(folder.path().join("net.d/1.conf"), r#"{"name":"n","type":"no-such-plugin"}"#).expect("write");
    let missing = plugins.ready().expect_err("no program").to_string();
    assert!(missing.contains("no-such-plugin is in none of"), "{missing}");

    // A plugin's own words reach the user, and what it began is undone before the next try.
    fs::create_dir_all(folder.path().join("bin")).expect("folder");
    let script = "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = DEL ] && { echo \"$CNI_CONTAINERID\" >>\"$0.del\"; exit 0; }\n\
        echo '{\"code\":11,\"msg\":\"try again\",\"details\":\"no addresses left\"}'; exit 1\n";
    let program = folder.path().join("bin/no-such-plugin");
    fs::write(&program, script).expect("write");
    Command::new("chmod").arg("+x").arg(&program).status().expect("chmod");
    for _ in 0..2 {
        let refused = plugins.attach(&identity("one"), 1).await.expect_err("refused").to_string();
        assert!(refused.contains("no-such-plugin (ADD): try again: no addresses left"), "{refused}");
    }
    let undone = fs::read_to_string(folder.path().join("bin/no-such-plugin.del")).expect("DEL was called");
    assert_eq!(undone, "uid-one\n");
}
