//! Talking to the shim of a pod (see `shim/main.rs` for what it understands).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tombolo-shim"));

/// A shim answers at once, except to `run`, which makes a container first.
const PATIENCE: Duration = Duration::from_secs(60);

/// A container that is not made within this time is given up by a node that finds it half made.
const CREATION: Duration = Duration::from_secs(5);

/// Writes the shim's program to `dir` unless it is there: its name carries its digest, so that shims of an older
/// version keep running from their own file.
pub(crate) fn install(dir: &Path) -> io::Result<PathBuf> {
    let digest = format!("{:x}", Sha256::digest(PROGRAM));
    let path = dir.join(format!("shim-{}", &digest[..12]));
    if path.metadata().is_ok_and(|m| m.len() == PROGRAM.len() as u64) {
        return Ok(path);
    }
    std::fs::create_dir_all(dir)?;
    crate::disk::replace(&path, PROGRAM, 0o755)?;
    Ok(path)
}

/// Starts a shim and returns its process id once it answers.
pub(crate) async fn start(program: &Path, pod: &Path, namespaces: &str, hostname: &str) -> io::Result<u32> {
    let output = Command::new(program).arg(pod).arg(namespaces).arg(hostname).output().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().strip_prefix("ok ").and_then(|pid| pid.parse().ok()) {
        Some(pid) => Ok(pid),
        None => Err(io::Error::other(format!("the pod's shim did not start: {}", text.trim()))),
    }
}

/// Ends the shim of a pod, if there is one, with all it keeps. A node that was killed at the wrong moment may have
/// left one it never wrote down; the lock the shim holds tells.
pub(crate) async fn retire(pod: &Path) -> io::Result<()> {
    let free = || match File::open(pod.join("shim.lock")) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(_) => true,
    };
    for _ in 0..500 {
        if free() {
            return Ok(());
        }
        let _ = ask(pod, &["exit"]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the pod's processes do not end although they were killed"))
}

/// Waits until no container of a pod is half made: one whose creation a node of before had asked for must be finished
/// or gone before it can be told whether it is there.
pub(crate) async fn settle(pod: &Path) -> io::Result<()> {
    let give_up = tokio::time::Instant::now() + CREATION;
    loop {
        let creating: Vec<String> = ask(pod, &["list"])
            .await?
            .iter()
            .filter_map(|line| line.strip_prefix("creating\t").map(str::to_owned))
            .collect();
        if creating.is_empty() {
            return Ok(());
        }
        if tokio::time::Instant::now() >= give_up {
            for id in &creating {
                let _ = ask(pod, &["kill", id, "9"]).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A connection to a shim.
pub(crate) struct Shim {
    stream: BufReader<UnixStream>,
}

impl Shim {
    pub async fn connect(pod: &Path) -> io::Result<Shim> {
        // A socket's path may have 107 bytes; going through the folder's descriptor lifts that limit.
        let folder = File::open(pod)?;
        let path = format!("/proc/self/fd/{}/shim.sock", folder.as_raw_fd());
        let stream = UnixStream::connect(path).await?;
        Ok(Shim { stream: BufReader::new(stream) })
    }

    /// Sends a request and returns the lines before the final `ok`, and what came with it.
    pub async fn ask(&mut self, fields: &[&str]) -> io::Result<Vec<String>> {
        if fields.iter().any(|field| field.contains(['\t', '\n'])) {
            return Err(io::Error::other("tabs and newlines cannot be sent to a shim"));
        }
        let line = format!("{}\n", fields.join("\t"));
        let exchange = async {
            self.stream.get_mut().write_all(line.as_bytes()).await?;
            let mut lines = Vec::new();
            loop {
                let line = self.line().await?.ok_or_else(|| io::Error::other("the pod's shim went away"))?;
                match line.split_once('\t') {
                    Some(("err", reason)) => return Err(io::Error::other(reason.to_owned())),
                    Some(("ok", rest)) => {
                        lines.push(rest.to_owned());
                        return Ok(lines);
                    }
                    _ if line == "ok" => return Ok(lines),
                    _ => lines.push(line),
                }
            }
        };
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the pod's shim did not answer"))?
    }

    /// The next event line, or nothing when the shim is gone.
    pub async fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await? {
            0 => Ok(None),
            _ => Ok(Some(line.trim_end().to_owned())),
        }
    }

    pub fn into_stream(self) -> UnixStream {
        self.stream.into_inner()
    }
}

/// One question to a pod's shim.
pub(crate) async fn ask(pod: &Path, fields: &[&str]) -> io::Result<Vec<String>> {
    Shim::connect(pod).await?.ask(fields).await
}
