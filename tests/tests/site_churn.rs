//! A whole site, API server, controllers, scheduler and node in one process, is killed at random moments while Deployments
//! and Services come and go: what was acknowledged is kept, the API shows what runs, what should run on was not touched,
//! and nothing is left of what went. Needs root.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tombolo_testkit::{Fixture, Kubectl, control_groups, require, wait_for};
use tombolo_tests::machine::Machine;
use tombolo_tests::site::{IMAGE, is_root};

const PATIENCE: Duration = Duration::from_secs(180);
const KILLS: u64 = 20;
const LISTEN: &str = "10.84.0.1:6443";
/// So small that the node has 13 addresses for pods: those that leaked would be missed.
const POD_CIDR: &str = "10.210.0.0/26";
const ADDRESSES: usize = 13;
const ANSWER: Duration = Duration::from_secs(3);

const STEADY: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: steady}
spec: {type: NodePort, selector: {app: steady}, ports: [{port: 80, targetPort: 8080, nodePort: 30084}]}
---
apiVersion: v1
kind: Pod
metadata: {name: steady, labels: {app: steady}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "mkdir /www; echo ahoy > /www/index.html; exec httpd -f -p 8080 -h /www"]
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {medium: Memory}}]
"#;

#[test]
fn a_site_that_is_killed_at_random_moments_keeps_its_word_and_leaks_nothing() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut machine = Machine::new("tsk", Some("10.84.0.1/24"))?;
    let outcome = story(&mut machine);
    machine.end(outcome)
}

fn start(machine: &mut Machine) -> Result<()> {
    let mut command = machine.site_command(LISTEN);
    command.args(["--pod-cidr", POD_CIDR]);
    machine.start(command)
}

