//! Random sequences of calls against a model that keeps everything forever in the simplest way.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tombolo_store::{At, Durability, Expect, Range, Record, Store, StoreError, Watch};

type Shared = Arc<dyn Store>;

/// Where a call takes its revision from: so many writes ago, or one that is yet to come.
#[derive(Clone, Copy, Debug)]
enum When {
    Ago(usize),
    Future,
}

#[derive(Clone, Debug)]
enum Call {
    Put { key: u8, value: u8, expect: Guess, durability: bool },
    Delete { key: u8, expect: Guess, durability: bool },
    Get { key: u8 },
    Range { prefix: u8, after: Option<u8>, limit: usize, at: Option<When> },
    Watch { prefix: u8, from: usize },
    Compact { ago: usize },
}

/// An expectation, right or wrong depending on the state it meets.
#[derive(Clone, Copy, Debug)]
enum Guess {
    Any,
    Absent,
    Current,
    Ago(usize),
}

const KEYS: [&str; 6] = ["/a/1", "/a/2", "/ab/1", "/b/1", "/b/2", "/b/20"];
const PREFIXES: [&str; 5] = ["", "/a/", "/a", "/b/2", "/z"];

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let guess = prop_oneof![
        3 => Just(Guess::Any),
        1 => Just(Guess::Absent),
        2 => Just(Guess::Current),
        1 => (0..4usize).prop_map(Guess::Ago),
    ];
    let when = prop_oneof![4 => (0..12usize).prop_map(When::Ago), 1 => Just(When::Future)];
    let key = 0..KEYS.len() as u8;
    let prefix = 0..PREFIXES.len() as u8;
    let call = prop_oneof![
        6 => (key.clone(), any::<u8>(), guess.clone(), any::<bool>())
            .prop_map(|(key, value, expect, durability)| Call::Put { key, value, expect, durability }),
        3 => (key.clone(), guess, any::<bool>())
            .prop_map(|(key, expect, durability)| Call::Delete { key, expect, durability }),
        1 => key.clone().prop_map(|key| Call::Get { key }),
        3 => (prefix.clone(), proptest::option::of(key), 0..4usize, proptest::option::of(when))
            .prop_map(|(prefix, after, limit, at)| Call::Range { prefix, after, limit, at }),
        1 => (prefix, 0..12usize).prop_map(|(prefix, from)| Call::Watch { prefix, from }),
        1 => (0..12usize).prop_map(|ago| Call::Compact { ago }),
    ];
    proptest::collection::vec(call, 1..60)
}

/// Every state there ever was.
#[derive(Default)]
struct Model {
    states: Vec<(u64, BTreeMap<String, Record>)>,
    changes: Vec<(u64, String, Option<Bytes>, Option<Bytes>)>,
    compacted: u64,
}

impl Model {
    fn now(&self) -> &BTreeMap<String, Record> {
        &self.states.last().unwrap().1
    }

    fn revision(&self) -> u64 {
        self.states.last().unwrap().0
    }

    fn ago(&self, ago: usize) -> u64 {
        self.states[self.states.len().saturating_sub(1 + ago)].0
    }

    fn at(&self, revision: u64) -> &BTreeMap<String, Record> {
        &self.states.iter().rev().find(|(at, _)| *at <= revision).unwrap().1
    }

    fn expect(&self, guess: Guess, key: &str) -> Expect {
        match guess {
            Guess::Any => Expect::Any,
            Guess::Absent => Expect::Absent,
            Guess::Current => Expect::Revision(self.now().get(key).map_or(1, |record| record.revision)),
            Guess::Ago(ago) => Expect::Revision(self.ago(ago)),
        }
    }

    fn record(&mut self, revision: u64, key: &str, value: Option<Bytes>) {
        let mut state = self.now().clone();
        let before = state.remove(key);
        if let Some(value) = &value {
            let created = before.as_ref().map_or(revision, |record| record.created);
            let record = Record { key: key.into(), value: value.clone(), created, revision };
            state.insert(key.to_owned(), record);
        }
        self.states.push((revision, state));
        self.changes.push((revision, key.to_owned(), value, before.map(|record| record.value)));
    }
}

pub async fn any_sequence_of_calls_behaves_like_the_model(store: Shared) {
    let mut runner = TestRunner::deterministic();
    for round in 0..30 {
        let calls = calls().new_tree(&mut runner).unwrap().current();
        run(&store, &format!("/round{round}"), &calls).await;
    }
}

