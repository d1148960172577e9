//! Pods at the sites, shown at the hub as `<pod>.<site>` on the node `<site>`: made from what agents report.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tombolo_api::{PodSummary, names};

use crate::object::{strings, template_pointer, text};

/// Where a pod of the hub really is, and how to reach it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRoute {
    pub site: String,
    pub namespace: String,
    pub pod: String,
}

impl PodRoute {
    /// Reads the route off a pod of the hub: a mirror, or a pod of its own that was bound to a site.
    pub fn of(pod: &Value) -> Option<Self> {
        let site = text(pod, "/metadata/labels/tombolo.dev~1site");
        let own = text(pod, "/metadata/annotations/tombolo.dev~1pod");
        let namespace = text(pod, "/metadata/namespace").to_owned();
        if !site.is_empty() && !own.is_empty() {
            return Some(Self { site: site.into(), namespace, pod: own.into() });
        }
        let node = text(pod, "/spec/nodeName");
        let bound = !node.is_empty() && text(pod, "/metadata/annotations/tombolo.dev~1site") == node;
        bound.then(|| Self { site: node.into(), namespace, pod: text(pod, "/metadata/name").into() })
    }

    /// Path at the site's API for a subresource (`log`, `exec`, `attach`, `portforward`, `proxy`), with the query as it came.
    pub fn path(&self, subresource: &str, query: Option<&str>) -> String {
        let path = format!("/api/v1/namespaces/{}/pods/{}/{subresource}", self.namespace, self.pod);
        match query.filter(|q| !q.is_empty()) {
            Some(query) => format!("{path}?{query}"),
            None => path,
        }
    }
}

pub fn mirror_name(pod: &str, site: &str) -> String {
    format!("{pod}.{site}")
}

/// The pod to show at the hub, without its status.
pub fn mirror(root: &Value, site: &str, work: &str, name: &str, summary: &PodSummary) -> Value {
    let template =
        template_pointer(text(root, "/kind")).and_then(|p| root.pointer(p)).unwrap_or(&Value::Null);
    let mut labels = strings(template, "/metadata/labels");
    labels.insert(names::SITE_LABEL.into(), site.into());
    labels.insert(names::MIRROR_LABEL.into(), work.into());
    let image = |container: &str| {
        let all = template.pointer("/spec/containers").and_then(Value::as_array);
        all.into_iter()
            .flatten()
            .find(|c| c["name"] == json!(container))
            .map_or("unknown", |c| text(c, "/image"))
            .to_owned()
    };
    // A pod that was only just made may not have told its containers; they cannot be added to a mirror later.
    let names = if summary.containers.is_empty() {
        let all = template.pointer("/spec/containers").and_then(Value::as_array);
        all.into_iter().flatten().map(|c| text(c, "/name").to_owned()).collect()
    } else {
        summary.containers.clone()
    };
    let containers: Vec<Value> =
        names.iter().map(|c| json!({"name": c, "image": non_empty(image(c))})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": mirror_name(name, site),
            "namespace": text(root, "/metadata/namespace"),
            "labels": labels,
            "annotations": {
                names::POD_ANNOTATION: name,
                "tombolo.dev/node": summary.node,
                "tombolo.dev/uid": summary.uid,
            },
        },
        "spec": {
            "nodeName": site,
            "restartPolicy": template.pointer("/spec/restartPolicy").cloned().unwrap_or(json!("Always")),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": if containers.is_empty() { json!([{"name": "unknown", "image": "unknown"}]) } else { json!(containers) },
        },
    })
}

fn non_empty(image: String) -> String {
    if image.is_empty() { "unknown".into() } else { image }
}

/// What a pod of a silent site says.
pub fn silence(since: &str) -> String {
    format!("the site was not heard since {since}; this is what it last said")
}

