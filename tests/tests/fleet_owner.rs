//! Who may do what: a site's owner decides what a hub does there, the hub's RBAC decides who reaches into which site, and
//! what runs comes under a hub and leaves it without a restart.

use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Host, Kubectl, Lan, Member, busybox_archive, require, wait_for};
use tombolo_wan::Link;

const PATIENCE: Duration = Duration::from_secs(60);
const UIDS: &str = "jsonpath={.items[*].metadata.uid}";

fn deployment(namespace: &str, name: &str, site: &str, replicas: u32) -> String {
    let placement = if site.is_empty() {
        String::new()
    } else {
        format!(
            "apiVersion: tombolo.dev/v1alpha1\nkind: Placement\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  objects: [{{apiVersion: apps/v1, kind: Deployment, name: {name}}}]\n  sites: {{names: [{site}]}}\n  failover: {{waitSeconds: 3600}}\n---\n"
        )
    };
    format!(
        r#"{placement}apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  replicas: {replicas}
  minReadySeconds: 1
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: c, image: "test.local/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sh, -c, "echo hello; exec sleep 100000"]}}
"#
    )
}

fn pod(hub: &Kubectl, app: &str) -> Result<String> {
    let selector = format!("app={app}");
    hub.until(&["get", "pods", "-n", "shop", "-l", &selector], "Running", PATIENCE)?;
    hub.run(&["get", "pods", "-n", "shop", "-l", &selector, "-o", "jsonpath={.items[0].metadata.name}"])
}

fn refused(hub: &Kubectl, args: &[&str], wanted: &str) -> Result<()> {
    let error =
        format!("{:#}", hub.run(args).map_or_else(Ok, |out| Err(anyhow::anyhow!("not refused: {out}")))?);
    ensure!(error.contains(wanted), "{args:?}: {error}");
    Ok(())
}

fn site(host: &Host, image: &str) -> Result<Member> {
    let member = host.tombolo("site", &["--node", "--name", &host.name])?;
    let data = host.dir.join("site").display().to_string();
    member.tombolo(&["image", "import", image, "--data-dir", &data])?;
    Ok(member)
}

#[test]
fn an_owner_limits_a_hub_and_a_hub_limits_its_users() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfa", [198, 18, 74], dir.path(), Link::default())?;
    let image =
        busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?.display().to_string();
    let (hub_host, harbour_host, island_host) = (lan.host("hub")?, lan.host("harbour")?, lan.host("island")?);
    let top = hub_host.tombolo("hub", &["--lease-seconds", "5"])?;
    let (harbour, island) = (site(&harbour_host, &image)?, site(&island_host, &image)?);
    let limits = ["--allow-namespaces", "shop", "--quota", "pods=2", "--no-exec"];
    harbour.join(&top, "harbour", &limits)?;
    island.join(&top, "island", &[])?;
    let hub = top.kubectl();
    for name in ["harbour", "island"] {
        wait_for(name, PATIENCE, || {
            hub.run(&["wait", "--for=condition=Ready", &format!("site/{name}"), "--timeout=5s"])
        })?;
    }
    let table = top.tombolo(&["sites"])?;
    ensure!(table.contains("Gi"), "memory without a unit: {table}");
    the_owner_s_word(&hub)?;
    what_is_no_longer_set_goes(&hub, &harbour.kubectl())?;
    // What a hub tried beyond that is on record at the site.
    let log = harbour.process.log();
    for traces in [["not applied", "forbidden"], ["a request was refused", "pods/exec"]] {
        ensure!(log.lines().any(|l| traces.iter().all(|t| l.contains(t))), "no line with {traces:?}: {log}");
    }
    the_owner_s_quota(&hub, &harbour)?;
    the_hub_s_word(&hub)?;
    taken_in_and_given_back(&top, &island)?;
    cordoned(&hub, &island)?;
    let other_host = lan.host("other")?;
    two_hubs(&other_host, &island)?;
    revoked(&top, &harbour)?;
    silent_sites_are_marked(&top, harbour)
}

