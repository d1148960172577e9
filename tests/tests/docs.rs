//! The commands of the book run, as somebody types them who reads it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Lan, Tombolo, Upstream, UpstreamOptions, cargo_binary, free_port, require};
use tombolo_tests::book::{commands, pages, root, script};
use tombolo_tests::etcd::Etcd;
use tombolo_tests::site::is_root;
use tombolo_wan::Link;

/// The pages whose commands are typed by a test of this file. Blocks of others say `not-run`.
const RUN: &[&str] = &[
    "README.md",
    "docs/try.md",
    "docs/howto/edge-box.md",
    "docs/howto/edge-first.md",
    "docs/howto/failover.md",
    "docs/howto/high-availability.md",
    "docs/howto/join-kubernetes.md",
    "docs/howto/more-nodes.md",
    "docs/howto/observe.md",
    "docs/howto/overrides.md",
    "docs/operate/backup.md",
    "docs/operate/trouble.md",
    "docs/operate/upgrade.md",
];

#[test]
fn every_command_of_a_page_runs_or_says_that_it_does_not() -> Result<()> {
    let own = include_str!("docs.rs");
    let mut faults = Vec::new();
    for page in pages().into_iter().chain([root().join("README.md")]) {
        let name = page.strip_prefix(root())?.display().to_string();
        let typed = commands(&std::fs::read_to_string(&page)?);
        match (typed.first(), RUN.contains(&name.as_str())) {
            (Some(first), false) => faults.push(format!(
                "{name}, line {}: no test types this; mark the block `console,not-run`, or run the page here",
                first.line
            )),
            (None, true) => {
                faults.push(format!("{name} has no commands, and is in the list of those that run"))
            }
            _ => {}
        }
    }
    // Once in the list, once where it is run.
    let unused = RUN.iter().filter(|page| own.matches(&format!("\"{page}\"")).count() < 2);
    faults.extend(unused.map(|page| format!("{page} is in the list of those that run, and no test runs it")));
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

fn run(page: &str, replace: &[(&str, &str)], kubeconfig: Option<&Path>) -> Result<()> {
    ensure!(RUN.contains(&page), "{page} is not in the list of pages that run");
    let text = std::fs::read_to_string(root().join(page))?;
    let script = script(&text, replace);
    let folder = |path: PathBuf| path.parent().map(Path::to_owned).unwrap_or_default();
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = [folder(cargo_binary("tombolo")), folder(Fixture::Kubectl.must())];
    let path = std::env::join_paths(path.into_iter().chain(std::env::split_paths(&old)))?;
    let mut command = Command::new("bash");
    command.arg("-c").arg(&script).current_dir(root()).env("PATH", path).env_remove("KUBECONFIG");
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let output = command.output()?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{page} does not work as written:\n{said}");
    println!("{page}:\n{said}");
    Ok(())
}

/// The fleet of the tutorials, gone when the test ends.
struct Fleet;

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = Command::new(cargo_binary("tombolo")).arg("down").output();
    }
}

#[test]
fn the_commands_of_the_tutorials_run() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let _fleet = Fleet;
    // The page builds and calls the program by its path; the one under test takes its place.
    let program = cargo_binary("tombolo").display().to_string();
    let built = [("sudo ./target/release/tombolo", program.as_str()), ("cargo build --release", "true")];
    run("docs/try.md", &built, None)?;

    let up = Command::new(cargo_binary("tombolo")).arg("up").output()?;
    ensure!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let hub = Path::new("/var/lib/tombolo/up/hub/admin.kubeconfig");
    for page in [
        "docs/howto/edge-first.md",
        "docs/howto/overrides.md",
        "docs/howto/failover.md",
        "docs/howto/observe.md",
    ] {
        run(page, &[], Some(hub))?;
    }
    let down = Command::new(cargo_binary("tombolo")).arg("down").output()?;
    ensure!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));

    // No terminal is here in which somebody would press Enter, and all tests are run by who runs this one.
    let built = [
        ("cargo run --release -- up", &*format!("{program} up")),
        ("./target/release/tombolo tour", &format!("{program} tour --yes")),
        ("./target/release/tombolo", &program),
        ("cargo xtask test", "true"),
    ];
    run("README.md", &built, None)
}

