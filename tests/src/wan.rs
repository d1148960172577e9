//! A hub and a Tombolo site with a node, each in a network namespace of its own, and a WAN between them that can be slow,
//! lossy or cut. Watchers beside each of them tell when a pod was scheduled, ran and was seen, without crossing the WAN.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, GroupVersionKind, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::{Value, json};
use std::sync::Mutex;
use tombolo_node::Node;
use tombolo_node::image::{ImageConfig, Store};
use tombolo_testkit::{Kubectl, Process, cargo_binary, wait_for};
use tombolo_wan::{Link, Namespace, Relay};

pub const SITE: &str = "harbour";
const HUB_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 250, 1);
const SITE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 250, 2);
/// A static busybox, for pods that do things.
pub const BUSYBOX: &str = "test.local/busybox:1";
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends everything it made when dropped: processes, containers, namespaces.
pub struct Wan {
    pub hub: Host,
    pub site: Host,
    relay: Relay,
    hub_process: Process,
    site_process: Process,
    dir: tempfile::TempDir,
}

/// One end of the WAN.
pub struct Host {
    namespace: Namespace,
    pub kubeconfig: PathBuf,
}

impl Wan {
    /// Starts both on a link without delay, ties them, and waits until the site can take pods.
    pub fn start(hub_args: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let id = std::process::id();
        let relay = Relay::start(Link::default(), u64::from(id));
        let host = |name: &str, address| -> Result<Host> {
            let namespace = Namespace::create(&format!("tbwan-{name}-{id}"))?;
            relay.plug(&namespace, address)?;
            let kubeconfig = dir.path().join(name).join("admin.kubeconfig");
            Ok(Host { namespace, kubeconfig })
        };
        let (hub, site) = (host("hub", HUB_ADDRESS)?, host("site", SITE_ADDRESS)?);
        let start = |command: &str, host: &Host, address: Ipv4Addr, more: &[&str]| {
            let mut line = Command::new(cargo_binary("tombolo"));
            line.arg(command).arg("--data-dir").arg(dir.path().join(command));
            line.args(["--listen", &format!("{address}:6443"), "--netns", host.namespace.name()]).args(more);
            Process::start(command, line, dir.path())
        };
        let hub_process = start("hub", &hub, HUB_ADDRESS, hub_args)?;
        let site_process = start("site", &site, SITE_ADDRESS, &["--name", SITE, "--node"])?;
        let mut wan = Self { hub, site, relay, hub_process, site_process, dir };
        wait_for("both to be ready", PATIENCE, || {
            wan.hub_process.alive()?;
            wan.site_process.alive()?;
            let there = wan.hub.kubeconfig.exists() && wan.site.kubeconfig.exists();
            there.then_some(()).context("no kubeconfig yet")
        })?;
        wan.add_busybox()?;
        let ticket = wan.tombolo(&wan.hub, &["token", "create", "--uses", "1"])?;
        let words: Vec<_> = ticket.split_whitespace().skip(1).chain(["--name", SITE]).collect();
        wan.tombolo(&wan.site, &words)?;
        wait_for("the site to be tied and to have room", PATIENCE, || {
            let nodes =
                wan.hub.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].status.allocatable.cpu}"])?;
            if nodes.trim().is_empty() { bail!("not yet") } else { Ok(()) }
        })
        .with_context(|| wan.logs())?;
        Ok(wan)
    }

    fn add_busybox(&self) -> Result<()> {
        let program = std::fs::read("/usr/bin/busybox")
            .or_else(|_| std::fs::read("/bin/busybox"))
            .context("no busybox; install the Debian package busybox-static")?;
        let images = Store::open(self.site_folder().join("node/images"))?;
        let entrypoint = Some(vec!["/bin/busybox".to_owned()]);
        images.add_builtin(
            BUSYBOX,
            &[("/bin/busybox", 0o755, &program)],
            ImageConfig { entrypoint, ..Default::default() },
        )?;
        Ok(())
    }

    fn site_folder(&self) -> PathBuf {
        self.dir.path().join("site")
    }

    /// How the link behaves from now on.
    pub fn link(&self, link: Link) {
        self.relay.set(HUB_ADDRESS, SITE_ADDRESS, link);
    }

    /// Our command line, beside one of the two.
    pub fn tombolo(&self, host: &Host, args: &[&str]) -> Result<String> {
        let mut line = Command::new(cargo_binary("tombolo"));
        line.arg("--kubeconfig").arg(&host.kubeconfig).args(args);
        let output = host.namespace.run(move || line.output())??;
        if !output.status.success() {
            bail!("tombolo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What both printed, for a failed test.
    pub fn logs(&self) -> String {
        let tail = |process: &Process| {
            let log = process.log();
            let lines: Vec<_> = log.lines().rev().take(30).map(str::to_owned).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        format!("hub:\n{}\nsite:\n{}", tail(&self.hub_process), tail(&self.site_process))
    }

    pub fn hub_log(&self) -> String {
        self.hub_process.log()
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        self.site_process.kill();
        let folder = self.site_folder().join("node");
        let destroyed = self.site.namespace.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            anyhow::Ok(runtime.block_on(Node::destroy(&folder))?)
        });
        if let Ok(Err(error)) = destroyed {
            eprintln!("the site's containers were not all removed: {error:#}");
        }
    }
}

impl Host {
    /// kubectl beside this host: it does not cross the WAN.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let kubectl = Kubectl::new(&self.kubeconfig);
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        self.namespace.run(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            kubectl.run(&args)
        })?
    }

    /// A command that kubectl runs on beside this host until it is dropped, with its output in a file.
    pub fn follow(&self, name: &str, args: &[&str], dir: &Path) -> Result<Process> {
        let command = Kubectl::new(&self.kubeconfig).command(args);
        let (name, dir) = (name.to_owned(), dir.to_owned());
        self.namespace.run(move || Process::start(&name, command, &dir))?
    }

    /// Runs `work` with a client, on a thread of its own beside this host.
    fn spawn<F, Fut>(&self, work: F) -> Result<()>
    where
        F: FnOnce(kube::Client) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        let (namespace, kubeconfig) = (self.namespace.name().to_owned(), self.kubeconfig.clone());
        std::thread::spawn(move || -> Result<()> {
            tombolo_wan::enter(&namespace)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
                let config =
                    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
                work(kube::Client::try_from(config)?).await
            })
        });
        Ok(())
    }
}