fn story(machine: &mut Machine) -> Result<()> {
    // The same moments in every run; TOMBOLO_CHURN is a seed for others.
    let seed = std::env::var("TOMBOLO_CHURN").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    println!("    seed {seed}");
    let mut random = Random(seed);
    start(machine)?;
    machine.until_ready()?;
    machine.import_image()?;
    let kubectl = machine.kubectl();
    wait_for("the steady pod", PATIENCE, || kubectl.apply(&STEADY.replace("IMAGE", IMAGE)))?;
    kubectl.run(&["wait", "pod/steady", "--for=condition=Ready", "--timeout=60s"])?;
    wait_for("a page through its Service", PATIENCE, || page(machine))?;
    let (steady, at_first) = (containers(&kubectl)?, settled(machine)?);

    let churn = Churn::start(machine, seed)?;
    for round in 0..KILLS {
        // Every other time before it is ready, or while it takes up what it finds.
        if round % 2 == 0 {
            machine.until_ready()?;
        }
        std::thread::sleep(Duration::from_millis(100 + random.below(2000)));
        machine.kill();
        start(machine)?;
    }
    machine.until_ready()?;
    let apps = churn.stop()?;
    let gone = apps.iter().filter(|app| app.settled && !app.here).count();
    println!("    {KILLS} kills; {} applications came, {gone} went", apps.len());
    ensure!(gone > 3, "too little happened: {apps:?}");
    kept(&kubectl, &apps)?;
    wait_for("the API and the machine to say the same", PATIENCE, || true_to_life(machine, &kubectl))?;

    // Every address that is not used is free.
    let pods = lines(&kubectl, &["get", "pods", "-o", "name"])?.len();
    let more = ADDRESSES.checked_sub(pods).context("more pods than addresses")?;
    kubectl.run(&[
        "create",
        "deployment",
        "more",
        "--image",
        IMAGE,
        &format!("--replicas={more}"),
        "--",
        "sleep",
        "1000",
    ])?;
    kubectl.run(&["rollout", "status", "deployment/more", "--timeout=120s"])?;
    let used =
        lines(&kubectl, &["get", "pods", "-o", r#"jsonpath={range .items[*]}{.status.podIP}{"\n"}{end}"#])?;
    ensure!(used.iter().collect::<BTreeSet<_>>().len() == ADDRESSES, "{used:?}");

    kubectl.run(&["delete", "deployment", "--all", "--timeout=90s"])?;
    kubectl.run(&["delete", "service", "-l", "churn=yes"])?;
    wait_for("only the steady pod to be left", PATIENCE, || {
        let pods = containers(&kubectl)?;
        ensure!(pods == steady, "{steady} became {pods}");
        let now = traces(machine)?;
        let differ: Vec<_> = now.symmetric_difference(&at_first).collect();
        ensure!(differ.is_empty(), "{differ:#?}");
        Ok(())
    })?;
    page(machine)
}

/// What was acknowledged is so.
fn kept(kubectl: &Kubectl, apps: &[App]) -> Result<()> {
    let there = lines(kubectl, &["get", "deployments,services", "-l", "churn=yes", "-o", "name"])?;
    for (number, app) in apps.iter().enumerate().filter(|(_, app)| app.settled) {
        for kind in ["deployment.apps", "service"] {
            let name = format!("{kind}/{}", name(number));
            match app.here {
                true => ensure!(there.contains(&name), "{name} was created and is lost"),
                false => ensure!(!there.contains(&name), "{name} was deleted and is back"),
            }
        }
    }
    Ok(())
}

/// All that is wanted runs, nothing else does, and each pod has one folder, one link, one cgroup and one shim.
fn true_to_life(machine: &mut Machine, kubectl: &Kubectl) -> Result<()> {
    machine.alive()?;
    let row = r#"jsonpath={range .items[*]}{.metadata.name} {.spec.replicas} {.status.readyReplicas} {.status.updatedReplicas} {.status.replicas}{"\n"}{end}"#;
    let mut wanted = 1;
    for line in lines(kubectl, &["get", "deployments", "-o", row])? {
        let counts: Vec<&str> = line.split(' ').skip(1).collect();
        ensure!(counts.iter().all(|count| *count == counts[0]), "{line}");
        wanted += counts[0].parse::<usize>()?;
    }
    let row = r#"jsonpath={range .items[*]}{.metadata.uid} {.metadata.deletionTimestamp}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
    let pods = lines(kubectl, &["get", "pods", "-o", row])?;
    ensure!(pods.len() == wanted, "{} pods, not {wanted}", pods.len());
    ensure!(pods.iter().all(|pod| pod.ends_with(" True")), "{pods:?}");
    let uids: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.split(' ').next()).collect();
    let folders = names(&machine.data().join("node/pods"));
    ensure!(folders.iter().map(String::as_str).eq(uids.iter().copied()), "{folders:?} for {uids:?}");
    for group in control_groups(&machine.data().join("node")) {
        let pods: Vec<_> = names(&group).into_iter().filter(|name| name.starts_with("pod")).collect();
        ensure!(pods.len() == wanted, "{}: {pods:?}", group.display());
    }
    let traces = machine.traces()?;
    for (what, part) in [("shims", "/bin/shim"), ("links", ": tmb")] {
        let count = traces.iter().filter(|trace| trace.contains(part)).count();
        ensure!(count == wanted, "{count} {what}, not {wanted}: {traces:#?}");
    }
    Ok(())
}

fn lines(kubectl: &Kubectl, args: &[&str]) -> Result<Vec<String>> {
    Ok(kubectl.run(args)?.lines().map(str::to_owned).collect())
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn containers(kubectl: &Kubectl) -> Result<String> {
    let row = r#"jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{"\n"}{end}"#;
    kubectl.run(&["get", "pods", "-o", row])
}

fn page(machine: &Machine) -> Result<()> {
    let words = ["netns", "exec", machine.space(), "curl", "-sf", "-m", "3", "http://10.84.0.1:30084/"];
    let output = Command::new("ip").args(words).output().context("could not start curl")?;
    ensure!(output.stdout == b"ahoy\n", "it is {:?}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Everything that a pod or a Service can leave behind: folders, processes, mounts, cgroups, links, and rules.
fn traces(machine: &Machine) -> Result<BTreeSet<String>> {
    let mut found: BTreeSet<String> = machine.traces()?.into_iter().collect();
    let node = machine.data().join("node");
    found.extend(names(&node.join("pods")).into_iter().map(|name| format!("folder {name}")));
    for group in control_groups(&node) {
        members(&group, &mut found);
    }
    let words = ["netns", "exec", machine.space(), "nft", "list", "ruleset"];
    let rules = Command::new("ip").args(words).output().context("could not start nft")?;
    ensure!(rules.status.success(), "{}", String::from_utf8_lossy(&rules.stderr));
    found.insert(String::from_utf8_lossy(&rules.stdout).into_owned());
    Ok(found)
}

/// Every cgroup below this one, with its processes.
fn members(group: &Path, found: &mut BTreeSet<String>) {
    let pids = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    found.insert(format!("{} {}", group.display(), pids.replace('\n', " ")));
    names(group).iter().for_each(|child| members(&group.join(child), found));
}

/// The traces, once they are the same for a while: probes come and go.
fn settled(machine: &Machine) -> Result<BTreeSet<String>> {
    wait_for("the machine to be calm", PATIENCE, || {
        let before = traces(machine)?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(traces(machine)? == before, "something goes on");
        Ok(before)
    })
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A Deployment and a Service, as their client knows them.
#[derive(Debug)]
struct App {
    /// Whether they were asked for last, or asked to go.
    here: bool,
    /// The API said that it is done.
    settled: bool,
}

/// Somebody who creates and deletes without a pause, whatever becomes of the site.
struct Churn {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<App>>>,
}

impl Churn {
    fn start(machine: &Machine, seed: u64) -> Result<Self> {
        let kubeconfig = kube::config::Kubeconfig::read_from(machine.data().join("admin.kubeconfig"))?;
        let (space, stop) = (machine.space().to_owned(), Arc::new(AtomicBool::new(false)));
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            tombolo_wan::enter(&space)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
                Ok(churn(kube::Client::try_from(config)?, Random(seed), &asked).await)
            })
        });
        Ok(Self { stop, thread })
    }

    fn stop(self) -> Result<Vec<App>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
    }
}

