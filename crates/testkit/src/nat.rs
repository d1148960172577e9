//! A host behind a router that translates addresses, as behind most lines that a household or a shop has.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{Host, Lan};

/// Leaves the host as the router's address, and lets nothing in that was not asked for.
const RULES: &str = r#"
table ip nat {
    chain post {
        type nat hook postrouting priority 100
        oifname "wan*" masquerade
    }
}
table ip filter {
    chain forward {
        type filter hook forward priority 0; policy drop;
        jump moods
        iifname "lan0" accept
        ct state established,related accept
    }
    chain input {
        type filter hook input priority 0; policy drop;
        iifname "lan0" accept
        ct state established,related accept
    }
    chain moods {
    }
}
"#;

/// The router and the one host behind it.
pub struct Nat {
    pub inside: Host,
    pub router: Host,
    /// The router has two lines to the WAN, one of which is up.
    devices: [&'static str; 2],
    addresses: [Ipv4Addr; 2],
    line: usize,
}

impl Nat {
    pub fn start(lan: &mut Lan, name: &str) -> Result<Self> {
        let router = lan.host(&format!("{name}-router"))?;
        let inside = lan.host_apart(name, Ipv4Addr::new(192, 168, 83, 2))?;
        let addresses = [router.address, lan.plug_again(&router, "wan1")?];
        let (r, i) = (router.netns(), inside.netns());
        for line in [
            format!("-n {r} link add lan0 mtu 1400 type veth peer name eth0 mtu 1400 netns {i}"),
            format!("-n {r} addr add 192.168.83.1/24 dev lan0"),
            format!("-n {r} link set lan0 up"),
            format!("-n {r} link set wan1 down"),
            format!("-n {i} addr add {}/24 dev eth0", inside.address),
            format!("-n {i} link set eth0 up"),
            format!("-n {i} route add default via 192.168.83.1"),
        ] {
            ip(&line)?;
        }
        let file = router.dir.join("rules.nft");
        std::fs::write(&file, RULES)?;
        router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        let nat = Self { inside, router, devices: ["wan0", "wan1"], addresses, line: 0 };
        nat.nft(&["-f", &file.display().to_string()])?;
        Ok(nat)
    }

    /// Where the world sees the host now.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses[self.line]
    }

    /// The provider gives the router another address; what it had translated so far is forgotten.
    pub fn readdress(&mut self) -> Result<()> {
        self.unplug()?;
        self.line = 1 - self.line;
        self.plug()
    }

    /// No line. The router forgets what it had translated.
    pub fn unplug(&self) -> Result<()> {
        ip(&format!("-n {} link set {} down", self.router.netns(), self.devices[self.line]))
    }

    pub fn plug(&self) -> Result<()> {
        ip(&format!("-n {} link set {} up", self.router.netns(), self.devices[self.line]))
    }

    /// Whether UDP passes.
    pub fn pass_udp(&self, pass: bool) -> Result<()> {
        self.nft(&["flush", "chain", "ip", "filter", "moods"])?;
        if !pass {
            self.nft(&["add", "rule", "ip", "filter", "moods", "meta", "l4proto", "udp", "drop"])?;
        }
        Ok(())
    }

    fn nft(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new("nft");
        command.args(args);
        let output = self.router.run(move || command.output())?.context("could not start nft")?;
        ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

fn ip(line: &str) -> Result<()> {
    let output = Command::new("ip").args(line.split_whitespace()).output()?;
    ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
