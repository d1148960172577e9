//! The book cannot rot: its reference is made from the program, its links lead somewhere, its commands run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{
    Fixture, Lan, Process, Tombolo, Upstream, UpstreamOptions, cargo_binary, free_port, require, wait_for,
};
use tombolo_wan::Link;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn the_reference_is_current() -> Result<()> {
    for page in ["commands", "resources"] {
        let made = Command::new(cargo_binary("tombolo")).args(["reference", page]).output()?;
        let kept = std::fs::read(root().join(format!("docs/reference/{page}.md")))?;
        ensure!(
            made.stdout == kept,
            "docs/reference/{page}.md is not current; run `cargo xtask docs` and commit it"
        );
    }
    Ok(())
}

#[test]
fn every_metric_is_on_the_page_about_observing() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let metrics = hub.kubectl().run(&["get", "--raw", "/metrics"])?;
    let names: Vec<_> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_whitespace().next().map(str::to_owned))
        .collect();
    ensure!(names.len() >= 6, "{metrics}");
    let page = std::fs::read_to_string(root().join("docs/howto/observe.md"))?;
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("| `{name}"))).collect();
    ensure!(missing.is_empty(), "docs/howto/observe.md does not name {missing:?}");
    Ok(())
}

/// As GitHub and mdBook make them.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_page_is_in_the_summary_and_every_link_leads_somewhere() -> Result<()> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md"))?;
    let mut faults = Vec::new();
    let mut pages = pages();
    pages.push(root().join("README.md"));
    pages.push(root().join("CONTRIBUTING.md"));
    for page in &pages {
        let shown = page.strip_prefix(root())?.display().to_string();
        let in_book = shown.strip_prefix("docs/");
        if let Some(name) = in_book
            && name != "SUMMARY.md"
            && !summary.contains(&format!("({name})"))
        {
            faults.push(format!("{shown} is not in SUMMARY.md"));
        }
        let text = std::fs::read_to_string(page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") || link.contains(' ') {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().context("a page has a folder")?.join(file)
            };
            if !target.exists() {
                faults.push(format!("{shown}: {link} leads nowhere"));
            } else if !place.is_empty() {
                let there = std::fs::read_to_string(&target).unwrap_or_default();
                if !there.lines().any(|line| line.starts_with('#') && anchor(line) == place) {
                    faults.push(format!("{shown}: {link} has no such heading"));
                }
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// A command of a page, with how it is run.
#[derive(Debug)]
struct Typed {
    line: usize,
    command: String,
    how: How,
    /// What the page shows below it.
    shown: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// It must succeed.
    Runs,
    /// It goes on while the rest of the page is read (` ```console,background `).
    Background,
    /// It must fail (` ```console,fails `).
    Fails,
}

/// The commands of a page: lines with a prompt in blocks of `console`, unless the block says `not-run`.
fn commands(page: &str) -> Vec<Typed> {
    let mut found: Vec<Typed> = Vec::new();
    let mut block: Option<How> = None;
    let mut goes_on = false;
    for (number, line) in page.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            block = match (block, info) {
                (None, "console") => Some(How::Runs),
                (None, "console,background") => Some(How::Background),
                (None, "console,fails") => Some(How::Fails),
                _ => None,
            };
            goes_on = false;
            continue;
        }
        let Some(how) = block else { continue };
        let prompt = line.find(['#', '$']).filter(|at| line[..*at].chars().all(|c| c.is_ascii_lowercase()));
        let typed = prompt.and_then(|at| line[at + 1..].strip_prefix(' '));
        match (goes_on, typed) {
            (true, _) => {
                let last = found.last_mut().expect("a command goes on");
                last.command.push('\n');
                last.command.push_str(line);
            }
            (false, Some(command)) => {
                found.push(Typed {
                    line: number + 1,
                    command: command.to_owned(),
                    how,
                    shown: String::new(),
                });
            }
            (false, None) => {
                if let Some(last) = found.last_mut() {
                    last.shown.push_str(line);
                    last.shown.push('\n');
                }
                continue;
            }
        }
        goes_on = line.ends_with('\\');
    }
    found
}

/// One shell types the whole page. Tokens on it are examples; the one that `token create` printed last takes their place.
fn script(page: &str, replace: &[(&str, &str)]) -> String {
    let mut out =
        String::from("set -u\nbackground=()\ntrap 'kill \"${background[@]}\" 2>/dev/null; wait' EXIT\n");
    for typed in commands(page) {
        let mut command = typed.command.clone();
        for (from, to) in replace {
            command = command.replace(from, to);
        }
        let command = with_variables(&command);
        let name = format!("line {}: {}", typed.line, typed.command.lines().next().unwrap_or_default());
        let name = name.replace('\'', "");
        out.push_str(&format!("echo '>>> {name}'\n"));
        match typed.how {
            How::Runs if command.contains("token create") => out.push_str(&format!(
                "join=$({command}\n) || {{ echo 'FAILED: {name}'; exit 1; }}\nTOKEN=$(sed 's/.*--token \\([^ ]*\\).*/\\1/' <<<\"$join\")\nCA_HASH=$(sed 's/.*--ca-hash \\([^ ]*\\).*/\\1/' <<<\"$join\")\n"
            )),
            // On a line of its own: the command may end in a comment.
            How::Runs => {
                out.push_str(&format!("{command}\n[ $? = 0 ] || {{ echo 'FAILED: {name}'; exit 1; }}\n"));
            }
            How::Fails => {
                out.push_str(&format!("{command}\n[ $? != 0 ] || {{ echo 'SUCCEEDED: {name}'; exit 1; }}\n"));
            }
            How::Background => {
                // It is there when it says what the page shows it saying.
                let last = typed.shown.lines().last().unwrap_or_default();
                let sign: String = last.split_whitespace().filter(|w| *w != "...").take(2).collect::<Vec<_>>().join(" ");
                out.push_str(&format!(
                    "log=$(mktemp)\n{command} >$log 2>&1 &\nbackground+=($!)\nfor _ in $(seq 300); do grep -q '{sign}' $log && break; sleep 0.2; done\ncat $log\ngrep -q '{sign}' $log || {{ echo 'FAILED: {name}'; exit 1; }}\n"
                ));
            }
        }
    }
    out
}

