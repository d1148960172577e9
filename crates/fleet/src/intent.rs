//! From an object at the hub to what its user meant: fields that the hub filled in or handed out are left out, so that the
//! site (perhaps an older Kubernetes) fills them in by its own rules.

use serde_json::{Map, Value, json};
use tombolo_api::names;

use crate::object::text;

/// Metadata that means something at the site.
const KEEP_METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];
/// Annotations and labels that speak of the hub, not of the object.
const DROP_PREFIXES: [&str; 5] = [
    "tombolo.dev/",
    "owner.tombolo.dev/",
    "kubectl.kubernetes.io/last-applied",
    "deployment.kubernetes.io/",
    "pv.kubernetes.io/",
];
const DROP_LABELS: [&str; 4] =
    ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];

/// Values that every hub fills in, by kind and JSON pointer; left out when they are still what was filled in.
fn defaults(kind: &str) -> Vec<(&'static str, Value)> {
    match kind {
        "Deployment" => vec![
            ("/spec/revisionHistoryLimit", json!(10)),
            ("/spec/progressDeadlineSeconds", json!(600)),
            (
                "/spec/strategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}),
            ),
        ],
        "StatefulSet" => vec![
            ("/spec/revisionHistoryLimit", json!(10)),
            ("/spec/podManagementPolicy", json!("OrderedReady")),
            ("/spec/updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})),
            (
                "/spec/persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
            ),
        ],
        "DaemonSet" => vec![
            ("/spec/revisionHistoryLimit", json!(10)),
            (
                "/spec/updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
            ),
        ],
        "Job" => vec![
            ("/spec/backoffLimit", json!(6)),
            ("/spec/completionMode", json!("NonIndexed")),
            ("/spec/suspend", json!(false)),
            ("/spec/manualSelector", json!(false)),
            ("/spec/podReplacementPolicy", json!("TerminatingOrFailed")),
        ],
        "CronJob" => vec![
            ("/spec/concurrencyPolicy", json!("Allow")),
            ("/spec/suspend", json!(false)),
            ("/spec/successfulJobsHistoryLimit", json!(3)),
            ("/spec/failedJobsHistoryLimit", json!(1)),
        ],
        "Service" => vec![
            ("/spec/sessionAffinity", json!("None")),
            ("/spec/internalTrafficPolicy", json!("Cluster")),
            ("/spec/externalTrafficPolicy", json!("Cluster")),
            ("/spec/allocateLoadBalancerNodePorts", json!(true)),
        ],
        "PersistentVolumeClaim" => vec![("/spec/volumeMode", json!("Filesystem"))],
        _ => Vec::new(),
    }
}

/// The object as its user meant it.
pub fn intent(object: &Value) -> Value {
    let mut meant = object.clone();
    let kind = text(object, "/kind").to_owned();
    if let Some(map) = meant.as_object_mut() {
        map.remove("status");
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|key, _| KEEP_METADATA.contains(&key.as_str()));
            clean(metadata, "annotations");
            clean(metadata, "labels");
        }
    }
    for (pointer, value) in defaults(&kind) {
        drop_if(&mut meant, pointer, &value);
    }
    match kind.as_str() {
        "Service" => service(&mut meant, &chosen_node_ports(object)),
        "PersistentVolumeClaim" => drop_at(&mut meant, "/spec/volumeName"),
        "ServiceAccount" => drop_at(&mut meant, "/secrets"),
        "Job" => job(&mut meant),
        "CronJob" => drop_generated_job_defaults(&mut meant),
        "CustomResourceDefinition" => {
            drop_if(&mut meant, "/spec/conversion", &json!({"strategy": "None"}));
        }
        _ => {}
    }
    if let Some(pointer) = crate::object::template_pointer(&kind) {
        if let Some(template) = meant.pointer_mut(pointer).filter(|t| t.is_object()) {
            if !pointer.is_empty()
                && let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut)
            {
                metadata.remove("creationTimestamp");
                // Of whatever Work it is: without it, what was made for a forgotten Work would restart when it is taken in.
                let work = metadata.get("labels").and_then(|labels| labels.get(names::WORK_LABEL)).cloned();
                clean(metadata, "labels");
                if let Some(work) = work {
                    metadata.entry("labels").or_insert_with(|| json!({}))[names::WORK_LABEL] = work;
                }
            }
            if let Some(spec) = template.get_mut("spec") {
                pod_spec(spec, kind == "Job" || kind == "CronJob");
            }
        }
        for template in meant
            .pointer_mut("/spec/volumeClaimTemplates")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(map) = template.as_object_mut() {
                map.remove("status");
                map.remove("apiVersion");
                map.remove("kind");
            }
            drop_at(template, "/metadata/creationTimestamp");
            drop_if(template, "/spec/volumeMode", &json!("Filesystem"));
        }
    }
    meant
}

fn clean(metadata: &mut Map<String, Value>, field: &str) {
    if let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) {
        map.retain(|key, _| {
            !DROP_PREFIXES.iter().any(|p| key.starts_with(p)) && !DROP_LABELS.contains(&key.as_str())
        });
        if map.is_empty() {
            metadata.remove(field);
        }
    }
}

