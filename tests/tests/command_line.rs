//! The command line as other tools use it: what it prints, where it writes, how it ends.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Tombolo, cargo_binary, free_port, wait_for};
use tombolo_tests::command::{refused, tombolo};

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
fn wipe_refuses_while_a_node_runs_on_the_folder_and_says_how_to_stop_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let node = dir.path().join("node");
    std::fs::create_dir_all(node.join("pods/uid"))?;
    std::fs::write(node.join("node.json"), r#"{"name": "box", "id": "0badcafe"}"#)?;
    // As the process of a node holds it: this test stands for one.
    let own = std::process::id();
    std::fs::write(node.join("LOCK"), format!("{own}\n"))?;
    let lock = std::fs::File::open(node.join("LOCK"))?;
    lock.lock()?;
    let data = dir.path().to_str().expect("a temporary folder has a name in text");
    refused(&["wipe", "--data-dir", data], &format!("process {own}); stop it first: `kill {own}`"))?;
    ensure!(node.join("pods/uid").exists(), "it took a pod away");
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
    // For documentation: no machine has it.
    refused(&["serve", "--data-dir", data, "--listen", "198.51.100.7:6443"], "198.51.100.7:6443")?;
    let file = dir.path().join("file");
    std::fs::write(&file, "")?;
    let below = file.join("below");
    let below = below.to_str().expect("text");
    refused(&["serve", "--data-dir", below, "--listen", "127.0.0.1:0"], below)?;
    Ok(())
}

#[test]
fn a_wrong_command_line_is_one_line_that_says_where_to_look() -> Result<()> {
    for (args, wanted) in [
        (
            &["serve", "--data-dir", "/x", "--listen", "nowhere"][..],
            "invalid value 'nowhere' for '--listen <ADDR:PORT>'",
        ),
        (&["serve", "--data-dir", "/x", "--store", "paper"], "write embedded, memory, or etcd=URL"),
        (&["serve"], "--data-dir <DIR>"),
        (&["up", "--sites", "99"], "99 is not in 1..=50"),
        (&["up", "--wan", "soon"], "write a one-way delay and a loss"),
        (&["sites", "-o", "xml"], "possible values: table, wide, json, yaml, name"),
        (&["token", "create", "--ttl", "2w"], "use s, m, h or d"),
        (&["stes"], "similar subcommands exist"),
        (&["sites", "--kubecofnig", "x"], "a similar argument exists: '--kubeconfig'"),
    ] {
        refused(args, wanted)?;
    }
    refused(&["token", "create", "--ttl", "2w"], "`tombolo token create --help` tells more")?;
    // Help that was asked for, and help for who typed nothing at all.
    let help = tombolo(&["--help"])?;
    let text = String::from_utf8(help.stdout)?;
    ensure!(help.status.success(), "{:?}", help.status);
    for part in ["Examples:", "tombolo up", "Exit codes:", "130"] {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    let nothing = tombolo(&[])?;
    ensure!(
        nothing.status.code() == Some(2) && String::from_utf8_lossy(&nothing.stderr).contains("Examples:")
    );
    ensure!(tombolo(&["--version"])?.status.success());
    Ok(())
}

#[test]
fn completions_are_scripts_that_the_shell_can_read() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for shell in ["bash", "zsh", "fish"] {
        let output = tombolo(&["completion", shell])?;
        ensure!(output.status.success() && !output.stdout.is_empty(), "{shell}: {output:?}");
        let file = dir.path().join(shell);
        std::fs::write(&file, &output.stdout)?;
        // Of the others a machine may lack the shell.
        if let Ok(read) = Command::new(shell).arg("-n").arg(&file).output() {
            ensure!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr));
        } else {
            ensure!(shell != "bash", "no bash on this machine");
        }
    }
    // What the Tab key finds.
    let script = dir.path().join("bash").display().to_string();
    let tab = format!(
        "source {script}; COMP_WORDS=(tombolo si); COMP_CWORD=1; _tombolo tombolo si tombolo; echo ${{COMPREPLY[@]}}"
    );
    let found = Command::new("bash").args(["-c", &tab]).output()?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    ensure!(found.contains("site") && found.contains("sites"), "{found}");
    Ok(())
}