/// Also where the field was there from the beginning, when the object was created and not applied.
fn what_is_no_longer_set_goes(hub: &Kubectl, site: &Kubectl) -> Result<()> {
    let field = ["get", "deploy", "web", "-n", "shop", "-o", "jsonpath={.spec.minReadySeconds}"];
    ensure!(site.run(&field)? == "1");
    let unset = r#"[{"op": "remove", "path": "/spec/minReadySeconds"}]"#;
    hub.run(&["patch", "deploy", "web", "-n", "shop", "--type=json", "-p", unset])?;
    wait_for("the field to go at the site", PATIENCE, || {
        let left = site.run(&field)?;
        ensure!(left.is_empty() || left == "0", "minReadySeconds is {left}");
        Ok(())
    })
}

/// Namespaces, logs and exec, by the site's own RBAC; refusals show at the hub.
fn the_owner_s_word(hub: &Kubectl) -> Result<()> {
    for namespace in ["shop", "secret"] {
        hub.run(&["create", "namespace", namespace])?;
    }
    hub.apply(&deployment("shop", "web", "harbour", 1))?;
    hub.apply(&deployment("secret", "spy", "harbour", 1))?;
    let name = pod(hub, "web")?;
    ensure!(hub.run(&["logs", "-n", "shop", &name])?.contains("hello"));
    refused(hub, &["exec", "-n", "shop", &name, "--", "hostname"], "forbidden")?;
    hub.until(
        &[
            "get",
            "deploy",
            "-n",
            "secret",
            "spy",
            "-o",
            "jsonpath={.status.conditions[?(@.type=='Placed')].message}",
        ],
        "harbour refuses it",
        PATIENCE,
    )?;
    hub.until(&["get", "placement", "-n", "shop", "web", "-o", "jsonpath={.status.objects}"], "1", PATIENCE)?;
    Ok(())
}

/// The site's own quota refuses what is too much, the hub says so and why, and what is given back counts.
fn the_owner_s_quota(hub: &Kubectl, harbour: &Member) -> Result<()> {
    let there = harbour.kubectl();
    let used = ["get", "resourcequota", "-n", "shop", "-o", "jsonpath={.items[*].status.used.pods}"];
    there.until(&used, "1", PATIENCE)?;
    hub.run(&["scale", "-n", "shop", "deploy/web", "--replicas=3"])?;
    let failure = "jsonpath={.status.conditions[?(@.type=='ReplicaFailure')].message}";
    let why =
        hub.until(&["get", "deploy", "-n", "shop", "web", "-o", failure], "exceeded quota", PATIENCE)?;
    ensure!(why.contains("used: pods=2, limited: pods=2"), "{why}");
    // The one that was let in may still be on its way to the store.
    let running = ["get", "pods", "-n", "shop", "-l", "app=web", "-o", "jsonpath={.items[*].status.phase}."];
    there.until(&running, "Running Running.", PATIENCE)?;
    hub.run(&["scale", "-n", "shop", "deploy/web", "--replicas=1"])?;
    there.until(&used, "1", PATIENCE)?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/web", "--timeout=60s"]).map(drop)
}

