//! Watchers: one that sees everything, some that stay, some that come and go.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::check::{Listing, Page, Segment};
use super::client::{Client, Failure, Lines};
use super::history::{Event, EventKind, History};
use super::object::{KINDS, Kind, Scope, Version};
use super::random::Random;
use super::worker::{KEPT, scope};

/// How long an event may take on a busy machine once everything else is quiet.
const PATIENCE: Duration = Duration::from_secs(30);

/// Told to the witnesses when the clients are done: the last revision of each kind.
pub type Last = watch::Receiver<Option<Vec<u64>>>;
/// Told to the other watchers then: where the round ends, and what must be seen until there.
pub type Known = watch::Receiver<Option<Arc<(u64, Vec<History>)>>>;

/// What a watcher brings home from a round.
#[derive(Default)]
pub struct Caught {
    pub segments: Vec<Segment>,
    /// Initial states, and the least revision each had to be of.
    pub listings: Vec<(u64, Listing)>,
}

enum Message {
    Event(Event),
    Bookmark { revision: u64, initial_end: bool },
    Expired,
    End,
}

/// A watch that is open, and how far it has come.
struct Open {
    lines: Lines,
    cursor: u64,
    start: u64,
    events: Vec<Event>,
}

pub struct Watcher {
    pub client: Client,
    pub random: Random,
    pub name: String,
    pub kind: usize,
    pub scope: Scope,
    /// Goes away and comes back, from other places and with other scopes.
    pub restless: bool,
    open: Option<Open>,
    /// Where it was when it last went away, with the scope it still has.
    left_at: Option<u64>,
}

impl Watcher {
    pub fn new(
        client: Client,
        random: Random,
        name: String,
        kind: usize,
        scope: Scope,
        restless: bool,
    ) -> Self {
        Self { client, random, name, kind, scope, restless, open: None, left_at: None }
    }

