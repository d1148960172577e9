//! Many sites on real tunnels from another process, and what they cost the hub.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{Api, ListParams};
use serde_json::json;
use tombolo_api::Site;
use tombolo_testkit::Tombolo;

use super::{after, client, start_hub, ticket};
use crate::load::send;
use crate::procfs::{cpu, resident_mb};
use crate::report::{Figure, Goal};
use crate::sites::MARK;

const PATIENCE: Duration = Duration::from_secs(900);
/// How long the hub is left alone before and while it is measured at rest.
const REST: Duration = Duration::from_secs(30);

/// Of one core, what a hub may take at rest.
const AT_REST: f64 = 0.3;

/// The process with the sites. Ends when dropped.
struct Sites {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Sites {
    fn start(ticket: &[String], count: usize, state: &Path, log: &Path) -> Result<Self> {
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        let mut line = Command::new(std::env::current_exe()?);
        line.args(["sites", "--hub", ticket.first().context("no address in the ticket")?]);
        line.args(["--token", after(ticket, "--token")?, "--ca-hash", after(ticket, "--ca-hash")?]);
        line.args(["--count", &count.to_string(), "--state"]).arg(state);
        let mut child = line.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let ask = child.stdin.take().context("a pipe to the sites")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe from the sites")?);
        Ok(Self { child, ask, answers })
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.ask, "{line}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }

    /// Waits until `question` is answered with `wanted`; gives how long it took since `began`.
    async fn until(&mut self, question: &str, wanted: usize, began: Instant) -> Result<Duration> {
        let deadline = Instant::now() + PATIENCE;
        let mut told = Instant::now();
        loop {
            let answer: usize = self.ask(question)?.parse().context("the sites' process ended")?;
            if answer >= wanted {
                return Ok(began.elapsed());
            }
            if Instant::now() > deadline {
                bail!("{question}: {answer} of {wanted} after {PATIENCE:?}");
            }
            if told.elapsed() > Duration::from_secs(10) {
                println!("  {question}: {answer} of {wanted} after {:.0?}", began.elapsed());
                told = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn measure(count: usize, works: usize) -> Result<Vec<Figure>> {
    let dir = tempfile::tempdir()?;
    let (state, log) = (dir.path().join("sites.json"), dir.path().join("sites.log"));
    let hub = start_hub(dir.path(), &[])?;
    let pid = hub.process.pid();
    let ticket = ticket(&hub)?;
    let api = client(&hub.kubeconfig).await?;
    let bare = resident_mb(&[pid])?;

    let began = Instant::now();
    let mut sites = Sites::start(&ticket, count, &state, &log)?;
    sites
        .until("tied", count, began)
        .await
        .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
    until_ready(&api, count).await?;
    println!("  {count} sites joined after {:.0?}", began.elapsed());
    let tied = resident_mb(&[pid])?;

    place(&api, "one").await?;
    let began = Instant::now();
    for n in 0..works {
        send(&api, "POST", "/apis/apps/v1/namespaces/default/deployments", Some(&deployment(n))).await?;
    }
    let all = count * works;
    let spread = sites.until("applied one", all, began).await?;
    println!("  {all} works applied after {spread:.1?}");
    let (idle, memory) = rest(&hub).await?;

    place(&api, "two").await?;
    let changed = sites.until("applied two", all, Instant::now()).await?;
    println!("  a changed placement applied after {changed:.1?}");
    rest(&hub).await?;

    // All are gone, something changes, all are back at the same moment.
    sites.ask("save")?;
    drop(sites);
    let change = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "2"}]}]}}}});
    let target = "/apis/apps/v1/namespaces/default/deployments/app-0";
    send(&api, "PATCH", target, Some(&change)).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = Instant::now();
    let mut sites = Sites::start(&ticket, count, &state, &log)?;
    let back = sites.until("valued 2", count, began).await?;
    println!("  all back after {back:.1?}");
    let settled = until_quiet(&hub, began).await?;
    println!("  and at rest after {settled:.1?}");
    let (idle_after, memory_after) = rest(&hub).await?;

    let seconds = |time: Duration| vec![time.as_secs_f64()];
    let what = |what: &str| format!("{count} sites: {what}");
    Ok(vec![
        Figure::new("hub before any site came", "MB", vec![bare], None),
        Figure::new(what("hub with all tied, no works"), "MB", vec![tied], None),
        Figure::new(
            what(&format!("hub with {all} works and their pods")),
            "MB",
            vec![memory, memory_after],
            Some(Goal::AtMost(500.0)),
        ),
        Figure::new(
            what("hub at rest, of one core"),
            "%",
            vec![idle, idle_after],
            Some(Goal::AtMost(AT_REST * 100.0)),
        ),
        Figure::new(what(&format!("{all} works from nothing to applied")), "s", seconds(spread), None),
        Figure::new(
            what("a changed placement applied everywhere"),
            "s",
            seconds(changed),
            Some(Goal::AtMost(10.0)),
        ),
        Figure::new(what("all reconnect at once and have what changed meanwhile"), "s", seconds(back), None),
        Figure::new(
            what("all reconnect at once until the hub is at rest again"),
            "s",
            seconds(settled),
            Some(Goal::AtMost(10.0)),
        ),
    ])
}

/// Lets the hub come to rest; percent of one core over a while, and its memory.
async fn rest(hub: &Tombolo) -> Result<(f64, f64)> {
    let pids = [hub.process.pid()];
    tokio::time::sleep(REST).await;
    let (before, began) = (cpu(&pids)?, Instant::now());
    tokio::time::sleep(REST).await;
    let spent = (cpu(&pids)? - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let memory = resident_mb(&pids)?;
    println!("  at rest: {spent:.1} % of a core, {memory:.0} MB");
    Ok((spent, memory))
}

/// Since `began`, until the first second in which the hub takes less than it may at rest.
async fn until_quiet(hub: &Tombolo, began: Instant) -> Result<Duration> {
    let pids = [hub.process.pid()];
    loop {
        let (before, at) = (cpu(&pids)?, began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
        if (cpu(&pids)? - before).as_secs_f64() < AT_REST {
            return Ok(at);
        }
    }
}

async fn until_ready(api: &kube::Client, count: usize) -> Result<()> {
    let sites: Api<Site> = Api::all(api.clone());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ready = sites.list(&ListParams::default()).await?.items.iter().filter(|s| s.is_ready()).count();
        if ready >= count {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{ready} of {count} sites are ready after {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Every workload to every site, with a mark that tells one version of the placement from another.
async fn place(api: &kube::Client, mark: &str) -> Result<()> {
    let path = "/apis/tombolo.dev/v1alpha1/namespaces/default/placements";
    let mut placement = json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement", "metadata": {"name": "everywhere"},
        "spec": {"replicas": {"mode": "Duplicate"}, "overrides": [{"labels": {MARK: mark}}]}});
    let there: Api<tombolo_api::Placement> = Api::namespaced(api.clone(), "default");
    match there.get_opt("everywhere").await? {
        None => send(api, "POST", path, Some(&placement)).await?,
        Some(old) => {
            placement["metadata"]["resourceVersion"] = json!(old.metadata.resource_version);
            send(api, "PUT", &format!("{path}/everywhere"), Some(&placement)).await?
        }
    };
    Ok(())
}

fn deployment(n: usize) -> serde_json::Value {
    let name = format!("app-{n}");
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "containers": [{"name": "main", "image": "example.com/main:1", "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 8080}], "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}}}})
}
