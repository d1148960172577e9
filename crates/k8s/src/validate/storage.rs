//! PersistentVolumes, claims, and the storage group.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::label_selector;
use super::parts::quantity;
use super::{csi, resources, scheduling};
use crate::names;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

fn access_modes(e: &mut Errors, spec: &At<'_, '_>, missing: &str) {
    let modes = spec.get("accessModes");
    if modes.is_empty() {
        e.required(&modes, missing);
    }
    for mode in modes.items().filter(|m| !MODES.contains(&m.str())) {
        e.not_supported(&modes.with(mode.value), &MODES);
    }
    let exclusive = modes.items().any(|m| m.str() == "ReadWriteOncePod");
    if exclusive && modes.items().any(|m| m.str() != "ReadWriteOncePod" && MODES.contains(&m.str())) {
        e.forbidden(&modes, "may not use ReadWriteOncePod with other access modes");
    }
}

pub(super) fn claim_spec(e: &mut Errors, spec: &At<'_, '_>) {
    access_modes(e, spec, "at least 1 access mode is required");
    label_selector(e, &spec.get("selector"));
    let resources = spec.get("resources");
    let requests = resources.get("requests");
    let wanted = requests.key("storage");
    let shown = resources.key("storage").with(wanted.value);
    match quantity(&wanted) {
        None => e.required(&shown, ""),
        Some(size) if size.is_zero() || size.is_negative() => {
            e.invalid_value(&shown, &Value::from(size.to_string()), "must be greater than zero");
        }
        Some(_) => resources::amount(e, "storage", &shown),
    }
    for class in ["storageClassName", "volumeAttributesClassName"] {
        let at = spec.get(class);
        if !at.is_empty() {
            e.complaints(&at, names::dns_subdomain(at.str()));
        }
    }
    e.optional_one_of(&spec.get("volumeMode"), &VOLUME_MODES);
}

pub(super) fn claim(e: &mut Errors, object: &At<'_, '_>) {
    claim_spec(e, &object.get("spec"));
}

pub(super) fn claim_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    claim_spec(e, &spec);
    let before = At::root(old);
    let old_spec = before.get("spec");
    let bound = object.get("status").get("phase").str() == "Bound";
    let frozen = |value: &Value| {
        let mut value = value.clone();
        let Some(map) = value.as_object_mut() else { return value };
        if old_spec.get("volumeName").is_empty() {
            map.remove("volumeName");
        }
        if old_spec.get("storageClassName").is_empty() && !old_spec.get("storageClassName").is_set() {
            map.remove("storageClassName");
        }
        if bound {
            map.remove("volumeAttributesClassName");
            let requests = map.get_mut("resources").and_then(|r| r.get_mut("requests"));
            requests.and_then(Value::as_object_mut).map(|r| r.remove("storage"));
        }
        value
    };
    if !same(&frozen(spec.value), &frozen(old_spec.value)) {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for \
                      bound claims\n";
        e.forbidden(&spec, detail);
    }
    let resources = spec.get("resources");
    let requests = resources.get("requests");
    let (size, capacity) = (requests.get("storage"), old.pointer("/status/capacity/storage"));
    let old_size = At::root(old.pointer("/spec/resources/requests/storage").unwrap_or(&Value::Null));
    if let (Some(new), Some(was)) = (quantity(&size), quantity(&old_size))
        && new < was
    {
        let capacity =
            capacity.and_then(|c| crate::quantity::Quantity::from_value(c).ok()).unwrap_or_default();
        if new <= capacity {
            e.forbidden(&size, "field can not be less than status.capacity");
        }
    }
    if !same(spec.get("volumeMode").value, old_spec.get("volumeMode").value) {
        let at = object.get("volumeMode").with(spec.get("volumeMode").value);
        e.invalid(&at, "field is immutable");
    }
}

/// The volume plugins a PersistentVolume may name.
const PLUGINS: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(super) fn volume(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    access_modes(e, &spec, "");
    capacity(e, &spec);
    let policies = ["Delete", "Recycle", "Retain"];
    e.optional_one_of(&spec.get("persistentVolumeReclaimPolicy"), &policies);
    let affinity = spec.get("nodeAffinity");
    if affinity.is_set() {
        let required = affinity.get("required");
        if required.is_set() {
            scheduling::node_selector(e, &required);
        } else {
            e.required(&required, "must specify required node constraints");
        }
    }
    plugin(e, &spec);
    let class = spec.get("storageClassName");
    if !class.is_empty() {
        e.complaints(&class, names::dns_subdomain(class.str()));
    }
    e.optional_one_of(&spec.get("volumeMode"), &VOLUME_MODES);
}

/// A volume that stands in an attachment instead of being an object.
pub(super) fn inline_volume(e: &mut Errors, spec: &At<'_, '_>) {
    const INLINE: &str = "in the context of inline volumes";
    for field in ["claimRef", "capacity", "nodeAffinity", "storageClassName"] {
        let at = spec.get(field);
        let given = if at.value.is_object() && field != "capacity" { at.is_set() } else { !at.is_empty() };
        if given {
            e.forbidden(&at, format!("may not be specified {INLINE}"));
        }
    }
    if !spec.get("csi").is_set() {
        e.required(&spec.get("csi"), format!("has to be specified {INLINE}"));
    }
    access_modes(e, spec, "");
    let policy = spec.get("persistentVolumeReclaimPolicy");
    if !matches!(policy.str(), "" | "Retain") {
        e.forbidden(&policy, format!("may only be Retain {INLINE}"));
    }
    let mode = spec.get("volumeMode");
    if mode.is_set() && mode.str() != "Filesystem" {
        e.forbidden(&mode, format!("may not specify volumeMode other than Filesystem {INLINE}"));
    }
    plugin(e, spec);
}

