//! A machine that is switched on before there is a network: its site listens everywhere, runs its pods, and tells everybody
//! where it is when it gets an address, without being started again. Needs root.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, cargo_binary, require, wait_for};
use tombolo_tests::machine::Machine;
use tombolo_tests::site::{IMAGE, is_root, link_up};

const PATIENCE: Duration = Duration::from_secs(60);
const ADDRESS: &str = "10.83.0.1";
const NODE: &[&str] =
    &["get", "node", "box", "-o", r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address}"#];
const HOST: &[&str] = &["get", "pod", "web", "-o", "jsonpath={.status.hostIP} {.status.podIP}"];
const API: &[&str] = &["get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[*].addresses[*].ip}"];

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: IMAGE, command: [sleep, "1000"]}]
"#;

#[test]
fn a_site_that_was_there_before_its_network_is_reached_when_it_comes() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut machine = Machine::new("tsn", None)?;
    let outcome = story(&mut machine);
    machine.end(outcome)
}

fn story(machine: &mut Machine) -> Result<()> {
    machine.start(machine.site_command("0.0.0.0:6443"))?;
    machine.until_ready()?;
    machine.import_image()?;
    let kubectl = machine.kubectl();
    wait_for("a pod", PATIENCE, || kubectl.apply(&POD.replace("IMAGE", IMAGE)))?;
    kubectl.run(&["wait", "pod/web", "--for=condition=Ready", "--timeout=60s"])?;
    ensure!(kubectl.run(NODE)? == "127.0.0.1", "there is nothing else yet");
    let container = ["get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}"];
    let before = kubectl.run(&container)?;

    link_up(machine.space(), &format!("{ADDRESS}/24"))?;
    let says = |what: &str, args: &[&str], wanted: &str| {
        wait_for(what, PATIENCE, || {
            let said = kubectl.run(args)?;
            ensure!(said == wanted, "it is {said:?}");
            Ok(())
        })
    };
    says("the node's address", NODE, ADDRESS)?;
    says("the pod's address", HOST, &format!("{ADDRESS} {ADDRESS}"))?;
    says("the address of the API inside", API, ADDRESS)?;
    ensure!(kubectl.run(&container)? == before, "the pod was started again");

    // From outside, with the certificate checked.
    let there = format!("https://{ADDRESS}:6443");
    kubectl.run(&["--server", &there, "get", "nodes"]).context("the API at its new address")?;
    wait_for("tokens for the new address", PATIENCE, || {
        let ticket = ticket(machine)?;
        ensure!(ticket.contains(&there), "{ticket}");
        Ok(())
    })?;
    // The other nodes' packets come to the new address.
    let links = ip(machine.space(), &["-d", "-o", "link", "show", "type", "vxlan"])?;
    ensure!(links.contains(&format!("local {ADDRESS} ")), "{links}");
    Ok(())
}

fn ticket(machine: &Machine) -> Result<String> {
    let program = cargo_binary("tombolo").display().to_string();
    let kubeconfig = machine.data().join("admin.kubeconfig").display().to_string();
    let words = ["netns", "exec", machine.space(), &program, "token", "create", "--node", "--kubeconfig"];
    run(Command::new("ip").args(words).arg(kubeconfig))
}

fn ip(space: &str, words: &[&str]) -> Result<String> {
    run(Command::new("ip").args(["-n", space]).args(words))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
