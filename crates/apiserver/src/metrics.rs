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
    registry: Registry,
}

/// Counts as an open watch until dropped.
pub struct OpenWatch(Open);

impl Drop for OpenWatch {
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
        let watches = Open::default();
        let mut registry = Registry::default();
        registry.register("apiserver_request", "Requests answered", requests.clone());
        registry.register("apiserver_request_duration_seconds", "Time to answer", durations.clone());
        registry.register("apiserver_open_watches", "Watches being served", watches.clone());
        Arc::new(Self { requests, durations, watches, registry })
    }

    pub fn answered(&self, verb: &'static str, group: &str, resource: &str, code: u16, seconds: f64) {
        let labels = RequestLabels { verb, group: group.to_owned(), resource: resource.to_owned(), code };
        self.requests.get_or_create(&labels).inc();
        if verb != "watch" {
            self.durations.get_or_create(&VerbLabel { verb }).observe(seconds);
        }
    }

    pub fn open_watch(&self) -> OpenWatch {
        self.watches.inc();
        OpenWatch(self.watches.clone())
    }

    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut out, &self.registry);
        out
    }
}
