//! A real kube-apiserver with etcd for tests, without kube-controller-manager and kube-scheduler.
//!
//! The binaries come from `KUBEBUILDER_ASSETS` when it is set, else from the newest version under
//! `~/.cache/tombolo/bin`. Where they are missing tests are skipped with a loud line, or fail when `CI` is set.

#![allow(dead_code)]

use anyhow::{Context, Result, bail};
use kube::{
    Client, Config,
    config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext},
};
use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

pub const TOKEN: &str = "control-plane-test-token";

/// A running control plane; ends with this process, however that ends.
pub struct ControlPlane {
    pub port: u16,
    pub dir: tempfile::TempDir,
    _processes: Vec<Guarded>,
}

/// A process under a small shell that ends it when our end of its standard input closes.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn guarded(program: &Path, args: &[String], log: &Path) -> Result<Guarded> {
    let log = fs::File::create(log)?;
    let child = Command::new("sh")
        .args([
            "-c",
            "\"$@\" </dev/null & pid=$!; cat >/dev/null; kill -9 $pid; wait $pid 2>/dev/null",
            "guard",
        ])
        .arg(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(Guarded(child))
}

/// The binary of that name, or nothing when it is not there.
pub fn binary(name: &str) -> Option<PathBuf> {
    if let Some(assets) = env::var_os("KUBEBUILDER_ASSETS") {
        return Some(Path::new(&assets).join(name)).filter(|path| path.exists());
    }
    let bin = Path::new(&env::var_os("HOME")?).join(".cache/tombolo/bin");
    let mut found: Vec<PathBuf> = fs::read_dir(bin)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join(name)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop()
}

fn free_port() -> Result<u16> {
    let (low, high) = (21400u16, 21499u16);
    let start = low + (std::process::id() % 90) as u16;
    for port in (start..=high).chain(low..start) {
        static TAKEN: OnceLock<std::sync::Mutex<Vec<u16>>> = OnceLock::new();
        let mut taken = TAKEN.get_or_init(Default::default).lock().unwrap();
        if !taken.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.push(port);
            return Ok(port);
        }
    }
    bail!("no free port between {low} and {high}")
}

impl ControlPlane {
    /// `None`: the binaries are missing and this is not CI.
    pub fn start() -> Result<Option<Self>> {
        let (Some(etcd), Some(apiserver)) = (binary("etcd"), binary("kube-apiserver")) else {
            if env::var_os("CI").is_some() {
                bail!(
                    "etcd and kube-apiserver are needed: set KUBEBUILDER_ASSETS, or run `cargo xtask fixtures`"
                );
            }
            eprintln!(
                "SKIPPED: no etcd or kube-apiserver; set KUBEBUILDER_ASSETS, or run `cargo xtask fixtures`"
            );
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name).display().to_string();
        let (client_port, peer_port, port) = (free_port()?, free_port()?, free_port()?);
        let etcd_url = format!("http://127.0.0.1:{client_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let etcd = guarded(
            &etcd,
            &[
                format!("--data-dir={}", at("etcd")),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=default={peer_url}"),
                "--unsafe-no-fsync".into(),
            ],
            &dir.path().join("etcd.log"),
        )?;
        let key = rcgen::KeyPair::generate()?;
        fs::write(at("sa.key"), key.serialize_pem())?;
        fs::write(at("sa.pub"), key.public_key_pem())?;
        fs::write(at("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n"))?;
        let apiserver = guarded(
            &apiserver,
            &[
                format!("--etcd-servers={etcd_url}"),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                "--endpoint-reconciler-type=none".into(),
                format!("--cert-dir={}", at("certs")),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-key-file={}", at("sa.pub")),
                format!("--service-account-signing-key-file={}", at("sa.key")),
                format!("--token-auth-file={}", at("tokens.csv")),
                "--authorization-mode=Node,RBAC".into(),
                "--service-cluster-ip-range=10.96.0.0/16".into(),
                "--enable-priority-and-fairness=false".into(),
                "--max-requests-inflight=4000".into(),
                "--max-mutating-requests-inflight=2000".into(),
            ],
            &dir.path().join("kube-apiserver.log"),
        )?;
        Ok(Some(Self { port, dir, _processes: vec![apiserver, etcd] }))
    }

    pub async fn client(&self) -> Result<Client> {
        client(self.port).await
    }

    pub async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(90);
        let client = self.client().await?;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            match client.request_text(request).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let log =
                        fs::read_to_string(self.dir.path().join("kube-apiserver.log")).unwrap_or_default();
                    let tail: Vec<_> = log.lines().rev().take(15).collect();
                    bail!(
                        "kube-apiserver is not ready: {error}\n{}",
                        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
                    );
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub fn kubeconfig(&self) -> Result<PathBuf> {
        let path = self.dir.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:{}', insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: a, user: {{token: {TOKEN}}}}}]\n",
            self.port
        );
        // Several tests do this at the same time, and none may read half of it.
        let file = tempfile::NamedTempFile::new_in(self.dir.path())?;
        fs::write(file.path(), text)?;
        file.persist(&path)?;
        Ok(path)
    }
}

pub async fn client(port: u16) -> Result<Client> {
    let kubeconfig = Kubeconfig {
        current_context: Some("a".into()),
        clusters: vec![NamedCluster {
            name: "a".into(),
            cluster: Some(Cluster {
                server: Some(format!("https://127.0.0.1:{port}")),
                insecure_skip_tls_verify: Some(true),
                ..Cluster::default()
            }),
            ..Default::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: "a".into(),
            auth_info: Some(AuthInfo { token: Some(TOKEN.to_owned().into()), ..AuthInfo::default() }),
            ..Default::default()
        }],
        contexts: vec![NamedContext {
            name: "a".into(),
            context: Some(kube::config::Context {
                cluster: "a".into(),
                user: Some("a".into()),
                ..Default::default()
            }),
            ..Default::default()
        }],
        ..Kubeconfig::default()
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    Ok(Client::try_from(config)?)
}
