//! A fresh store of each engine.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_store::{EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, MemoryStore, Store};

/// A store, and what must outlive it.
pub struct Engine {
    pub store: Arc<dyn Store>,
    _behind: Option<Box<dyn Send>>,
}

pub async fn memory() -> Option<Engine> {
    Some(Engine { store: Arc::new(MemoryStore::new()), _behind: None })
}

pub async fn embedded() -> Option<Engine> {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), EmbeddedOptions::default()).unwrap();
    Some(Engine { store: Arc::new(store), _behind: Some(Box::new(folder)) })
}

pub async fn etcd() -> Option<Engine> {
    let server = EtcdServer::start()?;
    let store = server.connect("/contract").await;
    Some(Engine { store: Arc::new(store), _behind: Some(Box::new(server)) })
}

/// A real etcd, for one test.
pub struct EtcdServer {
    program: PathBuf,
    folder: TempDir,
    urls: [String; 2],
    process: Child,
}

impl EtcdServer {
    /// `None`, loudly, when there is no etcd on this machine; in CI that is a failure.
    pub fn start() -> Option<Self> {
        let fixture = || {
            let home = std::env::var_os("HOME")?;
            Some(PathBuf::from(home).join(".cache/tombolo/bin/etcd-3.6.16/etcd"))
        };
        let program = std::env::var_os("TOMBOLO_ETCD").map(PathBuf::from).or_else(fixture)?;
        if !program.exists() {
            let message = format!("there is no etcd at {}: run `cargo xtask fixtures`", program.display());
            assert!(std::env::var_os("CI").is_none(), "{message}");
            eprintln!("SKIPPED, the etcd engine is NOT tested: {message}, or set TOMBOLO_ETCD");
            return None;
        }
        let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let urls = listeners.map(|listener| format!("http://{}", listener.local_addr().unwrap()));
        let folder = tempfile::tempdir().unwrap();
        let process = spawn(&program, &folder, &urls);
        Some(EtcdServer { program, folder, urls, process })
    }

    /// A replica: a store of its own on this server.
    pub async fn connect(&self, prefix: &str) -> EtcdStore {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let options =
                EtcdOptions { endpoints: vec![self.urls[0].clone()], prefix: prefix.to_owned(), tls: None };
            match EtcdStore::connect(options).await {
                Ok(store) => return store,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn restart(&mut self) {
        self.stop();
        self.process = spawn(&self.program, &self.folder, &self.urls);
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(program: &PathBuf, folder: &TempDir, [client, peer]: &[String; 2]) -> Child {
    Command::new(program)
        .arg("--data-dir")
        .arg(folder.path())
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
        .args(["--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
