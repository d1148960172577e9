//! What `up` made, written down so that `down` and a second `up` find it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::network;

#[derive(Serialize, Deserialize, Default)]
pub struct Fleet {
    pub members: Vec<Member>,
    #[serde(skip)]
    dir: PathBuf,
}

/// One process of the sample fleet, in a network namespace and a folder of its own.
#[derive(Serialize, Deserialize, Clone)]
pub struct Member {
    pub name: String,
    pub tier: String,
    /// Also the last part of its address.
    pub number: u8,
    pub pid: Option<i32>,
}

impl Fleet {
    pub fn new(dir: &Path) -> Self {
        Self { members: Vec::new(), dir: dir.to_owned() }
    }

    /// The fleet in `dir`, if one was made there.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("fleet.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mut fleet: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged; run `tombolo down`", path.display()))?;
        fleet.dir = dir.to_owned();
        Ok(Some(fleet))
    }

    pub fn save(&self) -> Result<()> {
        fs::write(self.dir.join("fleet.json"), serde_json::to_vec_pretty(self)?)?;
        Ok(())
    }

    pub fn member(&self, name: &str) -> Result<&Member> {
        self.members
            .iter()
            .find(|m| m.name == name)
            .with_context(|| format!("no member {name:?} in the fleet"))
    }

    pub fn sites(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.name != "hub")
    }

    pub fn folder(&self, member: &Member) -> PathBuf {
        self.dir.join(&member.name)
    }

    pub fn kubeconfig(&self, member: &Member) -> PathBuf {
        self.folder(member).join("admin.kubeconfig")
    }

    /// Starts a member's process in its namespace; its output goes to a log file in its folder.
    pub fn start(&mut self, name: &str, command: &str, args: &[&str]) -> Result<()> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir)?;
        let member = self
            .members
            .iter_mut()
            .find(|m| m.name == name)
            .with_context(|| format!("no member {name:?}"))?;
        // Left from an earlier start, it would be taken for a sign of readiness.
        let _ = fs::remove_file(dir.join("admin.kubeconfig"));
        let log = fs::File::options().create(true).append(true).open(dir.join("log"))?;
        let child = Command::new(std::env::current_exe()?)
            .arg(command)
            .arg("--data-dir")
            .arg(&dir)
            .args(["--listen", &format!("{}:6443", member.address())])
            .args(["--netns", &network::namespace(name)])
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A group of its own: Ctrl-C in the terminal reaches `up`, which then ends them in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        member.pid = Some(i32::try_from(child.id())?);
        self.save()
    }

    /// Waits until the member wrote its kubeconfig, or tells why it ended.
    pub async fn ready(&self, name: &str, patience: Duration) -> Result<()> {
        let member = self.member(name)?;
        let deadline = Instant::now() + patience;
        while !self.kubeconfig(member).exists() {
            if !self.runs(member) || Instant::now() > deadline {
                let log = fs::read_to_string(self.folder(member).join("log")).unwrap_or_default();
                let tail: Vec<_> = log.lines().rev().take(5).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n  ");
                bail!(
                    "{name} did not become ready. The end of {}:\n  {tail}",
                    self.folder(member).join("log").display()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Whether the member's own process lives: a number alone may belong to somebody else by now.
    pub fn runs(&self, member: &Member) -> bool {
        let Some(pid) = member.pid else { return false };
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let zombie = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        !zombie && String::from_utf8_lossy(&line).contains(&*self.folder(member).to_string_lossy())
    }

    /// Ends a member's process: first politely, then for sure.
    pub async fn stop(&self, member: &Member, polite: bool) -> Result<()> {
        let Some(pid) = member.pid.filter(|_| self.runs(member)) else { return Ok(()) };
        let pid = Pid::from_raw(pid);
        if polite {
            // It may end between the look and the call.
            let _ = kill(pid, Signal::SIGTERM);
            let deadline = Instant::now() + Duration::from_secs(5);
            while self.runs(member) && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        if self.runs(member) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        while self.runs(member) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Ends all processes and removes containers, namespaces, links and folders.
    pub async fn remove(&self) -> Result<()> {
        for member in &self.members {
            self.stop(member, true).await?;
        }
        for member in self.sites() {
            let folder = self.folder(member).join("node");
            tombolo_node::Node::destroy(&folder)
                .await
                .with_context(|| format!("cannot clean up {}", folder.display()))?;
        }
        network::remove_all().await?;
        fs::remove_dir_all(&self.dir).with_context(|| format!("cannot remove {}", self.dir.display()))
    }
}

impl Member {
    pub fn address(&self) -> Ipv4Addr {
        network::address(self.number)
    }
}
