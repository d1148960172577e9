//! The command line as other tools use it: what it prints, where it writes, how it ends.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Tombolo, cargo_binary, free_port, wait_for};

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
fn a_damaged_store_and_one_of_a_newer_version_are_refused_and_left_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    drop(Tombolo::serve(dir.path())?);
    let data = dir.path().join("serve");
    let segment = std::fs::read_dir(data.join("store"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| std::fs::metadata(path).is_ok_and(|m| m.len() > 1000))
        .expect("a segment of the log");
    let good = std::fs::read(&segment)?;
    let serve = ["serve", "--data-dir", data.to_str().expect("text"), "--listen", "127.0.0.1:0"];

    let mut newer = good.clone();
    newer[8..12].copy_from_slice(&9u32.to_le_bytes());
    std::fs::write(&segment, &newer)?;
    refused(&serve, "newer version")?;
    ensure!(std::fs::read(&segment)? == newer, "the newer version's data were changed");

    let mut damaged = good.clone();
    damaged[200] ^= 0xff;
    std::fs::write(&segment, &damaged)?;
    refused(&serve, segment.to_str().expect("text"))?;
    ensure!(std::fs::read(&segment)? == damaged, "the damaged data were changed");

    // With what a backup or a better disk gives back, it serves again.
    std::fs::write(&segment, &good)?;
    drop(Tombolo::serve(dir.path())?);
    Ok(())
}

