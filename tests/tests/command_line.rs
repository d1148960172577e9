//! The command line as other tools use it: what it prints, where it writes, how it ends.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use tombolo_testkit::{Tombolo, cargo_binary, free_port};

fn tombolo(args: &[&str]) -> Result<Output> {
    Ok(Command::new(cargo_binary("tombolo"))
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()?)
}

/// One line that says what is wrong, and exit code 2.
fn refused(args: &[&str], wanted: &str) -> Result<()> {
    let output = tombolo(args)?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{args:?} ended with {:?}: {text}", output.status);
    ensure!(text.contains(wanted), "{args:?}: no {wanted:?} in {text}");
    ensure!(text.trim_end().lines().count() == 1, "{args:?}: more than one line: {text}");
    Ok(())
}

#[test]
fn serve_says_one_line_and_writes_a_private_kubeconfig() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Tombolo::serve(dir.path())?;
    let log = server.process.log();
    ensure!(log.lines().count() == 1, "{log}");
    ensure!(log.contains("https://127.0.0.1:") && log.contains("admin.kubeconfig"), "{log}");
    let mode = std::fs::metadata(&server.kubeconfig)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "the kubeconfig has mode {mode:o}");
    Ok(())
}

#[test]
fn serve_refuses_what_cannot_work_with_one_line_and_exit_code_2() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let data = data.to_str().expect("a temporary folder has a name in text");
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    refused(&["serve", "--data-dir", data, "--listen", &address], &address)?;
    let file = dir.path().join("file");
    std::fs::write(&file, "")?;
    let below = file.join("below");
    let below = below.to_str().expect("text");
    refused(&["serve", "--data-dir", below, "--listen", "127.0.0.1:0"], below)?;
    let output = tombolo(&["serve", "--data-dir", data, "--listen", "nowhere"])?;
    ensure!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("nowhere"));
    Ok(())
}

#[test]
fn a_second_process_on_the_same_folder_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _first = Tombolo::serve(dir.path())?;
    let data = dir.path().join("serve");
    let listen = format!("127.0.0.1:{}", free_port());
    refused(&["serve", "--data-dir", data.to_str().expect("text"), "--listen", &listen], "another process")
}

#[test]
fn without_a_kubeconfig_client_commands_say_what_to_do() -> Result<()> {
    refused(&["sites", "--kubeconfig", "/nonexistent/config"], "/nonexistent/config")
}

#[test]
fn every_command_has_help_with_an_example() -> Result<()> {
    let help = String::from_utf8(tombolo(&["--help"])?.stdout)?;
    let commands =
        help.lines().skip_while(|l| !l.starts_with("Commands:")).skip(1).take_while(|l| !l.is_empty());
    let mut seen = 0;
    for command in commands.filter_map(|line| line.split_whitespace().next()).filter(|c| *c != "help") {
        let text = String::from_utf8(tombolo(&[command, "--help"])?.stdout)?;
        ensure!(text.contains("Example"), "`tombolo {command} --help` shows no example");
        seen += 1;
    }
    ensure!(seen > 5, "only {seen} commands found");
    Ok(())
}

#[test]
fn a_backup_brings_everything_back_and_is_not_taken_from_under_a_running_server() -> Result<()> {
    if !tombolo_testkit::require(&[tombolo_testkit::Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let text =
        |path: std::path::PathBuf| path.to_str().expect("a temporary folder has a name in text").to_owned();
    let (data, copy) = (text(dir.path().join("serve")), text(dir.path().join("copy")));
    {
        let server = Tombolo::serve(dir.path())?;
        server.kubectl().run(&["create", "configmap", "kept", "--from-literal=a=1"])?;
        refused(&["backup", "--data-dir", &data, &copy], "stop the hub or site first")?;
    }
    ensure!(tombolo(&["backup", "--data-dir", &data, &copy])?.status.success());
    let other = dir.path().join("other");
    ensure!(tombolo(&["restore", &copy, "--data-dir", &text(other.join("serve"))])?.status.success());
    refused(&["restore", &copy, "--data-dir", &text(other.join("serve"))], "serve")?;
    let server = Tombolo::serve(&other)?;
    ensure!(server.kubectl().run(&["get", "cm", "kept", "-o", "jsonpath={.data.a}"])? == "1");
    Ok(())
}
