//! A machine for a test: a data folder, an image made from busybox, and, if asked for, a node on a real API server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tombolo_net::PodNetwork;
use tombolo_node::embedded::{Embedded, EmbeddedConfig, PodLinks};
use tombolo_node::image::{ImageConfig, Registries, Store};
use tombolo_node::{Listen, Network, Node, NodeConfig, RuntimeChoice, Upkeep};
use tombolo_testkit::{Fixture, Kubectl, Upstream, UpstreamOptions};

pub const BUSYBOX: &str = "localhost/busybox:test";
/// Also the node's name: kube-apiserver dials nodes by name, and nobody resolves names here.
pub const GATEWAY: &str = "10.213.77.1";
const SUBNET: &str = "10.213.77.0/24";
/// As many pods as churn leaves running, the node itself, and three more.
pub const SMALL_SUBNET: &str = "10.213.77.0/28";

/// One API server for all tests of a run: starting it takes seconds.
pub fn upstream() -> Option<&'static Upstream> {
    let start = || {
        let there = tombolo_testkit::require(&[Fixture::Etcd, Fixture::KubeApiserver, Fixture::Kubectl]);
        there.then(|| {
            // Loopback of a new namespace is down; the first bridge brings it up.
            PodNetwork::open("tbrtest", "10.213.99.0/24".parse().expect("subnet")).expect("bridge");
            // kube-apiserver refuses to start on a machine without a default route.
            let route = ["route", "add", "default", "via", "10.213.99.2", "dev", "tbrtest", "onlink"];
            std::process::Command::new("ip").args(route).status().expect("ip (Debian package iproute2)");
            Upstream::start(&UpstreamOptions::default()).expect("etcd and kube-apiserver start")
        })
    };
    UPSTREAM.get_or_init(start).as_ref()
}

