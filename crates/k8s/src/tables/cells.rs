//! Cells that take more than a path.

use jiff::Timestamp;
use serde_json::Value;

use super::age;
use super::text::{human_duration, int, items, join, or, selector, show, text, with_more};

pub fn count(object: &Value, path: &str) -> usize {
    match object.pointer(path) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(entries)) => entries.len(),
        _ => 0,
    }
}

/// `kind/name`.
pub fn pair(object: &Value, first: &str, second: &str) -> Value {
    format!("{}/{}", text(object, first), text(object, second)).into()
}

pub fn joined_or(object: &Value, path: &str, instead: &str) -> Value {
    or(&join(items(object, path).iter().filter_map(Value::as_str), ","), instead).into()
}

pub fn number_or(object: &Value, path: &str) -> Value {
    object.pointer(path).filter(|v| v.is_number()).cloned().unwrap_or_else(|| "<none>".into())
}

fn seconds(value: Option<&Value>) -> Option<i64> {
    value?.as_str()?.parse::<Timestamp>().ok().map(|t| t.as_second())
}

fn condition<'a>(object: &'a Value, path: &str, type_: &str) -> Option<&'a Value> {
    items(object, path).iter().find(|c| text(c, "/type") == type_)
}

fn deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

pub fn phase(object: &Value, _: Timestamp) -> Value {
    if deleting(object) { "Terminating".into() } else { text(object, "/status/phase").into() }
}

pub fn ready_of_desired(object: &Value, _: Timestamp) -> Value {
    format!("{}/{}", int(object, "/status/readyReplicas"), int(object, "/spec/replicas")).into()
}

pub fn component_status(object: &Value, _: Timestamp) -> Value {
    match condition(object, "/conditions", "Healthy") {
        Some(c) if text(c, "/status") == "True" => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    }
    .into()
}

pub fn controller(object: &Value, _: Timestamp) -> Value {
    let owner = items(object, "/metadata/ownerReferences").iter().find(|o| o["controller"] == true);
    let Some(owner) = owner else { return "<none>".into() };
    let group =
        text(owner, "/apiVersion").split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
    let kind = format!("{}{group}", text(owner, "/kind")).to_lowercase();
    format!("{kind}/{}", text(owner, "/name")).into()
}

// Events: core/v1 and events.k8s.io/v1 name their fields differently.

fn event_field<'a>(object: &'a Value, core: &str, new: &str) -> &'a Value {
    object.pointer(core).or_else(|| object.pointer(new)).unwrap_or(&Value::Null)
}

pub fn event_first_seen(object: &Value, now: Timestamp) -> String {
    let first = event_field(object, "/firstTimestamp", "/deprecatedFirstTimestamp");
    age(Some(first).filter(|t| t.is_string()).or(object.get("eventTime")), now)
}

pub fn event_last_seen(object: &Value, now: Timestamp) -> Value {
    let series = object.pointer("/series/lastObservedTime");
    let last = event_field(object, "/lastTimestamp", "/deprecatedLastTimestamp");
    match series.or(Some(last).filter(|t| t.is_string())) {
        Some(time) => age(Some(time), now).into(),
        None => event_first_seen(object, now).into(),
    }
}

pub fn event_count(object: &Value, _: Timestamp) -> Value {
    let series = object.pointer("/series/count").and_then(Value::as_i64);
    let count = event_field(object, "/count", "/deprecatedCount").as_i64().filter(|c| *c > 0);
    // An event that happened once has no count in the newer API.
    series.or(count).unwrap_or(1).into()
}

pub fn event_object(object: &Value, _: Timestamp) -> Value {
    let target = event_field(object, "/involvedObject", "/regarding");
    let kind = text(target, "/kind").to_lowercase();
    let name = text(target, "/name");
    if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
}

pub fn event_subobject(object: &Value, _: Timestamp) -> Value {
    text(event_field(object, "/involvedObject", "/regarding"), "/fieldPath").into()
}

