//! Attempts to break in. Each fails with a clear answer, and the hub's log tells who tried what.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tombolo_testkit::{Fixture, Kubectl, Tombolo, require, tombolo, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);
/// Something that only the other site has.
const OF_BETA: &str = "
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {name: beta, namespace: default}
spec:
  objects: [{apiVersion: v1, kind: ConfigMap, name: plans}]
  sites: {names: [beta]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plans, namespace: default}
";

struct Site {
    name: &'static str,
    own: Tombolo,
}

impl Site {
    /// A site without a node: there is nothing to run here.
    fn start(name: &'static str, dir: &Path, hub: &Tombolo) -> Result<Self> {
        let dir = dir.join(name);
        std::fs::create_dir(&dir)?;
        let own = Tombolo::start("site", &dir, &["--listen", "127.0.0.1:0", "--name", name])?;
        let site = Self { name, own };
        let line = tombolo(&hub.kubeconfig, &["token", "create", "--uses", "1"])?;
        site.join(&line)?;
        wait_for("the site to be heard", PATIENCE, || {
            hub.kubectl().run(&["wait", "--for=condition=Ready", &format!("site/{name}"), "--timeout=5s"])
        })?;
        Ok(site)
    }

    fn join(&self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--name", self.name]).collect();
        tombolo(&self.own.kubeconfig, &words).map(drop)
    }

    /// One field of what the agent keeps: its certificate, its key.
    fn kept(&self, field: &str) -> Result<String> {
        let path = format!("jsonpath={{range .items[*]}}{{.data.{}}}{{end}}", field.replace('.', "\\."));
        let text = self.own.kubectl().run(&["get", "secrets", "-n", "tombolo-system", "-o", &path])?;
        Ok(String::from_utf8(STANDARD.decode(text.trim()).with_context(|| format!("{field}: {text}"))?)?)
    }

    /// kubectl with the site's own certificate, straight at the hub.
    fn at_hub(&self, hub: &Tombolo, dir: &Path) -> Result<Kubectl> {
        let file = |name: &str| dir.join(format!("{}-{name}", self.name));
        std::fs::write(file("tls.crt"), self.kept("tls.crt")?)?;
        std::fs::write(file("tls.key"), self.kept("tls.key")?)?;
        let url = hub.kubectl().run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: hub, cluster: {{server: \"{}\", insecure-skip-tls-verify: true}}}}]\nusers: [{{name: site, user: {{client-certificate: {}, client-key: {}}}}}]\ncontexts: [{{name: hub, context: {{cluster: hub, user: site}}}}]\ncurrent-context: hub\n",
            url.trim(),
            file("tls.crt").display(),
            file("tls.key").display(),
        );
        let kubeconfig = file("kubeconfig");
        std::fs::write(&kubeconfig, text)?;
        Ok(Kubectl::new(&kubeconfig))
    }
}

/// kubectl with nothing but a token.
fn with_token(hub: &Tombolo, dir: &Path, line: &str) -> Result<Kubectl> {
    let token = line.split_whitespace().skip_while(|w| *w != "--token").nth(1).context("a token")?;
    let url = hub.kubectl().run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
    let kubeconfig: PathBuf = dir.join(format!("{}.kubeconfig", token.split('.').next().unwrap_or_default()));
    std::fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: hub, cluster: {{server: \"{}\", insecure-skip-tls-verify: true}}}}]\nusers: [{{name: token, user: {{token: {token}}}}}]\ncontexts: [{{name: hub, context: {{cluster: hub, user: token}}}}]\ncurrent-context: hub\n",
            url.trim()
        ),
    )?;
    Ok(Kubectl::new(&kubeconfig))
}

fn refused(kubectl: &Kubectl, args: &[&str], wanted: &str) -> Result<()> {
    match kubectl.run(args) {
        Ok(out) => anyhow::bail!("{args:?} was not refused: {out}"),
        Err(error) => ensure!(format!("{error:#}").contains(wanted), "{args:?}: {error:#}"),
    }
    Ok(())
}

/// A PUT of something that is not the sender's.
fn replaced(kubectl: &Kubectl, path: &str, object: &str, wanted: &str) -> Result<()> {
    let written = kubectl.run_with_input(&["replace", "--raw", path, "-f", "-"], object);
    let answer = format!("{:#}", written.err().with_context(|| format!("{path} was written"))?);
    ensure!(answer.contains(wanted), "{answer}");
    Ok(())
}

/// Waits for a line of the log that has all of these in it.
fn logged(process: &Tombolo, wanted: &[&str]) -> Result<()> {
    wait_for(&format!("a line with {wanted:?} in the log"), Duration::from_secs(15), || {
        let log = process.process.log();
        let found = log.lines().any(|line| wanted.iter().all(|word| line.contains(word)));
        let tail: Vec<&str> = log.lines().rev().take(12).collect();
        ensure!(found, "it ends with {tail:#?}");
        Ok(())
    })
}

fn request(name: &str, common_name: &str) -> Result<String> {
    let mut params = rcgen::CertificateParams::new(vec![])?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let pem = params.serialize_request(&rcgen::KeyPair::generate()?)?.pem()?;
    Ok(format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\nspec: {{signerName: tombolo.dev/site, usages: [client auth], request: {}}}\n",
        STANDARD.encode(pem)
    ))
}