    fn kind(&self) -> &'static Kind {
        &KINDS[self.kind]
    }

    /// Opens the watch that a round of `base` is seen through, unless it is open from the round before.
    pub async fn ready(&mut self, base: u64) -> Result<()> {
        if self.open.is_none() {
            self.begin(base).await?;
        }
        self.left_at = None;
        if let Some(open) = &mut self.open {
            // Nothing of this kind happened between the rounds.
            open.start = base;
            open.cursor = base;
        }
        Ok(())
    }

    /// Collects all events up to the last change of the round.
    pub async fn witness(mut self, mut last: Last) -> Result<(Self, Vec<Event>)> {
        let mut until = None;
        let mut deadline = Instant::now() + Duration::from_secs(3600);
        loop {
            let open = self.open.as_mut().context("a witness watches")?;
            if until.is_some_and(|until| open.cursor >= until) {
                let events = std::mem::take(&mut open.events);
                return Ok((self, events));
            }
            tokio::select! {
                message = next(&mut open.lines, &KINDS[self.kind]) => match message? {
                    Message::Event(event) => open.push(event),
                    Message::Bookmark { revision, .. } => open.cursor = open.cursor.max(revision),
                    Message::Expired => bail!("{}: the watch of everything expired", self.name),
                    Message::End => self.resume().await?,
                },
                Ok(()) = last.changed(), if until.is_none() => {
                    until = last.borrow().as_ref().map(|last| last[self.kind]);
                    deadline = Instant::now() + PATIENCE;
                }
                () = tokio::time::sleep_until(deadline) => {
                    bail!("{}: at {}, the change at {until:?} never came", self.name, open.cursor);
                }
            }
        }
    }

    /// Watches until the round is over, then until everything that belongs to it was seen.
    pub async fn run(mut self, base: u64, mut known: Known) -> Result<(Self, Caught)> {
        let mut caught = Caught::default();
        while known.borrow().is_none() {
            if self.open.is_none() {
                self.come_back(base, &mut caught).await?;
            }
            let stay =
                Duration::from_millis(if self.restless { 30 + self.random.below(600) } else { 3_600_000 });
            let until = tokio::time::sleep(stay);
            tokio::pin!(until);
            loop {
                let kind = self.kind();
                let Some(open) = self.open.as_mut() else { break };
                tokio::select! {
                    message = next(&mut open.lines, kind) => match message? {
                        Message::Event(event) => open.push(event),
                        Message::Bookmark { revision, .. } => open.bookmark(revision)?,
                        Message::End if self.restless => { self.leave(&mut caught); break }
                        Message::End => self.resume().await?,
                        Message::Expired => {
                            let (at, newest) = (open.cursor, self.client.newest.get());
                            ensure!(newest - at > KEPT, "{}: expired at {at}, with the newest at {newest}", self.name);
                            self.leave(&mut caught);
                            // The history is gone: begin anew from a list.
                            self.begin(self.client.newest.get()).await?;
                        }
                    },
                    () = &mut until => { self.leave(&mut caught); break }
                    _ = known.changed() => break,
                }
            }
        }
        let known = known.borrow().clone().context("the end of the round is told once")?;
        self.finish(&known, &mut caught).await?;
        Ok((self, caught))
    }

    async fn finish(&mut self, known: &(u64, Vec<History>), caught: &mut Caught) -> Result<()> {
        let (end, histories) = (known.0, &known.1);
        if self.open.is_none() {
            self.begin(end).await?;
        }
        let kind = self.kind();
        let Some(open) = self.open.as_mut() else { return Ok(()) };
        let last = histories[self.kind].events(&self.scope, open.cursor, end).last();
        let target = last.map_or(open.cursor, |event| event.version.revision);
        let deadline = Instant::now() + PATIENCE;
        while open.cursor < target {
            let Ok(message) = tokio::time::timeout_at(deadline, next(&mut open.lines, kind)).await else {
                bail!(
                    "{} of {:?}: at {}, the change at {target} never came",
                    self.name,
                    self.scope,
                    open.cursor
                );
            };
            match message? {
                Message::Event(event) => open.push(event),
                Message::Bookmark { revision, .. } => open.bookmark(revision)?,
                // What is left is read from the history, on another connection.
                Message::End | Message::Expired => {
                    let (cursor, start) = (open.cursor, open.start);
                    let events = std::mem::take(&mut open.events);
                    caught.segments.push(self.segment(start, cursor, events));
                    self.begin(cursor).await?;
                    return Box::pin(self.finish(known, caught)).await;
                }
            }
        }
        let (start, events) = (open.start, std::mem::take(&mut open.events));
        (open.start, open.cursor) = (end, end);
        let segment = self.segment(start, end, events);
        caught.segments.push(segment);
        if self.restless {
            self.open = None;
        }
        Ok(())
    }

    /// Opens a watch after `revision`.
    async fn begin(&mut self, revision: u64) -> Result<()> {
        let query = format!("&resourceVersion={revision}&allowWatchBookmarks=true");
        self.connect(&query, revision).await
    }

    async fn connect(&mut self, query: &str, start: u64) -> Result<()> {
        let lines = loop {
            match self.client.watch(self.kind(), &self.scope, query).await {
                Err(Failure::Busy) => tokio::time::sleep(Duration::from_millis(50)).await,
                other => break other?,
            }
        };
        self.open = Some(Open { lines, cursor: start, start, events: Vec::new() });
        Ok(())
    }

    /// Goes on where the connection ended, as if it had not.
    async fn resume(&mut self) -> Result<()> {
        let Some(old) = self.open.take() else { return Ok(()) };
        self.begin(old.cursor).await?;
        if let Some(open) = &mut self.open {
            (open.start, open.events) = (old.start, old.events);
        }
        Ok(())
    }

    /// A new watch: from where it left, from now, from a version of a while ago, or with the initial state in the
    /// stream.
    async fn come_back(&mut self, base: u64, caught: &mut Caught) -> Result<()> {
        if let Some(left_at) = self.left_at.take().filter(|_| self.random.percent(50)) {
            return self.begin(left_at).await;
        }
        let newest = self.client.newest.get();
        if self.random.percent(50) {
            self.scope = scope(&mut self.random);
        }
        let timeout = if self.random.percent(30) { "&timeoutSeconds=1" } else { "" };
        match self.random.below(3) {
            0 => {
                let query = format!("&resourceVersion={newest}&allowWatchBookmarks=true{timeout}");
                self.connect(&query, newest).await
            }
            1 => {
                let old = newest - self.random.below((newest - base + 1).min(KEPT));
                let bookmarks = if self.random.percent(50) { "&allowWatchBookmarks=true" } else { "" };
                self.connect(&format!("&resourceVersion={old}{bookmarks}{timeout}"), old).await
            }
            _ => {
                let at = *self.random.pick(&["", "&resourceVersion=0"]);
                let query = format!(
                    "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true{at}{timeout}"
                );
                self.connect(&query, newest).await?;
                self.initial(newest, caught).await
            }
        }
    }

    /// Reads the initial state up to its bookmark; the watch counts from there.
    async fn initial(&mut self, floor: u64, caught: &mut Caught) -> Result<()> {
        let kind = self.kind();
        let Some(open) = self.open.as_mut() else { return Ok(()) };
        let mut items: Vec<Version> = Vec::new();
        loop {
            let message = tokio::time::timeout(PATIENCE, next(&mut open.lines, kind));
            match message
                .await
                .with_context(|| format!("{}: the initial events never ended", self.name))??
            {
                Message::Event(Event { kind: EventKind::Added, version }) => items.push(version),
                Message::Event(other) => bail!("{}: {other:?} among the initial events", self.name),
                Message::Bookmark { revision, initial_end: true } => {
                    (open.start, open.cursor) = (revision, revision);
                    let pages = vec![Page { revision, remaining: None, items }];
                    let listing = Listing { scope: self.scope.clone(), exactly: None, pages };
                    caught.listings.push((floor, listing));
                    return Ok(());
                }
                Message::Bookmark { .. } => {
                    bail!("{}: a bookmark before the end of the initial events", self.name)
                }
                // A stream may end before it has begun to follow.
                Message::End | Message::Expired => {
                    self.open = None;
                    return Ok(());
                }
            }
        }
    }

    fn leave(&mut self, caught: &mut Caught) {
        let Some(open) = self.open.take() else { return };
        self.left_at = Some(open.cursor);
        caught.segments.push(self.segment(open.start, open.cursor, open.events));
    }

    fn segment(&self, start: u64, end: u64, events: Vec<Event>) -> Segment {
        Segment { watcher: self.name.clone(), scope: self.scope.clone(), start, end, events }
    }
}

