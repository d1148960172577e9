//! Whether a pod can be on this node at all. Pure. Most pods come through a scheduler that knows; those that name their node
//! themselves do not.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

/// Kernel settings that belong to a namespace of the pod and harm nobody else. As upstream.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Why a new pod is refused, as reason and message; `others` are the pods that are here and not over.
pub(crate) fn refusal<'a>(
    pod: &Pod,
    mut others: impl Iterator<Item = &'a Pod>,
) -> Option<(&'static str, String)> {
    let spec = pod.spec.as_ref()?;
    if pod.status.as_ref().is_some_and(|status| status.start_time.is_some()) {
        return None;
    }
    let asked = spec.security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    let host = |name: &str| {
        (name.starts_with("net.") && spec.host_network == Some(true))
            || (name.starts_with("kernel.") && spec.host_ipc == Some(true))
    };
    let plain = |name: &str| name.replace('/', ".");
    if let Some(bad) = asked.map(|s| plain(&s.name)).find(|n| !SAFE_SYSCTLS.contains(&n.as_str()) || host(n))
    {
        return Some((
            "SysctlForbidden",
            format!("Pod was rejected: forbidden sysctl: {bad:?} not allowlisted"),
        ));
    }
    let wanted = host_ports(spec);
    let taken = others.any(|other| other.spec.as_ref().is_some_and(|o| collide(&wanted, &host_ports(o))));
    taken.then(|| {
        let why = "node(s) didn't have free ports for the requested pod ports";
        ("NodePorts", format!("Pod was rejected: Predicate NodePorts failed: {why}"))
    })
}

/// Ports of the machine that a pod takes: protocol, address (empty for all), number.
fn host_ports(spec: &PodSpec) -> BTreeSet<(String, String, i32)> {
    let ports = spec.containers.iter().flat_map(|c| c.ports.iter().flatten());
    let taken = ports.filter_map(|port| {
        let address = port.host_ip.clone().filter(|ip| ip != "0.0.0.0").unwrap_or_default();
        Some((
            port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            address,
            port.host_port.filter(|p| *p > 0)?,
        ))
    });
    taken.collect()
}

fn collide(a: &BTreeSet<(String, String, i32)>, b: &BTreeSet<(String, String, i32)>) -> bool {
    let same_place = |x: &str, y: &str| x.is_empty() || y.is_empty() || x == y;
    a.iter().any(|(protocol, address, port)| {
        b.iter().any(|(p, at, n)| p == protocol && n == port && same_place(at, address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("pod")
    }

    fn with_port(port: serde_json::Value) -> Pod {
        pod(json!({"containers": [{"name": "c", "ports": [port]}]}))
    }

    #[test]
    fn a_port_of_the_machine_is_given_once() {
        let here = with_port(json!({"containerPort": 80, "hostPort": 8080}));
        let reason = |new: &Pod| refusal(new, [&here].into_iter()).map(|r| r.0);
        assert_eq!(reason(&here), Some("NodePorts"));
        assert_eq!(reason(&with_port(json!({"containerPort": 80, "hostPort": 8081}))), None);
        assert_eq!(
            reason(&with_port(json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}))),
            None
        );
        let one = with_port(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}));
        assert_eq!(reason(&one), Some("NodePorts"), "all addresses are taken");
        let other = with_port(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.2"}));
        assert_eq!(refusal(&one, [&other].into_iter()), None, "one address each");
        assert_eq!(reason(&with_port(json!({"containerPort": 8080}))), None);
    }

    #[test]
    fn a_kernel_setting_that_reaches_beyond_the_pod_is_refused() {
        let asks = |name: &str, more: serde_json::Value| {
            let mut spec =
                json!({"containers": [], "securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
            spec.as_object_mut().expect("object").extend(more.as_object().cloned().unwrap_or_default());
            refusal(&pod(spec), std::iter::empty()).map(|r| r.0)
        };
        assert_eq!(asks("kernel.shm_rmid_forced", json!({})), None);
        assert_eq!(asks("kernel.msgmax", json!({})), Some("SysctlForbidden"));
        assert_eq!(asks("net.ipv4.tcp_syncookies", json!({"hostNetwork": true})), Some("SysctlForbidden"));
    }

    #[test]
    fn a_pod_that_was_let_in_before_stays() {
        let mut again = with_port(json!({"containerPort": 80, "hostPort": 8080}));
        let here = again.clone();
        again.status = serde_json::from_value(json!({"startTime": "2026-01-01T00:00:00Z"})).expect("status");
        assert_eq!(refusal(&again, [&here].into_iter()), None);
    }
}
