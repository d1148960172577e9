//! The model: what clients and watchers were told must be one history.
//!
//! Pure: a round's records go in, the history or the first contradiction comes out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

use super::change::Change;
use super::history::{Event, EventKind, History};
use super::object::{Scope, State, Version};

/// One answer that a client got.
#[derive(Debug, Clone)]
pub struct Record {
    /// The newest revision that anybody had been told of when the request was sent. The answer must not be older.
    pub floor: u64,
    pub answer: Answer,
}

#[derive(Debug, Clone)]
pub enum Answer {
    /// The change happened and left this version.
    Wrote {
        change: Change,
        version: Version,
    },
    /// The object with this uid is gone, by this request and no other.
    Deleted {
        key: String,
        uid: String,
        expect: Option<u64>,
    },
    Refused {
        key: String,
        why: Refusal,
    },
    Read {
        key: String,
        version: Option<Version>,
    },
    Listed(Listing),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    NotFound,
    AlreadyExists,
    /// The object is not at this version.
    Conflict(u64),
}

/// A whole list, page by page.
#[derive(Debug, Clone)]
pub struct Listing {
    pub scope: Scope,
    /// The revision that was asked for, if the list had to be exactly of it.
    pub exactly: Option<u64>,
    pub pages: Vec<Page>,
}

#[derive(Debug, Clone)]
pub struct Page {
    pub revision: u64,
    /// `remainingItemCount`, where the server said it.
    pub remaining: Option<usize>,
    pub items: Vec<Version>,
}

/// What one watch connection brought: everything after `start`, up to and including `end`.
#[derive(Debug, Clone)]
pub struct Segment {
    pub watcher: String,
    pub scope: Scope,
    pub start: u64,
    pub end: u64,
    pub events: Vec<Event>,
}

/// Builds the history of a kind from its start, what clients were told and what the witness (a watcher of
/// everything) saw. Only the witness knows the revisions of deletions.
pub fn history(base: u64, objects: Vec<Version>, records: &[Record], witness: &[Event]) -> Result<History> {
    let mut history = History::new(base, objects);
    for record in records {
        if let Answer::Wrote { change, version } = &record.answer {
            let gone = matches!(change, Change::Release) && version.state.deleting && !version.state.held;
            let known =
                history.at(&version.key, version.revision).is_some_and(|(r, _)| r == version.revision);
            if known && version.revision <= base {
                // A change that changed nothing, of an object from before.
                continue;
            }
            history.learn(version.revision, &version.key, (!gone).then(|| version.state.clone()))?;
        }
    }
    for event in witness {
        let Version { key, revision, state } = &event.version;
        let state = (event.kind != EventKind::Deleted).then(|| state.clone());
        history.learn(*revision, key, state).context("the witness and the clients disagree")?;
    }
    Ok(history)
}

/// Which changes are some client's doing.
#[derive(Default)]
struct Credit {
    written: BTreeSet<u64>,
    /// Deletes and releases answer alike whether they made the change or found it made.
    perhaps: BTreeSet<u64>,
}

/// Checks every answer against the history.
pub fn answers(history: &History, records: &[Record]) -> Result<()> {
    let mut credit = Credit::default();
    let mut deleted = BTreeMap::new();
    for record in records {
        match &record.answer {
            Answer::Wrote { change, version } => {
                wrote(history, record.floor, change, version, &mut credit)
                    .with_context(|| format!("{change:?} of {} answered {version:?}", version.key))?;
            }
            Answer::Deleted { key, uid, expect } => {
                ensure!(
                    deleted.insert(uid.as_str(), (record.floor, *expect)).is_none(),
                    "{key} ({uid}) was deleted twice"
                );
            }
            Answer::Refused { key, why } => refused(history, record.floor, key, *why)?,
            Answer::Read { key, version } => read(history, record.floor, key, version.as_ref())?,
            Answer::Listed(listing) => listed(history, record.floor, listing)?,
        }
    }
    for (revision, key) in history.changes() {
        let before = history.before(key, revision);
        if credit.written.contains(&revision) || credit.perhaps.contains(&revision) {
            continue;
        }
        ensure!(history.at(key, revision).is_none(), "{key} changed at {revision}, and no client did it");
        let uid = before.map_or("", |(_, state)| state.uid.as_str());
        let Some((floor, expect)) = deleted.remove(uid) else {
            bail!("{key} ({uid}) went at {revision}, and no client deleted it");
        };
        ensure!(revision > floor, "{key} went at {revision}, older than {floor}, which was known before");
        let found = before.map(|(r, _)| r);
        ensure!(
            expect.is_none() || expect == found,
            "a delete that expected {key} at {expect:?} took it at {found:?}"
        );
    }
    if let Some(uid) = deleted.keys().next() {
        bail!("the delete of {uid} was acknowledged, and no watcher saw it go");
    }
    Ok(())
}