impl Open {
    fn push(&mut self, event: Event) {
        self.cursor = self.cursor.max(event.version.revision);
        self.events.push(event);
    }

    fn bookmark(&mut self, revision: u64) -> Result<()> {
        ensure!(revision >= self.cursor, "a bookmark at {revision} after an event at {}", self.cursor);
        self.cursor = revision;
        Ok(())
    }
}

async fn next(lines: &mut Lines, kind: &Kind) -> Result<Message> {
    let line = match lines.next().await {
        None => return Ok(Message::End),
        Some(line) => line.context("a watch broke off")?,
    };
    let value: Value =
        serde_json::from_str(&line).with_context(|| format!("an odd line in a watch: {line}"))?;
    let object = &value["object"];
    let kind_of = match value["type"].as_str().unwrap_or_default() {
        "ADDED" => EventKind::Added,
        "MODIFIED" => EventKind::Modified,
        "DELETED" => EventKind::Deleted,
        "BOOKMARK" => {
            let revision =
                object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
            let revision = revision.parse().with_context(|| format!("an odd bookmark: {line}"))?;
            let mark = object.pointer("/metadata/annotations/k8s.io~1initial-events-end");
            return Ok(Message::Bookmark { revision, initial_end: mark.is_some_and(|m| m == "true") });
        }
        "ERROR" if object["code"] == 410 => return Ok(Message::Expired),
        _ => bail!("an odd event in a watch: {line}"),
    };
    Ok(Message::Event(Event { kind: kind_of, version: kind.read(object)? }))
}