/// Ends the API server; statics are not dropped when a program ends.
pub fn stop_upstream() {
    for process in UPSTREAM.get().into_iter().flatten().flat_map(|upstream| &upstream.processes) {
        let pid = nix::unistd::Pid::from_raw(process.pid() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

static UPSTREAM: OnceLock<Option<Upstream>> = OnceLock::new();

pub fn busybox(store: &Store) {
    if store.get(BUSYBOX).is_some() {
        return;
    }
    let program = std::fs::read("/bin/busybox").expect("busybox");
    let applets: Vec<String> = String::from_utf8_lossy(
        &std::process::Command::new("/bin/busybox").arg("--list").output().expect("list").stdout,
    )
    .lines()
    .map(|applet| format!("bin/{applet}"))
    .collect();
    // Files only, no links: every applet is a script that names busybox as its interpreter's argument.
    let script = b"#!/bin/busybox sh\nexec /bin/busybox \"${0##*/}\" \"$@\"\n";
    let mut files: Vec<(&str, u32, &[u8])> =
        applets.iter().map(|path| (path.as_str(), 0o755, script.as_slice())).collect();
    files.retain(|(path, _, _)| !matches!(*path, "bin/busybox" | "bin/sh"));
    files.push(("bin/busybox", 0o755, &program));
    files.push(("bin/sh", 0o755, &program));
    files.push(("bin/sleep", 0o755, &program));
    files.push(("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/:/bin/sh\n"));
    files.push(("etc/group", 0o644, b"root:x:0:\nweb:x:33:\n"));
    files.push(("tmp/.keep", 0o644, b""));
    let config = ImageConfig { cmd: Some(vec!["sh".into()]), ..ImageConfig::default() };
    store.add_builtin(BUSYBOX, &files, config).expect("image");
}

/// A folder of its own, and a check that nothing is left.
pub struct Machine {
    dir: tempfile::TempDir,
    small_disk: bool,
    pub subnet: &'static str,
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.small_disk {
            let _ = nix::mount::umount2(self.dir.path(), nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

impl Machine {
    pub fn new(name: &str) -> Machine {
        Machine {
            dir: tempfile::Builder::new()
                .prefix(&format!("tmbn-{name}-"))
                .tempdir()
                .expect("temporary folder"),
            small_disk: false,
            subnet: SUBNET,
        }
    }

    /// One whose disk has this many MiB.
    pub fn with_small_disk(name: &str, mebibytes: u32) -> Machine {
        let mut machine = Machine::new(name);
        let options = format!("size={mebibytes}m");
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), machine.dir(), Some("tmpfs"), flags, Some(options.as_str()))
            .expect("a small disk");
        machine.small_disk = true;
        machine
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// This very program makes the containers.
    pub fn program() -> PathBuf {
        std::env::current_exe().expect("the test program")
    }

    pub async fn runtime(&self) -> Arc<Embedded> {
        let images = Arc::new(Store::open(self.dir().join("images")).expect("store"));
        busybox(&images);
        let network = PodNetwork::open("tbrruntime", SUBNET.parse().expect("subnet")).expect("bridge");
        let config = EmbeddedConfig {
            root: self.dir().to_owned(),
            id: "runtimetest".into(),
            program: Machine::program(),
            images,
            links: PodLinks::own(network),
            registries: Registries::default(),
        };
        Embedded::start(config).await.expect("runtime")
    }

    /// Nothing of this machine is left: processes, mounts, cgroups, links, rules.
    pub fn assert_clean(&self) {
        let left = tombolo_testkit::traces(self.dir());
        assert!(left.is_empty(), "{} left:\n{}", left.len(), left.join("\n"));
    }
}

/// A node on the real API server.
pub struct Site {
    pub machine: Machine,
    pub client: Client,
    pub name: String,
    pub namespace: String,
    /// What makes containers.
    pub program: PathBuf,
    pub network: Network,
    pub runtime: RuntimeChoice,
    pub upkeep: Upkeep,
    node: Option<(Node, tokio_util::sync::CancellationToken)>,
}

impl Site {
    /// None, with a loud word, where upstream's programs are missing.
    pub async fn start(name: &str) -> Option<Site> {
        Site::start_on(Machine::new(name), name).await
    }

    pub async fn start_on(machine: Machine, name: &str) -> Option<Site> {
        let upstream = upstream()?;
        let kubeconfig = kube::config::Kubeconfig::read_from(&upstream.kubeconfig).expect("kubeconfig");
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("config");
        let client = Client::try_from(config).expect("client");
        let (program, namespace) = (Machine::program(), format!("ns-{name}"));
        let mut site = Site {
            machine,
            client,
            name: GATEWAY.to_owned(),
            namespace,
            program,
            network: Network::Own,
            runtime: RuntimeChoice::Embedded,
            upkeep: Upkeep::default(),
            node: None,
        };
        site.prepare_namespace().await;
        site.boot().await;
        Some(site)
    }

    async fn prepare_namespace(&self) {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        let object =
            serde_json::from_value(json!({"metadata": {"name": self.namespace}})).expect("namespace");
        namespaces.create(&PostParams::default(), &object).await.expect("namespace");
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("account");
        accounts.create(&PostParams::default(), &account).await.expect("account");
        let maps: Api<k8s_openapi::api::core::v1::ConfigMap> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let map =
            json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "not a real authority"}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).expect("map"))
            .await
            .expect("root ca");
    }

    /// Starts the node process's part; `halt` ends it as a crash would.
    pub async fn boot(&mut self) {
        self.node = Some(
            start_node(
                self.client.clone(),
                self.machine.dir(),
                self.machine.subnet,
                &self.program,
                &self.network,
                &self.runtime,
                &self.upkeep,
            )
            .await,
        );
    }

    /// The kubelet API without a port.
    pub fn stream_server(&self) -> tombolo_node::StreamServer {
        self.node.as_ref().expect("a running node").0.stream_server()
    }

    pub fn kubeconfig(&self) -> &Path {
        &upstream().expect("running").kubeconfig
    }

    pub async fn halt(&mut self) {
        if let Some((node, shutdown)) = self.node.take() {
            shutdown.cancel();
            node.stopped().await;
        }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn kubectl(&self) -> Kubectl {
        upstream().expect("running").kubectl()
    }

    /// Creates a pod on this node from a spec with what every pod here needs filled in.
    pub async fn create(&self, name: &str, spec: serde_json::Value) -> Pod {
        let mut pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec});
        pod["spec"]["nodeName"] = self.name.clone().into();
        if pod["spec"]["terminationGracePeriodSeconds"].is_null() {
            pod["spec"]["terminationGracePeriodSeconds"] = 2.into();
        }
        for list in ["containers", "initContainers"] {
            for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
                if container["image"].is_null() {
                    container["image"] = BUSYBOX.into();
                }
            }
        }
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("create")
    }

    /// Waits until the pod satisfies a condition.
    pub async fn until(&self, name: &str, what: &str, condition: impl Fn(&Pod) -> bool) -> Pod {
        let start = Instant::now();
        loop {
            let pod = self.pods().get(name).await.expect("pod");
            if condition(&pod) {
                return pod;
            }
            let status = serde_json::to_string_pretty(&pod.status).unwrap_or_default();
            assert!(start.elapsed() < Duration::from_secs(120), "{name}: not {what} within 120 s: {status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn ready(&self, name: &str) -> Pod {
        self.until(name, "ready", |pod| condition(pod, "Ready") == Some("True")).await
    }

    pub async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("delete");
        let start = Instant::now();
        while self.pods().get_opt(name).await.expect("get").is_some() {
            assert!(start.elapsed() < Duration::from_secs(60), "{name} does not go away");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs kubectl in the test's namespace, off the async threads.
    pub async fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        let kubectl = self.kubectl();
        let mut all: Vec<String> = vec!["-n".into(), self.namespace.clone()];
        all.extend(args.iter().map(|a| (*a).to_owned()));
        let run = move || kubectl.run(&all.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.expect("kubectl ran")
    }

    /// Ends the node and everything it made, and checks that nothing is left.
    pub async fn tear_down(mut self) {
        self.halt().await;
        Node::destroy(self.machine.dir()).await.expect("destroy");
        // The next test's node has the same name: it must not find these.
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = self.pods().delete_collection(&now, &Default::default()).await;
        self.machine.assert_clean();
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        let _ = nodes.delete(&self.name, &DeleteParams::default()).await;
    }
}

/// Starts a node on a data folder as every test here wants it.
pub async fn start_node(
    client: Client,
    dir: &Path,
    subnet: &str,
    program: &Path,
    network: &Network,
    runtime: &RuntimeChoice,
    upkeep: &Upkeep,
) -> (Node, tokio_util::sync::CancellationToken) {
    let mut config = NodeConfig::new(client, GATEWAY, dir);
    config.pod_cidr = Some(subnet.parse().expect("subnet"));
    config.addresses = vec![GATEWAY.parse().expect("address")];
    config.program = Some(program.to_owned());
    config.runtime = runtime.clone();
    config.upkeep = upkeep.clone();
    let address = format!("{GATEWAY}:21510").parse().expect("address");
    // Its address is that of the bridge, which a node with network plugins does not have.
    config.listen = (*network == Network::Own).then_some(Listen {
        address,
        client_ca: None,
        certificate: Default::default(),
    });
    config.network = network.clone();
    let shutdown = config.shutdown.clone();
    busybox(&Store::open(dir.join("images")).expect("store"));
    (Node::start(config).await.expect("node starts"), shutdown)
}

/// A test that failed leaves its pods running: end them, or they disturb the next one.
impl Drop for Site {
    fn drop(&mut self) {
        let Some((node, shutdown)) = self.node.take() else { return };
        shutdown.cancel();
        drop(node);
        let dir = self.machine.dir().to_owned();
        let destroy = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
            let _ = runtime.block_on(Node::destroy(&dir));
        };
        let _ = std::thread::spawn(destroy).join();
        let kubectl = self.kubectl();
        let _ =
            kubectl.run(&["delete", "pods", "--all", "-n", &self.namespace, "--force", "--grace-period=0"]);
    }
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str())
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub async fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "the condition did not come true within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
