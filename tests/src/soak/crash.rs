//! The soak of a server that is killed: every acknowledged write is there after it comes back.
//!
//! Each client keeps to objects of its own, so that it knows what every one of them must be: what the last answer
//! said or, for the one request that the kill interrupted, what that request would have led to.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tombolo_testkit::{Process, Tombolo, cargo_binary};

use super::change::Change;
use super::check::{Answer, Refusal};
use super::client::{Client, Failure, Newest};
use super::object::{KINDS, NAMESPACES, Scope, Version};
use super::random::Random;
use super::steady::prepare;
use super::worker::Worker;

const CLIENTS: usize = 6;
const NAMES: u64 = 5;

/// What a crash soak did.
#[derive(Debug, Default)]
pub struct Report {
    pub kills: usize,
    pub acknowledged: usize,
    /// Interrupted requests that took effect, and that did not.
    pub took_effect: usize,
    pub left_no_trace: usize,
}

/// What a client knows of one of its objects.
#[derive(Debug, Clone, Default)]
struct Belief {
    known: Option<Version>,
    /// The request that the kill interrupted.
    open: Option<Change>,
}

/// By kind and key.
type Beliefs = BTreeMap<(usize, String), Belief>;

/// Kills and restarts a server on one data folder for this long.
pub async fn run(dir: &Path, seed: u64, length: Duration) -> Result<Report> {
    let mut random = Random::new(seed);
    let newest = Arc::new(Newest::default());
    let mut report = Report::default();
    let mut owners: Vec<(Random, u64, Beliefs)> =
        (0..CLIENTS).map(|_| (random.branch(), 0, Beliefs::new())).collect();
    let end = Instant::now() + length;
    while Instant::now() < end || report.kills == 0 {
        let mut server = Tombolo::serve(dir)?;
        let client = Client::connect(&server.kubeconfig, newest.clone()).await?;
        if report.kills == 0 {
            prepare(&client).await?;
        }
        let mut watches = Vec::new();
        for kind in 0..KINDS.len() {
            watches.push(observe(&client, kind).await?);
        }
        let mut tasks = Vec::new();
        for (i, (random, counter, beliefs)) in std::mem::take(&mut owners).into_iter().enumerate() {
            let client = Client::connect(&server.kubeconfig, newest.clone()).await?;
            let worker = Worker { client, random, name: format!("c{i}"), counter };
            tasks.push(tokio::spawn(work(worker, beliefs)));
        }
        tokio::time::sleep(Duration::from_millis(20 + random.below(700))).await;
        server.process.kill();
        drop(server);
        report.kills += 1;
        for task in tasks {
            let (worker, beliefs, acknowledged) = task.await??;
            report.acknowledged += acknowledged;
            owners.push((worker.random, worker.counter, beliefs));
        }
        let mut seen = Vec::new();
        for watch in watches {
            seen.push(watch.await??);
        }
        // A kill while it starts must not matter either.
        if random.percent(30) {
            killed_at_start(dir, Duration::from_millis(random.below(80))).await?;
        }
        let context = format!("after kill {} (seed {seed})", report.kills);
        verify(dir, &newest, &mut owners, &seen, &mut report).await.context(context)?;
    }
    Ok(report)
}

async fn killed_at_start(dir: &Path, after: Duration) -> Result<()> {
    let mut line = Command::new(cargo_binary("tombolo"));
    line.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.join("serve"));
    let mut process = Process::start("tombolo-serve", line, dir)?;
    tokio::time::sleep(after).await;
    process.kill();
    Ok(())
}

/// The newest version of each object that a watcher sees until the server dies; `None` when it saw it go.
type Seen = BTreeMap<String, (u64, bool)>;

async fn observe(client: &Client, kind: usize) -> Result<tokio::task::JoinHandle<Result<Seen>>> {
    let (client, row) = (client.clone(), &KINDS[kind]);
    let (revision, _) = client.all(row).await?;
    let (ready, opened) = oneshot::channel();
    let task = tokio::spawn(async move {
        let query = format!("&resourceVersion={revision}");
        let mut lines = client.watch(row, &Scope::default(), &query).await?;
        let _ = ready.send(());
        let mut seen = Seen::new();
        let mut last = revision;
        // The stream ends with the server, perhaps in the middle of a line.
        while let Some(Ok(line)) = lines.next().await {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { break };
            let version = row.read(&event["object"])?;
            ensure!(version.revision > last, "an event at {} after one at {last}", version.revision);
            last = version.revision;
            seen.insert(version.key, (version.revision, event["type"] == "DELETED"));
        }
        Ok(seen)
    });
    let _ = opened.await;
    Ok(task)
}