pub fn event_source(object: &Value, _: Timestamp) -> Value {
    let source = event_field(object, "/source", "/deprecatedSource");
    let reporter =
        event_field(object, "/reportingComponent", "/reportingController").as_str().unwrap_or_default();
    let component = or(text(source, "/component"), reporter);
    let host = or(text(source, "/host"), text(object, "/reportingInstance"));
    if host.is_empty() { component.into() } else { format!("{component}, {host}").into() }
}

pub fn event_message(object: &Value, _: Timestamp) -> Value {
    event_field(object, "/message", "/note").as_str().unwrap_or_default().trim().into()
}

// Nodes.

pub fn node_status(object: &Value, _: Timestamp) -> Value {
    let ready = match condition(object, "/status/conditions", "Ready") {
        Some(c) if text(c, "/status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = object.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    if cordoned { format!("{ready},SchedulingDisabled").into() } else { ready.into() }
}

pub fn node_roles(object: &Value, _: Timestamp) -> Value {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), "<none>").into()
}

pub fn node_address(object: &Value, type_: &str) -> Value {
    let address = items(object, "/status/addresses").iter().find(|a| text(a, "/type") == type_);
    address.map_or("<none>", |a| text(a, "/address")).into()
}

pub fn node_kernel(object: &Value, _: Timestamp) -> Value {
    let kernel = or(text(object, "/status/nodeInfo/kernelVersion"), "<unknown>");
    match text(object, "/status/nodeInfo/architecture") {
        "" => kernel.into(),
        architecture => format!("{kernel} ({architecture})").into(),
    }
}

// Volumes.

pub fn access_modes(object: &Value, path: &str) -> String {
    let modes = items(object, path);
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    join(short.into_iter().filter(|(long, _)| modes.iter().any(|m| m == long)).map(|(_, short)| short), ",")
}

fn bound(object: &Value) -> bool {
    !text(object, "/spec/volumeName").is_empty()
}

pub fn claim_capacity(object: &Value, _: Timestamp) -> Value {
    if bound(object) { or(text(object, "/status/capacity/storage"), "0").into() } else { "".into() }
}

pub fn claim_modes(object: &Value, _: Timestamp) -> Value {
    if bound(object) { access_modes(object, "/status/accessModes").into() } else { "".into() }
}

/// The class was an annotation once, and that still wins.
pub fn storage_class(object: &Value, _: Timestamp) -> Value {
    let annotation = object.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class");
    annotation.and_then(Value::as_str).unwrap_or_else(|| text(object, "/spec/storageClassName")).into()
}

pub fn volume_claim(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/claimRef").is_none() {
        return "".into();
    }
    pair(object, "/spec/claimRef/namespace", "/spec/claimRef/name")
}

/// A class marked as the default says so beside its name.
pub fn default_name(object: &Value, annotation: &str) -> Value {
    let name = text(object, "/metadata/name");
    let default =
        object.pointer("/metadata/annotations").and_then(|a| a.get(annotation)).is_some_and(|v| v == "true");
    if default { format!("{name} (default)").into() } else { name.into() }
}

pub fn storage_class_name(object: &Value, _: Timestamp) -> Value {
    let beta = default_name(object, "storageclass.beta.kubernetes.io/is-default-class");
    let name = default_name(object, "storageclass.kubernetes.io/is-default-class");
    if beta.as_str().is_some_and(|n| n.ends_with(')')) { beta } else { name }
}

pub fn token_requests(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/tokenRequests").is_none() {
        return "<unset>".into();
    }
    join(items(object, "/spec/tokenRequests").iter().map(|t| text(t, "/audience")), ",").into()
}

// Services and what routes to them.