/// When the first pod of an application (label `app`) came so far, as seen at one host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub scheduled: Option<Instant>,
    pub running: Option<Instant>,
    pub gone: Option<Instant>,
}

/// Watches the pods of one host.
#[derive(Clone, Default)]
pub struct Observer {
    apps: Arc<Mutex<HashMap<String, Seen>>>,
}

impl Observer {
    pub fn start(host: &Host) -> Result<Self> {
        let observer = Self::default();
        let this = observer.clone();
        let (ready, started) = mpsc::channel();
        host.spawn(|client| async move {
            let mut events = Box::pin(watcher(Api::<Pod>::all(client), Config::default()));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::InitApply(pod) | Event::Apply(pod)) => this.see(&pod, false),
                    Ok(Event::Delete(pod)) => this.see(&pod, true),
                    Ok(Event::InitDone) => drop(ready.send(())),
                    _ => {}
                }
            }
            Ok(())
        })?;
        started.recv_timeout(PATIENCE).context("no answer to the watch of pods")?;
        Ok(observer)
    }

    fn see(&self, pod: &Pod, gone: bool) {
        let now = Instant::now();
        let Some(app) = pod.labels().get("app") else { return };
        let mut apps = self.apps.lock().expect("no observer panicked");
        let seen = apps.entry(app.clone()).or_default();
        let scheduled = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
        let running = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        if scheduled {
            seen.scheduled.get_or_insert(now);
        }
        if running {
            seen.running.get_or_insert(now);
        }
        if gone {
            seen.gone.get_or_insert(now);
        }
    }

    pub fn get(&self, app: &str) -> Seen {
        self.apps.lock().expect("no observer panicked").get(app).copied().unwrap_or_default()
    }

    /// Waits until all of these run.
    pub fn until_running(&self, apps: &[String], timeout: Duration) -> Result<()> {
        wait_quickly("the pods to run", timeout, || {
            let waiting: Vec<_> = apps.iter().filter(|app| self.get(app).running.is_none()).collect();
            if waiting.is_empty() {
                Ok(())
            } else {
                bail!("{} do not run, among them {}", waiting.len(), waiting[0])
            }
        })
    }
}

/// As `wait_for`, at the pace of milliseconds.
fn wait_quickly(what: &str, timeout: Duration, mut condition: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        match condition() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {timeout:?} for {what}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A client beside the hub that creates objects without delay of its own.
pub struct Applier {
    objects: tokio::sync::mpsc::Sender<Value>,
    done: mpsc::Receiver<Result<Instant, String>>,
}

impl Applier {
    pub fn start(host: &Host) -> Result<Self> {
        let (objects, mut queue) = tokio::sync::mpsc::channel::<Value>(64);
        let (answers, done) = mpsc::channel();
        host.spawn(|client| async move {
            while let Some(object) = queue.recv().await {
                let (client, answers) = (client.clone(), answers.clone());
                tokio::spawn(async move {
                    let asked = Instant::now();
                    let made = create(client, object).await;
                    drop(answers.send(made.map(|()| asked).map_err(|e| format!("{e:#}"))));
                });
            }
            Ok(())
        })?;
        Ok(Self { objects, done })
    }

    /// Creates all of them at once; gives when the first was asked for.
    pub fn create(&self, objects: Vec<Value>) -> Result<Instant> {
        let count = objects.len();
        for object in objects {
            self.objects.blocking_send(object).context("the client ended")?;
        }
        let mut first = None;
        for _ in 0..count {
            let asked = self.done.recv_timeout(PATIENCE)?.map_err(anyhow::Error::msg)?;
            first = Some(first.map_or(asked, |old: Instant| old.min(asked)));
        }
        first.context("nothing to create")
    }
}

async fn create(client: kube::Client, object: Value) -> Result<()> {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// One replica of busybox that runs `command`.
pub fn deployment(name: &str, command: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "args": ["sh", "-c", command],
                "resources": {"requests": {"cpu": "5m", "memory": "4Mi"}}}]}}}})
}

/// The phases of one Deployment's way down and up.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    pub created_to_scheduled: Duration,
    pub scheduled_to_running: Duration,
    pub running_to_seen: Duration,
}

impl Phases {
    pub fn apply_to_running(&self) -> Duration {
        self.created_to_scheduled + self.scheduled_to_running
    }
}

/// Creates one Deployment at the hub and follows it until the hub shows that it runs.
pub fn walk(applier: &Applier, hub: &Observer, site: &Observer, name: &str) -> Result<Phases> {
    let asked = applier.create(vec![deployment(name, "sleep 100000")])?;
    hub.until_running(&[name.to_owned()], PATIENCE)?;
    let (below, above) = (site.get(name), hub.get(name));
    let scheduled = below.scheduled.context("the site showed no scheduled pod")?;
    let running = below.running.context("the site showed no running pod")?;
    let seen = above.running.context("the hub showed no running pod")?;
    Ok(Phases {
        created_to_scheduled: scheduled.saturating_duration_since(asked),
        scheduled_to_running: running.saturating_duration_since(scheduled),
        running_to_seen: seen.saturating_duration_since(running),
    })
}