fn url_of(hub: &Tombolo) -> Result<String> {
    let config = std::fs::read_to_string(&hub.kubeconfig)?;
    let server = config.lines().find_map(|line| line.trim().strip_prefix("server: "));
    Ok(server.context("a server")?.to_owned())
}

#[test]
fn the_commands_for_joining_a_kubernetes_cluster_run() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd, Fixture::KubeApiserver]) {
        return Ok(());
    }
    let member = Upstream::start(&UpstreamOptions::default())?;
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let url = url_of(&hub)?;
    let kubeconfig = member.kubeconfig.display().to_string();
    let replace =
        [("https://hub.example.com:6443", url.as_str()), ("member.kubeconfig", kubeconfig.as_str())];
    run("docs/howto/join-kubernetes.md", &replace, Some(&hub.kubeconfig))
}

#[test]
fn the_commands_for_an_edge_box_and_for_backups_run() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (hub, site, backup) = (at("hub"), at("site"), at("backup"));
    let hub_address = format!("127.0.0.1:{}", free_port());
    let site_flags = format!("{site} --listen 127.0.0.1:{}", free_port());
    // Two machines on one: other folders and ports, and no containers.
    let replace = [
        ("192.0.2.10:6443", hub_address.as_str()),
        (
            "--data-dir /var/lib/tombolo/site --name harbour --node",
            &format!("--data-dir {site_flags} --name harbour"),
        ),
        ("/var/lib/tombolo/hub", hub.as_str()),
        ("/var/lib/tombolo/site", site.as_str()),
        ("/backup", backup.as_str()),
    ];
    run("docs/howto/edge-box.md", &replace, None)?;
    // The page about backups is read where the hub of the other page has run, by somebody without systemd.
    let without_systemd = [("systemctl stop tombolo-hub", "true"), ("systemctl start tombolo-hub", "true")];
    let replace: Vec<_> = replace.into_iter().chain(without_systemd).collect();
    run("docs/operate/backup.md", &replace, None)
}

#[test]
fn the_commands_for_more_nodes_run() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    // This thread, and with it the shell that types the page, is at a desk of its own in the same network.
    let mut lan = Lan::start("tdn", [198, 18, 76], dir.path(), Link::default())?;
    let (site_host, node_host) = (lan.host("box")?, lan.host("camera")?);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (site, node) = (at("site"), at("node"));
    let address = format!("{}:6443", site_host.address);
    let wipe = format!("tombolo wipe --netns {} --data-dir", node_host.netns());
    let replace = [
        ("--listen 192.0.2.20:6443", &*format!("--listen {address} --netns {}", site_host.netns())),
        ("--name camera-7", &format!("--name camera-7 --netns {}", node_host.netns())),
        ("tombolo wipe --data-dir", &wipe),
        ("192.0.2.20:6443", &address),
        ("/var/lib/tombolo/site", &site),
        ("/var/lib/tombolo/node", &node),
        // The second that goes on in the background is the node.
        ("systemctl stop tombolo-node", "kill ${background[1]}; wait ${background[1]}"),
    ];
    let outcome = run("docs/howto/more-nodes.md", &replace, None);
    for (data, host) in [(site, site_host), (node, node_host)] {
        let line = ["wipe", "--data-dir", &data, "--netns", host.netns()];
        let wiped = Command::new(cargo_binary("tombolo")).args(line).output()?;
        let folder = PathBuf::from(&data);
        let left = host.run(move || tombolo_testkit::traces(&folder))?;
        ensure!(wiped.status.success() && left.is_empty(), "{left:?} of {data}");
    }
    outcome
}