/// A cluster's kubeconfig with another name for its context, and another namespace in it.
fn renamed(kubeconfig: &std::path::Path, name: &str, namespace: &str) -> Result<String> {
    let mut config: serde_json::Value = serde_yaml_ng::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    for (list, inner) in [("clusters", ""), ("users", ""), ("contexts", "context")] {
        let entry = &mut config[list][0];
        entry["name"] = name.into();
        if !inner.is_empty() {
            entry[inner] = serde_json::json!({"cluster": name, "user": name, "namespace": namespace});
        }
    }
    config["current-context"] = name.into();
    let file = kubeconfig.with_file_name(format!("{name}.kubeconfig"));
    std::fs::write(&file, serde_yaml_ng::to_string(&config)?)?;
    Ok(file.display().to_string())
}

#[test]
fn a_cluster_is_found_as_kubectl_finds_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let plain = Tombolo::serve(dir.path())?;
    let (a, b) =
        (renamed(&hub.kubeconfig, "north", "shop")?, renamed(&plain.kubeconfig, "south", "default")?);
    let at = |kubeconfig: &str, args: &[&str]| -> Result<(bool, String)> {
        let mut command = Command::new(cargo_binary("tombolo"));
        let output = command.args(args).env("KUBECONFIG", kubeconfig).env("HOME", "/nonexistent").output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(said)?))
    };
    // The first of several files says which context is the current one.
    let both = format!("{a}:{b}");
    for (kubeconfig, args, is_hub) in [
        (both.as_str(), &["sites"][..], true),
        (&format!("{b}:{a}"), &["sites"], false),
        (&both, &["sites", "--context", "south"], false),
        (&both, &["--context", "north", "sites"], true),
        (&format!("/nonexistent/config:{a}"), &["sites"], true),
        (&b, &["sites", "--kubeconfig", &a], true),
    ] {
        let (done, said) = at(kubeconfig, args)?;
        ensure!(done == is_hub, "KUBECONFIG={kubeconfig} tombolo {args:?}: {said}");
    }
    let (done, said) = at(&both, &["sites", "--context", "west"])?;
    ensure!(!done && said.contains("west"), "{said}");
    // The context's namespace counts, and a flag counts more.
    for command in [
        &["explain", "place", "deploy/none"][..],
        &["logs", "deploy/none"],
        &["give-back", "deploy/none"],
        &["place"],
    ] {
        let (_, said) = at(&both, command)?;
        ensure!(said.contains("namespace shop"), "{command:?}: {said}");
        let (_, said) = at(&both, &[command, &["-n", "other"]].concat())?;
        ensure!(said.contains("namespace other"), "{command:?}: {said}");
    }
    Ok(())
}

