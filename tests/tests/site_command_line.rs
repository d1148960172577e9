//! `tombolo site`, `node` and `image` as somebody types them who gets something wrong, or wants other addresses.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Image, Process, Tombolo, cargo_binary, require, tombolo, wait_for};
use tombolo_tests::machine::Machine;
use tombolo_tests::site::{IMAGE, is_root};

const PATIENCE: Duration = Duration::from_secs(120);
const NOBODY: u32 = 65534;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_needs_root_says_so_in_one_line_and_leaves_nothing() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    // Nobody may write here, as root does not let everybody into its folders.
    let data = dir.path().join("data").display().to_string();
    std::fs::write(dir.path().join("kubeconfig"), "")?;
    let kubeconfig = dir.path().join("kubeconfig").display().to_string();
    // Copied to where everybody may start it.
    let program = dir.path().join("tombolo");
    std::fs::copy(cargo_binary("tombolo"), &program)?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open)?;
    for command in [
        vec!["site", "--node", "--listen", "127.0.0.1:0"],
        vec!["node", "--kubeconfig", &kubeconfig],
        vec!["node", "--join", "https://127.0.0.1:1", "--token", "abcdef.0123456789abcdef"],
    ] {
        let output = Command::new(&program)
            .args(&command)
            .args(["--data-dir", &data])
            .uid(NOBODY)
            .gid(NOBODY)
            .output()?;
        let said = text(&output);
        ensure!(output.status.code() == Some(2), "{command:?}: {:?}: {said}", output.status);
        ensure!(said.contains("needs root") && said.contains("CAP_SYS_ADMIN"), "{command:?}: {said}");
        ensure!(said.trim_end().lines().count() == 1, "{command:?}: more than one line: {said}");
        ensure!(!Path::new(&data).exists(), "{command:?} left something");
    }
    Ok(())
}

#[test]
fn a_newcomer_whose_name_is_taken_says_so_long_before_a_minute_is_over() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let site = Tombolo::start("site", dir.path(), &["--listen", "127.0.0.1:0"])?;
    site.kubectl().apply("{apiVersion: v1, kind: Node, metadata: {name: camera-7}}")?;
    let line = tombolo(&site.kubeconfig, &["token", "create", "--node"])?;
    let data = dir.path().join("node").display().to_string();
    let folder = |word: &str| if word.starts_with("/var/lib") { data.clone() } else { word.to_owned() };
    let mut newcomer = Command::new(cargo_binary("tombolo"));
    newcomer.args(line.split_whitespace().skip(1).map(folder)).args(["--name", "camera-7"]);
    let newcomer = Process::start("newcomer", newcomer, dir.path())?;
    wait_for("the newcomer to say why it waits", Duration::from_secs(20), || {
        let said = newcomer.log();
        ensure!(said.contains("node camera-7 exists already"), "{said}");
        ensure!(said.contains("--name") && said.contains("kubectl delete node camera-7"), "{said}");
        ensure!(said.contains("kubectl certificate approve"), "{said}");
        Ok(())
    })
}

#[test]
fn a_site_uses_the_networks_it_was_given_and_says_which_port_is_taken() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut machine = Machine::new("tsc", Some("10.82.0.1/24"))?;
    let outcome = networks(&mut machine).and_then(|()| taken_ports(&mut machine));
    machine.end(outcome)
}

/// The kubelet port is the same for every site of a machine.
fn taken_ports(machine: &mut Machine) -> Result<()> {
    let data = machine.other_data("second");
    for listen in ["10.82.0.1:6443", "10.82.0.1:7443"] {
        let mut second = Command::new(cargo_binary("tombolo"));
        second.args(["site", "--node", "--name", "box", "--listen", listen, "--netns", machine.space()]);
        let output = second.arg("--data-dir").arg(&data).output()?;
        let said = text(&output);
        ensure!(output.status.code() == Some(2), "{:?}: {said}", output.status);
        ensure!(said.contains("10.82.0.1:10250") && said.contains("in use"), "{said}");
        ensure!(said.trim_end().lines().count() == 1, "more than one line: {said}");
    }
    Ok(())
}

fn networks(machine: &mut Machine) -> Result<()> {
    let mut command = machine.site_command("10.82.0.1:6443");
    command.args(["--pod-cidr", "10.201.0.0/16", "--service-cidr", "10.202.0.0/16"]);
    machine.start(command)?;
    machine.until_ready()?;
    machine.import_image()?;
    let kubectl = machine.kubectl();
    let service = kubectl.run(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"])?;
    ensure!(service == "10.202.0.1", "{service}");
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: c, image: \"{IMAGE}\", command: [sleep, \"1000\"]}}]}}}}"
    );
    wait_for("a pod", PATIENCE, || kubectl.apply(&pod))?;
    kubectl.run(&["wait", "pod/web", "--for=condition=Ready", "--timeout=60s"])?;
    let address = kubectl.run(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"])?;
    ensure!(address.starts_with("10.201."), "{address}");
    let part = kubectl.run(&["get", "node", "box", "-o", "jsonpath={.spec.podCIDR}"])?;
    ensure!(part.starts_with("10.201."), "{part}");
    let used = kubectl.run(&["exec", "web", "--", "sh", "-c", "echo $KUBERNETES_SERVICE_HOST"])?;
    ensure!(used.trim() == "10.202.0.1", "{used}");
    Ok(())
}

fn image(data: &Path, args: &[&str]) -> Result<String> {
    let output =
        Command::new(cargo_binary("tombolo")).arg("image").args(args).arg("--data-dir").arg(data).output()?;
    ensure!(output.status.success(), "image {args:?}: {}", text(&output));
    Ok(text(&output))
}

#[test]
fn images_are_imported_listed_and_removed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let wrong = image(dir.path(), &["list"]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(wrong.contains("no node has run in"), "{wrong}");
    std::fs::create_dir(dir.path().join("images"))?;
    let mut made = Image::new(&["example.com/team/app:1"]);
    made.file("greeting", 0o644, b"ahoy")?;
    let archive = dir.path().join("app.tar");
    made.save(&archive)?;
    let archive = archive.display().to_string();
    let said = image(dir.path(), &["import", &archive])?;
    ensure!(said.starts_with("example.com/team/app:1 sha256:"), "{said}");
    image(dir.path(), &["import", &archive, "--name", "other.example/app:2"])?;
    let listed = image(dir.path(), &["list"])?;
    ensure!(listed.lines().count() == 2, "one image with two names: {listed}");
    ensure!(listed.contains("example.com/team/app:1") && listed.contains("other.example/app:2"), "{listed}");
    let rows: serde_json::Value = serde_json::from_str(&image(dir.path(), &["list", "-o", "json"])?)?;
    ensure!(rows["items"][0]["names"].as_array().is_some_and(|names| names.len() == 2), "{rows}");
    let layers = || std::fs::read_dir(dir.path().join("images/layers")).map_or(0, Iterator::count);
    for (name, left) in [("example.com/team/app:1", 1), ("other.example/app:2", 0)] {
        ensure!(image(dir.path(), &["rm", name])?.contains("removed"));
        ensure!(layers() == left, "{} layers are left after {name}", layers());
    }
    let gone = image(dir.path(), &["rm", "other.example/app:2"]).err().map(|error| format!("{error:#}"));
    ensure!(gone.is_some_and(|said| said.contains("is not here")));
    Ok(())
}
