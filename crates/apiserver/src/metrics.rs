//! What `/metrics` shows.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    group: String,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerbLabel {
    verb: &'static str,
}

type Open = Gauge<i64, AtomicI64>;

pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabel, Histogram>,
    watches: Open,
    running: Open,
    revision: Open,
    memory: Open,
    registry: Registry,
}

/// Counts as an open watch, or as a request under way, until dropped.
pub struct Counted(Open);

/// One that a watch holds.
pub type OpenWatch = Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        let requests = Family::<RequestLabels, Counter>::default();
        let durations = Family::<VerbLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.0005, 4.0, 8))
        });
        let [watches, running, revision, memory] = std::array::from_fn(|_| Open::default());
        let mut registry = Registry::default();
        registry.register("apiserver_request", "Requests answered", requests.clone());
        registry.register("apiserver_request_duration_seconds", "Time to answer", durations.clone());
        registry.register("apiserver_open_watches", "Watches being served", watches.clone());
        registry.register("apiserver_requests_running", "Requests being answered", running.clone());
        registry.register("tombolo_store_revision", "Changes since the store was made", revision.clone());
        registry.register(
            "process_resident_memory_bytes",
            "Memory of this process, shared pages included",
            memory.clone(),
        );
        Arc::new(Self { requests, durations, watches, running, revision, memory, registry })
    }

    pub fn answered(&self, verb: &'static str, group: &str, resource: &str, code: u16, seconds: f64) {
        let labels = RequestLabels { verb, group: group.to_owned(), resource: resource.to_owned(), code };
        self.requests.get_or_create(&labels).inc();
        if verb != "watch" {
            self.durations.get_or_create(&VerbLabel { verb }).observe(seconds);
        }
    }

    pub fn open_watch(&self) -> Counted {
        self.watches.inc();
        Counted(self.watches.clone())
    }

    pub fn running(&self) -> Counted {
        self.running.inc();
        Counted(self.running.clone())
    }

    /// All of them in the text form of OpenMetrics. What is known elsewhere is looked up now.
    pub fn render(&self, revision: u64) -> String {
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
        self.memory.set(resident());
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut out, &self.registry);
        out
    }
}

/// From `/proc`; zero where there is none.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<i64>().ok());
    kilobytes.unwrap_or_default() * 1024
}
