//! Processor time and memory of the node, its pods and their containers, for `kubectl top` and for monitoring.

use std::fmt::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::machine;
use crate::node::Shared;
use crate::pod::spec;
use crate::runtime::{ContainerPhase, Usage};

struct Sample {
    namespace: String,
    pod: String,
    uid: String,
    started: Timestamp,
    usage: Usage,
    containers: Vec<(String, Timestamp, Usage)>,
}

async fn samples(shared: &Shared) -> Vec<Sample> {
    let mut list = Vec::new();
    for pod in shared.pods() {
        let uid = spec::uid(&pod).to_owned();
        let Ok(state) = shared.ctx.runtime.pod(&uid).await else { continue };
        let Some(sandbox) = &state.sandbox else { continue };
        let mut containers = Vec::new();
        for container in state.containers.iter().filter(|c| matches!(c.phase, ContainerPhase::Running { .. }))
        {
            if let Ok(usage) = shared.ctx.runtime.usage(&uid, Some(&container.id)).await {
                containers.push((container.name.clone(), container.started, usage));
            }
        }
        let sum = |pick: &dyn Fn(&Usage) -> u64| containers.iter().map(|(_, _, usage)| pick(usage)).sum();
        let usage = Usage {
            cpu_nanos: sum(&|u| u.cpu_nanos),
            memory_bytes: sum(&|u| u.memory_bytes),
            working_set_bytes: sum(&|u| u.working_set_bytes),
        };
        let (namespace, name) = (spec::namespace(&pod).to_owned(), spec::name(&pod).to_owned());
        list.push(Sample { namespace, pod: name, uid, started: sandbox.created, usage, containers });
    }
    list
}

fn node_usage() -> Usage {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    // user, nice, system, then (after idle and iowait) irq, softirq, steal; 100 ticks a second.
    let busy: u64 =
        ticks.iter().enumerate().filter(|(i, _)| ![3, 4].contains(i) && *i < 8).map(|(_, t)| t).sum();
    let used = machine::memory_bytes().saturating_sub(machine::memory_available_bytes());
    Usage { cpu_nanos: busy * 10_000_000, memory_bytes: used, working_set_bytes: used }
}

/// The Prometheus text that metrics-server reads.
pub(super) async fn resource_metrics(shared: &Shared) -> String {
    let mut text = String::new();
    let now = Timestamp::now();
    let millis = now.as_millisecond();
    let samples = samples(shared).await;
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let started = |at: Timestamp| at.as_millisecond() as f64 / 1000.0;
    let mut family = |name: &str, kind: &str, help: &str, lines: Vec<(String, f64)>| {
        let _ = writeln!(text, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
        for (labels, value) in lines {
            let _ = writeln!(text, "{name}{labels} {value} {millis}");
        }
    };
    let node = node_usage();
    let per_container = |pick: &dyn Fn(&Usage, Timestamp) -> f64| -> Vec<(String, f64)> {
        let one = |s: &Sample| {
            let label =
                |c: &str| format!("{{container=\"{c}\",namespace=\"{}\",pod=\"{}\"}}", s.namespace, s.pod);
            s.containers.iter().map(|(name, at, usage)| (label(name), pick(usage, *at))).collect::<Vec<_>>()
        };
        samples.iter().flat_map(one).collect()
    };
    let per_pod = |pick: &dyn Fn(&Usage) -> f64| -> Vec<(String, f64)> {
        samples
            .iter()
            .map(|s| (format!("{{namespace=\"{}\",pod=\"{}\"}}", s.namespace, s.pod), pick(&s.usage)))
            .collect()
    };
    family(
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
        per_container(&|u, _| seconds(u.cpu_nanos)),
    );
    family(
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set of the container in bytes",
        per_container(&|u, _| u.working_set_bytes as f64),
    );
    family(
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds",
        per_container(&|_, at| started(at)),
    );
    family(
        "node_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
        vec![(String::new(), seconds(node.cpu_nanos))],
    );
    family(
        "node_memory_working_set_bytes",
        "gauge",
        "Current working set of the node in bytes",
        vec![(String::new(), node.working_set_bytes as f64)],
    );
    family(
        "pod_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the pod in core-seconds",
        per_pod(&|u| seconds(u.cpu_nanos)),
    );
    family(
        "pod_memory_working_set_bytes",
        "gauge",
        "Current working set of the pod in bytes",
        per_pod(&|u| u.working_set_bytes as f64),
    );
    family(
        "resource_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
        vec![(String::new(), 0.0)],
    );
    text
}

/// `/stats/summary`.
pub(super) async fn summary(shared: &Shared) -> Value {
    let now = Timestamp::now();
    let cpu = |usage: &Usage| json!({"time": now, "usageCoreNanoSeconds": usage.cpu_nanos});
    let memory = |usage: &Usage| json!({"time": now, "usageBytes": usage.memory_bytes, "workingSetBytes": usage.working_set_bytes});
    let pods: Vec<Value> = samples(shared)
        .await
        .iter()
        .map(|s| {
            let containers: Vec<Value> = s
                .containers
                .iter()
                .map(|(name, at, usage)| json!({"name": name, "startTime": at, "cpu": cpu(usage), "memory": memory(usage)}))
                .collect();
            json!({
                "podRef": {"name": s.pod, "namespace": s.namespace, "uid": s.uid},
                "startTime": s.started,
                "cpu": cpu(&s.usage),
                "memory": memory(&s.usage),
                "containers": containers,
            })
        })
        .collect();
    let node = node_usage();
    let (capacity, available) = machine::disk_bytes(&shared.ctx.data_dir).unwrap_or_default();
    let mut node_memory = memory(&node);
    node_memory["availableBytes"] = machine::memory_available_bytes().into();
    json!({
        "node": {
            "nodeName": shared.ctx.node_name,
            "cpu": cpu(&node),
            "memory": node_memory,
            "fs": {"time": now, "capacityBytes": capacity, "availableBytes": available, "usedBytes": capacity.saturating_sub(available)},
        },
        "pods": pods,
    })
}