/// Addresses of a load balancer, in order.
pub fn balancer(object: &Value) -> String {
    let ingress = items(object, "/status/loadBalancer/ingress").iter();
    let mut addresses: Vec<&str> =
        ingress.map(|i| or(text(i, "/ip"), text(i, "/hostname"))).filter(|a| !a.is_empty()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.join(",")
}

pub fn service_external(object: &Value, _: Timestamp) -> Value {
    let external = join(items(object, "/spec/externalIPs").iter().filter_map(Value::as_str), ",");
    match text(object, "/spec/type") {
        "ClusterIP" | "NodePort" => or(&external, "<none>").into(),
        "LoadBalancer" => {
            let balancer = balancer(object);
            let both = join([balancer.as_str(), &external].into_iter().filter(|a| !a.is_empty()), ",");
            or(&both, "<pending>").into()
        }
        "ExternalName" => text(object, "/spec/externalName").into(),
        _ => "<unknown>".into(),
    }
}

pub fn service_ports(object: &Value, _: Timestamp) -> Value {
    let ports: Vec<String> = items(object, "/spec/ports")
        .iter()
        .map(|p| match int(p, "/nodePort") {
            0 => format!("{}/{}", int(p, "/port"), text(p, "/protocol")),
            node => format!("{}:{node}/{}", int(p, "/port"), text(p, "/protocol")),
        })
        .collect();
    or(&ports.join(","), "<none>").into()
}

pub fn endpoints(object: &Value, _: Timestamp) -> Value {
    let subsets = items(object, "/subsets");
    if subsets.is_empty() {
        return "<none>".into();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = items(subset, "/addresses").iter().map(|a| text(a, "/ip"));
        let ports = items(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses.map(str::to_owned));
            continue;
        }
        for port in ports {
            let number = int(port, "/port");
            all.extend(addresses.clone().map(|ip| {
                if ip.contains(':') { format!("[{ip}]:{number}") } else { format!("{ip}:{number}") }
            }));
        }
    }
    with_more(&all, 3, ",").into()
}

pub fn slice_ports(object: &Value, _: Timestamp) -> Value {
    let ports: Vec<String> = items(object, "/ports")
        .iter()
        .map(|p| {
            p.get("port").filter(|p| !p.is_null()).or(p.get("name")).map_or_else(|| "*".to_owned(), show)
        })
        .collect();
    or(&with_more(&ports, 3, ","), "<unset>").into()
}

pub fn slice_endpoints(object: &Value, _: Timestamp) -> Value {
    let addresses = items(object, "/endpoints").iter().flat_map(|e| items(e, "/addresses"));
    let addresses: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
    or(&with_more(&addresses, 3, ","), "<unset>").into()
}

pub fn ingress_hosts(object: &Value, _: Timestamp) -> Value {
    let rules = items(object, "/spec/rules");
    let hosts: Vec<&str> = rules.iter().map(|r| text(r, "/host")).filter(|h| !h.is_empty()).collect();
    let shown = hosts[..hosts.len().min(3)].join(",");
    if hosts.len() > 3 {
        return format!("{shown} + {} more...", rules.len() - 3).into();
    }
    or(&shown, "*").into()
}

pub fn ingress_ports(object: &Value, _: Timestamp) -> Value {
    if items(object, "/spec/tls").is_empty() { "80".into() } else { "80, 443".into() }
}

pub fn ingress_class_parameters(object: &Value, _: Timestamp) -> Value {
    let Some(parameters) = object.pointer("/spec/parameters").filter(|p| p.is_object()) else {
        return "<none>".into();
    };
    let group = parameters["apiGroup"].as_str().map(|g| format!(".{g}")).unwrap_or_default();
    format!("{}{group}/{}", text(parameters, "/kind"), text(parameters, "/name")).into()
}

