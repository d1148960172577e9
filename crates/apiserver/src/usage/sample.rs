//! What a kubelet's `/stats/summary` says, and what two of them say together. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// Processor time so far, and memory now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counter {
    nanos: u64,
    memory: u64,
    started: Option<Timestamp>,
}

/// One answer of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub at: Timestamp,
    node: Counter,
    /// By the pod's uid and the container's name.
    containers: BTreeMap<(String, String), Counter>,
}

/// What is used: billionths of a processor, and bytes that the kernel cannot simply take back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub nanocores: u64,
    pub memory: u64,
}

/// The time between two answers of the same node.
#[derive(Debug, Clone)]
pub struct Window {
    pub before: Sample,
    pub after: Sample,
}

impl Sample {
    /// Nothing if this is no summary. Times are the node's own.
    pub fn read(summary: &Value) -> Option<Sample> {
        let node = summary.get("node")?;
        let at = node["cpu"]["time"].as_str()?.parse().ok()?;
        let counter = |of: &Value| Counter {
            nanos: of["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap_or(0),
            memory: of["memory"]["workingSetBytes"].as_u64().unwrap_or(0),
            started: of["startTime"].as_str().and_then(|text| text.parse().ok()),
        };
        let mut containers = BTreeMap::new();
        for pod in summary["pods"].as_array().into_iter().flatten() {
            let uid = pod["podRef"]["uid"].as_str().unwrap_or_default();
            for container in pod["containers"].as_array().into_iter().flatten() {
                let name = container["name"].as_str().unwrap_or_default();
                containers.insert((uid.to_owned(), name.to_owned()), counter(container));
            }
        }
        Some(Sample { at, node: counter(node), containers })
    }
}

impl Window {
    pub fn end(&self) -> Timestamp {
        self.after.at
    }

    pub fn seconds(&self) -> f64 {
        self.after.at.duration_since(self.before.at).as_secs_f64()
    }

    pub fn node(&self) -> Figures {
        self.figures(Some(&self.before.node), &self.after.node)
    }

    /// The containers of a pod that were running at the end.
    pub fn pod(&self, uid: &str) -> Vec<(&str, Figures)> {
        let of_pod = self.after.containers.iter().filter(|((pod, _), _)| pod == uid);
        of_pod
            .map(|(key, now)| (key.1.as_str(), self.figures(self.before.containers.get(key), now)))
            .collect()
    }

    /// A container that began in between is measured from its beginning: a counter that starts anew is no negative use.
    fn figures(&self, before: Option<&Counter>, now: &Counter) -> Figures {
        let before = before.filter(|b| b.started == now.started && b.nanos <= now.nanos);
        let (used, seconds) = match (before, now.started) {
            (Some(before), _) => (now.nanos - before.nanos, self.seconds()),
            (None, Some(started)) => (now.nanos, self.after.at.duration_since(started).as_secs_f64()),
            (None, None) => (0, 0.0),
        };
        let nanocores = if seconds > 0.0 { (used as f64 / seconds) as u64 } else { 0 };
        Figures { nanocores, memory: now.memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(second: u32, node: u64, containers: &[(&str, u64, &str)]) -> Sample {
        let all: Vec<Value> = containers
            .iter()
            .map(|(name, nanos, started)| {
                json!({"name": name, "startTime": started, "cpu": {"usageCoreNanoSeconds": nanos}, "memory": {"workingSetBytes": 2048}})
            })
            .collect();
        let at = format!("2026-01-01T00:00:{second:02}Z");
        let summary = json!({
            "node": {"cpu": {"time": at, "usageCoreNanoSeconds": node}, "memory": {"workingSetBytes": 4096}},
            "pods": [{"podRef": {"uid": "u"}, "containers": all}],
        });
        Sample::read(&summary).expect("a summary")
    }

    #[test]
    fn use_is_what_was_counted_between_two_answers() {
        let start = "2026-01-01T00:00:00Z";
        let window = Window {
            before: sample(10, 1_000_000_000, &[("a", 500_000_000, start)]),
            after: sample(20, 6_000_000_000, &[("a", 1_500_000_000, start)]),
        };
        assert_eq!(window.node(), Figures { nanocores: 500_000_000, memory: 4096 });
        assert_eq!(window.pod("u"), [("a", Figures { nanocores: 100_000_000, memory: 2048 })]);
        assert!(window.pod("other").is_empty());
    }

    #[test]
    fn a_container_that_began_in_between_counts_from_its_beginning() {
        let window = Window {
            before: sample(10, 0, &[("a", 9_000_000_000, "2026-01-01T00:00:00Z")]),
            after: sample(20, 0, &[("a", 1_000_000_000, "2026-01-01T00:00:15Z")]),
        };
        assert_eq!(window.pod("u")[0].1.nanocores, 200_000_000);
    }

    #[test]
    fn what_is_no_summary_is_nothing() {
        assert_eq!(Sample::read(&json!({"kind": "Status"})), None);
    }
}