/// Ports whose node port somebody chose, as `(port, protocol)`: a number that the hub handed out belongs to no manager.
fn chosen_node_ports(object: &Value) -> Vec<(i64, String)> {
    let managers = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let ports =
        managers.into_iter().flatten().filter_map(|m| m.pointer("/fieldsV1/f:spec/f:ports")?.as_object());
    let chosen = ports.flatten().filter(|(_, fields)| fields.get("f:nodePort").is_some());
    chosen
        .filter_map(|(key, _)| {
            let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
            Some((key["port"].as_i64()?, key["protocol"].as_str().unwrap_or("TCP").to_owned()))
        })
        .collect()
}

/// Addresses and ports belong to the cluster that hands them out, unless the user chose them; `None` (headless) is the
/// user's word.
fn service(object: &mut Value, chosen: &[(i64, String)]) {
    let headless = text(object, "/spec/clusterIP") == "None";
    for pointer in ["/spec/clusterIPs", "/spec/ipFamilies", "/spec/healthCheckNodePort"] {
        drop_at(object, pointer);
    }
    drop_if(object, "/spec/ipFamilyPolicy", &json!("SingleStack"));
    if !headless {
        drop_at(object, "/spec/clusterIP");
    }
    drop_if(object, "/spec/type", &json!("ClusterIP"));
    for port in object.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let same = port.get("targetPort").is_some() && port.get("targetPort") == port.get("port");
        let key = (port["port"].as_i64().unwrap_or_default(), text(port, "/protocol"));
        let keep = chosen.iter().any(|(number, protocol)| (*number, protocol.as_str()) == key);
        if let Some(map) = port.as_object_mut() {
            if !keep {
                map.remove("nodePort");
            }
            if same {
                map.remove("targetPort");
            }
        }
    }
}

/// The selector and its labels are generated unless the user made them.
fn job(object: &mut Value) {
    if object.pointer("/spec/manualSelector") != Some(&json!(true)) {
        drop_at(object, "/spec/selector");
    }
    drop_generated_job_defaults(object);
}

fn drop_generated_job_defaults(object: &mut Value) {
    for pointer in
        ["/spec/jobTemplate/metadata/creationTimestamp", "/spec/template/metadata/creationTimestamp"]
    {
        drop_at(object, pointer);
    }
    drop_if(object, "/spec/jobTemplate/metadata", &json!({}));
}

fn pod_spec(spec: &mut Value, job: bool) {
    let restart = if job { "Never" } else { "Always" };
    for (pointer, value) in [
        ("/dnsPolicy", json!("ClusterFirst")),
        ("/schedulerName", json!("default-scheduler")),
        ("/terminationGracePeriodSeconds", json!(30)),
        ("/securityContext", json!({})),
        ("/enableServiceLinks", json!(true)),
        ("/preemptionPolicy", json!("PreemptLowerPriority")),
    ] {
        drop_if(spec, pointer, &value);
    }
    if !job {
        drop_if(spec, "/restartPolicy", &json!(restart));
    }
    // `serviceAccount` is the old name of `serviceAccountName`; `nodeName` and `priority` are handed out.
    for pointer in ["/serviceAccount", "/nodeName", "/priority"] {
        drop_at(spec, pointer);
    }
    for containers in ["containers", "initContainers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            container_defaults(container);
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        for source in ["configMap", "secret", "downwardAPI", "projected"] {
            drop_if(volume, &format!("/{source}/defaultMode"), &json!(420));
        }
    }
    // The token volume that admission adds to a Pod of its own.
    let token = |item: &Value, field: &str| text(item, field).starts_with("kube-api-access-");
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|v| !token(v, "/name"));
    }
    for containers in ["containers", "initContainers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                mounts.retain(|m| !token(m, "/name"));
            }
        }
    }
}

fn container_defaults(container: &mut Value) {
    let image = text(container, "/image").to_owned();
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag.to_owned());
    let pull =
        if image.contains('@') || tag.is_some_and(|t| t != "latest") { "IfNotPresent" } else { "Always" };
    for (pointer, value) in [
        ("/terminationMessagePath", json!("/dev/termination-log")),
        ("/terminationMessagePolicy", json!("File")),
        ("/imagePullPolicy", json!(pull)),
        ("/resources", json!({})),
    ] {
        drop_if(container, pointer, &value);
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for (field, value) in [
            ("timeoutSeconds", json!(1)),
            ("periodSeconds", json!(10)),
            ("successThreshold", json!(1)),
            ("failureThreshold", json!(3)),
        ] {
            drop_if(container, &format!("/{probe}/{field}"), &value);
        }
        drop_if(container, &format!("/{probe}/httpGet/scheme"), &json!("HTTP"));
    }
}

fn drop_at(object: &mut Value, pointer: &str) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    if let Some(map) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        map.remove(key);
    }
}

fn drop_if(object: &mut Value, pointer: &str, value: &Value) {
    if object.pointer(pointer) == Some(value) {
        drop_at(object, pointer);
    }
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
