//! The program as other tools call it.

use std::process::{Command, Output};

use anyhow::{Result, ensure};
use tombolo_testkit::cargo_binary;

/// Runs it to its end, for somebody who has no kubeconfig.
pub fn tombolo(args: &[&str]) -> Result<Output> {
    Ok(Command::new(cargo_binary("tombolo"))
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()?)
}

/// One line that says what is wrong, and exit code 2.
pub fn refused(args: &[&str], wanted: &str) -> Result<()> {
    let output = tombolo(args)?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{args:?} ended with {:?}: {text}", output.status);
    ensure!(text.contains(wanted), "{args:?}: no {wanted:?} in {text}");
    ensure!(text.trim_end().lines().count() == 1, "{args:?}: more than one line: {text}");
    Ok(())
}
