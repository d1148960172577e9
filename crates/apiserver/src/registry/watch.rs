//! Watching: one newline-separated JSON document per event.
//!
//! Plain events are rendered once per change and shared by all watchers; a watcher with a selector or another
//! form renders for itself. A watch of a custom kind ends when its definition changes: it would go on showing objects under
//! the old schema. A client that does not read stops only its own stream: the store drops a
//! watcher that falls out of the history, and the stream then ends with a 410 that makes the client list again.
//!
//! Two options are ours. `omitManagedFields=true` leaves those out, here and in every other answer. With `generationChangesOnly=true` a change that leaves generation and deletion as they were is
//! not sent. A site that reports status over a slow link must not get each report back, whole. A server without
//! the option sends more, and nothing is missed.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tombolo_store::{At, Event, Range, StoreError, Watch};

use super::options::{Filter, ListOptions};
use super::render::{Form, omits_managers};
use super::resource::Shared;
use crate::aside::Aside;
use crate::http::body::{Body, BoxError};
use crate::http::negotiate::{self, Output};
use crate::http::status::{Failure, Result, bytes_response};
use crate::record::Record;
use crate::server::Call;

/// A watch that is to last longer ends after a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Initial events are sent in pieces of about this size.
const PIECE: usize = 64 * 1024;

/// What every event needs. An event finds a thousand of these in cold memory, so they are small and the rest lies apart.
struct Stream {
    watch: Option<Watch>,
    alarmed: Aside,
    resource: Shared,
    /// Without one, everything is shown.
    filter: Option<Box<Filter>>,
    sharing: Sharing,
    generations_only: bool,
    beginning: Option<Box<Beginning>>,
    rare: Box<Rare>,
}

/// What was there when the watch began and is still to be sent.
struct Beginning {
    /// In reverse.
    records: Vec<tombolo_store::Record>,
    /// Ends them with a bookmark at this revision.
    end: Option<u64>,
}

struct Rare {
    form: Form,
    columns_sent: bool,
    /// How often it is told how far it is, if it asked for that.
    bookmarks: Option<Duration>,
    deadline: Instant,
    stop: CancellationToken,
    alarm: Pin<Box<dyn Future<Output = Alarm> + Send>>,
    /// Held as long as the stream lives: what the metrics count.
    _open: crate::metrics::OpenWatch,
}

/// Which events are shown in the form that all watchers share. There is one for each, so it must not depend on who looks first.
enum Sharing {
    None,
    All,
    /// What was written under the schema that this watcher knows; the rest is made to fit it.
    Shape(u32),
}

enum Alarm {
    /// The server stops, or the definition was changed.
    Stop,
    /// A bookmark or the end is due.
    Clock,
}

/// When the end of a watch, or its next bookmark, is due.
fn next_alarm(deadline: Instant, bookmarks: Option<Duration>) -> Instant {
    bookmarks.map_or(deadline, |every| deadline.min(Instant::now() + every))
}

async fn alarm(stop: CancellationToken, at: Instant) -> Alarm {
    tokio::select! {
        biased;
        () = stop.cancelled() => Alarm::Stop,
        () = tokio::time::sleep_until(at) => Alarm::Clock,
    }
}

