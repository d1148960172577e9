//! Keeps the cache up to date: reads everything once, then follows etcd's watch, and starts over where it must.

use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use tokio::sync::watch;
use tonic::Status;

use super::wire::{
    self, Client, RangeRequest, WatchCall, WatchCreate, WatchEvent, WatchProgress, WatchRequest,
    WatchResponse,
};
use super::{Shared, limited, record};
use crate::mvcc::Change;
use crate::{Record, StoreError};

/// How many records are read at a time.
const PAGE: i64 = 1000;
/// How long to wait before the watch is opened again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Requests for progress under way; more of them would tell nothing new.
const REQUESTS: usize = 4;

/// Everything under a prefix, as of one revision.
pub(super) async fn load(client: &Client, prefix: &str) -> Result<(Vec<Record>, u64), StoreError> {
    let range_end = wire::end_of(prefix.as_bytes());
    let mut request =
        RangeRequest { key: prefix.to_owned().into(), range_end, limit: PAGE, ..RangeRequest::default() };
    let mut records = Vec::new();
    loop {
        let answer = limited(client.range(request.clone())).await?;
        if request.revision == 0 {
            // All further pages are of the revision that the first one happened to be.
            request.revision = answer.header.revision;
        }
        if let Some(last) = answer.kvs.last() {
            request.key = [&last.key[..], b"\0"].concat().into();
        }
        records.extend(answer.kvs.into_iter().filter_map(|kv| record(prefix, kv)));
        if !answer.more {
            return Ok((records, request.revision as u64));
        }
    }
}

/// Why a watch ended.
enum Ended {
    /// The store was closed.
    Closed,
    /// The connection broke or stood still; go on from where the cache is.
    Broken(String),
    /// etcd has forgotten what comes next; read everything again.
    Compacted,
}

/// Runs until the store is closed.
pub(super) async fn follow(shared: Arc<Shared>, mut closed: watch::Receiver<bool>) {
    loop {
        let ended = tokio::select! {
            _ = closed.wait_for(|closed| *closed) => Ended::Closed,
            ended = follow_once(&shared) => ended,
        };
        match ended {
            Ended::Closed => break,
            Ended::Broken(why) => {
                tracing::warn!(
                    why,
                    revision = shared.mvcc.revision(),
                    "the watch on etcd ended; opening it again"
                );
            }
            Ended::Compacted => match load(&shared.client, &shared.prefix).await {
                Ok((records, revision)) => {
                    tracing::warn!(
                        revision,
                        "etcd has compacted what this replica missed; watchers must list again"
                    );
                    shared.mvcc.replace(records, revision);
                    shared.reached.send_replace(shared.mvcc.revision());
                    continue;
                }
                Err(error) => tracing::warn!(%error, "cannot read from etcd"),
            },
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    shared.mvcc.close();
}

async fn follow_once(shared: &Shared) -> Ended {
    let (mut requests, receiver) = mpsc::channel(REQUESTS);
    let create = WatchCreate {
        key: shared.prefix.clone().into(),
        range_end: wire::end_of(shared.prefix.as_bytes()),
        start_revision: shared.mvcc.revision() as i64 + 1,
        progress_notify: true,
    };
    let create = WatchRequest { call: Some(WatchCall::Create(create)) };
    if requests.try_send(create).is_err() {
        return Ended::Broken("cannot send".to_owned());
    }
    let mut answers = match shared.client.watch(receiver).await {
        Ok(answers) => answers,
        Err(status) => return Ended::Broken(status.message().to_owned()),
    };
    loop {
        tokio::select! {
            answer = answers.message() => match take(shared, answer) {
                Ok(()) => {}
                Err(ended) => return ended,
            },
            () = shared.wants_progress.notified() => {
                // Full: as many requests as make sense are already under way.
                let _ = requests.try_send(WatchRequest { call: Some(WatchCall::Progress(WatchProgress {})) });
            }
            () = shared.is_stuck.notified() => return Ended::Broken("it made no progress".to_owned()),
        }
    }
}

/// Brings what etcd told into the cache.
fn take(shared: &Shared, answer: Result<Option<WatchResponse>, Status>) -> Result<(), Ended> {
    let answer = match answer {
        Ok(Some(answer)) => answer,
        Ok(None) => return Err(Ended::Broken("etcd ended it".to_owned())),
        Err(status) => return Err(Ended::Broken(status.message().to_owned())),
    };
    if answer.compact_revision > 0 {
        return Err(Ended::Compacted);
    }
    if answer.canceled {
        return Err(Ended::Broken(answer.cancel_reason));
    }
    if answer.events.is_empty() {
        // Only an answer without events promises that all events up to its revision have been sent; the one that
        // confirms the watch is sent before any of them.
        if !answer.created {
            shared.mvcc.advance(answer.header.revision as u64);
        }
    } else {
        let changes = answer.events.into_iter().filter_map(|event| change(&shared.prefix, event));
        drop(shared.mvcc.publish(changes));
    }
    shared.reached.send_replace(shared.mvcc.revision());
    Ok(())
}

fn change(prefix: &str, event: WatchEvent) -> Option<Change> {
    const PUT: i32 = 0;
    let put = event.kind == PUT;
    let Record { key, value, revision, .. } = record(prefix, event.kv)?;
    Some(Change { key, value: put.then_some(value), revision })
}
