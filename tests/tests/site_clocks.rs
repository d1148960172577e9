//! Machines whose clock is wrong when they start, and machines that slept longer than their certificates last: site and node
//! find each other again, and no container notices. Needs root.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, require, wait_for};
use tombolo_tests::clock::Clock;
use tombolo_tests::machine::Machine;
use tombolo_tests::site::{IMAGE, Runtime, SECOND, TwoNodes, is_root};

const PATIENCE: Duration = Duration::from_secs(120);
/// Boards without a battery start in 1970 or, as here, 1972.
const LONG_AGO: i64 = -20_000;
/// Certificates of nodes last a year, and are renewed in the last third of it.
const TWO_YEARS: i64 = 800;
const LATE_IN_THE_YEAR: i64 = 300;
const AFTER_THE_YEAR: i64 = 400;

const APPLICATION: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: IMAGE
        command: [sh, -c, "echo ahoy; exec httpd -f -p 8080"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
"#;

#[test]
fn a_node_with_a_wrong_clock_or_an_outdated_certificate_comes_back() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (Some(site_clock), Some(node_clock)) =
        (Clock::new(dir.path(), "site")?, Clock::new(dir.path(), "node")?)
    else {
        return Ok(());
    };
    let mut two = TwoNodes::start_with(Runtime::Embedded, Some([site_clock.clone(), node_clock.clone()]))?;
    let result = clocks_go_wrong(&mut two, &site_clock, &node_clock);
    if result.is_err() {
        eprintln!("{}", two.node_log());
    }
    result
}

fn clocks_go_wrong(two: &mut TwoNodes, site_clock: &Clock, node_clock: &Clock) -> Result<()> {
    let kubectl = two.kubectl();
    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    kubectl.run(&["rollout", "status", "daemonset/web", "--timeout=60s"])?;
    let before = containers(&kubectl)?;

    two.restart_second(|| node_clock.set(LONG_AGO))?;
    reached(two, &before, "a node whose clock says 1972")?;
    two.restart_second(|| node_clock.set(0))?;
    reached(two, &before, "the node with its clock set right")?;

    two.stop_both();
    site_clock.set(TWO_YEARS)?;
    node_clock.set(TWO_YEARS)?;
    two.start_both()?;
    reached(two, &before, "a node that slept for two years")?;
    ensure!(two.node_log().contains("certificate was renewed"), "{}", two.node_log());

    // It was not two years: both clocks were wrong, and are set while everything runs.
    site_clock.set(0)?;
    node_clock.set(0)?;
    reached(two, &before, "a node whose certificate comes from the future")
}

#[test]
fn the_certificates_of_a_node_are_renewed_before_they_end() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (Some(site_clock), Some(node_clock)) =
        (Clock::new(dir.path(), "site")?, Clock::new(dir.path(), "node")?)
    else {
        return Ok(());
    };
    let clocks = [site_clock, node_clock];
    let two = TwoNodes::start_with(Runtime::Embedded, Some(clocks.clone()))?;
    let result = a_year_goes_by(&two, &clocks);
    if result.is_err() {
        eprintln!("{}", two.node_log());
    }
    result
}

fn a_year_goes_by(two: &TwoNodes, clocks: &[Clock; 2]) -> Result<()> {
    let kubectl = two.kubectl();
    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    kubectl.run(&["rollout", "status", "daemonset/web", "--timeout=60s"])?;
    let before = containers(&kubectl)?;
    let client = || certificate(two, "node/cluster/client.pem");
    let serving = || certificate(two, "node/kubelet-serving.pem");
    let (first_client, first_serving) =
        (client()?, wait_for("a certificate of the port", PATIENCE, serving)?);
    wait_for("the port to show it", PATIENCE, || shown(two, &first_serving))?;

    for clock in clocks {
        clock.set(LATE_IN_THE_YEAR)?;
    }
    wait_for("both certificates to be renewed", PATIENCE, || {
        ensure!(client()? != first_client, "the client certificate is the first");
        ensure!(serving()? != first_serving, "the port's certificate is the first");
        Ok(())
    })?;
    reached(two, &before, "a node with new certificates")?;
    for clock in clocks {
        clock.set(AFTER_THE_YEAR)?;
    }
    reached(two, &before, "a node whose first certificates have ended")?;
    shown(two, &serving()?)?;
    let why = "jsonpath={range .items[*]}{.status.conditions[*].message}{'\\n'}{end}";
    let why = kubectl.run(&["get", "csr", "-o", why])?;
    ensure!(why.contains("The node renews its own client certificate."), "{why}");
    ensure!(!why.contains("outside its time"), "one was let to run out: {why}");
    Ok(())
}