/// The right on the pod and the right on the site: both, per site.
fn the_hub_s_word(hub: &Kubectl) -> Result<()> {
    hub.apply(&deployment("shop", "shed", "island", 1))?;
    let (at_harbour, at_island) = (pod(hub, "web")?, pod(hub, "shed")?);
    hub.run(&["create", "role", "reader", "-n", "shop", "--verb=get,list", "--resource=pods,pods/log"])?;
    hub.run(&["create", "rolebinding", "maria", "-n", "shop", "--role=reader", "--user=maria"])?;
    let logs = |pod: &str| hub.run(&["logs", "-n", "shop", pod, "--as=maria"]);
    refused(
        hub,
        &["logs", "-n", "shop", &at_island, "--as=maria"],
        "may not get sites/log of site \"island\"",
    )?;
    hub.apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: island-logs}\nrules: [{apiGroups: [tombolo.dev], resources: [sites/log], resourceNames: [island], verbs: [get]}]\n",
    )?;
    hub.run(&["create", "clusterrolebinding", "maria", "--clusterrole=island-logs", "--user=maria"])?;
    ensure!(logs(&at_island)?.contains("hello"));
    refused(hub, &["logs", "-n", "shop", &at_harbour, "--as=maria"], "of site \"harbour\"")?;
    // She has neither right for this.
    refused(hub, &["exec", "-n", "shop", &at_island, "--as=maria", "--", "hostname"], "forbidden")
}

fn taken_in_and_given_back(top: &Member, island: &Member) -> Result<()> {
    let (hub, there) = (top.kubectl(), island.kubectl());
    there.apply(&deployment("shop", "old", "", 2))?;
    there.run(&["rollout", "status", "-n", "shop", "deploy/old", "--timeout=60s"])?;
    let pods = ["get", "pods", "-n", "shop", "-l", "app=old", "-o", UIDS];
    let before = there.run(&pods)?;
    top.tombolo(&["import", "deploy/old", "--site", "island", "-n", "shop"])?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/old", "--timeout=60s"])?;
    ensure!(pod(&hub, "old")?.ends_with(".island"));
    ensure!(there.run(&pods)? == before, "an import restarted what it took in");
    hub.run(&["scale", "-n", "shop", "deploy/old", "--replicas=3"])?;
    there.until(
        &["get", "deploy", "-n", "shop", "old", "-o", "jsonpath={.status.readyReplicas}"],
        "3",
        PATIENCE,
    )?;
    let before = there.run(&pods)?;
    top.tombolo(&["give-back", "deploy/old", "-n", "shop"])?;
    refused(&hub, &["get", "deploy", "-n", "shop", "old"], "not found")?;
    ensure!(there.run(&pods)? == before, "giving back restarted what it gave");
    let notes = there.run(&[
        "get",
        "deploy",
        "-n",
        "shop",
        "old",
        "-o",
        "jsonpath={.metadata.labels}{.metadata.annotations}",
    ])?;
    ensure!(!notes.contains("tombolo.dev/hub") && !notes.contains("owner.tombolo.dev"), "{notes}");
    Ok(())
}

