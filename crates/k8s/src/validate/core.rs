//! ConfigMaps, Secrets, Namespaces, Nodes, LimitRanges, ResourceQuotas.

use std::collections::HashSet;

use base64::Engine;
use serde_json::Value;

use super::at::{At, Errors, same};
use super::parts::quantity;
use super::{meta, resources, scheduling};
use crate::names;

/// The most a ConfigMap or Secret may hold.
const MAX_SIZE: usize = 1024 * 1024;

pub(super) fn config_map(e: &mut Errors, object: &At<'_, '_>) {
    let (data, binary) = (object.get("data"), object.get("binaryData"));
    let mut size = 0;
    for (map, other) in [(&data, Some(&binary)), (&binary, None)] {
        for (key, value) in map.entries() {
            let shown = Value::from(key);
            for complaint in names::config_key(key) {
                e.invalid_value(&value, &shown, complaint);
            }
            if other.is_some_and(|o| o.key(key).is_set()) {
                e.invalid_value(&value, &shown, "duplicate of key present in binaryData");
            }
            size += if other.is_some() { value.str().len() } else { value.str().len() / 4 * 3 };
        }
    }
    if size > MAX_SIZE {
        e.too_long(&At::root(object.value), MAX_SIZE);
        if let Some(last) = e.0.last_mut() {
            last.path.clear();
        }
    }
}

/// Once marked immutable, it stays, and so does the content.
pub(super) fn immutable_content(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    if old["immutable"] != true {
        return;
    }
    let detail = "field is immutable when `immutable` is set";
    if !object.get("immutable").bool() {
        e.forbidden(&object.get("immutable"), detail);
    }
    for field in ["data", "binaryData"] {
        if !same(object.get(field).value, &old[field]) {
            e.forbidden(&object.get(field), detail);
        }
    }
}

pub(super) fn secret(e: &mut Errors, object: &At<'_, '_>) {
    let data = object.get("data");
    let mut size = 0;
    for (key, value) in data.entries() {
        for complaint in names::config_key(key) {
            e.invalid_value(&value, &Value::from(key), complaint);
        }
        size += value.str().len() / 4 * 3;
    }
    if size > MAX_SIZE {
        e.too_long(&data, MAX_SIZE);
    }
    let json_object = |at: &At<'_, '_>| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(at.str()).unwrap_or_default();
        serde_json::from_slice::<Value>(&bytes).is_ok_and(|v| v.is_object())
    };
    let missing: &[&str] = match object.get("type").str() {
        "kubernetes.io/service-account-token" => {
            let metadata = object.get("metadata");
            let annotations = metadata.get("annotations");
            let account = annotations.key("kubernetes.io/service-account.name");
            if account.is_empty() {
                e.required(&account, "");
            }
            &[]
        }
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/basic-auth" if !data.key("username").is_set() && !data.key("password").is_set() => {
            &["username", "password"]
        }
        "kubernetes.io/ssh-auth" if data.key("ssh-privatekey").is_empty() => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    };
    for key in missing {
        let at = data.key(key);
        if !at.is_set() || *key == "ssh-privatekey" {
            e.required(&at, "");
        } else if key.starts_with(".docker") && !json_object(&at) {
            let shown = Value::from("<secret contents redacted>");
            e.invalid_value(&at, &shown, "invalid character: must be a JSON object");
        }
    }
}

pub(super) fn secret_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("type"), &old["type"]);
    immutable_content(e, object, old);
    secret(e, object);
}

pub(super) fn config_map_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    immutable_content(e, object, old);
    config_map(e, object);
}

pub(super) fn namespace(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let list = spec.get("finalizers");
    for finalizer in list.items() {
        let at = list.with(finalizer.value);
        e.complaints(&at, names::label_key(finalizer.str()));
        meta::standard_finalizer(e, &at);
    }
}

pub(super) fn node_status(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    node_resources(e, object, &old["status"]);
    let status = object.get("status");
    let mut seen = HashSet::new();
    for address in status.get("addresses").items() {
        if !seen.insert((address.get("type").str(), address.get("address").str())) {
            e.duplicate(&address);
        }
    }
}

pub(super) fn namespace_status(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let metadata = object.get("metadata");
    let deleting = metadata.get("deletionTimestamp").is_set();
    let status = object.get("status");
    let phase = status.get("phase");
    if deleting && phase.str() != "Terminating" {
        e.invalid(&phase, "may only be 'Terminating' if `deletionTimestamp` is not empty");
    }
    if !deleting && phase.str() != "Active" {
        e.invalid(&phase, "may only be 'Active' if `deletionTimestamp` is empty");
    }
}

pub(super) fn node(e: &mut Errors, object: &At<'_, '_>) {
    node_spec(e, object);
    node_resources(e, object, &Value::Null);
}

