//! Pods at the site, read with only the fields that are used: what they ask for, and the summary that the hub gets.

use std::collections::BTreeMap;

use kube::core::Object;
use serde::{Deserialize, Serialize};
use tombolo_api::PodSummary;
use tombolo_api::quantity::{Amounts, amounts};

pub type Pod = Object<PodSpec, PodStatus>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: String,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub overhead: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub resources: Resources,
    pub restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: String,
    pub reason: String,
    pub message: String,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    pub start_time: String,
    pub conditions: Vec<Condition>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    pub r#type: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub ready: bool,
    pub restart_count: i64,
    pub state: State,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    pub waiting: Option<Why>,
    pub terminated: Option<Why>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Why {
    pub reason: String,
    pub message: String,
}

/// Messages longer than this are cut: the summary travels often.
const MESSAGE: usize = 200;

/// What the hub is told about a pod.
pub fn summary(pod: &Pod) -> PodSummary {
    let status = pod.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True");
    let waits = status.container_statuses.iter().chain(&status.init_container_statuses);
    let why = waits
        .filter_map(|c| c.state.waiting.as_ref().or(c.state.terminated.as_ref()))
        .find(|why| !why.reason.is_empty() && why.reason != "Completed");
    let unscheduled = status.conditions.iter().find(|c| c.r#type == "PodScheduled" && c.status == "False");
    let (reason, message) = if !status.reason.is_empty() {
        (status.reason.clone(), status.message.clone())
    } else if let Some(why) = why {
        (why.reason.clone(), why.message.clone())
    } else if let Some(condition) = unscheduled {
        (condition.reason.clone(), condition.message.clone())
    } else {
        Default::default()
    };
    PodSummary {
        node: pod.spec.node_name.clone(),
        phase: if status.phase.is_empty() { "Pending".into() } else { status.phase },
        ready,
        restarts: status.container_statuses.iter().map(|c| c.restart_count).sum(),
        ip: status.pod_ip,
        host_ip: status.host_ip,
        start: status.start_time,
        created: pod.metadata.creation_timestamp.as_ref().map(|t| t.0.to_string()).unwrap_or_default(),
        reason,
        message: message.chars().take(MESSAGE).collect(),
        containers: pod.spec.containers.iter().map(|c| c.name.clone()).collect(),
        ready_containers: status.container_statuses.iter().filter(|c| c.ready).count() as i64,
        leaving: pod.metadata.deletion_timestamp.is_some(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// What a pod takes from its node, with one pod counted; nothing when it has ended.
pub fn asks(pod: &Pod) -> Amounts {
    let phase = pod.status.as_ref().map_or("", |s| s.phase.as_str());
    if phase == "Succeeded" || phase == "Failed" {
        return Amounts::new();
    }
    let mut total = amounts(&pod.spec.overhead);
    let mut running = Amounts::new();
    let mut peak = Amounts::new();
    for init in &pod.spec.init_containers {
        let mut now = running.clone();
        add(&mut now, &amounts(&init.resources.requests));
        for (name, value) in &now {
            let entry = peak.entry(name.clone()).or_default();
            *entry = (*entry).max(*value);
        }
        // A sidecar keeps running beside what comes after it.
        if init.restart_policy.as_deref() == Some("Always") {
            running = now;
        }
    }
    for container in &pod.spec.containers {
        add(&mut running, &amounts(&container.resources.requests));
    }
    for (name, value) in peak {
        let entry = running.entry(name).or_default();
        *entry = (*entry).max(value);
    }
    add(&mut total, &running);
    add(&mut total, &Amounts::from([("pods".into(), 1)]));
    total
}

pub fn add(total: &mut Amounts, more: &Amounts) {
    for (name, value) in more {
        *total.entry(name.clone()).or_default() += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    #[test]
    fn a_waiting_container_gives_the_reason() {
        let pod = pod(
            json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"nodeName": "n", "containers": [{"name": "c"}, {"name": "d"}]},
            "status": {"phase": "Pending", "containerStatuses": [{"ready": true, "restartCount": 2, "state": {"running": {}}},
                {"ready": false, "restartCount": 1, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}]}}),
        );
        let summary = summary(&pod);
        assert_eq!(
            (summary.reason.as_str(), summary.restarts, summary.ready_containers),
            ("ImagePullBackOff", 3, 1)
        );
        assert_eq!(summary.containers, ["c", "d"]);
    }

    #[test]
    fn init_containers_count_only_beyond_the_others_and_sidecars_always() {
        let cpu = |value: &str| json!({"requests": {"cpu": value}});
        let pod = pod(json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n",
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": cpu("100m")}, {"name": "i", "resources": cpu("1")}],
            "containers": [{"name": "c", "resources": cpu("300m")}]}, "status": {"phase": "Running"}}));
        assert_eq!(asks(&pod)["cpu"], 1100);
        assert_eq!(asks(&pod)["pods"], 1);
    }
}
