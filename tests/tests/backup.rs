//! Backup and restore of hub and site, while they serve and while they are stopped.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, Process, Tombolo, cargo_binary, require, wait_for};
use tombolo_tests::command::{refused, tombolo};
use tombolo_tests::site::is_root;

#[test]
fn a_running_hub_and_a_running_site_are_backed_up_and_come_back() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    for kind in ["hub", "site"] {
        let dir = tempfile::tempdir()?;
        let text = |path: std::path::PathBuf| {
            path.to_str().expect("a temporary folder has a name in text").to_owned()
        };
        let (data, copy) = (text(dir.path().join(kind)), text(dir.path().join("copy")));
        let listen = ["--listen", "127.0.0.1:0"];
        let ca = {
            let server = Tombolo::start(kind, dir.path(), &listen)?;
            let kubectl = server.kubectl();
            kubectl.run(&["create", "configmap", "kept", "--from-literal=a=1"])?;
            let output = tombolo(&["backup", "--data-dir", &data, &copy])?;
            ensure!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
            // It went on serving, and what came later is not in the copy.
            kubectl.run(&["create", "configmap", "later", "--from-literal=a=1"])?;
            refused(&["backup", "--data-dir", &data, &copy], "copy")?;
            kubectl.run(&[
                "config",
                "view",
                "--raw",
                "-o",
                "jsonpath={.clusters[0].cluster.certificate-authority-data}",
            ])?
        };
        let stopped = text(dir.path().join("stopped"));
        ensure!(tombolo(&["backup", "--data-dir", &data, &stopped])?.status.success(), "of a stopped {kind}");
        let other = dir.path().join("other");
        ensure!(tombolo(&["restore", &copy, "--data-dir", &text(other.join(kind))])?.status.success());
        refused(&["restore", &copy, "--data-dir", &text(other.join(kind))], kind)?;
        let server = Tombolo::start(kind, &other, &listen)?;
        let kubectl = server.kubectl();
        ensure!(kubectl.run(&["get", "cm", "kept", "-o", "jsonpath={.data.a}"])? == "1");
        ensure!(kubectl.run(&["get", "cm", "later"]).is_err(), "the copy is newer than it was");
        let same = kubectl.run(&[
            "config",
            "view",
            "--raw",
            "-o",
            "jsonpath={.clusters[0].cluster.certificate-authority-data}",
        ])?;
        ensure!(same == ca, "the restored {kind} has another CA, so nobody knows it");
    }
    Ok(())
}

/// A hub that is not root's, as its systemd unit runs it.
struct NobodysHub {
    dir: tempfile::TempDir,
    process: Option<Process>,
}

impl NobodysHub {
    const NOBODY: u32 = 65534;

    fn new() -> Result<Self> {
        // A copy of the program, because the folder of the build may be closed to others.
        let dir = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir()?;
        std::fs::copy(cargo_binary("tombolo"), dir.path().join("tombolo"))?;
        std::fs::create_dir(dir.path().join("hub"))?;
        std::os::unix::fs::chown(dir.path().join("hub"), Some(Self::NOBODY), Some(Self::NOBODY))?;
        Ok(Self { dir, process: None })
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn start(&mut self) -> Result<Kubectl> {
        let kubeconfig = self.dir.path().join("hub/admin.kubeconfig");
        let _ = std::fs::remove_file(&kubeconfig);
        let mut command = Command::new(self.at("tombolo"));
        command.args(["hub", "--data-dir", &self.at("hub"), "--listen", "127.0.0.1:0"]);
        command.uid(Self::NOBODY).gid(Self::NOBODY);
        let mut process = Process::start("hub", command, self.dir.path())?;
        wait_for("the hub to be ready", Duration::from_secs(30), || {
            process.alive()?;
            ensure!(kubeconfig.exists(), "not yet: {}", process.log());
            Ok(())
        })?;
        self.process = Some(process);
        Ok(Kubectl::new(&kubeconfig))
    }
}

#[test]
fn root_backs_up_and_restores_a_hub_that_runs_as_somebody_else() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut hub = NobodysHub::new()?;
    // The hub may not write there, and nobody else looks into it.
    let backups = tempfile::tempdir()?;
    let copy = |name: &str| backups.path().join(name).display().to_string();
    let kubectl = hub.start()?;
    kubectl.run(&["create", "configmap", "kept", "--from-literal=a=1"])?;
    let done = |args: &[&str]| -> Result<()> {
        let output = tombolo(args)?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    done(&["backup", "--data-dir", &hub.at("hub"), &copy("running")])?;
    let mode = std::fs::metadata(copy("running"))?.permissions().mode() & 0o777;
    ensure!(mode == 0o700, "the copy has mode {mode:o}");
    wait_for("the copy in the data folder to go", Duration::from_secs(5), || {
        ensure!(!std::path::Path::new(&hub.at("hub/store.copy")).exists(), "it is still there");
        Ok(())
    })?;
    hub.process = None;
    done(&["backup", "--data-dir", &hub.at("hub"), &copy("stopped")])?;
    hub.start()?.run(&["get", "configmap", "kept"])?;
    for name in ["running", "stopped"] {
        hub.process = None;
        std::fs::remove_dir_all(hub.at("hub/store"))?;
        done(&["restore", &copy(name), "--data-dir", &hub.at("hub")])?;
        hub.start()?.run(&["get", "configmap", "kept"]).with_context(|| format!("from {name}"))?;
    }
    Ok(())
}