fn capacity(e: &mut Errors, spec: &At<'_, '_>) {
    let capacity = spec.get("capacity");
    if capacity.is_empty() {
        e.required(&capacity, "");
    }
    if !capacity.key("storage").is_set() || capacity.len() > 1 {
        e.not_supported(&capacity, &["storage"]);
        if let Some(last) = e.0.last_mut() {
            last.value = capacity.value.to_string();
        }
    }
    for (_, value) in capacity.entries() {
        if let Some(size) = quantity(&value).filter(|q| q.is_zero() || q.is_negative()) {
            e.invalid_value(&value, &Value::from(size.to_string()), "must be greater than zero");
        }
    }
}

/// Where the volume is: in one place.
fn plugin(e: &mut Errors, spec: &At<'_, '_>) {
    let mut found = 0;
    for plugin in PLUGINS.iter().filter(|p| spec.get(p).is_set()) {
        found += 1;
        if found > 1 {
            e.forbidden(&spec.get(plugin), "may not specify more than 1 volume type");
        }
    }
    if found == 0 {
        e.required(spec, "must specify a volume type");
    }
    let path = spec.get("hostPath");
    if path.is_set() {
        if path.get("path").is_empty() {
            e.required(&path.get("path"), "");
        }
        e.no_backsteps(&path.get("path"));
    }
    if spec.get("local").is_set() {
        if spec.get("local").get("path").is_empty() {
            e.required(&spec.get("local").get("path"), "");
        }
        let affinity = spec.get("nodeAffinity");
        if !affinity.is_set() {
            e.required(&affinity, "Local volume requires node affinity");
        }
    }
    let csi = spec.get("csi");
    if csi.is_set() {
        csi::driver_name(e, &csi.get("driver"));
        if csi.get("volumeHandle").is_empty() {
            e.required(&csi.get("volumeHandle"), "");
        }
    }
}

pub(super) fn volume_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    volume(e, object);
    let spec = object.get("spec");
    if PLUGINS.iter().any(|p| !same(spec.get(p).value, &old["spec"][p])) {
        let at = spec.get("persistentvolumesource");
        e.forbidden(&at, "spec.persistentvolumesource is immutable after creation\n");
    }
    let (affinity, before) = (spec.get("nodeAffinity"), &old["spec"]["nodeAffinity"]);
    if !before.is_null() && !same(affinity.value, before) {
        let detail = "field is immutable, except for updating from beta label to GA";
        e.invalid_value(&object.get("nodeAffinity"), affinity.value, detail);
    }
    let mode = spec.get("volumeMode");
    if !same(mode.value, &old["spec"]["volumeMode"]) {
        e.invalid(&object.get("volumeMode").with(mode.value), "field is immutable");
    }
}

pub(super) fn provisioner(e: &mut Errors, provisioner: &At<'_, '_>) {
    if provisioner.is_empty() {
        e.required(provisioner, "");
    } else {
        let lower = provisioner.str().to_lowercase();
        e.complaints(&provisioner.with(&Value::from(lower.as_str())), names::label_key(&lower));
    }
}

pub(super) fn class(e: &mut Errors, object: &At<'_, '_>) {
    provisioner(e, &object.get("provisioner"));
    e.optional_one_of(&object.get("reclaimPolicy"), &["Delete", "Retain"]);
    let binding = object.get("volumeBindingMode");
    e.one_of(&binding, &["Immediate", "WaitForFirstConsumer"]);
}

pub(super) fn class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        e.immutable(&object.get(field), &old[field]);
    }
    class(e, object);
}

pub(super) fn spec_immutable(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("spec"), &old["spec"]);
}

pub(super) fn driver(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.set_one_of(&spec.get("fsGroupPolicy"), &["File", "None", "ReadWriteOnceWithFSType"]);
    let modes = spec.get("volumeLifecycleModes");
    for mode in modes.items() {
        // Upstream reports at the list.
        e.set_one_of(&modes.with(mode.value), &["Persistent", "Ephemeral"]);
    }
    let mut seen = HashSet::new();
    for request in spec.get("tokenRequests").items() {
        if !seen.insert(request.get("audience").str()) {
            e.duplicate(&request.get("audience"));
            continue;
        }
        let seconds = request.get("expirationSeconds");
        e.at_least(&seconds, 10 * 60, "may not specify a duration less than 10 minutes");
        if seconds.int().is_some_and(|s| s > 1 << 32) {
            e.invalid(&seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
}

pub(super) fn driver_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    // Upstream spells it so.
    let attach = spec.get("attachedRequired").with(spec.get("attachRequired").value);
    if *attach.value != old["spec"]["attachRequired"] {
        e.invalid_value(&attach, attach.value, "field is immutable");
    }
    e.immutable(&spec.get("volumeLifecycleModes"), &old["spec"]["volumeLifecycleModes"]);
}