#[test]
fn who_tries_to_break_in_gets_nowhere_and_leaves_a_trace() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0", "--lease-seconds", "5"])?;
    let admin = hub.kubectl();
    let (alpha, beta) = (Site::start("alpha", dir.path(), &hub)?, Site::start("beta", dir.path(), &hub)?);
    let thief = alpha.at_hub(&hub, dir.path())?;
    thief.run(&["get", "works", "-n", "site-alpha"])?;

    // Another site's works, another site's status, anything else.
    refused(&thief, &["get", "works", "-n", "site-beta"], "cannot list resource \"works\"")?;
    logged(&hub, &["a request was refused", "system:site:alpha", "works", "site-beta"])?;
    let lie = r#"{"apiVersion":"tombolo.dev/v1alpha1","kind":"Site","metadata":{"name":"beta"},"status":{"nodes":99}}"#;
    replaced(
        &thief,
        "/apis/tombolo.dev/v1alpha1/sites/beta/status",
        lie,
        "cannot update resource \"sites/status\"",
    )?;
    admin.apply(OF_BETA)?;
    let work = wait_for("a Work of the other site", PATIENCE, || {
        let path = "jsonpath={.items[*].metadata.name}";
        let name = admin.run(&["get", "works", "-n", "site-beta", "-o", path])?;
        ensure!(!name.is_empty(), "none yet");
        Ok(name)
    })?;
    refused(&thief, &["get", "work", &work, "-n", "site-beta"], "cannot get resource \"works\"")?;
    let path = format!("/apis/tombolo.dev/v1alpha1/namespaces/site-beta/works/{work}/status");
    let lie = format!(
        r#"{{"apiVersion":"tombolo.dev/v1alpha1","kind":"Work","metadata":{{"name":"{work}","namespace":"site-beta"}},"status":{{"rootGeneration":99}}}}"#
    );
    replaced(&thief, &path, &lie, "cannot update resource \"works/status\"")?;
    let lie = ["--subresource=status", "--type=merge", "-p", r#"{"status":{"rootGeneration":99}}"#];
    let patch: Vec<&str> = ["patch", "work", &work, "-n", "site-beta"].into_iter().chain(lie).collect();
    refused(&thief, &patch, "forbidden")?;
    logged(&hub, &["a request was refused", "system:site:alpha", "works/status", "site-beta"])?;
    let told = "jsonpath={.status.rootGeneration}";
    let told = admin.run(&["get", "work", &work, "-n", "site-beta", "-o", told])?;
    ensure!(told != "99", "another site's word was believed");
    logged(&hub, &["a request was refused", "system:site:alpha", "sites/status"])?;
    refused(&thief, &["get", "secrets", "-n", "kube-system"], "cannot list resource \"secrets\"")?;
    logged(&hub, &["a request was refused", "system:site:alpha", "secrets"])?;

    // The signing requests of others: what they ask for, and the certificates they got.
    for args in [&["get", "csr"][..], &["get", "csr", "-o", "name", "--watch"][..]] {
        refused(&thief, args, "cannot list resource \"certificatesigningrequests\"")?;
    }
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests?watch=true&timeoutSeconds=1";
    refused(&thief, &["get", "--raw", path], "cannot watch resource \"certificatesigningrequests\"")?;
    refused(&thief, &["delete", "csr", "--all"], "cannot")?;
    let own =
        thief.run_with_input(&["create", "-o", "name", "-f", "-"], &request("own", "system:site:alpha")?)?;
    thief.run(&["get", own.trim()])?;

    // A certificate with another name.
    thief.run_with_input(&["create", "-f", "-"], &request("greedy", "system:site:beta")?)?;
    let denial = "jsonpath={.status.conditions[?(@.type=='Denied')].message}";
    admin.until(
        &["get", "csr", "greedy", "-o", denial],
        "system:site:alpha may not ask for the certificate of site beta",
        PATIENCE,
    )?;
    logged(&hub, &["a signing request was denied", "greedy", "system:site:alpha"])?;

    // A token that was used up, and one whose time is over.
    let line = tombolo(&hub.kubeconfig, &["token", "create", "--uses", "1"])?;
    let holder = with_token(&hub, dir.path(), &line)?;
    holder.run_with_input(&["create", "-f", "-"], &request("first", "system:site:gamma")?)?;
    admin.until(&["get", "csr", "first", "-o", "jsonpath={.status.certificate}"], "LS0t", PATIENCE)?;
    holder.run_with_input(&["create", "-f", "-"], &request("second", "system:site:delta")?)?;
    admin.until(&["get", "csr", "second", "-o", denial], "the token is used up", PATIENCE)?;
    refused(&holder, &["get", "csr"], "cannot list resource \"certificatesigningrequests\"")?;
    logged(&hub, &["a signing request was denied", "second", "the token is used up"])?;
    let line = tombolo(&hub.kubeconfig, &["token", "create", "--ttl", "1s"])?;
    let late = with_token(&hub, dir.path(), &line)?;
    std::thread::sleep(Duration::from_secs(2));
    refused(&late, &["get", "csr"], "must be logged in")?;
    logged(&hub, &["a token was refused", "it has expired"])?;

    // A certificate that was revoked.
    tombolo(&hub.kubeconfig, &["sites", "revoke", "alpha"])?;
    wait_for("the certificate to open nothing", PATIENCE, || {
        refused(&thief, &["get", "works", "-n", "site-alpha"], "cannot list resource \"works\"")
    })?;
    logged(&hub, &["its certificate was revoked", "alpha"])?;
    logged(&alpha.own, &["was revoked"])?;
    refused(&thief, &["get", "site", "alpha"], "forbidden")?;
    refused(&thief, &["get", own.trim()], "forbidden")?;
    let late = thief.run_with_input(&["create", "-f", "-"], &request("late", "system:site:alpha")?);
    let answer = format!("{:#}", late.err().context("a revoked certificate asked for a new one")?);
    ensure!(answer.contains("cannot create resource \"certificatesigningrequests\""), "{answer}");
    // The others are as they were.
    beta.at_hub(&hub, dir.path())?.run(&["get", "works", "-n", "site-beta"]).map(drop)
}