/// Runs the calls under a root of their own, so that one store serves many rounds.
async fn run(store: &Shared, root: &str, calls: &[Call]) {
    let start = store.revision().await.unwrap();
    let mut model = Model { compacted: 0, ..Model::default() };
    model.states.push((start, BTreeMap::new()));
    let mut watches: Vec<(String, u64, Watch)> = Vec::new();
    let full = |part: &str| format!("{root}{part}");
    for call in calls {
        step(store, &mut model, &mut watches, &full, call).await;
    }
    for (prefix, from, mut watch) in watches {
        let expected: Vec<_> = model
            .changes
            .iter()
            .filter(|(revision, key, ..)| *revision > from && key.starts_with(&prefix))
            .cloned()
            .collect();
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            match watch.next().await {
                Ok(batch) => seen.extend(batch.events.iter().map(|event| {
                    (event.revision, event.key.to_string(), event.value.clone(), event.previous.clone())
                })),
                // Allowed only if something it had not read was compacted.
                Err(StoreError::Lagged { .. }) => {
                    let next = expected[seen.len()].0;
                    assert!(next <= model.compacted, "told to list again, but {next} is not compacted");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(seen, expected[..seen.len()], "watching {prefix} from {from}: {calls:?}");
    }
}

async fn step(
    store: &Shared,
    model: &mut Model,
    watches: &mut Vec<(String, u64, Watch)>,
    full: &impl Fn(&str) -> String,
    call: &Call,
) {
    let durability = |durable| if durable { Durability::Durable } else { Durability::Volatile };
    match *call {
        Call::Put { key, value, expect, durability: durable } => {
            let key = full(KEYS[key as usize]);
            let expect = model.expect(expect, &key);
            let value = Bytes::from(vec![value; 3]);
            let current = model.now().get(&key).cloned();
            match store.put(&key, value.clone(), expect, durability(durable)).await {
                Ok(revision) => {
                    assert!(expect.holds(current.map(|record| record.revision)), "{call:?}");
                    assert!(revision > model.revision());
                    model.record(revision, &key, Some(value));
                }
                Err(StoreError::Conflict { current: told, .. }) => {
                    assert_eq!(told, current);
                    assert!(!expect.holds(current.map(|record| record.revision)), "{call:?}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        Call::Delete { key, expect, durability: durable } => {
            let key = full(KEYS[key as usize]);
            let expect = model.expect(expect, &key);
            let current = model.now().get(&key).cloned();
            match store.delete(&key, expect, durability(durable)).await {
                Ok(deleted) => {
                    assert_eq!(Some(deleted.last), current);
                    assert!(deleted.revision > model.revision());
                    model.record(deleted.revision, &key, None);
                }
                Err(StoreError::Conflict { current: told, .. }) => {
                    assert_eq!(told, current);
                    let holds = expect.holds(current.as_ref().map(|record| record.revision));
                    assert!(current.is_none() || !holds, "{call:?}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        Call::Get { key } => {
            let key = full(KEYS[key as usize]);
            assert_eq!(store.get(&key).await.unwrap(), model.now().get(&key).cloned());
        }
        Call::Range { prefix, after, limit, at } => {
            let prefix = full(PREFIXES[prefix as usize]);
            let after = after.map(|key| full(KEYS[key as usize]));
            let revision = at.map(|when| match when {
                When::Ago(ago) => model.ago(ago),
                When::Future => model.revision() + 1000,
            });
            let range = Range {
                prefix: &prefix,
                after: after.as_deref(),
                limit,
                at: revision.map_or(At::Latest, At::Exact),
            };
            let answer = store.range(range).await;
            match (revision, answer) {
                (Some(revision), Err(StoreError::Future { .. })) => assert!(revision > model.revision()),
                (Some(revision), Err(StoreError::Compacted { .. })) => assert!(revision < model.compacted),
                (_, Ok(page)) => {
                    let revision = revision.unwrap_or(model.revision());
                    assert!(revision >= model.compacted && revision <= model.revision());
                    assert_eq!(page.revision, revision);
                    let mut expected: Vec<Record> = model
                        .at(revision)
                        .range::<String, _>(prefix.clone()..)
                        .filter(|(key, _)| key.starts_with(&prefix))
                        .filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after))
                        .map(|(_, record)| record.clone())
                        .collect();
                    let remaining = if limit == 0 { 0 } else { expected.len().saturating_sub(limit) };
                    expected.truncate(expected.len() - remaining);
                    assert_eq!((page.records, page.remaining), (expected, remaining), "{call:?}");
                }
                (_, Err(error)) => panic!("{call:?}: {error}"),
            }
        }
        Call::Watch { prefix, from } => {
            let prefix = full(PREFIXES[prefix as usize]);
            let from = model.ago(from);
            match store.watch(&prefix, from).await {
                Ok(watch) => {
                    assert!(from >= model.compacted);
                    watches.push((prefix, from, watch));
                }
                Err(StoreError::Compacted { .. }) => assert!(from < model.compacted),
                Err(error) => panic!("{error}"),
            }
        }
        Call::Compact { ago } => {
            let revision = model.ago(ago);
            store.compact(revision).await.unwrap();
            model.compacted = model.compacted.max(revision);
        }
    }
}
