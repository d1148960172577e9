//! Who may do what: a site's owner decides what a hub does there, the hub's RBAC decides who reaches into which site, and
//! what runs comes under a hub and leaves it without a restart.

use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Host, Kubectl, Lan, Member, Process, busybox_archive, require, wait_for};
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
    let (harbour, mut island) = (site(&harbour_host, &image)?, site(&island_host, &image)?);
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
    two_hubs(&other_host, &mut island)?;
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
    unmarked(&there)?;
    // Deleted at the hub it stays as well: the hub did not make it.
    let import = || {
        top.tombolo(&["import", "deploy/old", "--site", "island", "-n", "shop"])?;
        hub.run(&["rollout", "status", "-n", "shop", "deploy/old", "--timeout=60s"])
    };
    import()?;
    hub.run(&["delete", "deploy/old", "placement/import-deployment-old", "-n", "shop", "--timeout=60s"])?;
    wait_for("the hub to let go of it", PATIENCE, || unmarked(&there))?;
    ensure!(there.run(&pods)? == before, "deleting the hub's copy restarted what it had taken in");
    // So it does when the site leaves.
    import()?;
    let url = url_of(top)?;
    island.tombolo(&["leave", &url])?;
    wait_for("the hub's own to be gone", PATIENCE, || {
        let left = there.run(&["get", "deploy", "-n", "shop", "-o", "name"])?;
        ensure!(left.trim() == "deployment.apps/old", "{left}");
        unmarked(&there)
    })?;
    ensure!(there.run(&pods)? == before, "leaving restarted what the hub had taken in");
    // Back again, for what follows.
    top.tombolo(&["sites", "remove", "island"])?;
    hub.run(&["wait", "--for=delete", "site/island", "--timeout=60s"])?;
    hub.run(&["delete", "deploy/old", "placement/import-deployment-old", "-n", "shop", "--timeout=60s"])?;
    island.join(top, "island", &[])?;
    hub.until(&["get", "pods", "-n", "shop", "-l", "app=shed"], "Running", PATIENCE)?;
    there.until(&["get", "pods", "-n", "shop", "-l", "app=shed"], "Running", PATIENCE).map(drop)
}