fn node_spec(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    // Upstream reports taints under metadata.
    let metadata = object.get("metadata");
    scheduling::taints(e, &metadata.get("taints").with(spec.get("taints").value));
    let cidrs = spec.get("podCIDRs");
    for cidr in cidrs.items() {
        e.cidr(&cidr);
    }
    if cidrs.len() > 2 {
        e.invalid(&cidrs, "may specify no more than one CIDR for each IP family");
    }
}

/// What a node has. Amounts that its stored status has may stay.
fn node_resources(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let status = object.get("status");
    for list in ["capacity", "allocatable"] {
        let amounts = status.get(list);
        for name in amounts.value.as_object().into_iter().flat_map(|amounts| amounts.keys()) {
            let amount = amounts.get(name);
            if amount.value != &old[list][name] {
                resources::amount(e, name, &amount);
            }
        }
    }
}

pub(super) fn node_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    node_spec(e, object);
    node_resources(e, object, &old["status"]);
    let spec = object.get("spec");
    let before = At::root(old);
    let old_spec = before.get("spec");
    if !old_spec.get("podCIDRs").is_empty()
        && !same(spec.get("podCIDRs").value, old_spec.get("podCIDRs").value)
    {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        e.forbidden(&spec.get("podCIDRs"), detail);
    }
    if !old_spec.get("providerID").is_empty()
        && spec.get("providerID").str() != old_spec.get("providerID").str()
    {
        let detail = "node updates may not change providerID except from \"\" to valid";
        e.forbidden(&spec.get("providerID"), detail);
    }
}

pub(super) fn limit_range(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let limits = spec.get("limits");
    let mut kinds = HashSet::new();
    for limit in limits.items() {
        let kind = limit.get("type");
        let complaints = names::label_key(kind.str());
        if !complaints.is_empty() {
            e.complaints(&kind, complaints);
        } else if !kind.str().contains('/')
            && !matches!(kind.str(), "Pod" | "Container" | "PersistentVolumeClaim")
        {
            e.invalid(&kind, "must be a standard limit type or fully qualified");
        }
        if !kinds.insert(kind.str()) {
            e.duplicate(&kind);
        }
        let (min, max) = (limit.get("min"), limit.get("max"));
        let (default, request) = (limit.get("default"), limit.get("defaultRequest"));
        if kind.str() == "Pod" {
            for at in [&default, &request] {
                if !at.is_empty() {
                    e.forbidden(at, "may not be specified when `type` is 'Pod'");
                }
            }
        }
        if kind.str() == "PersistentVolumeClaim"
            && !min.key("storage").is_set()
            && !max.key("storage").is_set()
        {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            e.required(&limit.get("limits"), detail);
        }
        // Each pair must be in order; the complaint goes to the first of the two columns named.
        let pairs = [
            (&min, &max, &min, "min value {a} is greater than max value {b}"),
            (&min, &request, &request, "min value {a} is greater than default request value {b}"),
            (&request, &max, &request, "default request value {a} is greater than max value {b}"),
            (
                &request,
                &default,
                &request,
                "default request value {a} is greater than default limit value {b}",
            ),
            (&min, &default, &default, "min value {a} is greater than default value {b}"),
            (&default, &max, &default, "default value {a} is greater than max value {b}"),
        ];
        for (low, high, place, text) in pairs {
            for (name, value) in low.entries() {
                let (Some(a), Some(b)) = (quantity(&value), quantity(&high.key(name))) else { continue };
                if a > b {
                    let detail = text.replace("{a}", &a.to_string()).replace("{b}", &b.to_string());
                    let at = place.key(name);
                    let shown = match text.starts_with("min value {a} is greater than default value") {
                        true => Value::from(a.to_string()),
                        false if text.starts_with("default value") => Value::from(b.to_string()),
                        false => at.value.clone(),
                    };
                    e.invalid_value(&at, &shown, detail);
                }
            }
        }
    }
}

pub(super) fn resource_quota(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    for (name, value) in spec.get("hard").entries() {
        resources::quota_resource(e, name, &value);
    }
    let known = [
        "BestEffort",
        "CrossNamespacePodAffinity",
        "NotBestEffort",
        "NotTerminating",
        "PriorityClass",
        "Terminating",
        "VolumeAttributesClass",
    ];
    let scopes = spec.get("scopes");
    for _ in scopes.items().filter(|s| !known.contains(&s.str())) {
        e.invalid(&scopes, "unsupported scope");
    }
    let has = |name: &str| scopes.items().any(|s| s.str() == name);
    if (has("BestEffort") && has("NotBestEffort")) || (has("Terminating") && has("NotTerminating")) {
        e.invalid(&scopes, "conflicting scopes");
    }
}

pub(super) fn resource_quota_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    resource_quota(e, object);
    let spec = object.get("spec");
    if !same(spec.get("scopes").value, &old["spec"]["scopes"]) {
        e.invalid(&spec.get("scopes"), "field is immutable");
    }
}

pub(super) fn nothing(_: &mut Errors, _: &At<'_, '_>) {}

pub(super) fn nothing_changed(_: &mut Errors, _: &At<'_, '_>, _: &Value) {}
