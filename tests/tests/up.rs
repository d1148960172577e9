//! The first five minutes: `tombolo up` as a new user types it, with real containers. Needs root.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, Upstream, UpstreamOptions, cargo_binary, require, wait_for};
use tombolo_tests::site::is_root;
use tombolo_wan::Namespace;

/// One fleet per machine: its namespaces have fixed names.
static MACHINE: Mutex<()> = Mutex::new(());
/// The goals of the sample fleet on two cores.
const READY_SECONDS: f64 = 15.0;
const MEMORY_MB: u64 = 250;

/// A place for a fleet. Everything `up` made is gone when the test ends, however it ends.
struct Lab {
    data: PathBuf,
    _dir: tempfile::TempDir,
    _machine: MutexGuard<'static, ()>,
}

impl Lab {
    fn open() -> Result<Option<Self>> {
        if !require(&[Fixture::Kubectl]) || !is_root() {
            return Ok(None);
        }
        let machine = MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dir = tempfile::tempdir()?;
        Ok(Some(Self { data: dir.path().join("up"), _dir: dir, _machine: machine }))
    }

    /// A command that takes `--data-dir`.
    fn tombolo(&self, args: &[&str]) -> Result<String> {
        let mut line = args.to_vec();
        let data = self.data.display().to_string();
        line.extend(["--data-dir", &data]);
        tombolo(&line)
    }

    /// A client command, at the hub.
    fn hub(&self, args: &[&str]) -> Result<String> {
        let kubeconfig = self.kubeconfig("hub").display().to_string();
        let mut line = args.to_vec();
        line.extend(["--kubeconfig", &kubeconfig]);
        tombolo(&line)
    }

    fn kubeconfig(&self, member: &str) -> PathBuf {
        self.data.join(member).join("admin.kubeconfig")
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig("hub"))
    }

    /// The process of a member, as the fleet's record has it.
    fn pid(&self, member: &str) -> Result<Option<i64>> {
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.data.join("fleet.json"))?)?;
        let members = record["members"].as_array().context("a list of members")?;
        Ok(members.iter().find(|m| m["name"] == member).and_then(|m| m["pid"].as_i64()))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.tombolo(&["down"]);
    }
}

fn tombolo(args: &[&str]) -> Result<String> {
    let output = Command::new(cargo_binary("tombolo")).args(args).output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "tombolo {}: {text}", args.join(" "));
    Ok(text)
}

