//! What a hub needs before it can work: definitions, namespaces, rights, what joining sites read, the default placement.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};
use tombolo_api::names;

/// Installs everything; safe to repeat.
pub async fn install(
    client: &Client,
    ca: &str,
    url: &str,
    hub: &str,
    quic_port: Option<u16>,
) -> Result<(), Error> {
    for crd in tombolo_api::crds() {
        apply(client, json!(crd)).await?;
    }
    for name in [names::SYSTEM_NAMESPACE, "kube-public"] {
        apply(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
    }
    for object in rights() {
        apply(client, object).await?;
    }
    apply(client, cluster_info(ca, url, hub, quic_port)).await?;
    default_placement(client).await
}

/// Waits until the kinds just defined are served.
pub async fn served(client: &Client) -> Result<(), Error> {
    let api: Api<tombolo_api::Work> = Api::all(client.clone());
    let mut last = None;
    for _ in 0..100 {
        match api.list(&kube::api::ListParams::default().limit(1)).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    last.map_or(Ok(()), Err)
}

/// The right to ask for a certificate and to see the answer. Nobody lists the requests of others, and their names are drawn
/// at random, so that nobody guesses one either.
pub fn requests() -> Value {
    json!({"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "get"]})
}

fn rights() -> Vec<Value> {
    let role = |name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = |name: &str, role: &str, group: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}]})
    };
    let public = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "tombolo:cluster-info", "namespace": "kube-public"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info", names::REPLICAS], "verbs": ["get"]}]});
    let everyone = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tombolo:cluster-info", "namespace": "kube-public"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tombolo:cluster-info"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]});
    vec![
        role("tombolo:join", json!([requests()])),
        binding("tombolo:join", "tombolo:join", names::JOIN_GROUP),
        binding("tombolo:expired-site", "tombolo:join", names::EXPIRED_SITE_GROUP),
        // The tunnel refuses an old certificate by itself, and tells its site why.
        role(
            "tombolo:site",
            json!([{"nonResourceURLs": [names::TUNNEL_PATH, "/version"], "verbs": ["get"]}]),
        ),
        binding("tombolo:site", "tombolo:site", names::SITES_GROUP),
        // For people: what they may do with pods, wherever these run. For single sites, copy it with `resourceNames`.
        role(
            "tombolo:pods-at-sites",
            json!([{"apiGroups": [names::GROUP], "resources": ["sites/log"], "verbs": ["get"]},
            {"apiGroups": [names::GROUP], "verbs": ["create"],
                "resources": ["sites/exec", "sites/attach", "sites/portforward", "sites/proxy"]}]),
        ),
        role("tombolo:replica", json!([{"nonResourceURLs": [names::FORWARD_PATH], "verbs": ["get"]}])),
        binding("tombolo:replica", "tombolo:replica", names::REPLICAS_GROUP),
        public,
        everyone,
    ]
}

/// The CA and address, for sites that know only the CA's hash; and what else a site should know.
fn cluster_info(ca: &str, url: &str, hub: &str, quic_port: Option<u16>) -> Value {
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    certificate-authority-data: {}\n    server: {url}\n",
        STANDARD.encode(ca)
    );
    let about = json!({"hub": hub, "quicPort": quic_port});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": kubeconfig, "tombolo": about.to_string()}})
}

/// Made once; a hub whose default placement was deleted stays without.
async fn default_placement(client: &Client) -> Result<(), Error> {
    let config: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let done = config.get_opt(names::HUB_CONFIG).await?;
    if done.and_then(|c| c.data).is_some_and(|d| d.contains_key("defaultPlacement")) {
        return Ok(());
    }
    let placement = json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement",
        "metadata": {"name": names::DEFAULT_PLACEMENT, "namespace": names::SYSTEM_NAMESPACE}, "spec": {}});
    apply(client, placement).await?;
    let patch = Patch::Merge(json!({"data": {"defaultPlacement": "made"}}));
    config.patch(names::HUB_CONFIG, &PatchParams::default(), &patch).await.map(drop)
}

/// Server-side apply of one object under the hub's name.
pub async fn apply(client: &Client, object: Value) -> Result<DynamicObject, Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(Error::SerdeError)?;
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply(names::HUB_MANAGER).force();
    // Kinds that were defined a moment ago take a moment to be served.
    for attempt in 0.. {
        match api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await {
            Err(Error::Api(status)) if status.code == 404 && attempt < 100 => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
    unreachable!("the loop above ends by returning")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_all_sites_opens_the_tunnel_and_no_object() {
        let all = rights();
        let role = all.iter().find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == "tombolo:site");
        for rule in role.expect("the role of all sites")["rules"].as_array().expect("rules") {
            assert!(rule.get("resources").is_none(), "a revoked certificate still has {rule}");
        }
    }

    #[test]
    fn a_join_token_asks_and_lists_nothing() {
        let all = rights();
        let role = all.iter().find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == "tombolo:join");
        assert_eq!(role.expect("the role of tokens")["rules"], json!([requests()]));
        assert_eq!(requests()["verbs"], json!(["create", "get"]));
    }
}
