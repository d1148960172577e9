//! What drivers of storage say about nodes and their capacity, and attachments of volumes.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::label_selector;
use super::storage;
use crate::names;

const LONGEST_NODE_ID: usize = 256;
const LONGEST_METADATA: usize = 256 * 1024;
const LONGEST_MESSAGE: usize = 1024;
const MOST_PARAMETERS: usize = 512;

/// The name of a driver: a subdomain in any case, not longer than a label.
pub(super) fn driver_name(e: &mut Errors, name: &At<'_, '_>) {
    if name.is_empty() {
        e.required(name, "");
        return;
    }
    if name.str().len() > names::LABEL_MAX {
        e.too_long(name, names::LABEL_MAX);
    }
    e.complaints(name, names::dns_subdomain(&name.str().to_lowercase()));
}

pub(super) fn node(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let mut seen = HashSet::new();
    for driver in spec.get("drivers").items() {
        let (name, id) = (driver.get("name"), driver.get("nodeID"));
        driver_name(e, &name);
        if id.is_empty() {
            e.required(&id, "");
        }
        if id.str().len() > LONGEST_NODE_ID {
            e.invalid(&id, format!("must be {LONGEST_NODE_ID} characters or less"));
        }
        e.non_negative(&driver.get("allocatable").get("count"));
        if !seen.insert(name.str()) {
            e.duplicate(&name);
        }
        let mut keys = HashSet::new();
        for key in driver.get("topologyKeys").items() {
            // Upstream reports at the driver.
            let at = driver.with(key.value);
            if key.is_empty() {
                e.required(&at, "");
            }
            if !keys.insert(key.str()) {
                e.duplicate(&at);
            }
            e.complaints(&at, names::label_key(key.str()));
        }
    }
}

/// A driver's entry stays as it is, but for what can be allocated.
pub(super) fn node_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    let drivers = spec.get("drivers");
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        driver.as_object_mut().map(|fields| fields.remove("allocatable"));
        driver
    };
    for before in old["spec"]["drivers"].as_array().into_iter().flatten() {
        for driver in drivers.items().filter(|driver| driver.get("name").value == &before["name"]) {
            if !same(&fixed(driver.value), &fixed(before)) {
                e.invalid_value(&drivers, driver.value, "field is immutable");
            }
        }
    }
}

pub(super) fn capacity(e: &mut Errors, object: &At<'_, '_>) {
    label_selector(e, &object.get("nodeTopology"));
    let class = object.get("storageClassName");
    e.complaints(&class, names::dns_subdomain(class.str()));
    e.quantity_not_negative(&object.get("capacity"));
}

pub(super) fn capacity_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    for field in ["nodeTopology", "storageClassName"] {
        e.immutable(&object.get(field), &old[field]);
    }
}

pub(super) fn attributes_class(e: &mut Errors, object: &At<'_, '_>) {
    storage::provisioner(e, &object.get("driverName"));
    let parameters = object.get("parameters");
    if parameters.len() > MOST_PARAMETERS {
        e.too_long(&parameters, MOST_PARAMETERS);
        return;
    }
    let mut size = 0;
    for (key, value) in parameters.entries() {
        size += key.len() + value.str().len();
        if key.is_empty() {
            e.invalid_value(&parameters, &Value::from(key), "field can not be empty.");
        }
    }
    if size > LONGEST_METADATA {
        e.too_long(&parameters, LONGEST_METADATA);
    }
    if parameters.is_empty() {
        e.required(&parameters, "must contain at least one key/value pair");
    }
}

pub(super) fn attributes_class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    for field in ["driverName", "parameters"] {
        if !same(object.get(field).value, &old[field]) {
            e.forbidden(&object.get(field), format!("updates to {field} are forbidden."));
        }
    }
}

pub(super) fn attachment(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    driver_name(e, &spec.get("attacher"));
    let source = spec.get("source");
    let (inline, volume) = (source.get("inlineVolumeSpec"), source.get("persistentVolumeName"));
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (inline.is_set(), volume.is_set()) {
        (false, false) => e.required(&source, one),
        (true, true) => e.forbidden(&source, one),
        (false, true) if volume.is_empty() => {
            e.required(&volume, "must specify non empty persistentVolumeName");
        }
        (true, false) => storage::inline_volume(e, &inline),
        (false, true) => {}
    }
    if volume.is_set() {
        e.complaints(&volume, names::dns_subdomain(volume.str()));
    }
    let node = spec.get("nodeName");
    e.complaints(&node, names::dns_subdomain(node.str()));
    attachment_status(e, object, &Value::Null);
}

pub(super) fn attachment_status(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let status = object.get("status");
    let metadata = status.get("attachmentMetadata");
    let size: usize = metadata.entries().map(|(key, value)| key.len() + value.str().len()).sum();
    if size > LONGEST_METADATA {
        e.too_long(&metadata, LONGEST_METADATA);
    }
    for failure in ["attachError", "detachError"] {
        let failure = status.get(failure);
        if failure.get("message").str().len() > LONGEST_MESSAGE {
            e.too_long(&failure.get("message"), LONGEST_METADATA);
        }
        e.at_least(&failure.get("errorCode"), 0, &names::between(0, i32::MAX as i64));
    }
}
