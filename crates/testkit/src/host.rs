//! Several machines on one: each host is a network namespace, and a WAN that can be slowed and cut is between them.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tombolo_wan::{Link, Namespace, Relay};

use crate::{Kubectl, Process, cargo_binary, wait_for, wipe};

/// The hosts of one test and the WAN between them. Everything ends with it.
pub struct Lan {
    pub relay: Relay,
    prefix: String,
    network: [u8; 3],
    dir: PathBuf,
    link: Link,
    next: u8,
    desk: Option<Namespace>,
}

/// A machine of its own, as far as its network goes.
pub struct Host {
    pub name: String,
    pub address: Ipv4Addr,
    /// What it keeps on disk.
    pub dir: PathBuf,
    pub(crate) namespace: Arc<Namespace>,
}

/// A `tombolo` server process at a host.
pub struct Member {
    pub process: Process,
    pub kubeconfig: PathBuf,
    /// Containers outlive the process that made them; these are removed with it, in the namespace that they are in.
    containers: Option<(PathBuf, Arc<Namespace>)>,
    program: PathBuf,
    start: Box<dyn Fn(&Path) -> Result<Process> + Send>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.process.kill();
        let Some((data, namespace)) = self.containers.take() else { return };
        if let Err(error) = wipe(&data, Some(&namespace)) {
            // A test that fails already says why; one that would pass must not leave anything.
            assert!(std::thread::panicking(), "{}: {error:#}", data.display());
            eprintln!("{}: {error:#}", data.display());
        }
    }
}

impl Lan {
    /// `prefix` and `network` must be this test's own: namespaces are known to the whole machine.
    /// The calling thread moves to a host of its own (the desk), so that what it starts from now on is on the WAN too.
    pub fn start(prefix: &str, network: [u8; 3], dir: &Path, link: Link) -> Result<Self> {
        let relay = Relay::start(link, 1);
        let mut lan =
            Self { relay, prefix: prefix.into(), network, dir: dir.into(), link, next: 1, desk: None };
        let (namespace, _) = lan.plug("desk")?;
        tombolo_wan::enter(namespace.name())?;
        lan.desk = Some(namespace);
        Ok(lan)
    }

    pub fn host(&mut self, name: &str) -> Result<Host> {
        let (namespace, address) = self.plug(name)?;
        self.furnish(name, namespace, address)
    }

    /// A host that is not on the WAN.
    pub(crate) fn host_apart(&self, name: &str, address: Ipv4Addr) -> Result<Host> {
        self.furnish(name, self.namespace(name)?, address)
    }

    fn furnish(&self, name: &str, namespace: Namespace, address: Ipv4Addr) -> Result<Host> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(Host { name: name.into(), address, dir, namespace: Arc::new(namespace) })
    }

    fn namespace(&self, name: &str) -> Result<Namespace> {
        let namespace = Namespace::create(&format!("{}-{name}", self.prefix))?;
        let up = namespace.run(|| Command::new("ip").args(["link", "set", "lo", "up"]).output())??;
        ensure!(up.status.success(), "no loopback: {}", String::from_utf8_lossy(&up.stderr));
        Ok(namespace)
    }

    fn address(&mut self) -> Ipv4Addr {
        let [a, b, c] = self.network;
        self.next += 1;
        Ipv4Addr::new(a, b, c, self.next - 1)
    }

    fn plug(&mut self, name: &str) -> Result<(Namespace, Ipv4Addr)> {
        let (namespace, address) = (self.namespace(name)?, self.address());
        self.relay.plug(&namespace, address)?;
        Ok((namespace, address))
    }

    /// One more device at a host, with an address of its own.
    pub(crate) fn plug_again(&mut self, host: &Host, device: &str) -> Result<Ipv4Addr> {
        let address = self.address();
        tombolo_wan::enter(host.netns())?;
        let plugged = self.relay.plug_here(device, address);
        if let Some(desk) = &self.desk {
            tombolo_wan::enter(desk.name())?;
        }
        plugged?;
        Ok(address)
    }

    /// Cuts the link between two hosts; others still reach both.
    pub fn cut_between(&self, a: &Host, b: &Host) {
        self.relay.set(a.address, b.address, Link { up: false, ..self.link });
    }

    pub fn mend_between(&self, a: &Host, b: &Host) {
        self.relay.set(a.address, b.address, self.link);
    }

    pub fn cut(&self, host: &Host) {
        self.relay.cut(host.address, true);
    }

    pub fn mend(&self, host: &Host) {
        self.relay.cut(host.address, false);
    }
}

