//! The model is worth something only if it finds what it is for: each test plants one fault.

use super::*;
use crate::soak::change::Patch;

const KEY: &str = "north/a";

fn state(uid: &str, fields: &[(&str, &str)]) -> State {
    State {
        uid: uid.to_owned(),
        fields: fields.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        colour: "red".to_owned(),
        ..State::default()
    }
}

fn version(revision: u64, state: &State) -> Version {
    Version { key: KEY.to_owned(), revision, state: state.clone() }
}

fn wrote(floor: u64, change: Change, revision: u64, state: &State) -> Record {
    Record { floor, answer: Answer::Wrote { change, version: version(revision, state) } }
}

fn set(name: &str, value: &str) -> Change {
    let set = (name.to_owned(), value.to_owned());
    Change::Patch { style: Patch::Merge, set, remove: None, colour: None, expect: None }
}

/// Created at 11, patched at 12, deleted at 13.
fn story() -> (Vec<Record>, Vec<Event>) {
    let (first, second) = (state("u", &[("a", "1")]), state("u", &[("a", "1"), ("b", "2")]));
    let records = vec![
        wrote(10, Change::Create(state("", &[("a", "1")])), 11, &first),
        wrote(11, set("b", "2"), 12, &second),
        Record { floor: 12, answer: Answer::Deleted { key: KEY.into(), uid: "u".into(), expect: None } },
    ];
    let event = |kind, revision, state: &State| Event { kind, version: version(revision, state) };
    let events = vec![
        event(EventKind::Added, 11, &first),
        event(EventKind::Modified, 12, &second),
        event(EventKind::Deleted, 13, &second),
    ];
    (records, events)
}

fn judge(records: &[Record], events: &[Event]) -> Result<History> {
    let history = history(10, Vec::new(), records, events)?;
    answers(&history, records)?;
    Ok(history)
}

fn fault<T>(result: Result<T>, wanted: &str) {
    let Err(error) = result else { panic!("the fault was not found: {wanted}") };
    assert!(format!("{error:#}").contains(wanted), "{error:#}");
}

fn segment(events: Vec<Event>) -> Segment {
    Segment { watcher: "w".into(), scope: Scope::default(), start: 10, end: 13, events }
}

#[test]
fn a_true_story_is_believed() {
    let (records, events) = story();
    let history = judge(&records, &events).unwrap();
    watched(&history, &segment(events)).unwrap();
}

#[test]
fn a_lost_update_is_found() {
    let (mut records, mut events) = story();
    let without = state("u", &[("b", "2")]);
    records[1] = wrote(11, set("b", "2"), 12, &without);
    events[1].version.state = without.clone();
    events[2].version.state = without;
    fault(judge(&records, &events), "an update is lost");
}

#[test]
fn two_winners_of_one_version_are_found() {
    let (mut records, _) = story();
    let replace = |value: &str| Change::Replace { expect: 11, to: state("", &[("a", value)]) };
    records.truncate(1);
    records.push(wrote(11, replace("x"), 12, &state("u", &[("a", "x")])));
    records.push(wrote(11, replace("y"), 13, &state("u", &[("a", "y")])));
    fault(judge(&records, &[]), "it expected version 11 and replaced Some(12)");
}

#[test]
fn a_version_given_twice_is_found() {
    let (mut records, events) = story();
    records.push(records[1].clone());
    fault(judge(&records, &events), "two writes were acknowledged with resource version 12");
}

#[test]
fn a_write_older_than_what_was_known_is_found() {
    let (mut records, events) = story();
    records[1].floor = 12;
    fault(judge(&records, &events), "older than 12");
}

#[test]
fn a_change_that_nobody_made_is_found() {
    let (mut records, events) = story();
    records.remove(1);
    fault(judge(&records, &events), "no client did it");
    let (mut records, events) = story();
    records.pop();
    fault(judge(&records, &events), "no client deleted it");
}

#[test]
fn a_delete_that_did_not_happen_or_won_twice_is_found() {
    let (records, mut events) = story();
    events.pop();
    fault(judge(&records, &events), "no watcher saw it go");
    let (mut records, events) = story();
    records.push(records[2].clone());
    fault(judge(&records, &events), "deleted twice");
}

#[test]
fn missed_repeated_and_reordered_events_are_found() {
    let (records, events) = story();
    let history = judge(&records, &events).unwrap();
    for at in 0..events.len() {
        let mut missed = events.clone();
        missed.remove(at);
        fault(watched(&history, &segment(missed)), "should have seen");
        let mut repeated = events.clone();
        repeated.insert(at, events[at].clone());
        fault(watched(&history, &segment(repeated)), "should have seen");
    }
    let mut reordered = events.clone();
    reordered.swap(0, 1);
    fault(watched(&history, &segment(reordered)), "should have seen");
}

#[test]
fn an_object_that_leaves_a_selector_is_deleted_for_its_watchers() {
    let mut history = History::new(10, [version(9, &state("u", &[]))]);
    history.learn(11, KEY, Some(State { colour: "blue".into(), ..state("u", &[]) })).unwrap();
    let red = Scope { colour: Some("red".into()), ..Scope::default() };
    let events: Vec<_> = history.events(&red, 10, 11).collect();
    let wanted = Event { kind: EventKind::Deleted, version: version(11, &state("u", &[])) };
    assert_eq!(events, vec![wanted]);
}

#[test]
fn a_list_that_is_no_snapshot_is_found() {
    let (records, events) = story();
    let history = judge(&records, &events).unwrap();
    let page = |revision, items| Page { revision, remaining: None, items };
    let list = |pages| Listing { scope: Scope::default(), exactly: None, pages };
    let (first, second) = (version(11, &state("u", &[("a", "1")])), &events[1].version);
    listed(&history, 11, &list(vec![page(11, vec![first.clone()])])).unwrap();
    fault(listed(&history, 11, &list(vec![page(12, vec![first.clone()])])), "no snapshot");
    fault(listed(&history, 11, &list(vec![page(13, vec![second.clone()])])), "no snapshot");
    fault(listed(&history, 12, &list(vec![page(11, vec![first.clone()])])), "older than 12");
    let moved = vec![page(11, vec![first]), page(12, Vec::new())];
    fault(listed(&history, 11, &list(moved)), "page 0 says None remain");
}

#[test]
fn a_read_from_the_past_and_a_refusal_without_reason_are_found() {
    let (mut records, events) = story();
    let old = version(11, &state("u", &[("a", "1")]));
    let read = |floor| Record { floor, answer: Answer::Read { key: KEY.into(), version: Some(old.clone()) } };
    records.push(read(11));
    judge(&records, &events).unwrap();
    records.push(read(12));
    fault(judge(&records, &events), "at no time after 12");
    let (mut records, events) = story();
    let refused = |floor, why| Record { floor, answer: Answer::Refused { key: KEY.into(), why } };
    records.push(refused(12, Refusal::Conflict(12)));
    judge(&records, &events).unwrap();
    records.push(refused(13, Refusal::AlreadyExists));
    fault(judge(&records, &events), "refused with AlreadyExists");
}

#[test]
fn a_delete_that_finds_the_object_marked_takes_no_credit_from_the_one_that_marked_it() {
    let held = State { held: true, ..state("u", &[]) };
    let marked = State { deleting: true, ..held.clone() };
    let delete = |expect| wrote(10, Change::Delete { expect }, 12, &marked);
    let mut records =
        vec![wrote(10, Change::Create(held.clone()), 11, &held), delete(None), delete(Some(11))];
    judge(&records, &[]).unwrap();
    records.push(delete(Some(11)));
    fault(judge(&records, &[]), "two writes were acknowledged");
}
