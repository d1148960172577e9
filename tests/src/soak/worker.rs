//! One random client: an endless choice of requests until the round is over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::change::{Change, Patch};
use super::check::{Answer, Record};
use super::client::{Client, Failure};
use super::object::{COLOURS, KINDS, Kind, NAMESPACES, Scope, State, Version};
use super::random::Random;

/// So few names that clients meet on every object.
const NAMES: u64 = 9;
/// The history that a server keeps is bounded; a list at a version younger than this many changes must work.
pub const KEPT: u64 = 1000;

pub struct Worker {
    pub client: Client,
    pub random: Random,
    /// Also the name of its field manager.
    pub name: String,
    pub counter: u64,
}

/// When a round ends: by time, or by how much happened.
pub struct Budget {
    pub deadline: Instant,
    pub requests: AtomicU64,
}

impl Budget {
    pub fn spend(&self) -> bool {
        let one = |left: u64| left.checked_sub(1);
        Instant::now() < self.deadline
            && self.requests.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one).is_ok()
    }
}

/// What clients were told, per kind.
pub type Records = Vec<Vec<Record>>;

impl Worker {
    /// Asks until the budget is spent. `base` is the oldest revision that the model knows.
    pub async fn run(mut self, base: u64, budget: &Budget) -> Result<(Self, Records)> {
        let mut records: Records = KINDS.iter().map(|_| Vec::new()).collect();
        while budget.spend() {
            let kind = self.random.below(KINDS.len() as u64) as usize;
            match self.step(&KINDS[kind], base).await {
                Ok(new) => records[kind].extend(new),
                Err(Failure::Busy) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => return Err(error.into()),
            }
        }
        Ok((self, records))
    }

    async fn step(&mut self, kind: &Kind, base: u64) -> Result<Vec<Record>, Failure> {
        let key = self.key();
        let change = match self.random.below(100) {
            0..15 => Change::Create(self.fresh()),
            15..45 => self.patch(kind, None),
            45..57 => self.apply(),
            57..64 => Change::Delete { expect: None },
            64..69 => Change::Release,
            69..86 => return self.compare_and_set(kind, &key).await,
            86..87 => {
                let namespace = Some((*self.random.pick(NAMESPACES)).to_owned());
                let colour = Some((*self.random.pick(COLOURS)).to_owned());
                return self.client.delete_collection(kind, &Scope { namespace, colour, name: None }).await;
            }
            87..92 => return self.client.read(kind, &key).await.map(|record| vec![record]),
            _ => return self.list(kind, base).await,
        };
        self.client.change(kind, &key, change).await.map(|record| vec![record])
    }

    /// Reads, then writes back what holds only for the version that was read: alone, or twice at the same moment.
    async fn compare_and_set(&mut self, kind: &Kind, key: &str) -> Result<Vec<Record>, Failure> {
        let read = self.client.read(kind, key).await?;
        let Answer::Read { version: Some(version), .. } = &read.answer else { return Ok(vec![read]) };
        let (first, second) = (self.conditional(kind, version), self.conditional(kind, version));
        let mut records = vec![read.clone()];
        if self.random.percent(40) {
            let (first, second) =
                futures::join!(self.client.change(kind, key, first), self.client.change(kind, key, second));
            records.extend([first?, second?]);
        } else {
            records.push(self.client.change(kind, key, first).await?);
        }
        Ok(records)
    }

    pub fn conditional(&mut self, kind: &Kind, version: &Version) -> Change {
        let expect = version.revision;
        match self.random.below(10) {
            0..6 => {
                let mut to = version.state.clone();
                if self.random.percent(30) {
                    let removed =
                        to.fields.keys().nth(self.random.below(to.fields.len() as u64) as usize).cloned();
                    to.fields.remove(&removed.unwrap_or_default());
                }
                let (name, value) = (self.field(), self.value());
                to.fields.insert(name, value);
                to.colour = (*self.random.pick(COLOURS)).to_owned();
                Change::Replace { expect, to }
            }
            6..9 => self.patch(kind, Some(expect)),
            _ => Change::Delete { expect: Some(expect) },
        }
    }

    fn patch(&mut self, kind: &Kind, expect: Option<u64>) -> Change {
        let styles: &[Patch] = if kind.strategic {
            &[Patch::Merge, Patch::Json, Patch::Strategic]
        } else {
            &[Patch::Merge, Patch::Json]
        };
        let set = (self.field(), self.value());
        let remove = Some(self.field()).filter(|name| *name != set.0 && self.random.percent(30));
        let colour = self.random.percent(40).then(|| (*self.random.pick(COLOURS)).to_owned());
        Change::Patch { style: *self.random.pick(styles), set, remove, colour, expect }
    }

    pub fn apply(&mut self) -> Change {
        Change::Apply {
            manager: self.name.clone(),
            value: self.value(),
            more: self.random.percent(50),
            colour: (*self.random.pick(COLOURS)).to_owned(),
        }
    }

    pub fn fresh(&mut self) -> State {
        State {
            fields: BTreeMap::from([(self.field(), self.value())]),
            colour: (*self.random.pick(COLOURS)).to_owned(),
            held: self.random.percent(20),
            ..State::default()
        }
    }

    async fn list(&mut self, kind: &Kind, base: u64) -> Result<Vec<Record>, Failure> {
        let scope = scope(&mut self.random);
        let limit = *self.random.pick(&[0, 1, 2, 3, 7]);
        let newest = self.client.newest.get();
        let (at, exactly) = match self.random.below(10) {
            0..2 => {
                let version = newest - self.random.below((newest - base + 1).min(KEPT));
                (format!("&resourceVersion={version}&resourceVersionMatch=Exact"), Some(version))
            }
            2..4 => (format!("&resourceVersion={newest}&resourceVersionMatch=NotOlderThan"), None),
            _ => (String::new(), None),
        };
        self.client.list(kind, &scope, limit, &at, exactly).await.map(|r| vec![r])
    }

    fn key(&mut self) -> String {
        format!("{}/n{}", self.random.pick(NAMESPACES), self.random.below(NAMES))
    }

    fn field(&mut self) -> String {
        format!("k{}", self.random.below(5))
    }

    /// Never the same twice, so that every change changes something.
    fn value(&mut self) -> String {
        self.counter += 1;
        format!("{}-{}", self.name, self.counter)
    }
}

pub fn scope(random: &mut Random) -> Scope {
    Scope {
        namespace: random.percent(60).then(|| (*random.pick(NAMESPACES)).to_owned()),
        colour: random.percent(35).then(|| (*random.pick(COLOURS)).to_owned()),
        name: random.percent(15).then(|| format!("n{}", random.below(NAMES))),
    }
}
