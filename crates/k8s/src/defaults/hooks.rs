//! Defaults that depend on other fields. A hook sees its object before the rules and before anything inside it has been
//! defaulted, as upstream's functions do.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::resources::{pod_level, round_up};
use super::{Hook, Object};

pub const HOOKS: &[(&str, Hook)] = &[
    ("io.k8s.api.apps.v1.DaemonSetUpdateStrategy", |o, _| {
        rolling(o, json!({"maxUnavailable": 1, "maxSurge": 0}))
    }),
    ("io.k8s.api.apps.v1.DeploymentStrategy", |o, _| {
        rolling(o, json!({"maxUnavailable": "25%", "maxSurge": "25%"}))
    }),
    ("io.k8s.api.apps.v1.StatefulSetSpec", claim_templates),
    ("io.k8s.api.apps.v1.StatefulSetUpdateStrategy", stateful_set_strategy),
    ("io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler", autoscaler_v1),
    ("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior", scaling_behaviour),
    ("io.k8s.api.batch.v1.Job", job),
    ("io.k8s.api.core.v1.Container", |o, _| pull_policy(o, "image", "imagePullPolicy")),
    ("io.k8s.api.core.v1.EphemeralContainer", |o, _| pull_policy(o, "image", "imagePullPolicy")),
    ("io.k8s.api.core.v1.LimitRangeItem", limit_range_item),
    ("io.k8s.api.core.v1.Namespace", namespace),
    ("io.k8s.api.core.v1.NodeSpec", node_spec),
    ("io.k8s.api.core.v1.NodeStatus", node_status),
    ("io.k8s.api.core.v1.PersistentVolume", whole_volume),
    ("io.k8s.api.core.v1.PersistentVolumeClaim", claim),
    ("io.k8s.api.core.v1.Pod", pod),
    ("io.k8s.api.core.v1.PodSpec", service_account),
    ("io.k8s.api.core.v1.PodStatus", pod_addresses),
    ("io.k8s.api.core.v1.ReplicationController", replication_controller),
    ("io.k8s.api.core.v1.ResourceQuotaSpec", |o, _| round_lists(o)),
    ("io.k8s.api.core.v1.ResourceQuotaStatus", |o, _| round_lists(o)),
    ("io.k8s.api.core.v1.ResourceRequirements", |o, _| round_lists(o)),
    ("io.k8s.api.core.v1.Service", service),
    ("io.k8s.api.core.v1.Volume", volume),
    ("io.k8s.api.core.v1.VolumeResourceRequirements", |o, _| round_lists(o)),
    ("io.k8s.api.networking.v1.NetworkPolicySpec", network_policy),
    ("io.k8s.api.rbac.v1.Subject", subject),
    ("io.k8s.api.resource.v1.DeviceSubRequest", device_request),
    ("io.k8s.api.resource.v1.DeviceTaint", device_taint),
    ("io.k8s.api.resource.v1.ExactDeviceRequest", device_request),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition", definition),
];

fn text<'a>(object: &'a Object, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn is_set(object: &Object, field: &str) -> bool {
    object.get(field).is_some_and(|v| !v.is_null())
}

fn put(object: &mut Object, field: &str, value: impl Into<Value>) {
    if !is_set(object, field) {
        object.insert(field.to_owned(), value.into());
    }
}

/// The object in a field, which is made when absent.
fn inner<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Object> {
    put(object, field, json!({}));
    object.get_mut(field)?.as_object_mut()
}

fn child<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Object> {
    object.get_mut(field)?.as_object_mut()
}

fn items<'a>(object: &'a mut Object, field: &str) -> impl Iterator<Item = &'a mut Object> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn rolling(strategy: &mut Object, parameters: Value) {
    if text(strategy, "type").is_empty() {
        strategy.insert("type".to_owned(), "RollingUpdate".into());
    }
    if text(strategy, "type") == "RollingUpdate"
        && let (Some(update), Value::Object(parameters)) = (inner(strategy, "rollingUpdate"), parameters)
    {
        for (name, value) in parameters {
            put(update, &name, value);
        }
    }
}

