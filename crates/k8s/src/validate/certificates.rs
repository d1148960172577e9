//! Certificate signing requests. Whether the request itself is well signed is for who knows certificates to say.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use crate::names;

/// Sorted, as they are shown.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
/// Conditions that are true or absent.
const DECISIONS: [&str; 3] = ["Approved", "Denied", "Failed"];

pub(super) fn signing_request(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let usages = spec.get("usages");
    if usages.is_empty() {
        e.required(&usages, "");
    }
    let mut seen = HashSet::new();
    for usage in usages.items() {
        e.set_one_of(&usage, &USAGES);
        if !seen.insert(usage.str()) {
            e.duplicate(&usage);
        }
    }
    signer_name(e, &spec.get("signerName"));
    e.at_least(
        &spec.get("expirationSeconds"),
        600,
        "may not specify a duration less than 600 seconds (10 minutes)",
    );
    conditions(e, object);
}

/// On update only the metadata can change, which is checked for every kind.
pub(super) fn signing_request_update(_: &mut Errors, _: &At<'_, '_>, _: &Value) {}

pub(super) fn signing_request_status(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    conditions(e, object);
    let status = object.get("status");
    let list = status.get("conditions");
    for kind in DECISIONS {
        let count = |list: &Value| {
            list.as_array().into_iter().flatten().filter(|condition| condition["type"] == kind).count()
        };
        if count(list.value) < count(&old["status"]["conditions"]) {
            e.forbidden(&list, format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    let before = &old["status"]["certificate"];
    if before.as_str().is_some_and(|text| !text.is_empty()) && !same(status.get("certificate").value, before)
    {
        e.forbidden(&status.get("certificate"), "updates may not modify existing certificate content");
    }
}

fn conditions(e: &mut Errors, object: &At<'_, '_>) {
    let status = object.get("status");
    let list = status.get("conditions");
    let mut seen = HashSet::new();
    for condition in list.items() {
        let (kind, value) = (condition.get("type"), condition.get("status"));
        if kind.is_empty() {
            e.required(&kind, "");
        }
        match DECISIONS.contains(&kind.str()) {
            true => e.one_of(&value, &["True"]),
            false => e.one_of(&value, &["False", "True", "Unknown"]),
        }
        let opposite = match kind.str() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(opposite) {
            e.invalid(&list.with(kind.value), "Approved and Denied conditions are mutually exclusive");
        }
        if !seen.insert(kind.str()) {
            e.duplicate(&kind);
        }
    }
}

fn signer_name(e: &mut Errors, signer: &At<'_, '_>) {
    if signer.is_empty() {
        e.required(signer, "");
        return;
    }
    if signer.str() == "kubernetes.io/legacy-unknown" {
        e.invalid(signer, "the legacy signerName is not allowed via this API version");
        return;
    }
    let segments: Vec<&str> = signer.str().split('/').collect();
    let [domain, path] = segments[..] else {
        e.invalid(signer, "must be a fully qualified domain and path of the form 'example.com/signer-name'");
        return;
    };
    if domain.len() > names::SUBDOMAIN_MAX {
        e.too_long(signer, names::SUBDOMAIN_MAX);
    }
    labels(e, signer, domain, names::dns_label);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        e.invalid_value(signer, &Value::from(domain), detail);
    }
    labels(e, signer, path, names::dns_subdomain);
    let longest = names::SUBDOMAIN_MAX + 1 + names::SUBDOMAIN_MAX + 1 + names::LABEL_MAX;
    if signer.str().len() > longest {
        e.too_long(signer, longest);
    }
}

/// Complains about the first label that is wrong.
fn labels(e: &mut Errors, at: &At<'_, '_>, text: &str, syntax: fn(&str) -> names::Complaints) {
    for label in text.split('.') {
        let complaints = syntax(label);
        for complaint in &complaints {
            let detail = format!("validating label {label:?}: {complaint}");
            e.invalid_value(at, &Value::from(text), detail);
        }
        if !complaints.is_empty() {
            return;
        }
    }
}