#[test]
fn a_site_renews_its_certificate_by_itself() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let life = Duration::from_secs(24);
    let hub = Tombolo::start(
        "hub",
        dir.path(),
        &["--listen", "127.0.0.1:0", "--lease-seconds", "5", "--certificate-life", "24s"],
    )?;
    let mut site = Site::start("alpha", dir.path(), &hub)?;
    let (first, key) = (site.kept("tls.crt")?, site.kept("tls.key")?);
    wait_for("another certificate", PATIENCE, || {
        ensure!(site.kept("tls.crt")? != first, "still the first one");
        Ok(())
    })?;
    ensure!(site.kept("tls.key")? != key, "a new certificate comes with a new key");
    logged(&site.own, &["certificate renewed", "alpha"])?;
    logged(&hub, &["certificate signed", "alpha"])?;
    // Beyond the end of the first: the site is still heard, and can tie itself anew.
    std::thread::sleep(life);
    let ready = ["wait", "--for=condition=Ready", "site/alpha", "--timeout=5s"];
    hub.kubectl().run(&ready)?;
    let Site { name, own } = site;
    drop(own);
    hub.kubectl().until(&["get", "node", "alpha"], "NotReady", PATIENCE)?;
    let home = dir.path().join("alpha");
    site = Site { name, own: Tombolo::start("site", &home, &["--listen", "127.0.0.1:0", "--name", name])? };
    wait_for("the site to be back", PATIENCE, || hub.kubectl().run(&ready))?;
    ensure!(!site.own.process.log().contains("was revoked"));
    Ok(())
}

/// Nobody had a chance to renew it: the link was down, or the machine was off.
#[test]
fn a_site_that_was_away_for_longer_than_its_certificate_comes_back_by_itself() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start(
        "hub",
        dir.path(),
        &["--listen", "127.0.0.1:0", "--lease-seconds", "5", "--certificate-life", "20s"],
    )?;
    let (alpha, beta) = (Site::start("alpha", dir.path(), &hub)?, Site::start("beta", dir.path(), &hub)?);
    hub.kubectl().apply(OF_BETA)?;
    let at_hub = alpha.at_hub(&hub, dir.path())?;
    at_hub.run(&["get", "works", "-n", "site-alpha"])?;
    let before = alpha.kept("tls.crt")?;
    drop((alpha, beta));
    tombolo(&hub.kubeconfig, &["sites", "revoke", "beta"])?;
    std::thread::sleep(Duration::from_secs(25));

    // It opens nothing any more, not even what was the site's own.
    for args in [&["get", "works", "-n", "site-alpha"][..], &["get", "site", "alpha"], &["get", "csr"]] {
        refused(&at_hub, args, "forbidden")?;
    }
    let again = |name: &'static str| -> Result<Site> {
        let args = ["--listen", "127.0.0.1:0", "--name", name];
        Ok(Site { name, own: Tombolo::start("site", &dir.path().join(name), &args)? })
    };
    let alpha = again("alpha")?;
    wait_for("the site to be back", PATIENCE, || {
        hub.kubectl().run(&["wait", "--for=condition=Ready", "site/alpha", "--timeout=5s"])
    })?;
    ensure!(alpha.kept("tls.crt")? != before, "it is heard with a certificate that is over");
    logged(&alpha.own, &["the certificate is over", "alpha"])?;
    // One that was revoked meanwhile stays out, and says why.
    let beta = again("beta")?;
    wait_for("it to be told", PATIENCE, || logged(&beta.own, &["was revoked"]))?;
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    ensure!(hub.kubectl().run(&["get", "site", "beta", "-o", ready])? != "True");
    Ok(())
}