async fn churn(client: kube::Client, mut random: Random, stop: &AtomicBool) -> Vec<App> {
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let services: Api<Service> = Api::default_namespaced(client);
    let mut apps: Vec<App> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // What was not answered is asked again.
        let number = apps.iter().position(|app| !app.settled).unwrap_or_else(|| next(&mut apps, &mut random));
        let (name, delete, create) = (name(number), DeleteParams::default(), PostParams::default());
        apps[number].settled = match apps[number].here {
            true => {
                done(deployments.create(&create, &deployment(number)), CONFLICT).await
                    && done(services.create(&create, &service(number)), CONFLICT).await
            }
            false => {
                done(deployments.delete(&name, &delete), NOT_FOUND).await
                    && done(services.delete(&name, &delete), NOT_FOUND).await
            }
        };
        tokio::time::sleep(Duration::from_millis(20 + random.below(150))).await;
    }
    apps
}

/// One that is new, or one that has to go.
fn next(apps: &mut Vec<App>, random: &mut Random) -> usize {
    let here: Vec<usize> = (0..apps.len()).filter(|number| apps[*number].here).collect();
    if here.len() < 2 || (here.len() < 5 && random.below(2) == 0) {
        apps.push(App { here: true, settled: false });
        return apps.len() - 1;
    }
    let number = here[random.below(here.len() as u64) as usize];
    apps[number] = App { here: false, settled: false };
    number
}

const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// Whether the API says that it is done, now or (with this code) before.
async fn done<T>(request: impl Future<Output = kube::Result<T>>, already: u16) -> bool {
    match tokio::time::timeout(ANSWER, request).await {
        Ok(Ok(_)) => true,
        Ok(Err(kube::Error::Api(status))) => status.code == already,
        _ => false,
    }
}

fn name(number: usize) -> String {
    format!("app-{number}")
}

fn object<T: serde::de::DeserializeOwned>(number: usize, spec: Value) -> T {
    let metadata = json!({"name": name(number), "labels": {"churn": "yes"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("an object")
}

fn deployment(number: usize) -> Deployment {
    let (labels, replicas) = (json!({"app": name(number)}), 1 + number % 2);
    object(
        number,
        json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "100000"],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
            "volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]}}}),
    )
}

fn service(number: usize) -> Service {
    object(number, json!({"selector": {"app": name(number)}, "ports": [{"port": 80}]}))
}
