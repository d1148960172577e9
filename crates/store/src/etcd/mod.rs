//! The engine for several replicas: etcd decides and keeps, the state in memory is a cache that follows its watch.
//!
//! A write is one etcd transaction, and is answered when this replica's cache has it too. A read that must not be
//! old asks etcd for its revision (which any other replica's acknowledged write is part of) and waits until the cache
//! has reached it. Older revisions than the cache knows are read from etcd.

mod follow;
mod wire;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use self::wire::{
    Answer, Client, Compare, CompareTo, DeleteRequest, KeyValue, Op, PutRequest, RangeRequest, RequestOp,
    TxnRequest, TxnResponse,
};
use crate::mvcc::{HISTORY_BYTES, Mvcc};
use crate::{At, Deleted, Durability, Expect, Page, Range, Record, Store, StoreError, Watch};

/// How long a call to etcd may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// How long a call waits for the cache before it asks for progress, and asks again.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// After so long without progress the watch is opened anew, perhaps on another member.
const STUCK_AFTER: Duration = Duration::from_secs(3);

/// Where etcd is and what of it is ours.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// URLs of members, such as `https://10.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// All keys are stored under this prefix.
    pub prefix: String,
    /// Needed for `https` endpoints.
    pub tls: Option<EtcdTls>,
}

/// How to trust etcd and how it trusts us; all in PEM.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    pub ca: String,
    /// Certificate and key of this client.
    pub identity: Option<(String, String)>,
}

/// A store that shares its contents with other replicas through etcd.
#[derive(Debug)]
pub struct EtcdStore {
    shared: Arc<Shared>,
    closed: watch::Sender<bool>,
}

/// What the store and the task that follows etcd's watch share.
#[derive(Debug)]
struct Shared {
    client: Client,
    prefix: String,
    mvcc: Mvcc,
    /// The revision that the cache has reached.
    reached: watch::Sender<u64>,
    /// Somebody waits for the cache to move on although nothing changes under our prefix.
    wants_progress: Notify,
    /// The watch makes no progress and should be opened anew.
    is_stuck: Notify,
}

impl EtcdStore {
    /// Connects, and reads everything under the prefix.
    pub async fn connect(options: EtcdOptions) -> Result<Self, StoreError> {
        let client = Client::new(channel(&options)?);
        let loaded = follow::load(&client, &options.prefix).await;
        let (records, revision) = loaded.map_err(|error| {
            let endpoints = options.endpoints.join(", ");
            StoreError::Unavailable(format!("nothing can be read from {endpoints}: {error}"))
        })?;
        let shared = Arc::new(Shared {
            client,
            prefix: options.prefix,
            mvcc: Mvcc::load(records, revision, HISTORY_BYTES),
            reached: watch::Sender::new(revision),
            wants_progress: Notify::new(),
            is_stuck: Notify::new(),
        });
        let closed = watch::Sender::new(false);
        tokio::spawn(follow::follow(shared.clone(), closed.subscribe()));
        Ok(EtcdStore { shared, closed })
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if *self.closed.borrow() { Err(StoreError::Closed) } else { Ok(()) }
    }