/// Example tokens and hashes become what was printed in this run.
fn with_variables(command: &str) -> String {
    let mut words = Vec::new();
    for word in command.split(' ') {
        let is_token = word.split_once('.').is_some_and(|(id, rest)| id.len() == 6 && rest.len() == 16);
        words.push(match word {
            _ if is_token => "$TOKEN",
            _ if word.starts_with("sha256:") => "$CA_HASH",
            _ => word,
        });
    }
    words.join(" ")
}

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

#[test]
fn commands_are_found_with_their_continuations_and_prompts() {
    let page = "text\n```console\n# one --flag \\\n    more\noutput\nbox$ two\n```\n```console,not-run\n# three\n```\n```console,fails\n$ four\n```\n";
    let found = commands(page);
    let typed: Vec<_> = found.iter().map(|t| (t.command.as_str(), t.how)).collect();
    assert_eq!(typed, [("one --flag \\\n    more", How::Runs), ("two", How::Runs), ("four", How::Fails)]);
    assert_eq!(found[0].shown, "output\n");
    assert_eq!(with_variables("join --token c73316.4e7484b9c4580f18 x"), "join --token $TOKEN x");
}

#[test]
fn a_command_that_fails_is_noticed_though_a_comment_follows_it() -> Result<()> {
    let ends_well = |page: &str| -> Result<bool> {
        Ok(Command::new("bash").arg("-c").arg(script(page, &[])).output()?.status.success())
    };
    ensure!(ends_well("```console\n# true    # a comment\n```\n")?);
    ensure!(!ends_well("```console\n# false    # a comment\n# true\n```\n")?);
    ensure!(!ends_well("```console,fails\n# true    # a comment\n```\n")?);
    Ok(())
}

/// The fleet of the tutorials, gone when the test ends.
struct Fleet;

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = Command::new(cargo_binary("tombolo")).arg("down").output();
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    let root = id.is_ok_and(|id| String::from_utf8_lossy(&id.stdout).trim() == "0");
    assert!(root || std::env::var_os("CI").is_none(), "CI must run this as root");
    root
}

#[test]
fn the_commands_of_the_tutorials_run() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    if !is_root() {
        eprintln!("SKIPPED: the tutorials need root");
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

#[test]
fn the_commands_for_joining_a_kubernetes_cluster_run() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::Etcd, Fixture::KubeApiserver]) {
        return Ok(());
    }
    let member = Upstream::start(&UpstreamOptions::default())?;
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let config = std::fs::read_to_string(&hub.kubeconfig)?;
    let url =
        config.lines().find_map(|line| line.trim().strip_prefix("server: ")).context("a server")?.to_owned();
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
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    if !is_root() {
        eprintln!("SKIPPED: nodes need root");
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
    let etcd = format!("127.0.0.1:{}", free_port());
    let url = format!("http://{etcd}");
    let mut command = Command::new(Fixture::Etcd.must());
    command.arg("--data-dir").arg(dir.path().join("etcd")).args(["--log-level", "error"]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())]);
    let _etcd = Process::start("etcd", command, dir.path())?;
    wait_for("etcd to listen", Duration::from_secs(30), || {
        Ok(std::net::TcpStream::connect(&etcd).map(drop)?)
    })?;
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
        ("http://192.0.2.21:2379,http://192.0.2.22:2379,http://192.0.2.23:2379", &url),
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
    let line = tombolo_testkit::tombolo(&hub.kubeconfig, &["token", "create"])?;
    let ticket = tombolo_tests::chart::Ticket::read(&line)?;
    let join = ["join", &ticket.url, "--token", &ticket.token, "--ca-hash", &ticket.ca_hash];
    tombolo_testkit::tombolo(&site.kubeconfig, &[&join[..], &["--name", "harbour"]].concat())?;
    let kubectl = hub.kubectl();
    kubectl.until(&["get", "sites"], "True", Duration::from_secs(60))?;
    kubectl.run(&["create", "deployment", "web", "--image=example.com/web"])?;
    let kubeconfig = site.kubeconfig.display().to_string();
    let replace = [
        ("/var/lib/tombolo/site/admin.kubeconfig", kubeconfig.as_str()),
        ("https://192.0.2.10:6443", &ticket.url),
    ];
    run("docs/operate/trouble.md", &replace, Some(&hub.kubeconfig))
}