#[test]
fn what_is_shown_comes_in_every_format() -> Result<()> {
    if !tombolo_testkit::require(&[tombolo_testkit::Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let site = Tombolo::start("site", dir.path(), &["--listen", "127.0.0.1:0", "--name", "harbour"])?;
    let hub_config = hub.kubeconfig.display().to_string();
    let at_hub = |args: &[&str]| -> Result<String> {
        let output = tombolo(&[args, &["--kubeconfig", &hub_config]].concat())?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    // A token is one thing, and its line is what programs want of it.
    let made: serde_json::Value = serde_json::from_str(&at_hub(&["token", "create", "-o", "json"])?)?;
    let command = made["command"].as_str().unwrap_or_default().to_owned();
    for key in ["url", "token", "caHash"] {
        let value = made[key].as_str().unwrap_or_default();
        ensure!(!value.is_empty() && command.contains(value), "{key} of {made}");
    }
    let yaml: serde_json::Value = serde_yaml_ng::from_str(&at_hub(&["token", "create", "-o", "yaml"])?)?;
    ensure!(yaml["command"].as_str().is_some_and(|line| line.starts_with("tombolo join ")), "{yaml}");
    let id = at_hub(&["token", "create", "-o", "name"])?;
    ensure!(at_hub(&["token", "list", "-o", "name"])?.contains(id.trim()) && id.trim().len() == 6, "{id}");
    ensure!(at_hub(&["token", "create", "-o", "wide"])?.starts_with("tombolo join "));

    site.join(&hub, "harbour")?;
    ensure!(at_hub(&["sites"])? == at_hub(&["sites", "list"])?);
    hub.kubectl().apply(
        "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: there}\nspec:\n  objects: [{kind: ConfigMap, name: note}]\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {a: '1'}\n",
    )?;
    wait_for("it to be placed", Duration::from_secs(30), || {
        ensure!(at_hub(&["place"])?.contains("harbour"), "not yet");
        Ok(())
    })?;

    // As a table, and wider; as a list of items; and by names, one to a line.
    for (args, column, wide, name) in [
        (&["sites"][..], "RTT", "REASON", "site.tombolo.dev/harbour"),
        (&["place"], "APPLIED", "MESSAGE", "site-harbour/"),
        (&["top"], "MEMORY%", "MEMORY TOTAL", "site.tombolo.dev/harbour"),
        (&["token", "list"], "USES LEFT", "USES LEFT", id.trim()),
        (&["check", "fleet"], "FOUND", "FOUND", "placements"),
    ] {
        let show = |format: &str| at_hub(&[args, &["-o", format]].concat());
        ensure!(at_hub(args)? == show("table")? && show("table")?.contains(column), "{}", show("table")?);
        ensure!(show("wide")?.lines().next().is_some_and(|l| l.contains(wide)), "{}", show("wide")?);
        let json: serde_json::Value = serde_json::from_str(&show("json")?)?;
        let yaml: serde_json::Value = serde_yaml_ng::from_str(&show("yaml")?)?;
        for list in [&json, &yaml] {
            ensure!(list["items"].as_array().is_some_and(|items| !items.is_empty()), "{args:?}: {list}");
        }
        let names = show("name")?;
        ensure!(names.lines().any(|line| line.starts_with(name)), "{args:?}: no {name} in {names}");
        ensure!(names.lines().count() == json["items"].as_array().map_or(0, Vec::len), "{args:?}: {names}");
    }
    let explain = |format: &str| at_hub(&["explain", "place", "cm/note", "-o", format]);
    let json: serde_json::Value = serde_json::from_str(&explain("json")?)?;
    let yaml: serde_json::Value = serde_yaml_ng::from_str(&explain("yaml")?)?;
    for explained in [&json, &yaml] {
        ensure!(
            explained["object"] == "cm/note" && explained["sites"][0]["site"] == "harbour",
            "{explained}"
        );
        ensure!(
            explained["summary"].as_str().is_some_and(|text| text.contains("placed: harbour")),
            "{explained}"
        );
    }
    ensure!(explain("name")? == "site.tombolo.dev/harbour\n");
    ensure!(explain("wide")?.contains("PREFERENCE") && explain("wide")? == explain("table")?);
    Ok(())
}

#[test]
fn join_tells_what_came_of_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let listen = ["--listen", "127.0.0.1:0"];
    let hub = Tombolo::start("hub", dir.path(), &listen)?;
    let site = Tombolo::start("site", dir.path(), &listen)?;
    let text = |path: &std::path::Path| path.display().to_string();
    let (at_hub, at_site) = (text(&hub.kubeconfig), text(&site.kubeconfig));
    let made = tombolo(&["token", "create", "-o", "json", "--kubeconfig", &at_hub])?;
    let made: serde_json::Value = serde_json::from_slice(&made.stdout)?;
    let part = |key: &str| made[key].as_str().unwrap_or_default().to_owned();
    let (url, token, hash) = (part("url"), part("token"), part("caHash"));
    let line = |token: &str, hash: &str, kubeconfig: &str| {
        ["join", &url, "--token", token, "--ca-hash", hash, "--name", "harbour", "--kubeconfig", kubeconfig]
            .map(str::to_owned)
    };
    let refused = |line: [String; 10], wanted: &str| refused(&line.each_ref().map(String::as_str), wanted);
    let other = format!("sha256:{}", "0".repeat(64));
    refused(line(&token, &other, &at_site), "this is not the hub you meant")?;
    refused(line("abcdef.0123456789abcdef", &hash, &at_site), "`tombolo token create` at the hub")?;
    let check = tombolo(&["check", "site", "--kubeconfig", &at_site])?;
    let check = String::from_utf8(check.stdout)?;
    ensure!(check.contains("the token is unknown, expired or used up"), "{check}");
    // The same words again, now right, and then again: nothing is left of the faults.
    for _ in 0..2 {
        let joined = tombolo(&line(&token, &hash, &at_site).each_ref().map(String::as_str))?;
        let said = String::from_utf8(joined.stdout)?;
        ensure!(said == format!("harbour has joined {url}; `tombolo sites` at the hub shows it\n"), "{said}");
    }
    let check = tombolo(&["check", "site", "--kubeconfig", &at_site])?;
    ensure!(String::from_utf8(check.stdout)?.contains("certificate good for"));
    // And what is said to be removed is gone.
    let removed = tombolo(&["sites", "remove", "harbour", "--kubeconfig", &at_hub])?;
    ensure!(String::from_utf8(removed.stdout)?.starts_with("site harbour removed;"));
    ensure!(tombolo(&["sites", "-o", "name", "--kubeconfig", &at_hub])?.stdout.is_empty());

    // A cluster whose programs are not ours does not heed the wish, and keeps nothing of it.
    let plain = Tombolo::serve(dir.path())?;
    refused(line(&token, &hash, &text(&plain.kubeconfig)), "`tombolo agent --hub")?;
    let left = tombolo(&["leave", &url, "--kubeconfig", &text(&plain.kubeconfig)])?;
    let nothing = format!("nothing is recorded here for {url}, nor for any other hub");
    ensure!(String::from_utf8_lossy(&left.stderr).contains(&nothing), "{left:?}");
    Ok(())
}

#[test]
fn nobody_else_looks_into_a_data_folder() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _server = Tombolo::serve(dir.path())?;
    let mode = std::fs::metadata(dir.path().join("serve"))?.permissions().mode() & 0o777;
    ensure!(mode == 0o700, "the data folder has mode {mode:o}");
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

#[test]
fn what_is_not_there_is_told_with_the_next_step() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let kubeconfig = hub.kubeconfig.display().to_string();
    for (args, next) in [
        (&["sites", "remove", "nowhere"][..], "`tombolo sites` lists them"),
        (&["sites", "remove", "nowhere", "--keep"], "`tombolo sites` lists them"),
        (&["sites", "revoke", "nowhere"], "`tombolo sites` lists them"),
        (&["import", "deploy/web", "--site", "nowhere"], "`tombolo sites` lists them"),
        (&["explain", "place", "deploy/none"], "`tombolo place -A` lists"),
        (&["logs", "deploy/none"], "name another with -n"),
        (&["logs", "pod/none"], "name another with -n"),
        (&["give-back", "deploy/none"], "`tombolo place -A` lists"),
    ] {
        refused(&[args, &["--kubeconfig", &kubeconfig]].concat(), next)?;
    }
    Ok(())
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
    for command in [&["sites"][..], &["top"], &["place"]] {
        let said = at(command)?;
        ensure!(said.contains("this cluster is no hub"), "{command:?}: {said}");
    }
    let said =
        [at(&["sites"])?, at(&["sites", "remove", "nowhere"])?, at(&["logs", "deploy/none"])?, at(&["top"])?];
    server.process.kill();
    let dead = at(&["sites"])?;
    ensure!(dead.contains("does not answer") && !dead.contains("no hub"), "{dead}");
    for text in said.iter().chain([&dead]) {
        for dump in ["Status {", "ErrorResponse", "Some(", "ApiError", "hyper"] {
            ensure!(!text.contains(dump), "a dump for people to read: {text}");
        }
    }
    Ok(())
}