fn wrote(
    history: &History,
    floor: u64,
    change: &Change,
    version: &Version,
    credit: &mut Credit,
) -> Result<()> {
    let (key, revision) = (version.key.as_str(), version.revision);
    let before = history.before(key, revision);
    let now = history.at(key, revision);
    let found = before.map(|(r, _)| r);
    let mut wanted = change.outcome(before.map(|(_, s)| s));
    if let (Some(wanted), None) = (&mut wanted, before) {
        wanted.uid.clone_from(&version.state.uid);
    }
    let led_here = wanted.as_ref() == now.map(|(_, s)| s);
    let expected = change.expect().is_none_or(|expect| found == Some(expect));

    // Deleting again what waits for its finalizer, or releasing what nothing holds, changes nothing, and the
    // answer is the version that is there.
    let changes_nothing = matches!(change, Change::Delete { .. } | Change::Release)
        && now == Some((revision, &version.state))
        && change.outcome(Some(&version.state)).as_ref() == Some(&version.state)
        && change.expect().is_none_or(|expect| expect == revision);
    if changes_nothing {
        if led_here && expected {
            credit.perhaps.insert(revision);
        }
        return Ok(());
    }

    ensure!(credit.written.insert(revision), "two writes were acknowledged with resource version {revision}");
    ensure!(revision > floor, "older than {floor}, which was known before the request");
    let expect = change.expect().unwrap_or_default();
    ensure!(expected, "it expected version {expect} and replaced {found:?}: an update is lost");
    ensure!(
        !matches!(change, Change::Create(_)) || before.is_none(),
        "it created what was there at {found:?}"
    );
    ensure!(
        led_here,
        "an update is lost: from {before:?} it should have led to\n  {wanted:?}\nand led to\n  {now:?}"
    );
    Ok(())
}

fn refused(history: &History, floor: u64, key: &str, why: Refusal) -> Result<()> {
    let justified = history.since(key, floor).any(|now| match why {
        Refusal::NotFound => now.is_none(),
        Refusal::AlreadyExists => now.is_some(),
        Refusal::Conflict(expect) => now.is_none_or(|(revision, _)| revision != expect),
    });
    ensure!(justified, "{key} was refused with {why:?}, which was not true at any time after {floor}");
    Ok(())
}

fn read(history: &History, floor: u64, key: &str, version: Option<&Version>) -> Result<()> {
    let shown: Option<(u64, &State)> = version.map(|v| (v.revision, &v.state));
    ensure!(
        history.since(key, floor).any(|now| now == shown),
        "a read of {key} showed {shown:?}, which it was at no time after {floor}"
    );
    Ok(())
}

/// A list is the state at one revision, however many pages it took.
pub fn listed(history: &History, floor: u64, listing: &Listing) -> Result<()> {
    let Some(first) = listing.pages.first() else { bail!("a list without pages") };
    let revision = first.revision;
    match listing.exactly {
        Some(wanted) => ensure!(revision == wanted, "a list exactly at {wanted} came at {revision}"),
        None => {
            ensure!(revision >= floor, "a list at {revision} is older than {floor}, which was known before")
        }
    }
    let wanted = history.snapshot(&listing.scope, revision);
    let mut left = wanted.len();
    for (number, page) in listing.pages.iter().enumerate() {
        ensure!(page.revision == revision, "page {number} is at {} and page 0 at {revision}", page.revision);
        left = left.saturating_sub(page.items.len());
        let last = number + 1 == listing.pages.len();
        if !last && listing.scope.is_whole_collection() {
            ensure!(
                page.remaining == Some(left),
                "page {number} says {:?} remain, not {left}",
                page.remaining
            );
        }
    }
    let shown: Vec<&Version> = listing.pages.iter().flat_map(|page| &page.items).collect();
    if shown.iter().copied().ne(&wanted) {
        let missing: Vec<_> = wanted.iter().filter(|v| !shown.contains(v)).collect();
        let excess: Vec<_> = shown.iter().filter(|v| !wanted.contains(v)).collect();
        bail!(
            "the list of {:?} at {revision} is no snapshot: missing {missing:?}, unexpected {excess:?}, order {:?}",
            listing.scope,
            shown.iter().map(|v| &v.key).collect::<Vec<_>>()
        );
    }
    Ok(())
}

/// A watcher sees every event of its scope once and in order.
pub fn watched(history: &History, segment: &Segment) -> Result<()> {
    let mut seen = segment.events.iter();
    let mut wanted = history.events(&segment.scope, segment.start, segment.end);
    let mut position = segment.start;
    loop {
        let (seen, wanted) = (seen.next(), wanted.next());
        if seen != wanted.as_ref() {
            let found = seen.map_or_else(|| "nothing".to_owned(), |e| format!("{e:?}"));
            let wanted = wanted.map_or_else(|| "nothing".to_owned(), |e| format!("{e:?}"));
            bail!(
                "{} of {:?}, which covers {}..{}, should have seen after {position}\n  {wanted}\nand saw\n  {found}",
                segment.watcher,
                segment.scope,
                segment.start,
                segment.end
            );
        }
        let Some(event) = seen else { return Ok(()) };
        position = event.version.revision;
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