fn stateful_set_strategy(strategy: &mut Object, _: Timestamp) {
    if text(strategy, "type").is_empty() {
        strategy.insert("type".to_owned(), "RollingUpdate".into());
        put(strategy, "rollingUpdate", json!({}));
    }
    if text(strategy, "type") == "RollingUpdate"
        && let Some(update) = child(strategy, "rollingUpdate")
    {
        put(update, "partition", 0);
    }
}

/// Upstream's conversion makes whole objects of the templates.
fn claim_templates(spec: &mut Object, _: Timestamp) {
    for claim in items(spec, "volumeClaimTemplates") {
        put(claim, "apiVersion", "v1");
        put(claim, "kind", "PersistentVolumeClaim");
    }
}

/// Version 1 knows one metric only; others stand in an annotation.
fn autoscaler_v1(autoscaler: &mut Object, _: Timestamp) {
    const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
    let other = autoscaler.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(METRICS));
    let other = other.is_some();
    if let Some(spec) = child(autoscaler, "spec").filter(|_| !other) {
        put(spec, "targetCPUUtilizationPercentage", 80);
    }
}

/// The account has an old name too; both always say the same.
fn service_account(spec: &mut Object, _: Timestamp) {
    let name =
        [text(spec, "serviceAccountName"), text(spec, "serviceAccount")].into_iter().find(|n| !n.is_empty());
    if let Some(name) = name.map(str::to_owned) {
        spec.insert("serviceAccount".to_owned(), name.clone().into());
        spec.insert("serviceAccountName".to_owned(), name.into());
    }
}

fn scaling_behaviour(behaviour: &mut Object, _: Timestamp) {
    let rules = [
        (
            "scaleUp",
            json!([
                {"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15},
            ]),
        ),
        ("scaleDown", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}])),
    ];
    for (direction, policies) in rules {
        let Some(rules) = inner(behaviour, direction) else { continue };
        put(rules, "selectPolicy", "Max");
        put(rules, "policies", policies);
        // How long to wait before scaling down is the controller's own setting.
        if direction == "scaleUp" {
            put(rules, "stabilizationWindowSeconds", 0);
        }
    }
}

fn labels_of_template(spec: &Object) -> Option<Value> {
    let labels = spec.get("template")?.pointer("/metadata/labels")?;
    labels.as_object().filter(|l| !l.is_empty()).map(|l| Value::Object(l.clone()))
}

fn label_like_template(object: &mut Object, labels: Value) {
    if let Some(metadata) = inner(object, "metadata")
        && metadata.get("labels").and_then(Value::as_object).is_none_or(|l| l.is_empty())
    {
        metadata.insert("labels".to_owned(), labels);
    }
}

fn job(job: &mut Object, _: Timestamp) {
    let Some(spec) = child(job, "spec") else { return };
    if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
        put(spec, "completions", 1);
    }
    put(spec, "parallelism", 1);
    let limit = if is_set(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    put(spec, "backoffLimit", limit);
    put(spec, "completionMode", "NonIndexed");
    put(spec, "suspend", false);
    let replacement = if is_set(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    put(spec, "podReplacementPolicy", replacement);
    put(spec, "manualSelector", false);
    if let Some(labels) = labels_of_template(spec) {
        label_like_template(job, labels);
    }
}

fn replication_controller(controller: &mut Object, _: Timestamp) {
    let Some(spec) = child(controller, "spec") else { return };
    if let Some(labels) = labels_of_template(spec) {
        if spec.get("selector").and_then(Value::as_object).is_none_or(|s| s.is_empty()) {
            spec.insert("selector".to_owned(), labels.clone());
        }
        label_like_template(controller, labels);
    }
}

/// Images with the tag `latest`, said or implied, are always pulled.
fn pull_policy(object: &mut Object, image: &str, policy: &str) {
    if !text(object, policy).is_empty() {
        return;
    }
    let value = if tag(text(object, image)) == "latest" { "Always" } else { "IfNotPresent" };
    object.insert(policy.to_owned(), value.into());
}

fn tag(image: &str) -> &str {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(name, digest)| (name, digest));
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => tag,
        // An empty or malformed name has no tag upstream either.
        None if digest.is_empty() && !last.is_empty() && !last.contains(|c: char| c.is_ascii_uppercase()) => {
            "latest"
        }
        None => "",
    }
}