pub async fn handle(call: &Call, resource: &Shared) -> Result<Response<Body>> {
    let mut options = ListOptions::parse(resource, &call.query, true)?;
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let output = if output == Output::Yaml { Output::Json } else { output };
    if !call.target.name.is_empty() && options.filter.name.is_none() {
        // The old form of a watch, on the URL of one object.
        options.filter = Filter::named(&call.target.name);
    }
    let mut scope = resource.scope(&call.target.namespace);
    if let Some(name) = &options.filter.name
        && (!resource.namespaced || !call.target.namespace.is_empty())
    {
        scope.push_str(name);
    }
    let wants_initial = match options.initial_events {
        Some(wanted) => wanted,
        None => options.version.is_none_or(|v| v == 0),
    };
    let mut initial = Vec::new();
    let mut initial_end = None;
    let after = if wants_initial {
        let at = match options.version {
            None => At::Latest,
            Some(0) => At::Cached,
            Some(version) => At::AtLeast(version),
        };
        let range = Range { prefix: &scope, at, ..Range::default() };
        let page = call.app.store.range(range).await.map_err(|e| call.app.store_failure(e))?;
        initial = page.records;
        initial.retain(|r| options.filter.matches(resource, &r.key, &r.value));
        initial.reverse();
        if options.initial_events == Some(true) && options.bookmarks {
            initial_end = Some(page.revision);
        }
        page.revision
    } else {
        match options.version {
            None | Some(0) => call.app.store.revision().await.map_err(|e| call.app.store_failure(e))?,
            Some(version) => version,
        }
    };
    let watch = match call.app.store.watch(&scope, after).await {
        Ok(watch) => watch,
        Err(error @ (StoreError::Compacted { .. } | StoreError::Lagged { .. })) => {
            let line = error_line(&too_old(&error));
            return Ok(bytes_response(StatusCode::OK, "application/json", line));
        }
        Err(error) => return Err(call.app.store_failure(error)),
    };
    let wanted = options.timeout_seconds.filter(|s| *s > 0);
    let seconds = wanted.unwrap_or_else(|| 1800 + call.app.random() % 1800).min(LONGEST.as_secs());
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let bookmarks = options.bookmarks.then_some(call.app.config.bookmark_every);
    let stop = resource.replaced.as_ref().unwrap_or(&call.app.stop).clone();
    let stream = Stream {
        watch: Some(watch),
        alarmed: Aside::default(),
        resource: resource.clone(),
        filter: (!options.filter.is_everything()).then(|| Box::new(options.filter)),
        sharing: sharing(call, resource, output),
        generations_only: call.query.flag("generationChangesOnly"),
        beginning: Some(Box::new(Beginning { records: initial, end: initial_end })),
        rare: Box::new(Rare {
            form: Form::new(output, resource, &call.query),
            columns_sent: false,
            bookmarks,
            deadline,
            alarm: Box::pin(alarm(stop.clone(), next_alarm(deadline, bookmarks))),
            stop,
            _open: call.app.metrics.open_watch(),
        }),
    };
    Ok(bytes_response(StatusCode::OK, "application/json", Body::watch(stream)))
}

fn sharing(call: &Call, resource: &Shared, output: Output) -> Sharing {
    if output != Output::Json || !resource.canonical || omits_managers(&call.query) {
        return Sharing::None;
    }
    if resource.schema.is_custom() { Sharing::Shape(resource.shape) } else { Sharing::All }
}

impl futures::Stream for Stream {
    type Item = std::result::Result<Bytes, BoxError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match this.beginning() {
            Some(bytes) => Poll::Ready(Some(Ok(bytes))),
            None => this.poll_change(cx).map(|bytes| bytes.map(Ok)),
        }
    }
}