    fn key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.shared.prefix).into()
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, StoreError> {
        limited(call).await
    }

    /// etcd's revision, as of now on all members.
    async fn current(&self) -> Result<u64, StoreError> {
        let request =
            RangeRequest { key: self.key(""), count_only: true, limit: 1, ..RangeRequest::default() };
        let answer = self.call(self.shared.client.range(request)).await?;
        Ok(answer.header.revision as u64)
    }

    /// Waits until the cache has reached a revision that etcd has.
    async fn reach(&self, revision: u64) -> Result<(), StoreError> {
        let mut reached = self.shared.reached.subscribe();
        let wait = async {
            let began = tokio::time::Instant::now();
            loop {
                let there = reached.wait_for(|reached| *reached >= revision);
                if tokio::time::timeout(PROGRESS_EVERY, there).await.is_ok() {
                    return;
                }
                self.shared.wants_progress.notify_one();
                if began.elapsed() > STUCK_AFTER {
                    self.shared.is_stuck.notify_one();
                }
            }
        };
        // Nearly always it is a matter of the event that is already on its way, or of one question.
        if *self.shared.reached.borrow() < revision && revision > self.shared.mvcc.revision() {
            self.shared.wants_progress.notify_one();
        }
        let too_late =
            || StoreError::Unavailable(format!("etcd's watch has not reached revision {revision}"));
        tokio::time::timeout(CALL_LIMIT, wait).await.map_err(|_| too_late())
    }

    /// One write under an expectation. Returns what the transaction answered, or the conflict.
    async fn transact(&self, key: &str, expect: Expect, op: Op) -> Result<TxnResponse, StoreError> {
        self.check_open()?;
        let name = self.key(key);
        let compare = |revision: u64| Compare {
            result: 0,
            target: 2,
            key: name.clone(),
            to: Some(CompareTo::ModRevision(revision as i64)),
        };
        let compare = match expect {
            Expect::Any => Vec::new(),
            Expect::Absent => vec![compare(0)],
            // etcd reads 0 as "does not exist", which is not what was asked.
            Expect::Revision(0) => return self.conflict(key).await,
            Expect::Revision(revision) => vec![compare(revision)],
        };
        let read = Op::Range(RangeRequest { key: name.clone(), ..RangeRequest::default() });
        let request = TxnRequest { compare, success: vec![request(op)], failure: vec![request(read)] };
        let answer = self.call(self.shared.client.txn(request)).await?;
        if answer.succeeded {
            return Ok(answer);
        }
        let found = answer.responses.into_iter().find_map(|response| match response.answer {
            Some(Answer::Range(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let current = found.and_then(|kv| record(&self.shared.prefix, kv));
        Err(StoreError::Conflict { key: key.to_owned(), current })
    }

    async fn conflict<T>(&self, key: &str) -> Result<T, StoreError> {
        Err(StoreError::Conflict { key: key.to_owned(), current: self.get(key).await? })
    }

    /// After a write: readers of this replica should see it too. Not worth an error, for it has happened.
    async fn visible(&self, revision: u64) {
        if let Err(error) = self.reach(revision).await {
            tracing::warn!(%error, revision, "a write has happened, but is not yet visible on this replica");
        }
    }

    /// A range at a revision that the cache does not know any more, or never did.
    async fn range_from_etcd(&self, range: Range<'_>, revision: u64) -> Result<Page, StoreError> {
        let prefix = self.key(range.prefix);
        let start = match range.after {
            Some(after) if after >= range.prefix => Bytes::from(format!("{}{after}\0", self.shared.prefix)),
            _ => prefix.clone(),
        };
        let end = wire::end_of(&prefix);
        if start >= end {
            return Ok(Page { records: Vec::new(), revision, remaining: 0 });
        }
        let request = RangeRequest {
            key: start,
            range_end: end,
            limit: range.limit as i64,
            revision: revision as i64,
            count_only: false,
        };
        let answer = self.shared.client.range(request);
        let answer = match tokio::time::timeout(CALL_LIMIT, answer).await {
            Ok(Err(status)) if status.code() == Code::OutOfRange => {
                return Err(StoreError::Compacted { requested: revision, compacted: revision + 1 });
            }
            Ok(answer) => answer.map_err(unavailable)?,
            Err(_) => return Err(StoreError::Unavailable("etcd did not answer in time".to_owned())),
        };
        let remaining = (answer.count as usize).saturating_sub(answer.kvs.len());
        let records = answer.kvs.into_iter().filter_map(|kv| record(&self.shared.prefix, kv)).collect();
        Ok(Page { records, revision, remaining })
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.closed.send_replace(true);
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let request = RangeRequest { key: self.key(key), ..RangeRequest::default() };
        let answer = self.call(self.shared.client.range(request)).await?;
        Ok(answer.kvs.into_iter().next().and_then(|kv| record(&self.shared.prefix, kv)))
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect, _: Durability) -> Result<u64, StoreError> {
        let put = Op::Put(PutRequest { key: self.key(key), value });
        let revision = self.transact(key, expect, put).await?.header.revision as u64;
        self.visible(revision).await;
        Ok(revision)
    }

    async fn delete(&self, key: &str, expect: Expect, _: Durability) -> Result<Deleted, StoreError> {
        if expect == Expect::Absent {
            return self.conflict(key).await;
        }
        let delete = Op::Delete(DeleteRequest { key: self.key(key), prev_kv: true });
        let answer = self.transact(key, expect, delete).await?;
        let revision = answer.header.revision as u64;
        let last = answer.responses.into_iter().find_map(|response| match response.answer {
            Some(Answer::Delete(deleted)) => deleted.prev_kvs.into_iter().next(),
            _ => None,
        });
        let Some(last) = last.and_then(|kv| record(&self.shared.prefix, kv)) else {
            return Err(StoreError::Conflict { key: key.to_owned(), current: None });
        };
        self.visible(revision).await;
        Ok(Deleted { revision, last })
    }

    async fn range(&self, range: Range<'_>) -> Result<Page, StoreError> {
        match range.at {
            At::Cached => {}
            At::Exact(revision) | At::AtLeast(revision) if revision <= self.shared.mvcc.revision() => {}
            At::Latest | At::Exact(_) | At::AtLeast(_) => self.reach(self.current().await?).await?,
        }
        match self.shared.mvcc.range(range) {
            Err(StoreError::Compacted { requested, .. }) => self.range_from_etcd(range, requested).await,
            answer => answer,
        }
    }

    async fn count(&self, prefix: &str) -> Result<usize, StoreError> {
        let key = self.key(prefix);
        let range_end = wire::end_of(&key);
        let request = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        Ok(self.call(self.shared.client.range(request)).await?.count as usize)
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        self.check_open()?;
        self.shared.mvcc.watch(prefix, after)
    }

    async fn revision(&self) -> Result<u64, StoreError> {
        let current = self.current().await?;
        self.reach(current).await?;
        Ok(current)
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        let current = self.current().await?;
        if revision > current {
            return Err(StoreError::Future { requested: revision, current });
        }
        self.reach(revision).await?;
        let compacted = tokio::time::timeout(CALL_LIMIT, self.shared.client.compact(revision as i64)).await;
        match compacted {
            Err(_) => return Err(StoreError::Unavailable("etcd did not answer in time".to_owned())),
            // Already compacted, perhaps by another replica.
            Ok(Err(status)) if status.code() == Code::OutOfRange => {}
            Ok(compacted) => compacted.map_err(unavailable)?,
        }
        self.shared.mvcc.compact(revision)
    }

    async fn backup(&self, folder: &Path) -> Result<u64, StoreError> {
        crate::embedded::backup(self.range(Range::all("")).await?, folder).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.send_replace(true);
        self.shared.mvcc.close();
        Ok(())
    }
}

fn channel(options: &EtcdOptions) -> Result<Channel, StoreError> {
    let mut endpoints = Vec::new();
    for url in &options.endpoints {
        let bad =
            |error| StoreError::Unavailable(format!("the etcd endpoint {url:?} is not usable: {error}"));
        let mut endpoint = Endpoint::from_shared(url.clone())
            .map_err(bad)?
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if let Some(tls) = &options.tls {
            let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(bad)?;
        }
        endpoints.push(endpoint);
    }
    match endpoints.len() {
        0 => Err(StoreError::Unavailable("no etcd endpoint was given".to_owned())),
        1 => Ok(endpoints.remove(0).connect_lazy()),
        _ => Ok(Channel::balance_list(endpoints.into_iter())),
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, StoreError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(answer) => answer.map_err(unavailable),
        Err(_) => Err(StoreError::Unavailable("etcd did not answer in time".to_owned())),
    }
}

fn unavailable(status: Status) -> StoreError {
    let said = status.message();
    // Of a connection that fails the outermost error says no more than that.
    let causes = std::iter::successors(status.source(), |&cause| cause.source());
    match causes.last().map(|cause| cause.to_string()).filter(|cause| cause != said) {
        Some(cause) => StoreError::Unavailable(format!("etcd: {said}: {cause}")),
        None => StoreError::Unavailable(format!("etcd: {said}")),
    }
}

fn request(op: Op) -> RequestOp {
    RequestOp { op: Some(op) }
}

/// A record of ours; `None` for a key that is not under the prefix, or not text, so that nobody of us wrote it.
fn record(prefix: &str, kv: KeyValue) -> Option<Record> {
    let key = std::str::from_utf8(&kv.key).ok()?.strip_prefix(prefix)?;
    let (created, revision) = (kv.create_revision as u64, kv.mod_revision as u64);
    Some(Record { key: key.into(), value: kv.value, created, revision })
}