fn volume(volume: &mut Object, _: Timestamp) {
    if volume.keys().all(|k| k == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    if let Some(image) = child(volume, "image") {
        pull_policy(image, "reference", "pullPolicy");
    }
}

fn round_lists(object: &mut Object) {
    for list in [
        "limits",
        "requests",
        "max",
        "min",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
        "hard",
        "used",
    ] {
        if let Some(list) = child(object, list) {
            round_up(list);
        }
    }
}

/// Puts what is missing in one list of resources from another.
fn copy_missing(object: &mut Object, to: &str, from: &str) {
    let Some(source) = object.get(from).and_then(Value::as_object).cloned().filter(|s| !s.is_empty()) else {
        return;
    };
    if let Some(target) = inner(object, to) {
        for (key, value) in source {
            target.entry(key).or_insert(value);
        }
    }
}

fn limit_range_item(item: &mut Object, _: Timestamp) {
    round_lists(item);
    if text(item, "type") == "Container" {
        copy_missing(item, "default", "max");
        copy_missing(item, "defaultRequest", "default");
        copy_missing(item, "defaultRequest", "min");
    }
}

fn namespace(namespace: &mut Object, _: Timestamp) {
    let Some(metadata) = inner(namespace, "metadata") else { return };
    let name = text(metadata, "name").to_owned();
    if !name.is_empty()
        && let Some(labels) = inner(metadata, "labels")
    {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

/// The first of the addresses also stands alone; where the two differ, an old kubelet wrote the one alone and knows no more.
fn pod_addresses(status: &mut Object, _: Timestamp) {
    let first = status.get("podIPs").and_then(|all| all.get(0)).and_then(|first| first.get("ip")).cloned();
    let alone = text(status, "podIP");
    match first {
        Some(first) if alone.is_empty() => {
            status.insert("podIP".to_owned(), first);
        }
        first if !alone.is_empty() && first.as_ref() != status.get("podIP") => {
            let only = json!([{ "ip": alone }]);
            status.insert("podIPs".to_owned(), only);
        }
        _ => {}
    }
}

/// The first of the ranges has an old name too; both always say the same.
/// The network that stands alone is the first of all, and where they differ it is right: older clients know no other.
fn node_spec(spec: &mut Object, _: Timestamp) {
    let first = spec.get("podCIDRs").and_then(Value::as_array).and_then(|all| all.first()).cloned();
    let one = Value::from(text(spec, "podCIDR"));
    if one == "" {
        first.and_then(|first| spec.insert("podCIDR".to_owned(), first));
    } else if first.as_ref() != Some(&one) {
        spec.insert("podCIDRs".to_owned(), json!([one]));
    }
}

fn node_status(status: &mut Object, _: Timestamp) {
    for list in ["capacity", "allocatable"] {
        if let Some(list) = child(status, list) {
            round_up(list);
        }
    }
    if let Some(capacity) = status.get("capacity").cloned() {
        put(status, "allocatable", capacity);
    }
}

/// A volume that stands in an attachment stays as it was given.
fn whole_volume(volume: &mut Object, _: Timestamp) {
    let Some(spec) = child(volume, "spec") else { return };
    for (field, value) in [("persistentVolumeReclaimPolicy", "Retain"), ("volumeMode", "Filesystem")] {
        if field == "volumeMode" && is_set(spec, field) {
            continue;
        }
        if text(spec, field).is_empty() {
            spec.insert(field.to_owned(), value.into());
        }
    }
}

/// Only a whole claim has a phase; the template of a claim has none.
fn claim(claim: &mut Object, _: Timestamp) {
    if let Some(status) = inner(claim, "status")
        && text(status, "phase").is_empty()
    {
        status.insert("phase".to_owned(), "Pending".into());
    }
}

fn pod(pod: &mut Object, _: Timestamp) {
    let Some(spec) = child(pod, "spec") else { return };
    for containers in ["containers", "initContainers"] {
        for container in items(spec, containers) {
            if let Some(resources) = child(container, "resources") {
                copy_missing(resources, "requests", "limits");
            }
        }
    }
    pod_level(spec);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|s| s < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    put(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for containers in ["containers", "initContainers"] {
            for port in items(spec, containers).flat_map(|c| items(c, "ports")) {
                if let Some(number) = port.get("containerPort").cloned() {
                    put(port, "hostPort", number);
                }
            }
        }
    }
}

fn service(service: &mut Object, _: Timestamp) {
    let Some(spec) = child(service, "spec") else { return };
    for (field, value) in [("sessionAffinity", "None"), ("type", "ClusterIP")] {
        if text(spec, field).is_empty() {
            spec.insert(field.to_owned(), value.into());
        }
    }
    if text(spec, "sessionAffinity") == "None" {
        spec.remove("sessionAffinityConfig");
    } else if text(spec, "sessionAffinity") == "ClientIP" {
        let timeout = spec.get("sessionAffinityConfig").and_then(|c| c.pointer("/clientIP/timeoutSeconds"));
        if timeout.is_none_or(Value::is_null) {
            spec.insert("sessionAffinityConfig".to_owned(), json!({"clientIP": {"timeoutSeconds": 10800}}));
        }
    }
    for port in items(spec, "ports") {
        let unset = port.get("targetPort").is_none_or(|p| p == 0 || p == "" || p.is_null());
        if let Some(number) = port.get("port").cloned().filter(|_| unset) {
            port.insert("targetPort".to_owned(), number);
        }
    }
    let kind = text(spec, "type").to_owned();
    let outside = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    let exposed = matches!(kind.as_str(), "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && outside);
    if exposed && text(spec, "externalTrafficPolicy").is_empty() {
        spec.insert("externalTrafficPolicy".to_owned(), "Cluster".into());
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        put(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        put(spec, "allocateLoadBalancerNodePorts", true);
        let balancer = child(service, "status").and_then(|s| child(s, "loadBalancer"));
        for ingress in balancer.into_iter().flat_map(|b| items(b, "ingress")) {
            if !text(ingress, "ip").is_empty() {
                put(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn network_policy(spec: &mut Object, _: Timestamp) {
    let count = |field: &str| spec.get(field).and_then(Value::as_array).map_or(0, Vec::len);
    if count("policyTypes") == 0 {
        let types = if count("egress") == 0 { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        spec.insert("policyTypes".to_owned(), types);
    }
}

fn subject(subject: &mut Object, _: Timestamp) {
    if text(subject, "apiGroup").is_empty() && matches!(text(subject, "kind"), "User" | "Group") {
        subject.insert("apiGroup".to_owned(), "rbac.authorization.k8s.io".into());
    }
}

fn device_request(request: &mut Object, _: Timestamp) {
    if matches!(text(request, "allocationMode"), "" | "ExactCount")
        && request.get("count").and_then(Value::as_i64).unwrap_or(0) == 0
    {
        request.insert("count".to_owned(), 1.into());
    }
}

fn device_taint(taint: &mut Object, now: Timestamp) {
    put(taint, "timeAdded", crate::decode::leaf::write_time(now));
}

fn definition(definition: &mut Object, _: Timestamp) {
    let Some(spec) = child(definition, "spec") else { return };
    if let Some(names) = child(spec, "names") {
        let kind = text(names, "kind").to_owned();
        if !kind.is_empty() {
            put(names, "singular", kind.to_lowercase());
            put(names, "listKind", format!("{kind}List"));
        }
    }
    let stored = spec.get("versions").and_then(Value::as_array);
    let stored = stored.and_then(|v| v.iter().find(|v| v["storage"] == true)).map(|v| v["name"].clone());
    if let (Some(name), Some(status)) = (stored, inner(definition, "status"))
        && status.get("storedVersions").and_then(Value::as_array).is_none_or(|s| s.is_empty())
    {
        status.insert("storedVersions".to_owned(), json!([name]));
    }
}
