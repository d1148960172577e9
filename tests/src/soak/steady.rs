//! The soak of a server that is left running: rounds of load, each followed by the check of all that was told.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tombolo_testkit::Tombolo;

use super::change::Change;
use super::check::{self, Answer, Record};
use super::client::{Client, Newest};
use super::history::{Event, History};
use super::memory::Memory;
use super::object::{self, COLOURS, KINDS, NAMESPACES, Scope, Version};
use super::random::Random;
use super::watcher::{Caught, Watcher};
use super::worker::{Budget, Records, Worker};

const WORKERS: usize = 6;
const RESTLESS: usize = 6;
/// A round ends after this long or this many requests: what the checker keeps and what a watcher may have to
/// catch up with stay small.
const ROUND: Duration = Duration::from_secs(4);
const REQUESTS: u64 = 6000;

/// What a soak did.
#[derive(Debug, Default)]
pub struct Report {
    pub rounds: usize,
    pub answers: usize,
    pub changes: usize,
    pub watches: usize,
    pub events: usize,
    pub memory_mb: (f64, f64),
}

/// Runs rounds for this long, with a server and a data folder of its own under `dir`.
pub async fn run(dir: &Path, seed: u64, length: Duration) -> Result<Report> {
    let server = Tombolo::serve(dir)?;
    let mut random = Random::new(seed);
    let newest = Arc::new(Newest::default());
    let connect = || Client::connect(&server.kubeconfig, newest.clone());
    let client = connect().await?;
    prepare(&client).await?;

    let mut crew = Crew::default();
    for i in 0..WORKERS {
        let name = format!("w{i}");
        crew.workers.push(Worker { client: connect().await?, random: random.branch(), name, counter: 0 });
    }
    for (kind, row) in KINDS.iter().enumerate() {
        let name = format!("the witness of {}", row.plural);
        crew.witnesses.push(Watcher::new(
            connect().await?,
            random.branch(),
            name,
            kind,
            Scope::default(),
            false,
        ));
        let namespace = Scope { namespace: Some(NAMESPACES[0].into()), ..Scope::default() };
        let colour = Scope { colour: Some(COLOURS[0].into()), ..Scope::default() };
        for scope in [namespace, colour] {
            let name = format!("a lasting watcher of {}", row.plural);
            crew.watchers.push(Watcher::new(connect().await?, random.branch(), name, kind, scope, false));
        }
    }
    for i in 0..RESTLESS {
        let name = format!("restless watcher {i}");
        let kind = i % KINDS.len();
        crew.watchers.push(Watcher::new(
            connect().await?,
            random.branch(),
            name,
            kind,
            Scope::default(),
            true,
        ));
    }

    let (mut report, mut memory) = (Report::default(), Memory::default());
    let end = Instant::now() + length;
    while Instant::now() < end {
        let deadline = end.min(Instant::now() + ROUND);
        let round = round(&client, crew, deadline, &mut report);
        crew = round.await.with_context(|| format!("round {} (seed {seed})", report.rounds))?;
        report.rounds += 1;
        memory.sample(server.process.pid(), report.changes)?;
    }
    report.memory_mb = memory.range();
    memory.is_flat().with_context(|| format!("after {report:?} (seed {seed})"))?;
    Ok(report)
}