/// What runs stays, nothing new comes.
fn cordoned(hub: &Kubectl, island: &Member) -> Result<()> {
    let pods = ["get", "pods", "-n", "shop", "-l", "app=shed", "-o", UIDS];
    let before = island.kubectl().run(&pods)?;
    hub.run(&["patch", "site", "island", "--type=merge", "-p", r#"{"spec":{"unschedulable":true}}"#])?;
    hub.apply(&deployment("shop", "new", "island", 1))?;
    hub.until(
        &[
            "get",
            "deploy",
            "-n",
            "shop",
            "new",
            "-o",
            "jsonpath={.status.conditions[?(@.type=='Placed')].message}",
        ],
        "cordoned",
        PATIENCE,
    )?;
    ensure!(island.kubectl().run(&pods)? == before);
    hub.run(&["patch", "site", "island", "--type=merge", "-p", r#"{"spec":{"unschedulable":false}}"#])?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/new", "--timeout=60s"]).map(drop)
}

/// A site of two hubs: each has its own, and neither touches the other's.
fn two_hubs(host: &Host, island: &Member) -> Result<()> {
    let other = host.tombolo("hub", &["--lease-seconds", "5"])?;
    island.join(&other, "isle", &[])?;
    let hub = other.kubectl();
    hub.until(&["get", "sites"], "True", PATIENCE)?;
    hub.run(&["create", "namespace", "shop"])?;
    hub.apply(&deployment("shop", "guest", "", 1))?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/guest", "--timeout=60s"])?;
    hub.apply(&deployment("shop", "shed", "", 1))?;
    hub.until(
        &[
            "get",
            "deploy",
            "-n",
            "shop",
            "shed",
            "-o",
            "jsonpath={.status.conditions[?(@.type=='Placed')].message}",
        ],
        "belongs to hub",
        PATIENCE,
    )?;
    // It leaves one of them; what that one made goes, the rest stays.
    let before = island.kubectl().run(&["get", "pods", "-n", "shop", "-l", "app=shed", "-o", UIDS])?;
    island.tombolo(&["leave", &host.url()])?;
    wait_for("the guest to be gone", PATIENCE, || {
        let left = island.kubectl().run(&["get", "deploy,pods", "-n", "shop", "-o", "name"])?;
        ensure!(!left.contains("guest"), "{left}");
        Ok(())
    })?;
    ensure!(island.kubectl().run(&["get", "pods", "-n", "shop", "-l", "app=shed", "-o", UIDS])? == before);
    Ok(())
}

/// A revoked certificate opens nothing; what the site runs stays.
fn revoked(top: &Member, harbour: &Member) -> Result<()> {
    let (hub, there) = (top.kubectl(), harbour.kubectl());
    let pods = ["get", "pods", "-n", "shop", "-l", "app=web", "-o", UIDS];
    let before = there.run(&pods)?;
    top.tombolo(&["sites", "revoke", "harbour"])?;
    hub.until(&["get", "node", "harbour"], "NotReady", PATIENCE)?;
    wait_for("the site to be told", PATIENCE, || {
        ensure!(harbour.process.log().contains("was revoked"), "nothing in the site's log");
        ensure!(top.process.log().contains("its certificate was revoked"), "no trace at the hub");
        Ok(())
    })?;
    // An expired token opens nothing either.
    let expired = top.tombolo(&["token", "create", "--ttl", "1s"])?;
    let expired = expired.split_whitespace().nth(4).unwrap_or_default();
    std::thread::sleep(Duration::from_secs(2));
    refused(
        &hub,
        &[
            "get",
            "csr",
            "--token",
            expired,
            "--kubeconfig",
            "/dev/null",
            "--insecure-skip-tls-verify",
            "-s",
            &url_of(top)?,
        ],
        "nauthorized",
    )?;
    let line = top.tombolo(&["token", "create", "--needs-approval", "--uses", "1"])?;
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let limits = ["--name", "harbour", "--allow-namespaces", "shop", "--quota", "pods=2", "--no-exec"];
    harbour.tombolo(&words.into_iter().chain(limits).collect::<Vec<_>>())?;
    wait_for("the request to wait for a person", PATIENCE, || top.tombolo(&["sites", "approve", "harbour"]))?;
    wait_for("the site to be back", PATIENCE, || {
        hub.run(&["wait", "--for=condition=Ready", "site/harbour", "--timeout=5s"])
    })?;
    ensure!(there.run(&pods)? == before, "joining again restarted something");
    Ok(())
}

fn url_of(member: &Member) -> Result<String> {
    let url = member.kubectl().run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
    Ok(url.trim().to_owned())
}

fn silent_sites_are_marked(top: &Member, harbour: Member) -> Result<()> {
    drop(harbour);
    top.kubectl().until(&["get", "node", "harbour"], "NotReady", PATIENCE)?;
    let table = top.tombolo(&["place", "web"])?;
    ensure!(table.contains("1?") && table.contains("not heard since"), "{table}");
    let manifest = top.tombolo(&[
        "agent",
        "manifest",
        "--hub",
        "https://hub:6443",
        "--token",
        "a.b",
        "--ca-hash",
        "sha256:0",
        "--name",
        "x",
        "--allow-namespaces",
        "shop",
    ])?;
    top.kubectl()
        .run_with_input(&["apply", "--dry-run=server", "--validate=false", "-f", "-"], &manifest)
        .map(drop)
}
