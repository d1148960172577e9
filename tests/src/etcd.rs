//! An etcd of a test's own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tombolo_testkit::{Fixture, Pair, Pki, Process, free_port, wait_for};

/// One member, with its data in the folder it was started with. Ends when dropped.
pub struct Etcd {
    pub url: String,
    _process: Process,
}

/// What a client shows an etcd that asks for certificates, and whom it trusts.
pub struct Credentials {
    pub ca: PathBuf,
    pub client: Pair,
}

impl Etcd {
    /// Serves at an address of the calling thread's network, to everybody.
    pub fn start(dir: &Path, address: Ipv4Addr) -> Result<Self> {
        Self::start_with(dir, "http", address, &[])
    }

    /// Serves those only who have a certificate of its authority.
    pub fn start_with_certificates(dir: &Path, address: Ipv4Addr) -> Result<(Self, Credentials)> {
        let folder = dir.join("etcd-pki");
        std::fs::create_dir_all(&folder)?;
        let pki = Pki::new(&folder)?;
        let server = pki.server("etcd", &[address.into()])?;
        let text = |path: &Path| path.display().to_string();
        let (certificate, key, ca) = (text(&server.certificate), text(&server.key), text(&pki.ca()));
        let shows = ["--cert-file", &certificate, "--key-file", &key];
        let asks = ["--client-cert-auth", "--trusted-ca-file", &ca];
        let etcd = Self::start_with(dir, "https", address, &[&shows[..], &asks].concat())?;
        Ok((etcd, Credentials { ca: pki.ca(), client: pki.client("client", "tombolo", "hubs")? }))
    }

    fn start_with(dir: &Path, scheme: &str, address: Ipv4Addr, args: &[&str]) -> Result<Self> {
        let address = format!("{address}:{}", free_port());
        let url = format!("{scheme}://{address}");
        let mut command = Command::new(Fixture::Etcd.must());
        command.arg("--data-dir").arg(dir.join("etcd")).args(["--log-level", "error"]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())]);
        command.args(args);
        let process = Process::start("etcd", command, dir)?;
        // A server that finds no store at its start says so and ends.
        wait_for("etcd to listen", Duration::from_secs(30), || {
            Ok(std::net::TcpStream::connect(&address).map(drop)?)
        })?;
        Ok(Self { url, _process: process })
    }
}
