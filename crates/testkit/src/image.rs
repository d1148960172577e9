//! Container images made from files: nothing can be pulled in a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A Docker archive with static busybox in `/bin`, called `name`, that runs `command`.
pub fn busybox_archive(dir: &Path, name: &str, command: &[&str]) -> Result<PathBuf> {
    let work = tempfile::tempdir_in(dir)?;
    let root = work.path().join("root");
    fs::create_dir_all(root.join("bin"))?;
    fs::create_dir_all(root.join("tmp"))?;
    fs::copy("/bin/busybox", root.join("bin/busybox"))
        .context("static busybox; `cargo xtask fixtures` installs it")?;
    for applet in
        ["sh", "sleep", "cat", "echo", "date", "hostname", "env", "httpd", "nc", "true", "ls", "wget"]
    {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    let layer = work.path().join("layer.tar");
    run(Command::new("tar")
        .arg("-C")
        .arg(&root)
        .args(["--owner=0", "--group=0", "-cf"])
        .arg(&layer)
        .arg("."))?;
    let digest = run(Command::new("sha256sum").arg(&layer))?;
    let digest = digest.split_whitespace().next().context("sha256sum prints a sum")?;
    let command = serde_json::json!(command);
    let config = serde_json::json!({"architecture": architecture(), "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"]}, "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
    fs::write(work.path().join("config.json"), config.to_string())?;
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(work.path().join("manifest.json"), manifest.to_string())?;
    let archive = dir.join(format!("{}.tar", name.replace(['/', ':'], "-")));
    run(Command::new("tar").arg("-C").arg(work.path()).arg("-cf").arg(&archive).args([
        "manifest.json",
        "config.json",
        "layer.tar",
    ]))?;
    Ok(archive)
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