/// Changes its own objects until the server is gone.
async fn work(mut worker: Worker, mut beliefs: Beliefs) -> Result<(Worker, Beliefs, usize)> {
    let mut acknowledged = 0;
    loop {
        let kind = worker.random.below(KINDS.len() as u64) as usize;
        let namespace = worker.random.pick(NAMESPACES);
        let key = format!("{namespace}/{}-{}", worker.name, worker.random.below(NAMES));
        let belief = beliefs.entry((kind, key.clone())).or_default();
        let change = choose(&mut worker, kind, belief.known.as_ref());
        match worker.client.change(&KINDS[kind], &key, change.clone()).await {
            Ok(record) => {
                acknowledged += 1;
                believe(belief, &change, record.answer).with_context(|| format!("{change:?} of {key}"))?;
            }
            Err(Failure::Lost(_)) => {
                belief.open = Some(change);
                return Ok((worker, beliefs, acknowledged));
            }
            Err(Failure::Busy) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(other) => return Err(other.into()),
        }
    }
}

fn choose(worker: &mut Worker, kind: usize, known: Option<&Version>) -> Change {
    match known {
        None if worker.random.percent(60) => Change::Create(worker.fresh()),
        None => worker.apply(),
        Some(version) if version.state.deleting => Change::Release,
        Some(_) if worker.random.percent(20) => Change::Delete { expect: None },
        Some(_) if worker.random.percent(30) => worker.apply(),
        Some(version) => worker.conditional(&KINDS[kind], version),
    }
}

/// Nobody else touches the object, so that every answer is foreseen.
fn believe(belief: &mut Belief, change: &Change, answer: Answer) -> Result<()> {
    let wanted = change.outcome(belief.known.as_ref().map(|v| &v.state));
    match answer {
        Answer::Wrote { mut version, .. } => {
            let uid = std::mem::take(&mut version.state.uid);
            let wanted = match wanted {
                None => {
                    belief.known = None;
                    return Ok(());
                }
                Some(wanted) => wanted,
            };
            ensure!(
                super::object::State { uid: String::new(), ..wanted.clone() } == version.state,
                "it should have led to {wanted:?} and led to {version:?}"
            );
            version.state.uid = uid;
            belief.known = Some(version);
        }
        Answer::Deleted { .. } => {
            ensure!(wanted.is_none(), "deleted instead of marked");
            belief.known = None;
        }
        Answer::Refused { why: Refusal::NotFound, .. } if belief.known.is_none() => {}
        other => bail!("unexpected: {other:?}, knowing {:?}", belief.known),
    }
    Ok(())
}

/// Restarts the server and compares what it has with what its clients know.
async fn verify(
    dir: &Path,
    newest: &Arc<Newest>,
    owners: &mut [(Random, u64, Beliefs)],
    seen: &[Seen],
    report: &mut Report,
) -> Result<()> {
    let floor = newest.get();
    let server = Tombolo::serve(dir)?;
    let client = Client::connect(&server.kubeconfig, newest.clone()).await?;
    for (kind, row) in KINDS.iter().enumerate() {
        let (revision, objects) = client.all(row).await?;
        ensure!(revision >= floor, "the revision went back from {floor} to {revision}");
        let ours = |v: &Version| NAMESPACES.iter().any(|name| v.key.starts_with(&format!("{name}/")));
        let mut found: BTreeMap<String, Version> =
            objects.into_iter().filter(ours).map(|v| (v.key.clone(), v)).collect();
        for (_, _, beliefs) in owners.iter_mut() {
            for ((_, key), belief) in beliefs.iter_mut().filter(|((k, _), _)| *k == kind) {
                let is = found.remove(key);
                settle(key, belief, is.clone(), seen[kind].get(key), report)?;
                *belief = Belief { known: is, open: None };
            }
        }
        ensure!(found.is_empty(), "objects that nobody made: {:?}", found.keys());
    }
    Ok(())
}

fn settle(
    key: &str,
    belief: &Belief,
    is: Option<Version>,
    seen: Option<&(u64, bool)>,
    report: &mut Report,
) -> Result<()> {
    let known = belief.known.as_ref();
    // What a watcher was shown was durable already.
    if let Some((at, gone)) = seen {
        let kept = if *gone {
            is.as_ref().is_none_or(|v| v.revision > *at)
        } else {
            is.as_ref().map_or(belief.open.is_some() || known.is_none(), |v| v.revision >= *at)
        };
        ensure!(kept, "{key}: a watcher saw {at} (gone: {gone}), and now it is {is:?}");
    }
    let Some(change) = &belief.open else {
        ensure!(
            is.as_ref() == known,
            "an acknowledged write of {key} is lost: it was {known:?} and is {is:?}"
        );
        return Ok(());
    };
    if is.as_ref() == known {
        report.left_no_trace += 1;
        return Ok(());
    }
    let mut wanted = change.outcome(known.map(|v| &v.state));
    if let (Some(wanted), None, Some(is)) = (&mut wanted, known, &is) {
        wanted.uid.clone_from(&is.state.uid);
    }
    ensure!(
        is.as_ref().map(|v| &v.state) == wanted.as_ref(),
        "{key} was {known:?}; {change:?} was interrupted, and now it is {is:?}"
    );
    report.took_effect += 1;
    Ok(())
}
