//! What is installed on real machines: systemd units and the Helm chart, tried with the real tools.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{
    Fixture, Process, Tombolo, Upstream, UpstreamOptions, cargo_binary, require, wait_for,
};
use tombolo_tests::chart::{self, Ticket, helm};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn systemd_takes_the_units_and_the_program_takes_their_flags() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut units = Vec::new();
    for entry in std::fs::read_dir(root().join("packaging/systemd"))? {
        let path = entry?.path();
        // systemd looks whether the program is there.
        let text = std::fs::read_to_string(&path)?;
        let line = text.lines().find_map(|l| l.strip_prefix("ExecStart=")).expect("a unit starts something");
        let command = line.split_whitespace().nth(1).expect("a command");
        let help = Command::new(cargo_binary("tombolo")).args([command, "--help"]).output()?;
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for flag in line.split_whitespace().filter(|word| word.starts_with("--")) {
            ensure!(
                help.contains(flag),
                "{} uses {flag}, which `tombolo {command}` does not know",
                path.display()
            );
        }
        let copy = dir.path().join(path.file_name().expect("a file has a name"));
        std::fs::write(
            &copy,
            text.replace("/usr/local/bin/tombolo", &cargo_binary("tombolo").to_string_lossy()),
        )?;
        units.push(copy);
    }
    ensure!(units.len() == 4, "{units:?}");
    let Ok(output) = Command::new("systemd-analyze").arg("verify").args(&units).output() else {
        assert!(std::env::var_os("CI").is_none(), "systemd-analyze is missing in CI");
        eprintln!("SKIPPED: no systemd-analyze here");
        return Ok(());
    };
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && !said.contains("tombolo-"), "{said}");
    Ok(())
}

#[test]
fn the_chart_installs_on_a_real_kubernetes_and_its_agent_has_the_rights_it_needs() -> Result<()> {
    if !require(&[
        Fixture::Helm,
        Fixture::Kubectl,
        Fixture::Etcd,
        Fixture::KubeApiserver,
        Fixture::KubeControllerManager,
    ]) {
        return Ok(());
    }
    let chart = chart::folder();
    // `edit` is put together by a controller; without it, it allows nothing.
    let controllers = Some("clusterrole-aggregation-controller".to_owned());
    let member = Upstream::start(&UpstreamOptions { controllers, ..UpstreamOptions::default() })?;
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let kubectl = member.kubectl();

    // What cannot work is refused with a reason.
    for (values, wanted) in [
        ("hub.enabled=true,hub.replicas=2", "needs hub.store"),
        ("hub.enabled=true,hub.store=etcd=https://etcd:2379", "needs hub.etcd.tlsSecret"),
        ("hub.enabled=true,hub.etcd.tlsSecret=etcd", "goes with hub.store: etcd=https://"),
        ("agent.enabled=true", "tombolo token create"),
    ] {
        let line = ["template", "t", &chart, "--kube-version", "1.36.0", "--set", values];
        let refused = helm(&member.kubeconfig, &line);
        ensure!(refused.as_ref().is_err_and(|e| e.to_string().contains(wanted)), "{values}: {refused:?}");
    }

    let output = Command::new(cargo_binary("tombolo"))
        .args(["token", "create", "--kubeconfig"])
        .arg(&hub.kubeconfig)
        .output()?;
    let join = String::from_utf8(output.stdout)?;
    let ticket = Ticket::read(&join)?;
    let values = format!(
        "hub.enabled=true,hub.url=https://hub.example.com:6443,{},agent.labels.rack=7",
        ticket.values("madrid")
    );
    let said =
        helm(&member.kubeconfig, &["install", "t", &chart, "--namespace", "default", "--set", &values])?;
    ensure!(said.contains("madrid") && said.contains("tombolo token create"), "{said}");
    let made = kubectl.run(&["get", "statefulset,deployment,service,secret", "-o", "name"])?;
    for part in ["statefulset.apps/t-hub", "deployment.apps/t-agent", "service/t-hub", "secret/t-agent-join"]
    {
        ensure!(made.contains(part), "no {part} in {made}");
    }
    // An API server would say so if a field were wrong; ours reads the same manifests.
    helm(&hub.kubeconfig, &["install", "t", &chart, "--namespace", "default", "--set", &values])?;

    // The flags of the chart's agent, run as its service account: joins, applies what it may, and not what it may not.
    let args = kubectl.run(&[
        "get",
        "deploy",
        "t-agent",
        "-o",
        "jsonpath={.spec.template.spec.containers[0].args}",
    ])?;
    let args: Vec<String> = serde_json::from_str(&args)?;
    // The pod has a folder of its own there; this machine's stays as it is.
    let state = format!("--state-dir={}", dir.path().join("state").display());
    let args: Vec<String> = args
        .into_iter()
        .map(|arg| if arg.starts_with("--state-dir=") { state.clone() } else { arg })
        .collect();
    ensure!(args.contains(&state), "the chart's agent keeps nothing: {args:?}");
    let account = kubectl.run(&["create", "token", "t-agent"])?;
    let config = dir.path().join("agent.kubeconfig");
    let text = std::fs::read_to_string(&member.kubeconfig)?
        .replace("token: admin-token", &format!("token: {}", account.trim()));
    std::fs::write(&config, text)?;
    let mut command = Command::new(cargo_binary("tombolo"));
    command
        .args(&args)
        .arg("--kubeconfig")
        .arg(&config)
        .env("TOMBOLO_TOKEN", &ticket.token)
        .env("TOMBOLO_CA_HASH", &ticket.ca_hash);
    let mut agent = Process::start("agent", command, dir.path())?;
    let at_hub = hub.kubectl();
    wait_for("madrid to join", Duration::from_secs(60), || {
        agent.alive()?;
        let sites = at_hub.run(&["get", "sites", "-l", "rack=7"])?;
        ensure!(sites.contains("madrid") && sites.contains("True"), "{sites}\n{}", agent.log());
        Ok(())
    })?;
    at_hub.apply(
        "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {name: there}\nspec:\n  objects: [{kind: ConfigMap, name: note}]\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {a: '1'}\n",
    )?;
    kubectl
        .until(&["get", "configmap"], "note", Duration::from_secs(60))
        .with_context(|| at_hub.run(&["get", "works", "-A", "-o", "wide"]).unwrap_or_default())?;
    // It may look at what is placed and at nothing else, and it changes things as the hub's user only.
    let agent_may = |verb: &str, what: &str| -> Result<bool> {
        let user = "--as=system:serviceaccount:default:t-agent";
        let output = kubectl.command(&["auth", "can-i", verb, what, user, "-A"]).output()?;
        Ok(output.status.success())
    };
    for (verb, what, wanted) in [
        ("list", "deployments.apps", true),
        ("watch", "nodes", true),
        ("delete", "deployments.apps", false),
        ("create", "namespaces", false),
        ("list", "clusterroles.rbac.authorization.k8s.io", false),
        ("impersonate", "groups", false),
        ("impersonate", "users/tombolo-hub", true),
        ("impersonate", "users/admin", false),
    ] {
        ensure!(agent_may(verb, what)? == wanted, "{verb} {what} is not {wanted}");
    }
    at_hub.run(&["delete", "configmap", "note"])?;
    wait_for("the note to go", Duration::from_secs(60), || {
        ensure!(!kubectl.run(&["get", "configmap"])?.contains("note"), "{}", agent.log());
        Ok(())
    })?;
    Ok(())
}