pub fn parent(object: &Value, _: Timestamp) -> Value {
    let Some(parent) = object.pointer("/spec/parentRef").filter(|p| p.is_object()) else {
        return "<none>".into();
    };
    let resource =
        join([text(parent, "/resource"), text(parent, "/group")].into_iter().filter(|p| !p.is_empty()), ".");
    let place =
        [resource.to_lowercase(), text(parent, "/namespace").to_owned(), text(parent, "/name").to_owned()];
    join(place.iter().map(String::as_str).filter(|p| !p.is_empty()), "/").into()
}

pub fn api_service(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/service").is_none_or(Value::is_null) {
        return "Local".into();
    }
    pair(object, "/spec/service/namespace", "/spec/service/name")
}

pub fn api_service_available(object: &Value, _: Timestamp) -> Value {
    let Some(available) = condition(object, "/status/conditions", "Available") else {
        return "Unknown".into();
    };
    let (status, reason) = (text(available, "/status"), text(available, "/reason"));
    if status == "True" || reason.is_empty() { status.into() } else { format!("{status} ({reason})").into() }
}

// Batch.

pub fn suspended(object: &Value, _: Timestamp) -> Value {
    match object.pointer("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True".into(),
        Some(false) => "False".into(),
        None => "<unset>".into(),
    }
}

pub fn last_schedule(object: &Value, now: Timestamp) -> Value {
    match object.pointer("/status/lastScheduleTime").filter(|t| t.is_string()) {
        Some(time) => age(Some(time), now).into(),
        None => "<none>".into(),
    }
}

pub fn job_status(object: &Value, _: Timestamp) -> Value {
    let is = |type_: &str| {
        condition(object, "/status/conditions", type_).is_some_and(|c| text(c, "/status") == "True")
    };
    let status = if is("Complete") {
        "Complete"
    } else if is("Failed") {
        "Failed"
    } else if deleting(object) {
        "Terminating"
    } else if is("Suspended") {
        "Suspended"
    } else if is("FailureTarget") {
        "FailureTarget"
    } else if is("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    status.into()
}

pub fn job_completions(object: &Value, _: Timestamp) -> Value {
    let done = int(object, "/status/succeeded");
    if let Some(wanted) = object.pointer("/spec/completions").and_then(Value::as_i64) {
        return format!("{done}/{wanted}").into();
    }
    match int(object, "/spec/parallelism") {
        many if many > 1 => format!("{done}/1 of {many}").into(),
        _ => format!("{done}/1").into(),
    }
}

pub fn job_duration(object: &Value, now: Timestamp) -> Value {
    let Some(start) = seconds(object.pointer("/status/startTime")) else { return "".into() };
    let end = seconds(object.pointer("/status/completionTime")).unwrap_or(now.as_second());
    human_duration(end - start).into()
}

// Policy, quota, access.

pub fn quota(object: &Value, limits: bool) -> Value {
    let hard = object.pointer("/status/hard").and_then(Value::as_object);
    let mut rows: Vec<String> = hard
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| {
            let used = object.pointer("/status/used").and_then(|u| u.get(name)).map_or("0".to_owned(), show);
            format!("{name}: {used}/{}", show(hard))
        })
        .collect();
    rows.sort();
    rows.join(", ").into()
}

pub fn subjects(object: &Value, kind: &str) -> Value {
    let names: Vec<String> = items(object, "/subjects")
        .iter()
        .filter(|s| text(s, "/kind") == kind)
        .map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
            _ => text(s, "/name").to_owned(),
        })
        .collect();
    names.join(", ").into()
}

pub fn requested_duration(object: &Value, _: Timestamp) -> Value {
    match object.pointer("/spec/expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => human_duration(seconds).into(),
        None => "<none>".into(),
    }
}