/// What a command prints on a terminal; an error if this machine has no `script`, which makes one.
fn on_a_terminal(line: &str) -> std::io::Result<String> {
    let line = format!("{} {line}", cargo_binary("tombolo").display());
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn get(url: &str) -> Result<String> {
    let output = Command::new("curl").args(["-sf", "-m", "3", url]).output()?;
    ensure!(output.status.success(), "{url} does not answer");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// No process, mount, namespace, device or folder of the fleet is left.
fn nothing_is_left(data: &Path) -> Result<()> {
    let path = data.display().to_string();
    ensure!(!data.exists(), "{path} is left behind");
    ensure!(!std::fs::read_to_string("/proc/mounts")?.contains(&path), "mounts are left behind");
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        ensure!(!line.contains(&path), "a process is left behind: {line}");
    }
    for (folder, prefix) in
        [("/run/netns", "tombolo-up"), ("/sys/class/net", "tombolo-up"), ("/run", "tombolo-up")]
    {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let left: Vec<_> = names.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        let left: Vec<_> = left.iter().filter(|name| name.starts_with(prefix)).collect();
        ensure!(left.is_empty(), "left behind in {folder}: {left:?}");
    }
    Ok(())
}

#[test]
fn up_starts_a_fleet_that_serves_and_down_removes_it() -> Result<()> {
    let Some(lab) = Lab::open()? else { return Ok(()) };
    // Things of others on this machine, with names that look like ours.
    let stranger = Namespace::create("tombolo-edge-1")?;
    let shown = lab.tombolo(&["up"])?;
    for part in ["edge-1", "edge-2", "cloud", "KUBECONFIG", "http://", "Five things"] {
        ensure!(shown.contains(part), "no {part:?} in what `up` printed:\n{shown}");
    }
    let flag = format!("tour --data-dir {}", lab.data.display());
    ensure!(shown.contains(&flag), "the hints do not name the folder:\n{shown}");
    let before = |words: &str| shown.split(words).next().and_then(|head| head.rsplit(' ').next());
    let memory = before(" MB of memory").and_then(|text| text.parse().ok());
    let memory: u64 = memory.with_context(|| format!("no memory in {shown}"))?;
    ensure!((10..=MEMORY_MB).contains(&memory), "the fleet takes {memory} MB");
    let seconds = before(" s. The whole fleet").and_then(|text| text.parse().ok());
    let seconds: f64 = seconds.with_context(|| format!("no time in {shown}"))?;
    ensure!(seconds <= READY_SECONDS, "`up` took {seconds} s");
    println!("up: ready after {seconds} s, {memory} MB");
    let hub = lab.kubectl();

    // One node per site, and the pods of all sites.
    let nodes = hub.run(&["get", "nodes", "-o", "name"])?;
    ensure!(nodes.lines().count() == 3, "{nodes}");
    hub.run(&["rollout", "status", "deploy/hello", "--timeout=60s"])?;
    let pods = hub.run(&["get", "pods", "-o", "wide"])?;
    ensure!(["edge-1", "edge-2", "cloud"].iter().all(|site| pods.contains(site)), "{pods}");

    // A second `up` finds the first, and says so when another one is asked for.
    ensure!(lab.tombolo(&["up"])?.contains("up already"));
    ensure!(lab.tombolo(&["up", "--sites", "2"])?.contains("up already"));
    let refused = lab.tombolo(&["up", "--sites", "3", "--wan", "50ms"]).map_err(|error| error.to_string());
    let refused = refused.err().context("`up` took flags that it does not follow")?;
    for part in ["2 edge sites, not 3", "no --wan", "Next: `tombolo down --data-dir"] {
        ensure!(refused.contains(part), "no {part:?} in {refused}");
    }
    ensure!(hub.run(&["get", "nodes", "-o", "name"])?.lines().count() == 3, "{refused}");

    // Who has no kubectl is not sent to it.
    let mut without = Command::new(cargo_binary("tombolo"));
    without.args(["up", "--data-dir", &lab.data.display().to_string()]).env("PATH", "/nonexistent");
    let shown = without.output()?;
    let shown = String::from_utf8_lossy(&shown.stdout);
    ensure!(shown.contains("kubectl is not in your PATH") && shown.contains("http://198.19.77."), "{shown}");
    ensure!(!shown.contains("  kubectl ") && shown.contains("place hello"), "{shown}");

    // The tour shows what it does, and puts things back.
    let toured = lab.tombolo(&["tour", "--yes"])?;
    ensure!(!more_ready_than_wanted(&toured), "the tour shows a site before it has settled:\n{toured}");
    for part in [
        "lab cut edge-1",
        "hello from hello-",
        "edge-1   False",
        "lab mend edge-1",
        "lab kill cloud",
        "cloud    False",
        "lab start cloud",
        "edge-1   3",
        "Everything is as it was",
    ] {
        ensure!(toured.contains(part), "no {part:?} in the tour:\n{toured}");
    }
    ensure!(!hub.run(&["get", "deploy,placement"])?.contains("camera"));

    // Scaling at the hub spreads over the sites; logs reach them.
    hub.run(&["scale", "deploy/hello", "--replicas=9"])?;
    hub.run(&["rollout", "status", "deploy/hello", "--timeout=60s"])?;
    for site in ["edge-1", "edge-2", "cloud"] {
        let selector = format!("spec.nodeName={site}");
        wait_for("three replicas per site", Duration::from_secs(30), || {
            let there = hub.run(&["get", "pods", "--field-selector", &selector, "-o", "name"])?;
            ensure!(there.lines().count() == 3, "{site} has {there}");
            Ok(())
        })?;
    }
    ensure!(hub.run(&["logs", "deploy/hello"])?.contains("hello:"));
    let why = lab.hub(&["explain", "place", "deploy/hello"])?;
    ensure!(why.contains("9 of 9 replicas placed"), "{why}");

    // The hub dies; the edge goes on. A second `up` brings the hub back, and can be interrupted like the first.
    lab.tombolo(&["lab", "kill", "hub"])?;
    let dead = lab.pid("hub")?;
    let mut up = Command::new(cargo_binary("tombolo"))
        .args(["up", "--data-dir", &lab.data.display().to_string()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    wait_for("the hub to be started again", Duration::from_secs(30), || {
        ensure!(lab.pid("hub")? != dead, "it is as dead as before");
        Ok(())
    })?;
    Command::new("kill").args(["-INT", &up.id().to_string()]).status()?;
    let status = up.wait()?;
    let mut said = String::new();
    std::io::Read::read_to_string(&mut up.stderr.take().context("it is piped")?, &mut said)?;
    ensure!(status.code() == Some(130) && said.contains("the fleet stays"), "{status}: {said}");
    lab.tombolo(&["lab", "kill", "hub"])?;
    wait_for("the edge to answer without its hub", Duration::from_secs(5), || {
        get("http://198.19.77.12:30080/text")
    })?;
    let found = lab.tombolo(&["up"])?;
    ensure!(found.contains("hub was dead and runs again"), "{found}");
    hub.until(&["get", "deploy", "hello"], "9/9", Duration::from_secs(60))?;

    // Whoever names another folder is told where the fleet is, and it stays.
    let elsewhere = lab.data.with_file_name("elsewhere").display().to_string();
    for command in ["down", "up"] {
        let refused = tombolo(&[command, "--data-dir", &elsewhere]);
        let named = |e: &anyhow::Error| e.to_string().contains(&lab.data.display().to_string());
        ensure!(refused.as_ref().is_err_and(named), "{command} elsewhere: {refused:?}");
    }
    hub.run(&["get", "deploy", "hello"])?;

    // What is not the fleet's stays.
    let foreign = lab.data.join("notes.txt");
    std::fs::write(&foreign, "mine")?;
    lab.tombolo(&["down"])?;
    ensure!(std::fs::read_to_string(&foreign)? == "mine");
    let refused = lab.tombolo(&["up"]);
    ensure!(refused.is_err_and(|e| e.to_string().contains("not empty")), "`up` uses a folder of others");
    std::fs::remove_dir_all(&lab.data)?;
    ensure!(stranger.path().exists(), "`down` removed the namespace of somebody else");
    nothing_is_left(&lab.data)
}

#[test]
fn an_interrupted_tour_puts_everything_back() -> Result<()> {
    let Some(lab) = Lab::open()? else { return Ok(()) };
    lab.tombolo(&["up"])?;
    let hub = lab.kubectl();
    // As a terminal does it, to the command and to those that it runs: before, while and after things are broken.
    for moment in [300, 1500, 4000, 9000, 16000] {
        let mut tour = Command::new(cargo_binary("tombolo"));
        tour.args(["tour", "--yes", "--data-dir", &lab.data.display().to_string()]).process_group(0);
        let mut tour = tour.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        std::thread::sleep(Duration::from_millis(moment));
        Command::new("kill").args(["-INT", "--", &format!("-{}", tour.id())]).status()?;
        let status = tour.wait()?;
        ensure!(status.code() == Some(130), "after {moment} ms: {status}");
        wait_for("the fleet to be as it was", Duration::from_secs(60), || {
            let sites: serde_json::Value = serde_json::from_str(&lab.hub(&["sites", "-o", "json"])?)?;
            let sites = sites["items"].as_array().context("a list of sites")?;
            let ready = |site: &serde_json::Value| {
                let conditions = site["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
            };
            ensure!(sites.len() == 3 && sites.iter().all(ready), "after {moment} ms: {sites:?}");
            let things = hub.run(&["get", "deploy,placement", "-o", "name"])?;
            ensure!(!things.contains("camera"), "after {moment} ms: {things}");
            Ok(())
        })?;
        for last in [11, 12, 13] {
            wait_for("every site to serve", Duration::from_secs(60), || {
                get(&format!("http://198.19.77.{last}:30080/text"))
            })?;
        }
    }
    // And `down` itself can be interrupted and tried again.
    let mut down = Command::new(cargo_binary("tombolo"))
        .args(["down", "--data-dir", &lab.data.display().to_string()])
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(300));
    Command::new("kill").args(["-INT", &down.id().to_string()]).status()?;
    down.wait()?;
    lab.tombolo(&["down"])?;
    nothing_is_left(&lab.data)
}

/// Sends a signal to an `up` after so many milliseconds, and looks whether anything is left. A terminal that was closed
/// takes no words any more.
fn interrupt(lab: &Lab, flags: &[&str], moment: u64, signal: &str) -> Result<()> {
    let full = || std::fs::File::options().write(true).open("/dev/full");
    let (out, err) = match signal {
        "HUP" => (full()?.into(), full()?.into()),
        _ => (Stdio::null(), Stdio::piped()),
    };
    let mut up = Command::new(cargo_binary("tombolo"))
        .args(["up", "--data-dir", &lab.data.display().to_string()])
        .args(flags)
        .stdout(out)
        .stderr(err)
        .spawn()?;
    std::thread::sleep(Duration::from_millis(moment));
    let kill = Command::new("kill").args([&format!("-{signal}"), &up.id().to_string()]).status()?;
    ensure!(kill.success() || up.try_wait()?.is_some());
    let status = up.wait()?;
    if status.success() {
        // It was faster than us.
        lab.tombolo(&["down"])?;
    } else {
        // Before the program listens for signals, one ends it as any other.
        let expected = status.code() == Some(130) || (moment < 200 && status.code().is_none());
        ensure!(expected, "SIG{signal} after {moment} ms: {status}");
    }
    nothing_is_left(&lab.data).with_context(|| format!("SIG{signal} after {moment} ms"))
}

#[test]
fn an_interrupt_at_any_moment_leaves_nothing_behind() -> Result<()> {
    let Some(lab) = Lab::open()? else { return Ok(()) };
    // From before anything is made until containers run, with each signal that a terminal or a service manager sends.
    let moments = [0, 50, 150, 400, 900, 1800, 2600, 3400];
    for (moment, signal) in moments.into_iter().zip(["INT", "TERM", "HUP"].into_iter().cycle()) {
        interrupt(&lab, &[], moment, signal)?;
    }
    Ok(())
}

#[test]
fn an_interrupt_leaves_nothing_in_the_wide_area_network_and_in_an_existing_cluster() -> Result<()> {
    if !require(&[Fixture::Etcd, Fixture::KubeApiserver, Fixture::KubeControllerManager]) {
        return Ok(());
    }
    let Some(lab) = Lab::open()? else { return Ok(()) };
    let existing = with_namespaces()?;
    let member = existing.kubeconfig.display().to_string();
    let flags = ["--sites", "1", "--wan", "5ms", "--member", &member];
    let moments = [100, 500, 1500, 2500, 3500, 5000];
    for (moment, signal) in moments.into_iter().zip(["INT", "HUP", "TERM"].into_iter().cycle()) {
        interrupt(&lab, &flags, moment, signal)?;
        nothing_is_left_in(&existing).with_context(|| format!("SIG{signal} after {moment} ms"))?;
    }
    Ok(())
}

/// A cluster in which namespaces can go.
fn with_namespaces() -> Result<Upstream> {
    let controllers = Some("namespace-controller".to_owned());
    Upstream::start(&UpstreamOptions { controllers, ..UpstreamOptions::default() })
}

/// Nothing that a hub made, and no namespace of ours.
fn nothing_is_left_in(existing: &Upstream) -> Result<()> {
    let kubectl = existing.kubectl();
    let kinds = "all,configmap,secret,serviceaccount,lease,role,rolebinding";
    let made = kubectl.run(&["get", kinds, "-A", "-l", "tombolo.dev/hub", "-o", "name"])?;
    ensure!(made.trim().is_empty(), "left in the existing cluster: {made}");
    wait_for("our namespace to go", Duration::from_secs(30), || {
        let phase = ["get", "ns", "tombolo-system", "--ignore-not-found", "-o", "jsonpath={.status.phase}"];
        let phase = kubectl.run(&phase)?;
        ensure!(phase.is_empty(), "namespace tombolo-system is {phase}");
        Ok(())
    })
}

/// `up` with an existing cluster, in which something was placed.
fn up_with(lab: &Lab, existing: &Upstream, kubeconfig: &Path) -> Result<()> {
    lab.tombolo(&["up", "--sites", "1", "--member", &kubeconfig.display().to_string()])?;
    lab.kubectl().apply(NOTE)?;
    existing.kubectl().until(&["get", "configmap"], "note", Duration::from_secs(60))?;
    Ok(())
}

const NOTE: &str = "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: there}\nspec:\n  objects: [{kind: ConfigMap, name: note}]\n  sites: {names: [member-1]}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {a: '1'}\n";

#[test]
fn a_fleet_goes_though_its_existing_cluster_is_gone() -> Result<()> {
    if !require(&[Fixture::Etcd, Fixture::KubeApiserver, Fixture::KubeControllerManager]) {
        return Ok(());
    }
    let Some(lab) = Lab::open()? else { return Ok(()) };
    let mut existing = with_namespaces()?;
    let dir = tempfile::tempdir()?;
    let (config, away) = (dir.path().join("config"), dir.path().join("away"));
    std::fs::copy(&existing.kubeconfig, &config)?;

    // Its kubeconfig was moved: what `down` says is what cleans it up.
    up_with(&lab, &existing, &config)?;
    std::fs::rename(&config, &away)?;
    let said = lab.tombolo(&["down"])?;
    nothing_is_left(&lab.data)?;
    ensure!(said.contains("warning: ") && said.contains("The sample fleet is gone."), "{said}");
    ensure!(existing.kubectl().run(&["get", "cm", "-o", "name"])?.contains("note"), "{said}");
    std::fs::rename(&away, &config)?;
    let next = said.lines().find(|line| line.contains(" leave https://")).context("no next step")?;
    let typed = Command::new("bash").args(["-c", next]).output()?;
    ensure!(typed.status.success(), "{next}: {}", String::from_utf8_lossy(&typed.stderr));
    nothing_is_left_in(&existing)?;

    // It is gone for good.
    up_with(&lab, &existing, &existing.kubeconfig.clone())?;
    existing.processes.iter_mut().for_each(tombolo_testkit::Process::kill);
    let said = lab.tombolo(&["down"])?;
    ensure!(said.contains("the cluster of member-1 is not cleaned up"), "{said}");
    nothing_is_left(&lab.data)?;

    // A new fleet is not begun with it.
    let refused = lab.tombolo(&["up", "--member", &existing.kubeconfig.display().to_string()]);
    let refused = refused.err().context("`up` took a dead cluster")?.to_string();
    ensure!(refused.contains("cannot use the cluster of"), "{refused}");
    nothing_is_left(&lab.data)
}

/// Whether a table of `tombolo place` in the text has a site with more pods ready than it shall have.
fn more_ready_than_wanted(text: &str) -> bool {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let numbers = rows.filter_map(|row| match row[..] {
        ["deployment/hello", _, _, replicas, ready, ..] => {
            Some((replicas.parse::<u32>().ok()?, ready.trim_end_matches('?').parse::<u32>().ok()?))
        }
        _ => None,
    });
    numbers.into_iter().any(|(replicas, ready)| ready > replicas)
}

#[test]
fn up_makes_it_bigger_farther_and_takes_in_an_existing_cluster() -> Result<()> {
    if !require(&[Fixture::Etcd, Fixture::KubeApiserver, Fixture::KubeControllerManager]) {
        return Ok(());
    }
    let Some(lab) = Lab::open()? else { return Ok(()) };
    let existing = with_namespaces()?;
    let member = existing.kubeconfig.display().to_string();
    let shown = lab.tombolo(&["up", "--sites", "3", "--wan", "50ms,1%", "--member", &member])?;
    for part in ["edge-3", "member-1", "50ms,1%"] {
        ensure!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    let hub = lab.kubectl();
    // A round trip crosses the link twice.
    wait_for("a measured round trip of 100 ms", Duration::from_secs(60), || {
        let sites: serde_json::Value = serde_json::from_str(&lab.hub(&["sites", "-o", "json"])?)?;
        let sites = sites["items"].as_array().context("a list of sites")?;
        let edge = sites.iter().find(|s| s["metadata"]["name"] == "edge-3").context("edge-3")?;
        let latency = edge["status"]["latency"].as_str().unwrap_or_default();
        let milliseconds: u64 = latency.trim_end_matches("ms").parse()?;
        ensure!(milliseconds >= 100, "measured {latency}");
        Ok(())
    })?;
    // The sample stays off the cluster that lacks its image; other things can be placed there, and go with `down`.
    hub.apply(NOTE)?;
    existing.kubectl().until(&["get", "configmap"], "note", Duration::from_secs(60))?;
    ensure!(!existing.kubectl().run(&["get", "deploy"])?.contains("hello"));

    // The emulated network can be cut as well.
    lab.tombolo(&["lab", "cut", "edge-3"])?;
    hub.until(&["get", "node", "edge-3"], "NotReady", Duration::from_secs(60))?;
    ensure!(lab.tombolo(&["lab", "fetch", "edge-3"])?.contains("at edge-3"));
    let word = "jsonpath={.status.lastHeard} {.status.conditions[?(@.type=='Ready')].message}";
    let word = hub.run(&["get", "site", "edge-3", "-o", word])?;
    let (heard, said) = word.split_once(' ').context("two parts")?;
    ensure!(said.contains(&format!("not heard since {heard}")), "last heard {heard}, but {said}");
    lab.tombolo(&["lab", "mend", "edge-3"])?;
    hub.until(&["get", "node", "edge-3"], " Ready", Duration::from_secs(60))?;

    // On a terminal it shows how far it is.
    match on_a_terminal(&format!("down --data-dir {}", lab.data.display())) {
        Ok(shown) => {
            ensure!(shown.contains("3 of 4 sites are empty") && shown.contains("is gone"), "{shown}")
        }
        Err(error) => {
            eprintln!("SKIPPED: no terminal can be had ({error})");
            lab.tombolo(&["down"])?;
        }
    }
    nothing_is_left(&lab.data)?;
    nothing_is_left_in(&existing)
}

#[test]
fn without_root_up_says_what_it_cannot_do() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    // A copy, because the folder of the build may be closed to others.
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()?;
    let program = dir.path().join("tombolo");
    std::fs::copy(cargo_binary("tombolo"), &program)?;
    let mut command = Command::new(&program);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let output = command.arg("up").output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{text}");
    for part in ["needs root", "network namespaces", "overlayfs", "cgroups", "nftables", "Next: ", "sudo"] {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}