/// Nothing on what was taken in shows that a hub ever had it.
fn unmarked(site: &Kubectl) -> Result<()> {
    let all = "jsonpath={.metadata.labels}{.metadata.annotations}";
    let notes = site.run(&["get", "deploy", "-n", "shop", "old", "-o", all])?;
    ensure!(!notes.contains("tombolo.dev"), "{notes}");
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
fn two_hubs(host: &Host, island: &mut Member) -> Result<()> {
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
    // A namespace that the site did not have, and a lease.
    hub.run(&["create", "namespace", "guests"])?;
    hub.apply(&deployment("guests", "once", "isle", 1).replace("waitSeconds: 3600", "atMostOnce: true"))?;
    hub.run(&["rollout", "status", "-n", "guests", "deploy/once", "--timeout=60s"])?;
    let there = island.kubectl();
    let leases = ["get", "lease", "-n", "tombolo-system", "-o", "name"];
    ensure!(there.run(&leases)?.contains("/hub-"));
    // It leaves one of them; what that one made goes, the rest stays. Also when its process dies over it.
    let before = there.run(&["get", "pods", "-n", "shop", "-l", "app=shed", "-o", UIDS])?;
    let records = ["get", "secret", "-n", "tombolo-system", "-o", "name"];
    ensure!(there.run(&records)?.lines().count() == 4, "a tie and a state per hub");
    island.tombolo(&["leave", &host.url()])?;
    island.restart()?;
    let there = island.kubectl();
    wait_for("the other hub to be gone", PATIENCE, || {
        let left = there.run(&["get", "deploy,pods", "-A", "-o", "name"])?;
        ensure!(!left.contains("guest") && !left.contains("once"), "{left}");
        let left = there.run(&["get", "namespaces", "-o", "name"])?;
        ensure!(!left.contains("guests") && left.contains("shop"), "{left}");
        let left = there.run(&leases)?;
        ensure!(!left.contains("/hub-"), "{left}");
        let left = there.run(&records)?;
        ensure!(left.lines().count() == 2, "{left}");
        Ok(())
    })?;
    ensure!(there.run(&["get", "pods", "-n", "shop", "-l", "app=shed", "-o", UIDS])? == before);
    what_allowed_it_goes_too(&other, &host.url(), island)
}

/// Namespaces that are made for a hub, and the rights and the quota in them.
fn what_allowed_it_goes_too(other: &Member, url: &str, island: &Member) -> Result<()> {
    let there = island.kubectl();
    other.tombolo(&["sites", "remove", "isle"])?;
    other.kubectl().run(&["wait", "--for=delete", "site/isle", "--timeout=60s"])?;
    let limits = ["--allow-namespaces", "shop,annex", "--quota", "pods=3", "--pod-security", "baseline"];
    island.join(other, "isle", &limits)?;
    other.kubectl().until(&["get", "sites"], "True", PATIENCE)?;
    let made = ["get", "role,rolebinding,resourcequota", "-A", "-o", "name"];
    ensure!(there.run(&made)?.lines().filter(|line| line.contains("/tombolo-hub-")).count() == 6);
    island.tombolo(&["leave", url])?;
    wait_for("the limits to be gone", PATIENCE, || {
        let left = there.run(&made)?;
        ensure!(!left.contains("/tombolo-hub-"), "{left}");
        let left = there.run(&["get", "namespaces", "--show-labels"])?;
        let clean =
            !left.contains("annex") && !left.contains("limits.tombolo.dev") && !left.contains("pod-security");
        ensure!(clean && left.contains("shop"), "{left}");
        Ok(())
    })
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

/// What an owner says later counts as well, for what runs and for what is open; and each way to say it.
#[test]
fn an_owner_takes_back_what_was_allowed() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut lan = Lan::start("tfe", [198, 18, 81], dir.path(), Link::default())?;
    let image =
        busybox_archive(dir.path(), "test.local/app:1", &["/bin/sleep", "100000"])?.display().to_string();
    let (hub_host, reef_host) = (lan.host("hub")?, lan.host("reef")?);
    let top = hub_host.tombolo("hub", &["--lease-seconds", "5"])?;
    let reef = site(&reef_host, &image)?;
    let line = top.tombolo(&["token", "create", "--uses", "1"])?;
    let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--name", "reef"]).collect();
    let join = |limits: &[&str]| reef.tombolo(&words.iter().chain(limits).copied().collect::<Vec<_>>());
    let (hub, there) = (top.kubectl(), reef.kubectl());
    join(&[])?;
    hub.until(&["get", "sites"], "True", PATIENCE)?;
    for namespace in ["shop", "annex"] {
        hub.run(&["create", "namespace", namespace])?;
        hub.apply(&deployment(namespace, "web", "reef", 1))?;
        hub.run(&["rollout", "status", "-n", namespace, "deploy/web", "--timeout=60s"])?;
    }
    let name = pod(&hub, "web")?;
    let exec = ["exec", "-n", "shop", &name, "--", "hostname"];
    hub.run(&exec)?;
    let uids = ["get", "pods", "-A", "-l", "app=web", "-o", UIDS];
    let before = there.run(&uids)?;
    let why = |namespace: &str, name: &str, wanted: &str| {
        let message = "jsonpath={.status.conditions[?(@.type=='Placed')].message}";
        hub.until(&["get", "deploy", "-n", namespace, name, "-o", message], wanted, PATIENCE)
    };

    // The same line, with less: no shell, no logs, nothing new in the other namespace. What runs stays.
    let shell = hub.command(&["exec", "-n", "shop", &name, "--", "sh", "-c", "echo open; sleep 1000"]);
    let mut shell = Process::start("shell", shell, dir.path())?;
    wait_for("the shell to open", PATIENCE, || {
        ensure!(shell.log().contains("open"), "{}", shell.log());
        Ok(())
    })?;
    join(&["--allow-namespaces", "shop,annex", "--no-exec"])?;
    wait_for("exec to be refused", PATIENCE, || refused(&hub, &exec, "forbidden"))?;
    wait_for("the open shell to be cut", PATIENCE, || {
        ensure!(shell.alive().is_err(), "it is open");
        Ok(())
    })?;
    ensure!(hub.run(&["logs", "-n", "shop", &name])?.contains("hello"));
    join(&["--allow-namespaces", "shop", "--no-exec", "--no-logs"])?;
    wait_for("logs to be refused", PATIENCE, || refused(&hub, &["logs", "-n", "shop", &name], "forbidden"))?;
    let roles = there.run(&["get", "role,rolebinding", "-n", "annex", "-o", "name"])?;
    ensure!(!roles.contains("tombolo"), "rights where nothing is allowed any more: {roles}");
    hub.run(&["scale", "-n", "annex", "deploy/web", "--replicas=2"])?;
    why("annex", "web", "reef refuses it")?;
    ensure!(there.run(&uids)? == before, "less rights restarted something");

    // Only some kinds.
    join(&["--allow-namespaces", "shop", "--allow-kinds", "deployments.apps"])?;
    hub.run(&exec)?;
    hub.apply(&deployment("shop", "fine", "reef", 1))?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/fine", "--timeout=60s"])?;
    let named = deployment("shop", "named", "reef", 1)
        .replace("imagePullPolicy", "envFrom: [{configMapRef: {name: settings}}], imagePullPolicy");
    hub.run(&["create", "configmap", "settings", "-n", "shop", "--from-literal=colour=green"])?;
    hub.apply(&named)?;
    ensure!(why("shop", "named", "reef refuses it")?.contains("configmaps"));

    // Pod security of the site's own.
    join(&["--allow-namespaces", "shop", "--pod-security", "restricted"])?;
    let level = "jsonpath={.metadata.labels.pod-security\\.kubernetes\\.io/enforce}";
    ensure!(there.run(&["get", "namespace", "shop", "-o", level])? == "restricted");
    hub.apply(&deployment("shop", "lax", "reef", 1))?;
    let failure = "jsonpath={.status.conditions[?(@.type=='ReplicaFailure')].message}";
    hub.until(&["get", "deploy", "-n", "shop", "lax", "-o", failure], "violates PodSecurity", PATIENCE)?;

    // A user of the owner's own, whose rights are the owner's to write.
    there.run(&["create", "role", "guest", "-n", "shop", "--verb=*", "--resource=deployments.apps"])?;
    there.run(&["create", "rolebinding", "guest", "-n", "shop", "--role=guest", "--group=guests"])?;
    join(&["--act-as", "hub:prod", "--act-as-groups", "guests"])?;
    let left = there.run(&["get", "role,rolebinding", "-n", "shop", "-o", "name"])?;
    ensure!(!left.contains("/tombolo-hub-") && left.contains("/guest"), "{left}");
    ensure!(there.run(&["get", "namespace", "shop", "-o", level])?.is_empty());
    wait_for("logs to be refused", PATIENCE, || refused(&hub, &["logs", "-n", "shop", &name], "hub:prod"))?;
    hub.run(&["scale", "-n", "shop", "deploy/fine", "--replicas=2"])?;
    hub.run(&["rollout", "status", "-n", "shop", "deploy/fine", "--timeout=60s"]).map(drop)
}

fn url_of(member: &Member) -> Result<String> {
    let url = member.kubectl().run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
    Ok(url.trim().to_owned())
}

fn silent_sites_are_marked(top: &Member, harbour: Member) -> Result<()> {
    drop(harbour);
    top.kubectl().until(&["get", "node", "harbour"], "NotReady", PATIENCE)?;
    let table = top.tombolo(&["place", "web", "-n", "shop"])?;
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