impl Host {
    /// Starts a program at this host; its output goes to `<name>.log` in the host's folder.
    pub fn start(&self, name: &str, command: Command) -> Result<Process> {
        let (name, dir) = (name.to_owned(), self.dir.clone());
        self.namespace.run(move || Process::start(&name, command, &dir))?
    }

    /// Runs something on a thread at this host.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        Ok(self.namespace.run(work)?)
    }

    /// The network namespace that it is.
    pub fn netns(&self) -> &str {
        self.namespace.name()
    }

    pub fn url(&self) -> String {
        format!("https://{}:6443", self.address)
    }

    /// `tombolo hub` or `tombolo site`, with its data in this host's folder.
    pub fn tombolo(&self, command: &str, args: &[&str]) -> Result<Member> {
        self.tombolo_of(&cargo_binary("tombolo"), command, args)
    }

    /// The same with the program of another release.
    pub fn tombolo_of(&self, program: &Path, command: &str, args: &[&str]) -> Result<Member> {
        let data = self.dir.join(command);
        let kubeconfig = data.join("admin.kubeconfig");
        let mut words: Vec<String> = vec![command.into(), "--data-dir".into(), data.display().to_string()];
        words.extend(["--listen".into(), format!("{}:6443", self.address)]);
        words.extend(["--netns".into(), self.namespace.name().into()]);
        words.extend(args.iter().map(|word| (*word).to_owned()));
        let (name, dir, ready) = (self.name.clone(), self.dir.clone(), kubeconfig.clone());
        let process = format!("tombolo-{command}");
        let start = move |program: &Path| {
            // Left from an earlier start, it would be taken for a sign of readiness.
            let _ = std::fs::remove_file(&ready);
            let mut line = Command::new(program);
            line.args(&words);
            let mut process = Process::start(&process, line, &dir)?;
            wait_for(&format!("{name} to be ready"), Duration::from_secs(30), || {
                process.alive()?;
                if ready.exists() { Ok(()) } else { bail!("no admin.kubeconfig yet") }
            })?;
            Ok(process)
        };
        let containers = args.contains(&"--node").then(|| (data.join("node"), self.namespace.clone()));
        let process = start(program)?;
        Ok(Member { process, kubeconfig, containers, program: program.to_owned(), start: Box::new(start) })
    }
}

impl Member {
    /// Kills the process and starts it again with its data; containers run on meanwhile.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = (self.start)(&self.program)?;
        Ok(())
    }

    /// The same, and from now on it is the program of another release.
    pub fn replace(&mut self, program: &Path) -> Result<()> {
        self.program = program.to_owned();
        self.restart()
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }

    /// `tombolo ARGS…` as its administrator types it.
    pub fn tombolo(&self, args: &[&str]) -> Result<String> {
        tombolo(&self.kubeconfig, args)
    }

    /// Ties it to a hub under `name`.
    pub fn join(&self, hub: &Member, name: &str, args: &[&str]) -> Result<()> {
        join(&self.kubeconfig, &hub.kubeconfig, name, args)
    }
}

/// Ties a site to a hub with a token of its own.
pub(crate) fn join(site: &Path, hub: &Path, name: &str, args: &[&str]) -> Result<()> {
    let line = tombolo(hub, &["token", "create", "--uses", "1"])?;
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    tombolo(site, &[&words[..], &["--name", name], args].concat()).map(drop)
}

/// Runs the `tombolo` client; a failure is an error with what it printed.
pub fn tombolo(kubeconfig: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(cargo_binary("tombolo"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .output()
        .context("could not start tombolo")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "tombolo {} failed: {out}{err}", args.join(" "));
    Ok(out.into_owned())
}
