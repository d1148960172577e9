//! Services and what routes to them.

use jiff::Timestamp;
use serde_json::Value;

use super::{condition, pair};
use crate::tables::text::{int, items, join, or, show, text, with_more};

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
