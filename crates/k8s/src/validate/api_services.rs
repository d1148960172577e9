//! APIServices: which server answers for a group and version.

use super::at::{At, Errors};
use crate::names;

pub(super) fn api_service(e: &mut Errors, object: &At<'_, '_>) {
    let (metadata, spec) = (object.get("metadata"), object.get("spec"));
    let (group, version) = (spec.get("group"), spec.get("version"));
    let (name, wanted) = (metadata.get("name"), format!("{}.{}", version.str(), group.str()));
    if !name.is_empty() && names::path_segment(name.str()).is_empty() && name.str() != wanted {
        e.invalid(&name, format!("must be `spec.version+\".\"+spec.group`: {wanted:?}"));
    }
    if !group.is_empty() {
        e.complaints(&group, names::dns_subdomain(group.str()));
    } else if version.str() != "v1" {
        e.required(&group, "only v1 may have an empty group and it better be legacy kube");
    }
    e.complaints(&version, names::dns1035_label(version.str()));
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let at = spec.get(field);
        let number = at.int().unwrap_or_default();
        if !(1..=most).contains(&number) {
            e.invalid_value(&at, &number.into(), format!("must be positive and less than {most}"));
        }
    }
    let (bundle, insecure) = (spec.get("caBundle"), spec.get("insecureSkipTLSVerify"));
    let service = spec.get("service");
    if !service.is_set() {
        if !bundle.is_empty() {
            e.invalid(&bundle, "local APIServices may not have a caBundle");
        }
        if insecure.bool() {
            e.invalid(&insecure, "local APIServices may not have insecureSkipTLSVerify");
        }
        return;
    }
    for field in ["namespace", "name"] {
        if service.get(field).is_empty() {
            e.required(&service.get(field), "");
        }
    }
    let port = service.get("port");
    let complaints = names::port_number(port.int().unwrap_or_default());
    if !complaints.is_empty() {
        e.invalid(&port, format!("port is not valid: {}", complaints.join(", ")));
    }
    if insecure.bool() && !bundle.is_empty() {
        e.invalid(&insecure, "may not be true if caBundle is present");
    }
}

pub(super) fn api_service_status(e: &mut Errors, object: &At<'_, '_>, _old: &serde_json::Value) {
    let status = object.get("status");
    for condition in status.get("conditions").items() {
        let value = condition.get("status");
        if !matches!(value.str(), "True" | "False" | "Unknown") {
            e.not_supported(&value, &["True", "False", "Unknown"]);
        }
    }
}
