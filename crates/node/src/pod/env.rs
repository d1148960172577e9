//! A container's environment. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector, Service,
};

use super::quantity::milli;
use crate::objects::{ObjectsError, Sources};

/// What of the node a pod may read through the downward API.
pub(crate) struct NodeFacts<'a> {
    pub node_name: &'a str,
    pub host_addresses: std::sync::Arc<[String]>,
    pub pod_addresses: &'a [String],
    /// Thousandths of a processor and bytes: the answer where a container has no limit.
    pub allocatable_cpu: i128,
    pub allocatable_memory: i128,
}

pub(crate) fn environment(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    services: &[Service],
    facts: &NodeFacts<'_>,
) -> Result<Vec<(String, String)>, ObjectsError> {
    let mut env: Vec<(String, String)> = Vec::new();
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    for (name, value) in service_variables(pod, services, links) {
        put(&mut env, name, value);
    }
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.clone().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            match sources.config_map(&reference.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        put(&mut env, format!("{prefix}{key}"), value.clone());
                    }
                }
                None if reference.optional == Some(true) => {}
                None => {
                    return Err(ObjectsError::Missing { kind: "configmap", name: reference.name.clone() });
                }
            }
        }
        if let Some(reference) = &source.secret_ref {
            match sources.secret(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        put(
                            &mut env,
                            format!("{prefix}{key}"),
                            String::from_utf8_lossy(&value.0).into_owned(),
                        );
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(ObjectsError::Missing { kind: "secret", name: reference.name.clone() }),
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(from)) => value_from(pod, container, from, sources, facts)?,
            (value, None) => Some(expand(value.as_deref().unwrap_or(""), &env)),
        };
        if let Some(value) = value {
            put(&mut env, variable.name.clone(), value);
        }
    }
    Ok(env)
}

fn put(env: &mut Vec<(String, String)>, name: String, value: String) {
    match env.iter_mut().find(|(n, _)| *n == name) {
        Some(entry) => entry.1 = value,
        None => env.push((name, value)),
    }
}

/// Replaces `$(NAME)`; `$$` is a dollar sign; an unknown name stays as it is written.
pub(crate) fn expand(text: &str, env: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix("$(").and_then(|inner| inner.split_once(')')) {
            match env.iter().find(|(n, _)| n == name) {
                Some((_, value)) => out.push_str(value),
                None => out.push_str(&rest[..rest.len() - after.len()]),
            }
            rest = after;
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

fn value_from(
    pod: &Pod,
    container: &Container,
    from: &EnvVarSource,
    sources: &Sources,
    facts: &NodeFacts<'_>,
) -> Result<Option<String>, ObjectsError> {
    if let Some(field) = &from.field_ref {
        return field_value(pod, field, facts).map(Some);
    }
    if let Some(field) = &from.resource_field_ref {
        return resource_value(pod, Some(container), field, facts).map(Some);
    }
    if let Some(key) = &from.config_map_key_ref {
        let optional = key.optional == Some(true);
        let map = sources.config_map(&key.name);
        if map.is_none() && !optional {
            return Err(ObjectsError::Missing { kind: "configmap", name: key.name.clone() });
        }
        let value = map.and_then(|m| m.data.as_ref()?.get(&key.key).cloned());
        return present(value, optional, "ConfigMap", pod, &key.name, &key.key);
    }
    if let Some(key) = &from.secret_key_ref {
        let optional = key.optional == Some(true);
        let secret = sources.secret(&key.name);
        if secret.is_none() && !optional {
            return Err(ObjectsError::Missing { kind: "secret", name: key.name.clone() });
        }
        let value = secret
            .and_then(|s| s.data.as_ref()?.get(&key.key))
            .map(|b| String::from_utf8_lossy(&b.0).into_owned());
        return present(value, optional, "Secret", pod, &key.name, &key.key);
    }
    Err(ObjectsError::Field("environment variable source is of a kind this node does not know".into()))
}

fn present(
    value: Option<String>,
    optional: bool,
    kind: &'static str,
    pod: &Pod,
    name: &str,
    key: &str,
) -> Result<Option<String>, ObjectsError> {
    match value {
        None if !optional => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            Err(ObjectsError::MissingKey { kind, name: format!("{namespace}/{name}"), key: key.to_owned() })
        }
        value => Ok(value),
    }
}

/// The value of a `fieldRef`.
pub(crate) fn field_value(
    pod: &Pod,
    field: &ObjectFieldSelector,
    facts: &NodeFacts<'_>,
) -> Result<String, ObjectsError> {
    let meta = &pod.metadata;
    let path = field.field_path.as_str();
    let lines = |map: &Option<BTreeMap<String, String>>| {
        let lines: Vec<String> = map.iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect();
        lines.join("\n")
    };
    let one = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|m| m.get(key).cloned()).unwrap_or_default()
    };
    let key_of = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    if let Some(key) = key_of("metadata.labels['") {
        return Ok(one(&meta.labels, key));
    }
    if let Some(key) = key_of("metadata.annotations['") {
        return Ok(one(&meta.annotations, key));
    }
    Ok(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(&meta.labels),
        "metadata.annotations" => lines(&meta.annotations),
        "spec.nodeName" => facts.node_name.to_owned(),
        "spec.serviceAccountName" => {
            pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default()
        }
        "status.hostIP" => facts.host_addresses.first().cloned().unwrap_or_default(),
        "status.hostIPs" => facts.host_addresses.join(","),
        "status.podIP" => facts.pod_addresses.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_addresses.join(","),
        _ => return Err(ObjectsError::Field(format!("unsupported fieldPath: {path}"))),
    })
}

