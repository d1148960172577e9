//! What `up` made, written down so that `down`, `lab`, `tour` and a second `up` find it.

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

use super::progress::{Step, warn};
use super::{existing, network};

const RECORD: &str = "fleet.json";
const PARTIAL: &str = "fleet.json.partial";

#[derive(Serialize, Deserialize, Default)]
pub struct Fleet {
    /// What it was asked to be.
    #[serde(default)]
    pub shape: Shape,
    pub members: Vec<Member>,
    #[serde(skip)]
    dir: PathBuf,
}

/// What makes one fleet unlike another.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Edge sites.
    pub sites: u8,
    /// The link between any two members, as written on the command line; none without an emulated network.
    pub wan: Option<String>,
    /// Kubeconfigs of existing clusters.
    pub members: Vec<PathBuf>,
}

/// One process of the sample fleet, with a folder of its own.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct Member {
    pub name: String,
    pub role: Role,
    pub tier: String,
    /// Also the last part of its address.
    pub number: u8,
    pub pid: Option<i32>,
    /// What it was started with, to start it again.
    pub args: Vec<String>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The emulated wide area network, with `--wan` only.
    Wan,
    #[default]
    Hub,
    Site,
    /// The agent of an existing cluster, with `--member` only.
    Agent,
}

impl Fleet {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), ..Self::default() }
    }

    /// The fleet in `dir`, if one was made there.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mut fleet: Self = serde_json::from_slice(&text).with_context(|| {
            format!("{} is damaged; remove it, then run `tombolo down` and `tombolo up`", path.display())
        })?;
        fleet.dir = dir.to_owned();
        Ok(Some(fleet))
    }

    /// Replaced in one step: who is interrupted here leaves the old record or the new one.
    pub fn save(&self) -> Result<()> {
        let path = self.dir.join(RECORD);
        let partial = self.dir.join(PARTIAL);
        fs::write(&partial, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn member(&self, name: &str) -> Result<&Member> {
        self.members.iter().find(|m| m.name == name).with_context(|| {
            let names: Vec<_> = self.members.iter().map(|m| m.name.as_str()).collect();
            format!("no member {name:?} in the fleet; it has {}", names.join(", "))
        })
    }

    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |m| m.role == role)
    }

    pub fn sites(&self) -> impl Iterator<Item = &Member> {
        self.with_role(Role::Site)
    }

    /// The members that have a network namespace.
    pub fn hosts(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| matches!(m.role, Role::Hub | Role::Site))
    }

    pub fn wan(&self) -> Option<&Member> {
        self.with_role(Role::Wan).next()
    }

    pub fn folder(&self, member: &Member) -> PathBuf {
        self.dir.join(&member.name)
    }

    pub fn kubeconfig(&self, member: &Member) -> PathBuf {
        self.folder(member).join("admin.kubeconfig")
    }

    /// The file that a member writes when it is ready; an agent has none.
    fn sign(&self, member: &Member) -> Option<PathBuf> {
        match member.role {
            Role::Hub | Role::Site => Some(self.kubeconfig(member)),
            Role::Wan => Some(self.folder(member).join("ready")),
            Role::Agent => None,
        }
    }

    /// Starts a member's process; its output goes to a log file in its folder.
    pub fn start(&mut self, name: &str, environment: &[(&str, &str)]) -> Result<()> {
        let member = self.member(name)?;
        let dir = self.folder(member);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Left from an earlier start, it would be taken for a sign of readiness.
        if let Some(sign) = self.sign(member) {
            let _ = fs::remove_file(sign);
        }
        let log = fs::File::options().create(true).append(true).open(dir.join("log"))?;
        let child = Command::new(std::env::current_exe()?)
            .args(&member.args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A group of its own: Ctrl-C in the terminal reaches `up`, which then ends them in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = i32::try_from(child.id())?;
        let member = self.members.iter_mut().find(|m| m.name == name);
        member.context("the member was there a moment ago")?.pid = Some(pid);
        self.save()
    }

    /// Waits until the member gave its sign of readiness, or tells why it ended.
    pub async fn ready(&self, name: &str, patience: Duration) -> Result<()> {
        let member = self.member(name)?;
        let Some(sign) = self.sign(member) else { return Ok(()) };
        let deadline = Instant::now() + patience;
        while !sign.exists() {
            if !self.runs(member) || Instant::now() > deadline {
                let path = self.folder(member).join("log");
                let log = fs::read_to_string(&path).unwrap_or_default();
                let tail: Vec<_> = log.lines().rev().take(5).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n  ");
                bail!("{name} did not become ready. The end of {}:\n  {tail}", path.display());
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
        let words: Vec<_> = line.split(|b| *b == 0).skip(1).filter(|word| !word.is_empty()).collect();
        // Right after its start a process has no words yet; a thread of the kernel, which has none either, has no program.
        let starting = words.is_empty() && fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        !zombie && (starting || words.iter().copied().eq(member.args.iter().map(String::as_bytes)))
    }

    /// Ends a member's process: first politely, if so asked, then for sure.
    pub async fn stop(&self, member: &Member, polite: bool) {
        let Some(pid) = member.pid.filter(|_| self.runs(member)) else { return };
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
    }

    /// Ends all processes and removes containers, namespaces, links and folders.
    ///
    /// What cannot be removed does not keep the rest from being removed; the folder stays then, for another try. Only
    /// what is left in somebody else's cluster does not keep it: that cluster may be gone for good.
    pub async fn remove(&self) -> Result<()> {
        let mut faults = Vec::new();
        // One that was never started put nothing there.
        for agent in self.with_role(Role::Agent).filter(|agent| agent.pid.is_some()) {
            let step = Step::start(&agent.name);
            self.stop(agent, true).await;
            match existing::leave(self, agent).await {
                Ok(()) => step.done("what was placed there is gone"),
                Err(error) => {
                    step.done("left as it is");
                    warn(&existing::farewell(self, agent, &error));
                }
            }
        }
        let step = Step::start("processes");
        futures::future::join_all(self.members.iter().map(|member| self.stop(member, true))).await;
        step.done("ended");
        let step = Step::start("containers");
        for (index, member) in self.sites().enumerate() {
            step.line.tell(&format!("{index} of {} sites are empty", self.sites().count()));
            let folder = self.folder(member).join("node");
            if let Err(error) = tombolo_node::Node::destroy(&folder).await {
                faults.push(
                    anyhow::Error::from(error).context(format!("cannot clean up {}", folder.display())),
                );
            }
        }
        step.done(if faults.is_empty() { "removed" } else { "not all could be removed" });
        // A record that a reboot left behind says nothing about the namespaces of a later fleet elsewhere.
        if network::is_of(&self.dir) {
            network::remove(self.hosts().map(|member| (member.name.as_str(), member.number))).await?;
        }
        if let Some(fault) = faults.into_iter().next() {
            return Err(fault);
        }
        self.remove_folder()
    }

    /// The record goes last, so that who is interrupted can try again; what others put into the folder stays.
    fn remove_folder(&self) -> Result<()> {
        let gone = |result: std::io::Result<()>, path: &Path| match result {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        };
        for member in &self.members {
            let folder = self.folder(member);
            gone(fs::remove_dir_all(&folder), &folder)?;
        }
        for name in [PARTIAL, RECORD] {
            let path = self.dir.join(name);
            gone(fs::remove_file(&path), &path)?;
        }
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }
}

impl Member {
    pub fn address(&self) -> Ipv4Addr {
        network::address(self.number)
    }
}
