//! Tombolo processes, as a user starts them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::{Kubectl, Process, cargo_binary, wait_for};

/// A `tombolo` server process with a data folder of its own. Ends when dropped.
pub struct Tombolo {
    pub process: Process,
    pub kubeconfig: PathBuf,
}

impl Tombolo {
    /// `tombolo serve` on a free loopback port.
    pub fn serve(dir: &Path) -> Result<Self> {
        Self::start("serve", dir, &["--listen", "127.0.0.1:0"])
    }

    /// Any command that writes `admin.kubeconfig` into its data folder when it is ready.
    pub fn start(command: &str, dir: &Path, args: &[&str]) -> Result<Self> {
        let data = dir.join(command);
        let kubeconfig = data.join("admin.kubeconfig");
        // Left from an earlier run in the same folder, it would be taken for a sign of readiness.
        let _ = std::fs::remove_file(&kubeconfig);
        let mut line = Command::new(cargo_binary("tombolo"));
        line.arg(command).arg("--data-dir").arg(&data).args(args);
        let mut process = Process::start(&format!("tombolo-{command}"), line, dir)?;
        wait_for("admin.kubeconfig", Duration::from_secs(30), || {
            process.alive()?;
            if kubeconfig.exists() { Ok(()) } else { bail!("not written yet") }
        })?;
        Ok(Self { process, kubeconfig })
    }

    /// Ties it to a hub under `name`, and waits until it is heard there.
    pub fn join(&self, hub: &Tombolo, name: &str) -> Result<()> {
        crate::host::join(&self.kubeconfig, &hub.kubeconfig, name, &[])?;
        wait_for("the site to be heard", Duration::from_secs(60), || {
            let sites = crate::tombolo(&hub.kubeconfig, &["sites"])?;
            if sites.contains("True") { Ok(()) } else { bail!("{sites}") }
        })
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }
}