#[test]
fn asked_to_end_serve_ends_its_watches_and_loses_nothing() -> Result<()> {
    if !tombolo_testkit::require(&[tombolo_testkit::Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut server = Tombolo::serve(dir.path())?;
    let kubectl = server.kubectl();
    let path = "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true";
    let mut watches = Vec::new();
    for n in 0..5 {
        let mut command = kubectl.command(&["get", "--raw", path]);
        let file = std::fs::File::create(dir.path().join(format!("watch-{n}")))?;
        watches.push(command.stdout(file).spawn()?);
    }
    let seen = |n: usize| std::fs::read_to_string(dir.path().join(format!("watch-{n}")));
    kubectl.run(&["create", "configmap", "kept", "--from-literal=a=1"])?;
    wait_for("every watch to see it", Duration::from_secs(20), || {
        for n in 0..watches.len() {
            ensure!(seen(n)?.contains("\"kept\""), "watch {n} saw {}", seen(n)?);
        }
        Ok(())
    })?;
    let status = server.process.terminate(Duration::from_secs(8))?;
    ensure!(status.success(), "it ended with {status}: {}", server.process.log());
    for (n, watch) in watches.iter_mut().enumerate() {
        let status = watch.wait()?;
        let all = seen(n)?;
        let last = all.lines().last().unwrap_or_default();
        ensure!(status.success() && last.contains("BOOKMARK"), "watch {n}: {status}, and last {last}");
    }
    drop(server);
    let again = Tombolo::serve(dir.path())?;
    ensure!(again.kubectl().run(&["get", "cm", "kept", "-o", "jsonpath={.data.a}"])? == "1");
    Ok(())
}

#[test]
fn without_a_kubeconfig_client_commands_say_what_to_do() -> Result<()> {
    refused(&["sites", "--kubeconfig", "/nonexistent/config"], "/nonexistent/config")
}

/// Every command line there is, `tombolo` itself left out.
fn commands(path: &[&str]) -> Result<Vec<Vec<String>>> {
    let mut args = path.to_vec();
    args.push("--help");
    let help = String::from_utf8(tombolo(&args)?.stdout)?;
    let listed =
        help.lines().skip_while(|l| !l.starts_with("Commands:")).skip(1).take_while(|l| !l.is_empty());
    // Wrapped lines of a description are indented further.
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let mut found = Vec::new();
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|c| *c != "help") {
        let mut below = path.to_vec();
        below.push(name);
        found.push(below.iter().map(|part| (*part).to_owned()).collect());
        found.extend(commands(&below)?);
    }
    Ok(found)
}

#[test]
fn every_command_has_help_with_an_example_and_every_flag_says_what_it_is_for() -> Result<()> {
    let commands = commands(&[])?;
    ensure!(commands.len() > 25, "only {} commands found", commands.len());
    let mut missing = Vec::new();
    for command in &commands {
        let mut args: Vec<_> = command.iter().map(String::as_str).collect();
        // The short form has one line per flag.
        args.push("-h");
        let text = String::from_utf8(
            Command::new(cargo_binary("tombolo")).args(&args).env("COLUMNS", "400").output()?.stdout,
        )?;
        if !text.contains("Example") {
            missing.push(format!("`tombolo {}` has no example", command.join(" ")));
        }
        for line in text.lines().map(str::trim_start) {
            let is_flag =
                line.starts_with("--") || (line.starts_with('-') && line.chars().nth(2) == Some(','));
            let is_argument = line.starts_with('<') || line.starts_with('[');
            let is_help = line.starts_with("-h, --help") || line.starts_with("[OPTIONS]");
            if (is_flag || is_argument) && !is_help {
                let words = line.split_once("  ").map(|(_, text)| text.trim()).unwrap_or_default();
                if words.is_empty() || words.starts_with("[default") || words.starts_with("[possible") {
                    missing
                        .push(format!("`tombolo {}`: {line:?} says not what it is for", command.join(" ")));
                }
            }
        }
    }
    ensure!(missing.is_empty(), "{}", missing.join("\n"));
    Ok(())
}

#[test]
fn nothing_but_a_terminal_gets_colours() -> Result<()> {
    for args in [vec!["--help"], vec!["check", "machine"], vec!["nonsense"]] {
        let output = tombolo(&args)?;
        ensure!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{args:?} is coloured");
    }
    Ok(())
}

#[test]
fn check_looks_at_the_machine_and_says_how_to_mend_it() -> Result<()> {
    let output = tombolo(&["check", "machine", "-o", "json"])?;
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let findings = findings["items"].as_array().expect("a list of findings");
    for what in ["root", "cgroups", "overlayfs", "nftables", "tun", "disk", "memory", "clock"] {
        ensure!(findings.iter().any(|f| f["what"] == what), "{what} was not looked at");
    }
    for finding in findings.iter().filter(|f| f["state"] != "ok") {
        ensure!(!finding["mend"].as_str().unwrap_or_default().is_empty(), "no way to mend {finding}");
    }
    let wrong = findings.iter().any(|f| f["state"] == "wrong");
    ensure!(output.status.code() == Some(i32::from(wrong)), "{findings:?} ended with {:?}", output.status);
    Ok(())
}

#[test]
fn check_tells_a_dead_server_from_a_live_one() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let kubeconfig = hub.kubeconfig.to_str().expect("text").to_owned();
    let check = |areas: &[&str]| -> Result<(Option<i32>, String)> {
        let mut args = vec!["check"];
        args.extend(areas);
        args.extend(["--kubeconfig", &kubeconfig]);
        let output = tombolo(&args)?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (code, text) = check(&["site", "fleet"])?;
    ensure!(code == Some(0), "{text}");
    for part in [
        "is ready",
        "agrees with this machine's",
        "ends in",
        "everything has a place",
        "tombolo token create",
    ] {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    hub.process.kill();
    let (code, text) = check(&["site"])?;
    ensure!(
        code == Some(1) && text.contains("does not answer") && text.contains("systemctl"),
        "{code:?} {text}"
    );
    Ok(())
}

#[test]
fn support_packs_what_is_needed_and_no_secret() -> Result<()> {
    if !tombolo_testkit::require(&[tombolo_testkit::Fixture::Kubectl]) {
        return Ok(());
    }
    const SECRET: &str = "correct-horse-battery";
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let kubectl = hub.kubectl();
    kubectl.run(&["create", "secret", "generic", "mine", &format!("--from-literal=a={SECRET}")])?;
    kubectl.run(&["create", "configmap", "mine", &format!("--from-literal=a={SECRET}")])?;
    kubectl.apply(&format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, annotations: {{note: {SECRET}}}}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    spec:\n      containers:\n      - name: c\n        image: x\n        args: [\"--password={SECRET}\"]\n        env: [{{name: KEY, value: {SECRET}}}]\n"
    ))?;
    let kubeconfig = hub.kubeconfig.to_str().expect("text");
    let join = tombolo(&["token", "create", "--kubeconfig", kubeconfig])?;
    let join = String::from_utf8(join.stdout)?;
    let token = join.split_whitespace().skip_while(|w| *w != "--token").nth(1).expect("a token").to_owned();
    std::fs::write(dir.path().join("hub/log"), format!("joining with {token}\nall is well\n"))?;
    let file = dir.path().join("support.tar.gz");
    let (file, data) = (file.to_str().expect("text"), dir.path().join("hub"));
    let data = data.to_str().expect("text");
    let output = tombolo(&["support", "--file", file, "--data-dir", data, "--kubeconfig", kubeconfig])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let unpacked = Command::new("tar").args(["-xzOf", file]).output()?;
    let everything = String::from_utf8_lossy(&unpacked.stdout);
    let key = kubectl.run(&["config", "view", "--raw", "-o", "jsonpath={.users[0].user.client-key-data}"])?;
    for secret in [
        SECRET,
        "Y29ycmVjdC1ob3JzZ",
        token.as_str(),
        token.split('.').nth(1).expect("a secret part"),
        "PRIVATE KEY",
        key.trim(),
    ] {
        ensure!(!everything.contains(secret), "{secret:?} is in the file");
    }
    let names = String::from_utf8(Command::new("tar").args(["-tzf", file]).output()?.stdout)?;
    for part in [
        "version.txt",
        "check.json",
        "objects/Deployment.json",
        "objects/Site.json",
        "server/metrics.txt",
        "/hub/log",
    ] {
        ensure!(names.contains(part), "no {part} in\n{names}");
    }
    ensure!(everything.contains("all is well") && everything.contains("\"web\""));
    Ok(())
}

#[test]
fn a_running_hub_and_a_running_site_are_backed_up_and_come_back() -> Result<()> {
    if !tombolo_testkit::require(&[tombolo_testkit::Fixture::Kubectl]) {
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

#[test]
fn what_the_server_says_is_told_in_words() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut server = Tombolo::serve(dir.path())?;
    let kubeconfig = server.kubeconfig.to_str().expect("text").to_owned();
    let at = |args: &[&str]| -> Result<String> {
        let mut line = args.to_vec();
        line.extend(["--kubeconfig", &kubeconfig]);
        refused(&line, "")?;
        Ok(String::from_utf8_lossy(&tombolo(&line)?.stderr).into_owned())
    };
    let said =
        [at(&["sites"])?, at(&["sites", "remove", "nowhere"])?, at(&["logs", "deploy/none"])?, at(&["top"])?];
    server.process.kill();
    let dead = at(&["sites"])?;
    ensure!(dead.contains("does not answer"), "{dead}");
    for text in said.iter().chain([&dead]) {
        for dump in ["Status {", "ErrorResponse", "Some(", "ApiError", "hyper"] {
            ensure!(!text.contains(dump), "a dump for people to read: {text}");
        }
    }
    Ok(())
}
