//! Slices for Services without a selector, whose Endpoints somebody writes by hand: those who read slices see them too.

use super::slices::SERVICE_NAME;
use crate::{
    meta::{self, controller_reference},
    shell::{Action, Json, Object},
};
use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, EndpointSubset, Endpoints},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const US: &str = "endpointslicemirroring-controller.k8s.io";
/// Endpoints that say so are not mirrored; leader election used to write such objects often.
const SKIP: [&str; 2] =
    ["endpointslice.kubernetes.io/skip-mirror", "control-plane.alpha.kubernetes.io/leader"];
const HEADLESS: &str = "service.kubernetes.io/headless";

pub fn is_mirror(slice: &EndpointSlice, service: &str) -> bool {
    meta::label(&slice.metadata, SERVICE_NAME) == Some(service)
        && meta::label(&slice.metadata, MANAGED_BY) == Some(US)
}

fn is_wanted(endpoints: &Endpoints) -> bool {
    let says_no = meta::label(&endpoints.metadata, SKIP[0]) == Some("true")
        || meta::annotation(&endpoints.metadata, SKIP[1]).is_some();
    endpoints.metadata.deletion_timestamp.is_none() && !says_no
}

/// Makes the mirrors match; `endpoints` is `None` where there is nothing to mirror.
pub fn plan(endpoints: Option<&Endpoints>, mirrors: &[Arc<EndpointSlice>]) -> Vec<Action> {
    let mut actions = Vec::new();
    let wanted = endpoints.filter(|e| is_wanted(e)).map(slices).unwrap_or_default();
    for slice in &wanted {
        let found = mirrors.iter().find(|m| m.metadata.name == slice.metadata.name);
        let Some(found) = found else {
            actions.push(meta::create(slice));
            continue;
        };
        let same = found.address_type == slice.address_type
            && meta::semantically_equal(&found.endpoints, &slice.endpoints)
            && meta::semantically_equal(&found.ports, &slice.ports);
        if !same {
            let mut replaced = slice.clone();
            replaced.metadata = ObjectMeta {
                resource_version: found.metadata.resource_version.clone(),
                uid: found.metadata.uid.clone(),
                ..slice.metadata.clone()
            };
            actions.push(Action::Replace {
                resource: EndpointSlice::RESOURCE,
                namespace: meta::namespace(&found.metadata).to_owned(),
                name: meta::name(&found.metadata).to_owned(),
                subresource: "",
                body: Json::of(&replaced),
            });
        }
    }
    let gone = mirrors.iter().filter(|m| !wanted.iter().any(|w| w.metadata.name == m.metadata.name));
    actions.extend(gone.map(|mirror| meta::delete::<EndpointSlice>(&mirror.metadata)));
    actions
}

/// One slice for each subset and address type. An address type cannot change, so it is part of the name.
fn slices(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let mut labels: BTreeMap<String, String> = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.retain(|key, _| key != HEADLESS);
    labels.insert(SERVICE_NAME.into(), meta::name(&endpoints.metadata).to_owned());
    labels.insert(MANAGED_BY.into(), US.into());
    let mut made = Vec::new();
    for (number, subset) in endpoints.subsets.iter().flatten().enumerate() {
        for kind in ["IPv4", "IPv6"] {
            let all = of_kind(subset, kind);
            if all.is_empty() {
                continue;
            }
            let name = format!("{}-{}-{number}", meta::name(&endpoints.metadata), kind.to_lowercase());
            made.push(EndpointSlice {
                metadata: ObjectMeta {
                    namespace: endpoints.metadata.namespace.clone(),
                    name: Some(name),
                    labels: Some(labels.clone()),
                    owner_references: Some(vec![controller_reference::<Endpoints>(&endpoints.metadata)]),
                    ..ObjectMeta::default()
                },
                address_type: kind.into(),
                endpoints: Some(all),
                ports: Some(subset.ports.iter().flatten().map(port).collect()),
            });
        }
    }
    made
}

fn port(port: &k8s_openapi::api::core::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: port.app_protocol.clone(),
    }
}

fn of_kind(subset: &EndpointSubset, kind: &str) -> Vec<Endpoint> {
    let fits = |address: &&EndpointAddress| match address.ip.parse::<IpAddr>() {
        Ok(ip) => ip.is_ipv4() == (kind == "IPv4"),
        Err(_) => false,
    };
    let one = |address: &EndpointAddress, ready: bool| Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    };
    let ready = subset.addresses.iter().flatten().filter(fits).map(|a| one(a, true));
    let others = subset.not_ready_addresses.iter().flatten().filter(fits).map(|a| one(a, false));
    ready.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoints(ips: &[&str]) -> Endpoints {
        let addresses: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let subsets = json!([{"addresses": addresses, "ports": [{"port": 80}]}]);
        let metadata = json!({"name": "db", "namespace": "ns", "uid": "u"});
        serde_json::from_value(json!({"metadata": metadata, "subsets": subsets})).unwrap()
    }

    fn created(actions: &[Action]) -> Vec<Arc<EndpointSlice>> {
        let one = |action: &Action| match action {
            Action::Create { body, .. } | Action::Replace { body, .. } => {
                Some(Arc::new(body.read().unwrap()))
            }
            _ => None,
        };
        actions.iter().filter_map(one).collect()
    }

    #[test]
    fn hand_written_endpoints_are_mirrored_changed_and_removed() {
        let made = created(&plan(Some(&endpoints(&["10.1.2.3", "fd00::1"])), &[]));
        assert_eq!(made.len(), 2, "one for each address type");
        assert!(made.iter().all(|slice| is_mirror(slice, "db")));
        assert!(plan(Some(&endpoints(&["10.1.2.3", "fd00::1"])), &made).is_empty(), "nothing to do twice");
        let changed = plan(Some(&endpoints(&["10.1.2.4"])), &made);
        assert_eq!(created(&changed)[0].endpoints.as_ref().unwrap()[0].addresses, ["10.1.2.4"]);
        assert!(matches!(changed[1], Action::Delete { .. }), "no IPv6 address is left");
        assert_eq!(plan(None, &made).len(), 2, "all mirrors go");
    }

    #[test]
    fn endpoints_that_say_no_are_not_mirrored() {
        let mut quiet = endpoints(&["10.1.2.3"]);
        quiet.metadata.labels = Some([(SKIP[0].to_owned(), "true".to_owned())].into());
        assert!(plan(Some(&quiet), &[]).is_empty());
    }
}