pub fn request_condition(object: &Value, _: Timestamp) -> Value {
    let is = |type_| condition(object, "/status/conditions", type_).is_some();
    let mut status = String::from(if is("Denied") {
        "Denied"
    } else if is("Approved") {
        "Approved"
    } else {
        "Pending"
    });
    if is("Failed") {
        status.push_str(",Failed");
    }
    if !text(object, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status.into()
}

pub fn policy_kind(object: &Value, _: Timestamp) -> Value {
    if object.pointer("/spec/paramKind").is_none_or(Value::is_null) {
        return "<unset>".into();
    }
    pair(object, "/spec/paramKind/apiVersion", "/spec/paramKind/kind")
}

pub fn policy_parameters(object: &Value, _: Timestamp) -> Value {
    let Some(parameters) = object.pointer("/spec/paramRef").filter(|p| p.is_object()) else {
        return "<unset>".into();
    };
    match text(parameters, "/name") {
        "" if parameters.get("selector").is_some() => selector(parameters.get("selector")).into(),
        "" => "<unset>".into(),
        name => format!("{}/{name}", or(text(parameters, "/namespace"), "*")).into(),
    }
}

pub fn missing_priority_level(object: &Value, _: Timestamp) -> Value {
    condition(object, "/status/conditions", "Dangling").map_or("?", |c| text(c, "/status")).into()
}

pub fn claim_state(object: &Value, _: Timestamp) -> Value {
    let allocated = object.pointer("/status/allocation").is_some_and(|a| !a.is_null());
    let reserved = !items(object, "/status/reservedFor").is_empty();
    let states = [
        (deleting(object), "deleted"),
        (!allocated && !deleting(object), "pending"),
        (allocated, "allocated"),
        (allocated && reserved, "reserved"),
    ];
    join(states.into_iter().filter(|(on, _)| *on).map(|(_, name)| name), ",").into()
}

// Autoscaling.

pub fn autoscaler_targets(object: &Value, _: Timestamp) -> Value {
    // Version 1 has the one metric.
    if let Some(target) = object.pointer("/spec/targetCPUUtilizationPercentage").and_then(Value::as_i64) {
        let current = object.pointer("/status/currentCPUUtilizationPercentage").and_then(Value::as_i64);
        let current = current.map_or("<unknown>".to_owned(), |c| format!("{c}%"));
        return format!("cpu: {current}/{target}%").into();
    }
    let metrics = items(object, "/spec/metrics");
    let current = items(object, "/status/currentMetrics");
    if metrics.is_empty() {
        return "<none>".into();
    }
    let all: Vec<String> = metrics.iter().enumerate().map(|(i, m)| metric(m, current.get(i))).collect();
    with_more(&all, 2, ", ").into()
}

fn metric(spec: &Value, status: Option<&Value>) -> String {
    let field = match text(spec, "/type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = spec.pointer(&format!("/{field}/target")).unwrap_or(&Value::Null);
    let current = status.and_then(|s| s.pointer(&format!("/{field}/current"))).unwrap_or(&Value::Null);
    let value = |of: &Value, name: &str| of.get(name).filter(|v| !v.is_null()).map(show);
    let percent = |of: &Value| of["averageUtilization"].as_i64().map(|v| format!("{v}%"));
    let unknown = || "<unknown>".to_owned();
    let average = value(target, "averageValue");
    match (field, average) {
        ("resource" | "containerResource", average) => {
            let name = text(&spec[field], "/name");
            match average {
                Some(t) => format!("{name}: {}/{t}", value(current, "averageValue").unwrap_or_else(unknown)),
                None => {
                    let target = percent(target).unwrap_or_else(|| "<auto>".to_owned());
                    format!("{name}: {}/{target}", percent(current).unwrap_or_else(unknown))
                }
            }
        }
        ("pods", average) => {
            let current = value(current, "averageValue").unwrap_or_else(unknown);
            format!("{current}/{}", average.unwrap_or_default())
        }
        (_, Some(t)) => format!("{}/{t} (avg)", value(current, "averageValue").unwrap_or_else(unknown)),
        (_, None) => {
            let current = value(current, "value").unwrap_or_else(unknown);
            format!("{current}/{}", value(target, "value").unwrap_or_default())
        }
    }
}
