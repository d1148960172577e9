//! What may be written through a pod's `/status`.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::at::{At, Errors, same};
use crate::names;

pub(super) fn status(e: &mut Errors, pod: &At<'_, '_>, old: &Value) {
    let status = pod.get("status");
    let nominated = status.get("nominatedNodeName");
    if !nominated.is_empty() && old.pointer("/status/nominatedNodeName") != Some(nominated.value) {
        e.complaints(&nominated, names::dns_subdomain(nominated.str()));
    }
    if !same(pod.get("spec").get("nodeName").value, old.pointer("/spec/nodeName").unwrap_or(&Value::Null)) {
        e.forbidden(&status.get("nodeName"), "may not be changed directly");
    }
    for condition in status.get("conditions").items() {
        e.complaints(&condition.get("type"), names::label_key(condition.get("type").str()));
    }
    addresses(e, &status, &old["status"]);
}

/// Each is an address, and no two are of one family. Where the one that is written alone is not the first, it is the only one.
fn addresses(e: &mut Errors, status: &At<'_, '_>, old: &Value) {
    let one = status.get("podIP");
    let alone = json!([{ "ip": one.value }]);
    let all = status.get("podIPs");
    let all = match one.is_empty() || all.index(0).get("ip").str() == one.str() {
        true => all,
        false => all.with(&alone),
    };
    let mut families = Vec::new();
    for item in all.items() {
        let ip = item.get("ip");
        let shown = Value::from(ip.str());
        if ip.value != &old["podIP"] {
            e.ip(&item.with(&shown));
        }
        families.push(ip.str().parse::<IpAddr>().ok().map(|ip| ip.is_ipv6()));
    }
    if families.len() < 2 || all.value == &old["podIPs"] {
        return;
    }
    if let Some(i) = families.iter().position(Option::is_none) {
        let shown = all.index(i).get("ip").str();
        let detail = format!("failed to check for dual stack with error:invalid IP[{i}]: {shown}");
        e.internal(&all, detail);
    }
    let both = families.contains(&Some(true)) && families.contains(&Some(false));
    if !both || families.len() > 2 || families.contains(&None) {
        e.invalid(&all, "may specify no more than one IP for each IP family");
    }
}