/// The certificate in a file that also has its key.
fn certificate(two: &TwoNodes, file: &str) -> Result<String> {
    let text = std::fs::read_to_string(two.scratch().join(file))?;
    let end = "-----END CERTIFICATE-----";
    let (certificate, _) = text.split_once(end).with_context(|| format!("no certificate in {file}"))?;
    Ok(format!("{certificate}{end}").replace('\r', ""))
}

/// The kubelet port shows this one; it lets nobody in who has none.
fn shown(two: &TwoNodes, certificate: &str) -> Result<()> {
    let url = format!("https://{SECOND}:10250/healthz");
    let words =
        ["netns", "exec", two.first(), "curl", "-sk", "-m", "5", "-o", "/dev/null", "-w", "%{certs}", &url];
    let output = Command::new("ip").args(words).output().context("could not start curl")?;
    let certificates = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(certificates.contains(certificate), "it shows {certificates}, not {certificate}");
    Ok(())
}

fn containers(kubectl: &Kubectl) -> Result<String> {
    kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{'\\n'}{end}",
    ])
}

/// The second node tells the site of itself now, is reached for logs, and its containers are those from before.
fn reached(two: &TwoNodes, before: &str, who: &str) -> Result<()> {
    let kubectl = two.kubectl();
    let field = "--field-selector=spec.nodeName=second";
    wait_for(who, PATIENCE, || {
        let pod = kubectl.run(&["get", "pods", "-l", "app=web", field, "-o", "name"])?;
        kubectl.run(&["exec", pod.trim(), "--", "echo", "here"])
    })?;
    let lease = ["get", "lease", "-n", "kube-node-lease", "second", "-o", "jsonpath={.spec.renewTime}"];
    // A site that was restarted has forgotten it.
    let first = wait_for(&format!("the lease of {who}"), PATIENCE, || kubectl.run(&lease))?;
    wait_for(&format!("{who} to renew its lease"), PATIENCE, || {
        let now = kubectl.run(&lease)?;
        ensure!(now != first, "still {now}");
        Ok(())
    })?;
    kubectl.run(&["wait", "node/second", "--for=condition=Ready", "--timeout=60s"])?;
    wait_for(&format!("the containers of {who}"), PATIENCE, || {
        let after = containers(&kubectl)?;
        ensure!(after == before, "{before} became {after}");
        Ok(())
    })
}

#[test]
fn a_site_that_first_started_in_1972_is_right_when_its_clock_is() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let Some(clock) = Clock::new(dir.path(), "site")? else { return Ok(()) };
    let mut machine = Machine::new("ttc", Some("10.80.0.1/24"))?;
    let outcome = set_right(&mut machine, &clock);
    machine.end(outcome)
}

fn set_right(machine: &mut Machine, clock: &Clock) -> Result<()> {
    clock.set(LONG_AGO)?;
    let mut command = machine.site_command("10.80.0.1:6443");
    clock.rule(&mut command);
    machine.start(command)?;
    machine.until_ready()?;
    wait_for("the site's node", PATIENCE, || {
        ensure!(machine.log().contains("the API is reachable"), "not yet");
        Ok(())
    })?;
    machine.import_image()?;
    let kubectl = machine.kubectl();
    ensure!(kubectl.run(&["get", "nodes"]).is_err(), "to everybody else its certificates ended long ago");

    clock.set(0)?;
    wait_for("the site", PATIENCE, || {
        machine.alive()?;
        kubectl.run(&["wait", "node/box", "--for=condition=Ready", "--timeout=5s"])
    })?;
    wait_for("the application", PATIENCE, || kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE)))?;
    kubectl.run(&["rollout", "status", "daemonset/web", "--timeout=60s"])?;
    // Its account's token, which the node asked for, is good.
    let token = "cat /var/run/secrets/kubernetes.io/serviceaccount/token";
    let token = kubectl.run(&["exec", "daemonset/web", "--", "sh", "-c", token])?;
    let review = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {{token: {}}}\n",
        token.trim()
    );
    let answer = kubectl.run_with_input(&["create", "--validate=false", "-o", "json", "-f", "-"], &review)?;
    ensure!(answer.contains("\"authenticated\": true"), "{answer}");
    ensure!(kubectl.run(&["logs", "daemonset/web"])?.contains("ahoy"));
    Ok(())
}
