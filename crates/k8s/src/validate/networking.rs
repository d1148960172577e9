//! NetworkPolicies and Ingresses.

use std::net::IpAddr;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::label_selector;
use super::parts::contains;
use super::service::balancer_points;
use crate::names;

pub(super) fn network_policy(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    label_selector(e, &spec.get("podSelector"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.get(direction).items() {
            rule.get("ports").items().for_each(|port| policy_port(e, &port));
            rule.get(peers).items().for_each(|peer| policy_peer(e, &peer));
        }
    }
    let types = spec.get("policyTypes");
    if types.len() > 2 {
        e.invalid(&types, "may not specify more than two policyTypes");
        return;
    }
    types.items().for_each(|kind| e.set_one_of(&kind, &["Ingress", "Egress"]));
}

fn policy_port(e: &mut Errors, port: &At<'_, '_>) {
    e.set_one_of(&port.get("protocol"), &["TCP", "UDP", "SCTP"]);
    let (number, end) = (port.get("port"), port.get("endPort"));
    match number.value {
        Value::Null => {
            if end.is_set() {
                e.invalid(&end, "may not be specified when `port` is not specified");
            }
        }
        Value::String(name) => {
            if end.is_set() {
                e.invalid(&end, "may not be specified when `port` is non-numeric");
            }
            e.complaints(&number, names::port_name(name));
        }
        _ => {
            e.port(&number);
            if end.is_set() {
                if end.int() < number.int() {
                    e.invalid_value(&end, number.value, "must be greater than or equal to `port`");
                }
                e.port(&end);
            }
        }
    }
}

fn policy_peer(e: &mut Errors, peer: &At<'_, '_>) {
    let (pods, namespaces, block) =
        (peer.get("podSelector"), peer.get("namespaceSelector"), peer.get("ipBlock"));
    label_selector(e, &pods);
    label_selector(e, &namespaces);
    if block.is_set() {
        ip_block(e, &block);
    }
    let selectors = pods.is_set() || namespaces.is_set();
    if !selectors && !block.is_set() {
        e.required(peer, "must specify a peer");
    } else if selectors && block.is_set() {
        e.forbidden(peer, "may not specify both ipBlock and another peer");
    }
}

pub(super) fn ingress_status(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let status = object.get("status");
    let balancer = status.get("loadBalancer");
    balancer_points(e, &balancer.get("ingress"), &old["status"]["loadBalancer"]["ingress"]);
}

fn ip_block(e: &mut Errors, block: &At<'_, '_>) {
    let cidr = block.get("cidr");
    if cidr.is_empty() {
        e.required(&cidr, "");
        return;
    }
    let Some(network) = e.cidr(&cidr) else { return };
    for except in block.get("except").items() {
        let Some((address, bits)) = e.cidr(&except) else { continue };
        if !contains(network, address) || network.1 >= bits {
            e.invalid(&except, "must be a strict subset of `cidr`");
        }
    }
}

pub(super) fn ingress(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let (rules, default) = (spec.get("rules"), spec.get("defaultBackend"));
    if rules.is_empty() && !default.is_set() {
        e.invalid_value(&spec, rules.value, "either `defaultBackend` or `rules` must be specified");
    }
    if default.is_set() {
        backend(e, &default);
    }
    for rule in rules.items() {
        let host = rule.get("host");
        if !host.is_empty() {
            if host.str().parse::<IpAddr>().is_ok() {
                e.invalid(&host, "must be a DNS name, not an IP address");
            }
            host_name(e, &host);
        }
        let http = rule.get("http");
        if http.is_set() {
            if http.get("paths").is_empty() {
                e.required(&http.get("paths"), "");
            }
            http.get("paths").items().for_each(|path| ingress_path(e, &path));
        }
    }
    for tls in spec.get("tls").items() {
        tls.get("hosts").items().for_each(|host| host_name(e, &host));
        let secret = tls.get("secretName");
        if !secret.is_empty() {
            e.complaints(&secret, names::dns_subdomain(secret.str()));
        }
    }
    let class = spec.get("ingressClassName");
    if class.is_set() {
        e.complaints(&class, names::dns_subdomain(class.str()));
    }
}

fn host_name(e: &mut Errors, host: &At<'_, '_>) {
    match host.str().contains('*') {
        true => e.complaints(host, names::wildcard_subdomain(host.str())),
        false => e.complaints(host, names::dns_subdomain(host.str())),
    }
}

fn ingress_path(e: &mut Errors, item: &At<'_, '_>) {
    let (kind, path) = (item.get("pathType"), item.get("path"));
    match kind.str() {
        "" if !kind.is_set() => {
            e.required(&kind, "pathType must be specified");
            return;
        }
        "Exact" | "Prefix" => {
            if !path.str().starts_with('/') {
                e.invalid(&path, "must be an absolute path");
            }
            for sequence in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|s| path.str().contains(**s)) {
                e.invalid(&path, format!("must not contain '{sequence}'"));
            }
            for suffix in ["/..", "/."].iter().filter(|s| path.str().ends_with(**s)) {
                e.invalid(&path, format!("cannot end with '{suffix}'"));
            }
        }
        "ImplementationSpecific" => {
            if !path.is_empty() && !path.str().starts_with('/') {
                e.invalid(&path, "must be an absolute path");
            }
        }
        _ => e.not_supported(&kind, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    backend(e, &item.get("backend"));
}

fn backend(e: &mut Errors, backend: &At<'_, '_>) {
    let blank = Value::from("");
    let (service, resource) = (backend.get("service"), backend.get("resource"));
    match (service.is_set(), resource.is_set()) {
        (true, true) => e.invalid_value(backend, &blank, "cannot set both resource and service backends"),
        (false, false) => e.invalid_value(backend, &blank, "resource or service backend is required"),
        (false, true) => {
            for field in ["apiGroup", "kind", "name"] {
                if resource.get(field).is_empty() {
                    e.required(&resource.get(field), "");
                }
            }
        }
        (true, false) => {
            e.name(&service.get("name"), names::dns_label);
            let port = service.get("port");
            let (name, number) = (port.get("name"), port.get("number"));
            match (name.is_empty(), number.int().unwrap_or_default() == 0) {
                (false, false) => e.invalid_value(backend, &blank, "cannot set both port name & port number"),
                (false, true) => e.complaints(&name, names::port_name(name.str())),
                (true, false) => e.port(&number),
                (true, true) => e.required(backend, "port name or number is required"),
            }
        }
    }
}

pub(super) fn ingress_class(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let controller = spec.get("controller");
    if controller.str().len() > 250 {
        e.too_long(&controller, 250);
    }
    let parts = controller.str().split_once('/');
    match parts {
        _ if controller.is_empty() => e.required(&controller, ""),
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            for complaint in names::dns_subdomain(domain) {
                e.invalid_value(&controller, &Value::from(domain), complaint);
            }
        }
        _ => e.invalid(&controller, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

pub(super) fn ingress_class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    let controller = spec.get("controller");
    if !same(controller.value, &old["spec"]["controller"]) {
        e.invalid(&controller, "field is immutable");
    }
    ingress_class(e, object);
}
