//! Kills a process that writes under load, at random moments, and checks what it left behind.
//!
//! The process is this test binary, started again for the ignored test [`writer`]. It numbers its writes and prints a
//! line for each one that was acknowledged; whatever was printed must be found again.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tombolo_store::Durability::{Durable, Volatile};
use tombolo_store::{EmbeddedOptions, EmbeddedStore, Expect, Range, Store};

const FOLDER: &str = "TOMBOLO_STORE_KILL_FOLDER";
const ROUND: &str = "TOMBOLO_STORE_KILL_ROUND";
const TASKS: usize = 32;
/// Each task writes to its own few keys, so that it knows what must be there.
const KEYS: usize = 8;

/// A value says by whom and when it was written, and proves that it is whole.
fn value(round: u64, task: usize, write: u64) -> Bytes {
    let head = format!("{round} {task} {write} ");
    let filler = char::from(b'a' + (write % 26) as u8).to_string();
    Bytes::from(format!("{head}{}", filler.repeat(20 + (write as usize * 37) % 2000)))
}

fn parse(value: &[u8]) -> (u64, usize, u64) {
    let text = std::str::from_utf8(value).unwrap();
    let mut words = text.split(' ');
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let parsed = (number(), number() as usize, number());
    assert_eq!(value, self::value(parsed.0, parsed.1, parsed.2), "half a write");
    parsed
}

#[test]
#[ignore = "is the process that `every_acknowledged_write_survives_a_kill_at_any_moment` kills"]
fn writer() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
        let store = Arc::new(EmbeddedStore::open(&folder, EmbeddedOptions::default()).unwrap());
        println!("\nopened {}", store.revision().await.unwrap());
        let tasks = (0..TASKS).map(|task| tokio::spawn(write_forever(store.clone(), round, task)));
        futures::future::join_all(tasks).await;
    });
}

async fn write_forever(store: Arc<EmbeddedStore>, round: u64, task: usize) {
    for write in 0u64.. {
        let key = format!("/pods/{task}/{}", write as usize % KEYS);
        if write % 11 == 10 {
            let lease = format!("/leases/{task}");
            let revision = store.put(&lease, value(round, task, write), Expect::Any, Volatile).await.unwrap();
            println!("volatile {task} {revision}");
        } else if write % 7 == 6 && store.get(&key).await.unwrap().is_some() {
            let revision = store.delete(&key, Expect::Any, Durable).await.unwrap().revision;
            println!("deleted {task} {write} {revision}");
        } else {
            let revision = store.put(&key, value(round, task, write), Expect::Any, Durable).await.unwrap();
            println!("put {task} {write} {revision}");
        }
    }
}

/// What is known of a key from the lines of its writer.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The last acknowledged state: round, write and whether the key was deleted.
    last: Option<(u64, u64, bool)>,
}

#[test]
fn every_acknowledged_write_survives_a_kill_at_any_moment() {
    const ROUNDS: u64 = 30;
    let folder = tempfile::tempdir().unwrap();
    let mut known: HashMap<String, Known> = HashMap::new();
    let mut highest = 0;
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        // Spread over 50 to 300 ms, without a clock or a random number that a failure could not be repeated with.
        let delay = Duration::from_millis(50 + (round * 97) % 250);
        let lines = run_and_kill(folder.path().to_owned(), round, delay);
        let mut under_way: HashMap<u64, u64> = HashMap::new();
        for line in &lines {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "opened" => {
                    assert!(number(1) >= highest, "round {round}: {line}, but {highest} was seen before")
                }
                "volatile" => highest = highest.max(number(2)),
                "put" | "deleted" => {
                    let key = format!("/pods/{}/{}", words[1], number(2) as usize % KEYS);
                    known.entry(key).or_default().last = Some((round, number(2), words[0] == "deleted"));
                    highest = highest.max(number(3));
                    under_way.insert(number(1), number(2) + 1);
                    acknowledged += 1;
                }
                _ => {}
            }
        }
        for (key, write) in check(folder.path(), round, &known, &under_way, highest) {
            known.entry(key).or_default().last = Some((round, write, true));
        }
    }
    assert!(acknowledged > 100 * ROUNDS, "only {acknowledged} writes: the load was no load");
    eprintln!("{acknowledged} acknowledged writes survived {ROUNDS} kills");
}

/// Starts the writer, kills it after `delay` of writing, and returns its complete lines.
fn run_and_kill(folder: PathBuf, round: u64, delay: Duration) -> Vec<String> {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "writer", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(writer.stdout.take().unwrap());
    let mut lines = Vec::new();
    let mut line = String::new();
    while !line.starts_with("opened") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the writer did not start");
    }
    lines.push(line.trim_end().to_owned());
    let killer = std::thread::spawn(move || {
        std::thread::sleep(delay);
        writer.kill().unwrap();
        writer.wait().unwrap();
    });
    loop {
        let mut line = String::new();
        // The last line may have been cut by the kill.
        if output.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    killer.join().unwrap();
    lines
}

/// Everything acknowledged is there; the one write that each task had under way may be there or not. Gives the keys
/// that such a write has deleted.
fn check(
    folder: &std::path::Path,
    round: u64,
    known: &HashMap<String, Known>,
    under_way: &HashMap<u64, u64>,
    highest: u64,
) -> Vec<(String, u64)> {
    let mut vanished = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = EmbeddedStore::open(folder, EmbeddedOptions::default()).unwrap();
    let page = runtime.block_on(store.range(Range::all(""))).unwrap();
    assert!(page.revision >= highest, "round {round}: at {}, but {highest} was acknowledged", page.revision);
    let found: BTreeMap<_, _> = page.records.iter().map(|record| (record.key.to_string(), record)).collect();
    for record in &page.records {
        parse(&record.value);
        assert!(record.revision <= page.revision);
    }
    for (key, Known { last }) in known {
        let Some((at, write, deleted)) = *last else { continue };
        match found.get(key) {
            Some(record) => {
                let (record_round, _, record_write) = parse(&record.value);
                let newer = (record_round, record_write) > (at, write);
                let same = (record_round, record_write) == (at, write) && !deleted;
                assert!(newer || same, "{key}: {record_round}/{record_write} instead of {at}/{write}");
            }
            // Not there: deleted, or the delete that was under way (perhaps behind a volatile write) has happened.
            None if deleted => {}
            None => {
                let mut parts = key.rsplit('/').map(|part| part.parse::<u64>().unwrap_or_default());
                let (index, task) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                let next = under_way.get(&task).copied().unwrap_or(0);
                let delete = (next..=next + 1).find(|w| w % KEYS as u64 == index && w % 7 == 6);
                let delete = delete.unwrap_or_else(|| panic!("{key}: {at}/{write} is lost"));
                vanished.push((key.clone(), delete));
            }
        }
    }
    // Closing cleanly every other time covers both ways to start.
    if round.is_multiple_of(2) {
        runtime.block_on(store.close()).unwrap();
    }
    vanished
}