/// The status of a mirrored pod. `silent`: since when the site was not heard, if that is too long.
pub fn mirror_status(summary: &PodSummary, images: &BTreeMap<String, String>, silent: Option<&str>) -> Value {
    let ready = summary.ready && silent.is_none();
    let truth = |value: bool| if value { "True" } else { "False" };
    let (reason, message) = match silent {
        Some(since) => ("SiteSilent".to_owned(), silence(since)),
        None if summary.leaving => {
            ("Terminating".to_owned(), "the pod is being deleted at its site".to_owned())
        }
        None => (summary.reason.clone(), summary.message.clone()),
    };
    let word = |value: bool| if silent.is_some() { "Unknown" } else { truth(value) };
    let since = |kind: &str, value: &str| json!({"type": kind, "status": value, "lastTransitionTime": time(&summary.start, &summary.created)});
    let total = summary.containers.len() as i64;
    let statuses: Vec<Value> = summary
        .containers
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let up = (n as i64) < summary.ready_containers;
            let state = if up || (summary.phase == "Running" && summary.reason.is_empty()) {
                json!({"running": {"startedAt": time(&summary.start, &summary.created)}})
            } else if matches!(summary.phase.as_str(), "Succeeded" | "Failed") {
                let code = i64::from(summary.phase == "Failed");
                json!({"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }}})
            } else {
                let why = if summary.reason.is_empty() { "ContainerCreating" } else { summary.reason.as_str() };
                let mut waiting = json!({ "reason": why });
                // An empty one is not kept: it would be missing, and sent, forever.
                if !summary.message.is_empty() {
                    waiting["message"] = json!(summary.message);
                }
                json!({ "waiting": waiting })
            };
            let image = images.get(name).cloned().unwrap_or_default();
            json!({"name": name, "ready": up && silent.is_none(), "started": up, "state": state, "image": image, "imageID": "",
                "restartCount": if n == 0 { summary.restarts } else { 0 }})
        })
        .collect();
    let mut status = json!({
        "phase": summary.phase,
        "conditions": [
            since("PodScheduled", truth(!summary.node.is_empty())),
            since("Initialized", word(summary.ready_containers > 0 || summary.phase != "Pending")),
            since("ContainersReady", word(summary.ready_containers >= total && total > 0)),
            since("Ready", word(ready || (silent.is_some() && summary.ready))),
        ],
        "containerStatuses": statuses,
    });
    if !summary.ip.is_empty() {
        status["podIP"] = json!(summary.ip);
        status["podIPs"] = json!([{"ip": summary.ip}]);
    }
    if !summary.host_ip.is_empty() {
        status["hostIP"] = json!(summary.host_ip);
        status["hostIPs"] = json!([{"ip": summary.host_ip}]);
    }
    if !summary.start.is_empty() {
        status["startTime"] = json!(summary.start);
    }
    if !reason.is_empty() {
        status["reason"] = json!(reason);
        status["message"] = json!(message);
    }
    status
}

fn time(start: &str, created: &str) -> Value {
    [start, created].iter().find(|t| !t.is_empty()).map_or(Value::Null, |t| json!(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> PodSummary {
        PodSummary {
            node: "n1".into(),
            phase: "Running".into(),
            ready: true,
            ip: "10.1.0.4".into(),
            containers: vec!["web".into()],
            ready_containers: 1,
            start: "2026-01-01T00:00:00Z".into(),
            ..Default::default()
        }
    }

    fn root() -> Value {
        json!({"kind": "Deployment", "metadata": {"name": "w", "namespace": "shop"}, "spec": {"template": {
            "metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "web", "image": "i:1"}]}}}})
    }

    #[test]
    fn a_pod_that_told_no_containers_is_shown_with_those_of_its_template() {
        let early = PodSummary { containers: Vec::new(), ..summary() };
        let pod = mirror(&root(), "edge-1", "deployment-w-0", "w-abc", &early);
        assert_eq!(pod["spec"]["containers"], json!([{"name": "web", "image": "i:1"}]));
    }

    #[test]
    fn what_a_server_does_not_keep_is_no_part_of_a_status() {
        let early = PodSummary { phase: "Pending".into(), ready: false, ready_containers: 0, ..summary() };
        let waiting = |early: &PodSummary| {
            mirror_status(early, &BTreeMap::new(), None)["containerStatuses"][0]["state"]["waiting"].clone()
        };
        assert_eq!(waiting(&early), json!({"reason": "ContainerCreating"}));
        let told = PodSummary { reason: "ErrImagePull".into(), message: "no such image".into(), ..early };
        assert_eq!(waiting(&told), json!({"reason": "ErrImagePull", "message": "no such image"}));
    }

    #[test]
    fn a_mirror_leads_back_to_its_pod() {
        let pod = mirror(&root(), "edge-1", "deployment-w-0", "w-abc", &summary());
        assert_eq!(pod["metadata"]["name"], "w-abc.edge-1");
        assert_eq!(pod["metadata"]["labels"]["app"], "w");
        let route = PodRoute::of(&pod).expect("a route");
        assert_eq!(route, PodRoute { site: "edge-1".into(), namespace: "shop".into(), pod: "w-abc".into() });
        assert_eq!(
            route.path("log", Some("follow=true")),
            "/api/v1/namespaces/shop/pods/w-abc/log?follow=true"
        );
        assert_eq!(PodRoute::of(&json!({"metadata": {"name": "x"}, "spec": {"nodeName": "n"}})), None);
    }

    #[test]
    fn a_pod_of_a_silent_site_is_not_shown_as_ready() {
        let ready = |status: &Value| text(&status["conditions"][3], "/status").to_owned();
        assert_eq!(ready(&mirror_status(&summary(), &BTreeMap::new(), None)), "True");
        let stale = mirror_status(&summary(), &BTreeMap::new(), Some("2026-01-01T00:01:17Z"));
        assert_eq!(ready(&stale), "Unknown");
        assert_eq!(stale["containerStatuses"][0]["ready"], false);
        assert!(text(&stale, "/message").contains("00:01:17"));
    }
}
