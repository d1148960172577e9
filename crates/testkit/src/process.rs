//! Child processes that end with the test.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A running program whose output goes to a log file. Dropping it kills it.
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, with its output in `dir/<name>.log`.
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("could not start {name}"))?;
        Ok(Self { child, name: name.to_owned(), log })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An error with the end of its log, if it has ended.
    pub fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(15).collect();
            bail!(
                "{} ended ({status}):\n{}",
                self.name,
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            );
        }
        Ok(())
    }

    /// SIGTERM, and how it then ended; one that does not end in time is killed, and an error.
    pub fn terminate(&mut self, patience: Duration) -> Result<ExitStatus> {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status()?;
        if !asked.success() {
            bail!("{} cannot be asked to end", self.name);
        }
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.kill();
                bail!("{} did not end within {patience:?}:\n{}", self.name, self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only when the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A loopback port nobody listens on now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// Polls `condition` until it gives a value; the error of the last try explains a time-out.
pub fn wait_for<T>(what: &str, timeout: Duration, mut condition: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match condition() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {timeout:?} for {what}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