/// Namespaces and the custom kind, ready to use.
pub async fn prepare(client: &Client) -> Result<()> {
    for name in NAMESPACES {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        client.send("POST", "/api/v1/namespaces", "application/json", &namespace).await?;
    }
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    client.send("POST", definitions, "application/json", &object::definition()).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let url = KINDS[1].collection(None);
    while let Err(error) = client.send("GET", &url, "application/json", &Value::Null).await {
        ensure!(Instant::now() < deadline, "the custom kind is never served: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Everybody who takes part, from round to round.
#[derive(Default)]
struct Crew {
    workers: Vec<Worker>,
    witnesses: Vec<Watcher>,
    watchers: Vec<Watcher>,
}

async fn round(client: &Client, crew: Crew, deadline: Instant, report: &mut Report) -> Result<Crew> {
    let mut before: Vec<(u64, Vec<Version>)> = Vec::new();
    for kind in KINDS {
        before.push(client.all(kind).await?);
    }
    let base = before.iter().map(|(revision, _)| *revision).max().unwrap_or(0);
    let (last_sender, last) = watch::channel(None);
    let (known_sender, known) = watch::channel(None);
    let mut next = Crew::default();

    let mut witnesses = Vec::new();
    for mut witness in crew.witnesses {
        witness.ready(base).await?;
        witnesses.push(tokio::spawn(witness.witness(last.clone())));
    }
    let mut watchers = Vec::new();
    for mut watcher in crew.watchers {
        watcher.ready(base).await?;
        watchers.push(tokio::spawn(watcher.run(base, known.clone())));
    }
    let budget = Arc::new(Budget { deadline, requests: AtomicU64::new(REQUESTS) });
    let workers: Vec<_> = crew
        .workers
        .into_iter()
        .map(|worker| {
            let budget = budget.clone();
            tokio::spawn(async move { worker.run(base, &budget).await })
        })
        .collect();

    let mut records: Records = KINDS.iter().map(|_| Vec::new()).collect();
    for worker in workers {
        let (worker, told) = worker.await??;
        next.workers.push(worker);
        records.iter_mut().zip(told).for_each(|(all, some)| all.extend(some));
    }
    last_sender.send(Some(last_changes(client, &mut next.workers[0], &mut records).await?))?;

    let mut seen: Vec<Vec<Event>> = KINDS.iter().map(|_| Vec::new()).collect();
    for witness in witnesses {
        let (witness, events) = witness.await??;
        seen[witness.kind] = events;
        next.witnesses.push(witness);
    }
    let histories = histories(client, before, &mut records, &seen).await?;
    report.answers += records.iter().map(Vec::len).sum::<usize>();
    report.changes += histories.iter().map(|history| history.changes().count()).sum::<usize>();
    let end = client.newest.get();
    let known = Arc::new((end, histories));
    known_sender.send(Some(known.clone()))?;
    for watcher in watchers {
        let (watcher, caught) = watcher.await??;
        caught_is_true(&known.1[watcher.kind], &caught)?;
        report.watches += caught.segments.len();
        report.events += caught.segments.iter().map(|segment| segment.events.len()).sum::<usize>();
        next.watchers.push(watcher);
    }
    Ok(next)
}

/// One more change of each kind, after all others: who has seen it has seen everything.
async fn last_changes(client: &Client, worker: &mut Worker, records: &mut Records) -> Result<Vec<u64>> {
    let mut last = Vec::new();
    for (kind, records) in KINDS.iter().zip(records) {
        let change: Change = worker.apply();
        let record = client.change(kind, &format!("{}/last", NAMESPACES[0]), change).await?;
        if let Answer::Wrote { version, .. } = &record.answer {
            last.push(version.revision);
        }
        records.push(record);
    }
    ensure!(last.len() == KINDS.len(), "the last change of a round was refused");
    Ok(last)
}

/// Makes one history of each kind out of what everybody was told, and holds every answer to it.
async fn histories(
    client: &Client,
    before: Vec<(u64, Vec<Version>)>,
    records: &mut Records,
    seen: &[Vec<Event>],
) -> Result<Vec<History>> {
    let mut all = BTreeSet::new();
    let mut histories = Vec::new();
    for (i, (kind, (base, objects))) in KINDS.iter().zip(before).enumerate() {
        let context = || format!("the history of {}", kind.plural);
        let after: Record = client.list(kind, &Scope::default(), 0, "", None).await?;
        records[i].push(after);
        let history = check::history(base, objects, &records[i], &seen[i]).with_context(context)?;
        check::answers(&history, &records[i]).with_context(context)?;
        for revision in history.revisions() {
            ensure!(all.insert(revision), "revision {revision} names changes of two kinds");
        }
        histories.push(history);
    }
    Ok(histories)
}

fn caught_is_true(history: &History, caught: &Caught) -> Result<()> {
    for segment in &caught.segments {
        check::watched(history, segment)?;
    }
    for (floor, listing) in &caught.listings {
        check::listed(history, *floor, listing).context("the initial events of a watch")?;
    }
    Ok(())
}