#[test]
fn the_commands_for_high_availability_run() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let etcd = Etcd::start(dir.path(), Ipv4Addr::LOCALHOST)?;
    // Two machines on one: other folders and ports.
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (a, b) = (at("a"), at("b"));
    let (port_a, port_b) = (free_port(), free_port());
    let second = format!("{b} --listen 127.0.0.1:{port_b}");
    let second_config = format!("{b}/admin.kubeconfig get configmap told");
    let first_address = format!("127.0.0.1:{port_a}");
    let replace = [
        ("/var/lib/tombolo/hub --listen 192.0.2.12:6443", second.as_str()),
        ("/var/lib/tombolo/hub/admin.kubeconfig get configmap told", &second_config),
        ("/var/lib/tombolo/hub", &a),
        ("192.0.2.11:6443", &first_address),
        ("http://192.0.2.21:2379,http://192.0.2.22:2379,http://192.0.2.23:2379", &etcd.url),
    ];
    run("docs/howto/high-availability.md", &replace, None)
}

/// A hub of which a command on a page says that it is restarted.
struct Restarted {
    dir: tempfile::TempDir,
}

impl Restarted {
    /// systemd's part, for a machine that has none: the program of this folder, with one and the same address.
    const SCRIPT: &str = "#!/bin/bash\ncd \"$(dirname \"$0\")\"\n[ -e pid ] && kill \"$(cat pid)\" && while kill -0 \"$(cat pid)\" 2>/dev/null; do sleep 0.1; done\nrm -f hub/admin.kubeconfig\nsetsid bin/tombolo hub --data-dir hub --listen ADDRESS >log 2>&1 &\necho $! >pid\nfor _ in $(seq 100); do [ -e hub/admin.kubeconfig ] && exit 0; sleep 0.1; done\ncat log\nexit 1\n";

    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join("bin"))?;
        std::fs::copy(cargo_binary("tombolo"), dir.path().join("bin/tombolo"))?;
        let address = format!("127.0.0.1:{}", free_port());
        std::fs::write(dir.path().join("restart"), Self::SCRIPT.replace("ADDRESS", &address))?;
        let hub = Self { dir };
        let started = Command::new("bash").arg(hub.at("restart")).output()?;
        ensure!(started.status.success(), "{}", String::from_utf8_lossy(&started.stdout));
        Ok(hub)
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn pid(&self) -> String {
        std::fs::read_to_string(self.at("pid")).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.pid()]).status();
    }
}

#[test]
fn the_commands_for_upgrades_run() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let hub = Restarted::start()?;
    let before = hub.pid();
    let kubectl = tombolo_testkit::Kubectl::new(Path::new(&hub.at("hub/admin.kubeconfig")));
    kubectl.run(&["create", "configmap", "kept", "--from-literal=a=1"])?;
    let new = cargo_binary("tombolo").display().to_string();
    let restart = format!("bash {}", hub.at("restart"));
    let replace = [
        (
            "install -m 755 tombolo /usr/local/bin/tombolo",
            &*format!("install -m 755 {new} {}", hub.at("bin/tombolo")),
        ),
        ("systemctl restart tombolo-hub", &restart),
        ("/var/lib/tombolo/hub", &hub.at("hub")),
        ("/backup/before", &hub.at("before")),
    ];
    run("docs/operate/upgrade.md", &replace, None)?;
    ensure!(hub.pid() != before, "nothing was restarted");
    ensure!(kubectl.run(&["get", "cm", "kept", "-o", "jsonpath={.data.a}"])? == "1");
    Ok(())
}

#[test]
fn the_commands_for_trouble_run() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let site = Tombolo::start("site", dir.path(), &["--listen", "127.0.0.1:0", "--name", "harbour"])?;
    site.kubectl().add_node("n1", 110)?;
    site.join(&hub, "harbour")?;
    hub.kubectl().run(&["create", "deployment", "web", "--image=example.com/web"])?;
    let kubeconfig = site.kubeconfig.display().to_string();
    let replace = [
        ("/var/lib/tombolo/site/admin.kubeconfig", kubeconfig.as_str()),
        ("https://192.0.2.10:6443", &url_of(&hub)?),
    ];
    run("docs/operate/trouble.md", &replace, Some(&hub.kubeconfig))
}