impl Stream {
    /// The next piece of what was there when the watch began.
    fn beginning(&mut self) -> Option<Bytes> {
        let beginning = self.beginning.as_mut()?;
        let mut out = Vec::new();
        while let Some(record) = beginning.records.pop() {
            self.rare.event(&mut out, "ADDED", &record.value, record.revision);
            if out.len() >= PIECE {
                return Some(out.into());
            }
        }
        if let Some(revision) = beginning.end {
            out.extend_from_slice(b"{\"type\":\"BOOKMARK\",\"object\":");
            self.rare.form.bookmark(&mut out, revision, true);
            out.extend_from_slice(b"}\n");
        }
        self.beginning = None;
        (!out.is_empty()).then(|| out.into())
    }

    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let Some(watch) = &mut self.watch else { return Poll::Ready(None) };
            if let Poll::Ready(alarm) = self.alarmed.poll(cx, |cx| self.rare.alarm.as_mut().poll(cx)) {
                if matches!(alarm, Alarm::Stop) || Instant::now() >= self.rare.deadline {
                    return Poll::Ready(self.farewell());
                }
                self.set_alarm();
                if self.rare.bookmarks.is_some() {
                    return Poll::Ready(Some(self.bookmark_line()));
                }
                continue;
            }
            match ready!(watch.poll(cx)) {
                Ok(batch) => {
                    if let Some(bytes) = self.batch(&batch.events) {
                        return Poll::Ready(Some(bytes));
                    }
                }
                Err(StoreError::Closed) => return Poll::Ready(None),
                Err(error) => {
                    self.watch = None;
                    return Poll::Ready(Some(error_line(&too_old(&error))));
                }
            }
        }
    }

    fn set_alarm(&mut self) {
        let rare = &mut self.rare;
        rare.alarm = Box::pin(alarm(rare.stop.clone(), next_alarm(rare.deadline, rare.bookmarks)));
        self.alarmed = Aside::default();
    }

    /// The last bookmark before the stream ends, so that the client resumes close to now.
    fn farewell(&mut self) -> Option<Bytes> {
        let line = self.rare.bookmarks.map(|_| self.bookmark_line());
        self.watch = None;
        line
    }

    fn bookmark_line(&mut self) -> Bytes {
        let revision = self.watch.as_mut().map_or(0, Watch::progress);
        let mut out = b"{\"type\":\"BOOKMARK\",\"object\":".to_vec();
        self.rare.form.bookmark(&mut out, revision, false);
        out.extend_from_slice(b"}\n");
        out.into()
    }

    fn batch(&mut self, events: &[std::sync::Arc<Event>]) -> Option<Bytes> {
        let mut out = Vec::new();
        let alone = events.len() == 1;
        for event in events {
            let matched = |value: &Option<Bytes>| {
                value.as_ref().is_some_and(|value| match &self.filter {
                    Some(filter) => filter.matches(&self.resource, &event.key, value),
                    None => true,
                })
            };
            let (kind, value) = match (matched(&event.previous), matched(&event.value)) {
                (false, false) => continue,
                (false, true) => ("ADDED", event.value.as_ref()),
                (true, true) => ("MODIFIED", event.value.as_ref()),
                (true, false) => ("DELETED", event.previous.as_ref()),
            };
            if self.generations_only && kind == "MODIFIED" && same_intent(event) {
                continue;
            }
            let plain = plain_kind(event) == kind && (kind != "DELETED" || event.is_deletion());
            if plain && self.shares(value) {
                let line = event.rendered(|event| render_shared(&self.resource, event));
                if alone {
                    return Some(line.clone());
                }
                out.extend_from_slice(line);
            } else if let Some(value) = value {
                self.rare.event(&mut out, kind, value, event.revision);
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn shares(&self, value: Option<&Bytes>) -> bool {
        match self.sharing {
            Sharing::None => false,
            Sharing::All => true,
            Sharing::Shape(shape) => {
                value.and_then(|v| Record::read(v).ok()).is_some_and(|r| r.shape == shape)
            }
        }
    }
}

impl Rare {
    fn event(&mut self, out: &mut Vec<u8>, kind: &str, value: &[u8], revision: u64) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        self.form.single(out, value, revision, !self.columns_sent);
        self.columns_sent = true;
        out.extend_from_slice(b"}\n");
    }
}

/// Whether a change left generation and deletion as they were. Never so for kinds without generations.
fn same_intent(event: &Event) -> bool {
    #[derive(serde::Deserialize)]
    struct Partial {
        metadata: Intent,
    }
    #[derive(serde::Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Intent {
        generation: Option<i64>,
        deletion_timestamp: Option<String>,
    }
    let intent = |value: &Option<Bytes>| {
        let mut json = Vec::new();
        Record::read(value.as_ref()?).ok()?.render_metadata_into(&mut json, 0);
        Some(serde_json::from_slice::<Partial>(&json).ok()?.metadata)
    };
    let (before, after) = (intent(&event.previous), intent(&event.value));
    before.as_ref().is_some_and(|b| b.generation.is_some()) && before == after
}

fn plain_kind(event: &Event) -> &'static str {
    match (&event.previous, &event.value) {
        (None, _) => "ADDED",
        (Some(_), Some(_)) => "MODIFIED",
        (Some(_), None) => "DELETED",
    }
}

/// The form of an event that all plain watchers share.
fn render_shared(resource: &Shared, event: &Event) -> Bytes {
    let Some(value) = event.value.as_ref().or(event.previous.as_ref()) else { return Bytes::new() };
    let mut out = Vec::with_capacity(value.len() + 128);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(plain_kind(event).as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    match Record::read(value) {
        Ok(record) => record.render_into(&mut out, &resource.prefix, event.revision),
        Err(_) => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b"}\n");
    out.into()
}

fn too_old(error: &StoreError) -> Failure {
    match error {
        StoreError::Compacted { requested, compacted } => {
            Failure::expired(format!("too old resource version: {requested} ({compacted})"))
        }
        StoreError::Lagged { position, compacted } => {
            Failure::expired(format!("too old resource version: {position} ({compacted})"))
        }
        other => Failure::internal(other),
    }
}

fn error_line(failure: &Failure) -> Bytes {
    format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", failure.to_value()).into()
}
