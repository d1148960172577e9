//! Two nodes in two network namespaces: their pods' networks reach each other. Needs root.

use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use tombolo_net::{Overlay, Peer, PodNetwork, Subnet};

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).status().is_ok_and(|status| status.success())
}

/// Removes the namespaces also when the test fails.
struct Namespaces;

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in ["tmbn-ov-a", "tmbn-ov-b"] {
            ip(&["netns", "delete", name]);
        }
    }
}

/// Runs in a named namespace, on a thread of its own.
fn within<T: Send + 'static>(name: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = File::open(format!("/run/netns/{name}")).expect("namespace");
    let work = move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
        act()
    };
    std::thread::spawn(work).join().expect("no panic")
}

#[test]
fn pods_of_two_nodes_reach_each_other() {
    if !nix::unistd::geteuid().is_root() || !ip(&["netns", "list"]) {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must run this test, but it needs root and the program ip"
        );
        eprintln!("SKIPPED: needs root and the program ip (Debian package iproute2)");
        return;
    }
    let _cleanup = Namespaces;
    for name in ["tmbn-ov-a", "tmbn-ov-b"] {
        assert!(ip(&["netns", "add", name]));
    }
    assert!(ip(&[
        "-n",
        "tmbn-ov-a",
        "link",
        "add",
        "wire",
        "type",
        "veth",
        "peer",
        "name",
        "wire",
        "netns",
        "tmbn-ov-b"
    ]));
    let peer = |node: [u8; 4], pods: &str| Peer {
        node: Ipv4Addr::from(node),
        pods: pods.parse::<Subnet>().expect("subnet"),
    };
    let (a, b) = (peer([10, 214, 0, 1], "10.214.1.0/24"), peer([10, 214, 0, 2], "10.214.2.0/24"));
    for (name, own) in [("tmbn-ov-a", a), ("tmbn-ov-b", b)] {
        assert!(ip(&["-n", name, "addr", "add", &format!("{}/24", own.node), "dev", "wire"]));
        assert!(ip(&["-n", name, "link", "set", "wire", "up"]));
        within(name, move || {
            PodNetwork::open("tbrtest", own.pods).expect("bridge");
            let mut overlay = Overlay::open("tvxtest", own.node, own.pods).expect("overlay");
            overlay.set_peers(&[a, b]).expect("peers");
            overlay.set_peers(&[a, b]).expect("the same again");
        });
    }
    // The gateway of the other node stands for its pods.
    let reach = |target: Ipv4Addr| {
        let target = target.to_string();
        Command::new("ip")
            .args(["netns", "exec", "tmbn-ov-a", "/bin/busybox", "ping", "-c", "1", "-W", "5", &target])
            .output()
            .expect("ping")
    };
    let answer = reach(b.pods.gateway());
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stdout));
    // The other node moves: its link is made anew, and this one learns where it is now.
    let moved = peer([10, 214, 0, 3], "10.214.2.0/24");
    assert!(ip(&["-n", "tmbn-ov-b", "addr", "flush", "dev", "wire"]));
    assert!(ip(&["-n", "tmbn-ov-b", "addr", "add", "10.214.0.3/24", "dev", "wire"]));
    within("tmbn-ov-b", move || {
        let mut overlay = Overlay::open("tvxtest", b.node, b.pods).expect("the link that is there");
        overlay.set_peers(&[a, b]).expect("routes that are there");
        overlay.move_to(moved.node).expect("moved");
        overlay.move_to(moved.node).expect("the same again");
    });
    within("tmbn-ov-a", move || {
        let mut overlay = Overlay::open("tvxtest", a.node, a.pods).expect("the link that is there");
        overlay.set_peers(&[a, b]).expect("routes that are there");
        overlay.set_peers(&[a, moved]).expect("where it is now");
    });
    let answer = reach(b.pods.gateway());
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stdout));
    // A node that left is not routed to any more.
    within("tmbn-ov-a", move || {
        let mut overlay = Overlay::open("tvxtest", a.node, a.pods).expect("the link that is there");
        overlay.set_peers(&[a, moved]).expect("routes that are there");
        overlay.set_peers(&[a]).expect("without b");
    });
    assert!(!reach(b.pods.gateway()).status.success());
}