/// The value of a `resourceFieldRef`: rounded up to the divisor; without a limit, what the node has.
pub(crate) fn resource_value(
    pod: &Pod,
    container: Option<&Container>,
    field: &ResourceFieldSelector,
    facts: &NodeFacts<'_>,
) -> Result<String, ObjectsError> {
    let all = || pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let named = field.container_name.as_deref().and_then(|name| all().find(|c| c.name == name));
    let container = named
        .or(container)
        .ok_or_else(|| ObjectsError::Field("resourceFieldRef names no container".into()))?;
    let unknown = || ObjectsError::Field(format!("unsupported resource: {}", field.resource));
    let (list, name) = field.resource.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.clone().unwrap_or_default();
    let amount = match list {
        "limits" => resources.limits,
        "requests" => resources.requests,
        _ => return Err(unknown()),
    };
    let given = amount.as_ref().and_then(|a| a.get(name)).and_then(milli);
    let fallback = match (list, name) {
        ("limits", "cpu") => facts.allocatable_cpu,
        ("limits", "memory") => facts.allocatable_memory * 1000,
        _ => 0,
    };
    let value = given.unwrap_or(fallback);
    let divisor = field.divisor.as_ref().and_then(milli).filter(|d| *d > 0).unwrap_or(1000);
    Ok((value / divisor + i128::from(value % divisor > 0)).to_string())
}

/// `NAME_SERVICE_HOST` and friends for the services of the pod's namespace (`links`) and always for the API.
fn service_variables(pod: &Pod, services: &[Service], links: bool) -> Vec<(String, String)> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut list = Vec::new();
    for service in services {
        let meta = &service.metadata;
        let (Some(name), Some(spec)) = (&meta.name, &service.spec) else { continue };
        let is_api = meta.namespace.as_deref() == Some("default") && name == "kubernetes";
        let same = meta.namespace.as_deref() == Some(namespace);
        if !(is_api || (links && same)) {
            continue;
        }
        let Some(address) = spec.cluster_ip.as_ref().filter(|ip| !ip.is_empty() && *ip != "None") else {
            continue;
        };
        let Some(first) = spec.ports.iter().flatten().next() else { continue };
        let base = name.to_uppercase().replace('-', "_");
        list.push((format!("{base}_SERVICE_HOST"), address.clone()));
        list.push((format!("{base}_SERVICE_PORT"), first.port.to_string()));
        for port in spec.ports.iter().flatten() {
            if let Some(port_name) = port.name.as_ref().filter(|n| !n.is_empty()) {
                let port_name = port_name.to_uppercase().replace('-', "_");
                list.push((format!("{base}_SERVICE_PORT_{port_name}"), port.port.to_string()));
            }
        }
        let url = |port: i32, protocol: &str| format!("{}://{address}:{port}", protocol.to_lowercase());
        let protocol = |p: &Option<String>| p.clone().unwrap_or_else(|| "TCP".into());
        list.push((format!("{base}_PORT"), url(first.port, &protocol(&first.protocol))));
        for port in spec.ports.iter().flatten() {
            let protocol = protocol(&port.protocol);
            let stem = format!("{base}_PORT_{}_{protocol}", port.port);
            list.push((stem.clone(), url(port.port, &protocol)));
            list.push((format!("{stem}_PROTO"), protocol.to_lowercase()));
            list.push((format!("{stem}_PORT"), port.port.to_string()));
            list.push((format!("{stem}_ADDR"), address.clone()));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_earlier_variables_are_expanded_and_dollars_escaped() {
        let env = vec![("A".to_owned(), "1".to_owned()), ("B".to_owned(), "two".to_owned())];
        let check = |text: &str, expected: &str| assert_eq!(expand(text, &env), expected, "{text}");
        check("$(A)-$(B)", "1-two");
        check("$(C)", "$(C)");
        check("$$(A)", "$(A)");
        check("$A $", "$A $");
        check("$(A", "$(A");
        check("x$$$(A)", "x$1");
    }
}
